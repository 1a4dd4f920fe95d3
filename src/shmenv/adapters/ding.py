"""DI-engine's env managers on shmenv's: importing this registers them with DI-engine, by name."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any, ClassVar

import shmenv
from shmenv.adapters import require

require("ding", "0.5.3", "ding")
# Below the check, which says what to install.
import gym.utils.seeding  # noqa: E402
import treetensor.numpy as tnp  # noqa: E402
from ding.envs.env_manager import BaseEnvManager  # noqa: E402
from ding.utils import ENV_MANAGER_REGISTRY, make_key_as_identifier, remove_illegal_item, render  # noqa: E402
from easydict import EasyDict  # noqa: E402

shmenv.preload(__name__)  # with torch, which takes seconds

# Gym 0.25, which DI-engine needs, pickles the generators of spaces in a way that numpy >= 1.24 cannot read.
copyreg.pickle(gym.utils.seeding.RandomNumberGenerator, lambda made: (type(made), (made.bit_generator,)))

PICTURE = "shmenv_picture"  # what an env's picture can be asked for by, in its worker

# What DI-engine's managers raise where shmenv's raise the class on the left.
ALSO: dict[type[shmenv.ShmenvError], tuple[type[Exception], ...]] = {
    shmenv.UsageError: (AssertionError, RuntimeError, TypeError),
    shmenv.EnvError: (RuntimeError,),
    shmenv.WorkerDiedError: (RuntimeError, EOFError),
    shmenv.WorkerTimeoutError: (RuntimeError,),
}


class ShmAsyncSubprocessEnvManager(shmenv.AsyncSubprocessEnvManager, BaseEnvManager):  # type: ignore[misc]
    """`AsyncSubprocessEnvManager` of shmenv, as DI-engine's code and configs expect it.

    Two things are unlike the base class: an error closes the manager unless `on_error` says otherwise, and errors are
    also of the classes that DI-engine raises in their place: AssertionError for wrong calls, RuntimeError for what
    failed, and the env's own class where it raised.

    The config's keys can be read and set as attributes with an underscore before them, too (`_max_retry`,
    `_step_timeout`, ...); see `change` for when that counts.

    Args:
        env_fn: one function an env, run in the workers only.
        cfg: some keys of `default_config()`, or all.
    """

    config: ClassVar[dict[str, Any]] = {**shmenv.AsyncSubprocessEnvManager.config, "on_error": "close"}

    def __init__(self, env_fn: Iterable[Callable[[], Any]], cfg: Mapping[str, Any] | None = None) -> None:
        with _translating():
            super().__init__([partial(_with_picture, each) if callable(each) else each for each in env_fn], cfg)

    @classmethod
    def default_config(cls) -> EasyDict:
        """All keys with their defaults. DI-engine merges a user's config into it."""
        return EasyDict(super().default_config())

    def launch(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Start the workers, and reset all envs: with reset_param, else without arguments, whatever was kept before."""
        if reset_param is None:
            reset_param = dict.fromkeys(range(self.env_num))
        with _translating():
            super().launch(reset_param)

    @property
    def _env_ref(self) -> Any:
        return self.env_ref

    @property
    def ready_imgs(self) -> dict[int, Any]:
        """A picture of each ready env, by ascending id, as DI-engine renders it. Does not wait for envs to be ready."""
        return {i: self._ask(PICTURE, env_id=i)[0] for i in self.ready_env}

    def __getattr__(self, name: str) -> Any:
        with _translating():
            return super().__getattr__(name)


class ShmSubprocessEnvManager(ShmAsyncSubprocessEnvManager, shmenv.SyncSubprocessEnvManager):
    """`SyncSubprocessEnvManager` of shmenv, as DI-engine's code and configs expect it."""

    config: ClassVar[dict[str, Any]] = {**shmenv.SyncSubprocessEnvManager.config, "on_error": "close"}


class ShmSubprocessEnvManagerV2(ShmSubprocessEnvManager):
    """The same for DI-engine's task pipeline: observations and timesteps are treetensor's arrays."""

    @property
    def ready_obs(self) -> Any:
        """The newest observation of each env that takes an action now, stacked by ascending id."""
        return tnp.stack([tnp.array(obs) for obs in super().ready_obs.values()])

    def step(self, actions: Any) -> list[Any]:  # type: ignore[override]
        """Step the ready envs.

        Args:
            actions: one each, in the order of `ready_obs_id`, as a list or a treetensor array.

        Returns:
            One array an env, with obs, reward, done, info and env_id. Of info, what is no text, under keys that are
            identifiers.
        """
        timesteps = super().step({i: actions[row] for row, i in enumerate(self.ready_obs_id)})
        return [
            tnp.array({
                "obs": timestep.obs,
                "reward": timestep.reward,
                "done": timestep.done,
                "info": remove_illegal_item(make_key_as_identifier(timestep.info)),
                "env_id": env_id,
            })
            for env_id, timestep in timesteps.items()
        ]  # fmt: skip


def _with_picture(env_fn: Callable[[], Any]) -> Any:
    """Build an env. Called by: its worker."""
    env = env_fn()
    setattr(env, PICTURE, partial(render, env, "rgb_array"))
    return env


@contextmanager
def _translating() -> Iterator[None]:
    """Errors raised inside leave it as DI-engine's, too."""
    try:
        yield
    except shmenv.ShmenvError as error:
        raise _translated(error) from error.__cause__


def _translated(error: shmenv.ShmenvError) -> shmenv.ShmenvError:
    """The same error, also of the classes that DI-engine raises."""
    also = next((classes for cls, classes in ALSO.items() if isinstance(error, cls)), ())
    if not also or isinstance(error, also[0]):  # DI-engine has no such error; or translated already
        return error
    cause = error.__cause__
    cls = _mixed(type(error), also, type(cause) if isinstance(cause, Exception) else None)  # type: ignore[arg-type]
    mixed = cls.__new__(cls, *error.args)
    mixed.args = error.args  # an OSError's are empty unless it is initialised
    vars(mixed).update(vars(error))
    return mixed.with_traceback(error.__traceback__)


@cache
def _mixed(
    cls: type[shmenv.ShmenvError], also: tuple[type[Exception], ...], cause: type[Exception] | None
) -> type[shmenv.ShmenvError]:
    if cause is not None:
        try:
            mixed = _subclass(cls, (*(each for each in also if not issubclass(cause, each)), cause))
            mixed.__new__(mixed, "some text")
            return mixed
        except TypeError:  # a class of the env's that cannot be combined, or not be made of a text
            pass
    return _subclass(cls, also)


def _subclass(cls: type[shmenv.ShmenvError], also: tuple[type[Exception], ...]) -> type[shmenv.ShmenvError]:
    others = tuple(each for each in also if not issubclass(cls, each))
    return type(cls.__name__, (cls, *others), {"__module__": __name__, "__str__": Exception.__str__})


def _in_words_of_ding(name: str) -> Any:
    """A method or property of shmenv's managers that raises what DI-engine's would."""
    inherited = getattr(shmenv.AsyncSubprocessEnvManager, name)

    def read(self: Any) -> Any:
        with _translating():
            return getattr(super(ShmAsyncSubprocessEnvManager, self), name)

    if isinstance(inherited, property):
        return property(read, doc=inherited.__doc__)

    @wraps(inherited)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _translating():
            return getattr(super(ShmAsyncSubprocessEnvManager, self), name)(*args, **kwargs)

    return call


def _config_key(key: str) -> property:
    return property(lambda self: self.cfg[key], lambda self, value: self.change(**{key: value}))


for _name in (
    *("reset", "step", "ready_obs", "seed", "observation_space", "action_space", "reward_space"),
    *("random_action", "reward_shaping", "enable_save_replay", "enable_save_figure", "env_state_done", "change"),
):
    setattr(ShmAsyncSubprocessEnvManager, _name, _in_words_of_ding(_name))
for _name in ShmAsyncSubprocessEnvManager.config:
    setattr(ShmAsyncSubprocessEnvManager, f"_{_name}", _config_key(_name))

for _name, _cls in (
    ("shmenv_subprocess", ShmSubprocessEnvManager),
    ("shmenv_async_subprocess", ShmAsyncSubprocessEnvManager),
    ("shmenv_subprocess_v2", ShmSubprocessEnvManagerV2),
):
    ENV_MANAGER_REGISTRY.register(_name, _cls)
