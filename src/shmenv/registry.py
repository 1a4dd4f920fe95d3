"""The managers by name: what a config's `type` stands for."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shmenv.errors import UsageError
from shmenv.manager import AsyncSubprocessEnvManager, SyncSubprocessEnvManager
from shmenv.manager_config import nearest


class Registry(dict[str, Any]):
    """Classes by name."""

    def register(self, name: str, cls: Any = None) -> Any:
        """Add a class, or decorate one: `@ENV_MANAGER_REGISTRY.register("mine")`.

        Raises:
            UsageError: the name is taken.
        """
        if cls is None:
            return lambda decorated: self.register(name, decorated)
        if name in self and self[name] is not cls:
            raise UsageError(f"the name {name!r} is taken by {self[name].__qualname__}")
        self[name] = cls
        return cls

    def find(self, name: Any) -> Any:
        """The class of this name.

        Raises:
            UsageError: there is none. The text names the nearest.
        """
        if name not in self:
            raise UsageError(f"there is no env manager of type {name!r}{nearest(name, self)}")
        return self[name]

    def build(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """An object of the class of this name. What its constructor raises comes as it is."""
        return self.find(name)(*args, **kwargs)


ENV_MANAGER_REGISTRY = Registry(subprocess=SyncSubprocessEnvManager, async_subprocess=AsyncSubprocessEnvManager)


def create_env_manager(manager_cfg: Mapping[str, Any], env_fn: Sequence[Callable[[], Any]]) -> Any:
    """Make the manager that a config describes.

    Args:
        manager_cfg: the manager's keys, `type` ("subprocess" or "async_subprocess"), and perhaps `import_names`,
            modules to import first because they register classes of their own. Left as it is.
        env_fn: one function an env.

    Raises:
        UsageError: the type is unknown, or the manager refuses its config.
    """
    cls = get_env_manager_cls(manager_cfg)
    cfg = copy.deepcopy(dict(manager_cfg))
    for key in ("type", "import_names"):
        cfg.pop(key, None)
    return cls(env_fn=env_fn, cfg=cfg)


def get_env_manager_cls(cfg: Mapping[str, Any]) -> Any:
    """The class that a config's `type` stands for, its `import_names` imported before."""
    if not isinstance(cfg, Mapping) or "type" not in cfg:
        raise UsageError(f"the config of an env manager needs a type: {' or '.join(map(repr, ENV_MANAGER_REGISTRY))}")
    for name in cfg.get("import_names", ()):
        importlib.import_module(name)
    return ENV_MANAGER_REGISTRY.find(cfg["type"])
