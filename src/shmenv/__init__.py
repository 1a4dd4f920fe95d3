"""Steps reinforcement-learning environments in worker processes, through shared memory, fast and restartable."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shmenv.batch import Batch
from shmenv.buffer import SeqlockBuffer, ShmBuffer, ShmBufferContainer
from shmenv.errors import (
    ClosedError,
    EnvError,
    RecvTimeoutError,
    ResourceError,
    ShmenvError,
    UnequalEnvsError,
    UsageError,
    WorkerDiedError,
    WorkerError,
    WorkerTimeoutError,
)
from shmenv.info import Infos
from shmenv.manager import AsyncSubprocessEnvManager, SyncSubprocessEnvManager
from shmenv.manager_base import EnvState
from shmenv.pool import Pool
from shmenv.primitives import Ring, Semaphore
from shmenv.registry import ENV_MANAGER_REGISTRY, create_env_manager, get_env_manager_cls
from shmenv.starting import preload
from shmenv.timestep import BaseEnvTimestep
from shmenv.wrappers import CloudPickleWrapper, retry_wrapper, timeout_wrapper

__version__ = "0.1.0"

__all__ = [
    "ENV_MANAGER_REGISTRY",
    "AsyncSubprocessEnvManager",
    "BaseEnvTimestep",
    "Batch",
    "ClosedError",
    "CloudPickleWrapper",
    "EnvError",
    "EnvState",
    "Infos",
    "Pool",
    "RecvTimeoutError",
    "ResourceError",
    "Ring",
    "Semaphore",
    "SeqlockBuffer",
    "ShmBuffer",
    "ShmBufferContainer",
    "ShmenvError",
    "SyncSubprocessEnvManager",
    "UnequalEnvsError",
    "UsageError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerTimeoutError",
    "create_env_manager",
    "get_env_manager_cls",
    "make_vec",
    "preload",
    "retry_wrapper",
    "timeout_wrapper",
]


def make_vec(id: Any, num_envs: int = 1, **kwargs: Any) -> Any:
    """Make a `shmenv.adapters.gymnasium.ShmVectorEnv` of a registered env, like `gymnasium.make_vec`.

    Args:
        id: an env's name or spec.
        num_envs: how many.
        **kwargs: see `shmenv.adapters.registered.make_vec`: wrappers, vector_kwargs, and what the env takes.

    Raises:
        ImportError: Gymnasium is missing or too old. The text says what to install.
    """
    return importlib.import_module("shmenv.adapters.registered").make_vec(id, num_envs, **kwargs)


if not TYPE_CHECKING:  # for whom any attribute would be one

    def __getattr__(name: str) -> ModuleType:
        """`shmenv.adapters`, imported only when it is asked for."""
        if name == "adapters":
            return importlib.import_module("shmenv.adapters")
        raise AttributeError(f"module 'shmenv' has no attribute {name!r}")
