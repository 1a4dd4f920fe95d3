"""Steps reinforcement-learning environments in worker processes, through shared memory, fast and restartable."""

from shmenv.batch import Batch
from shmenv.buffer import SeqlockBuffer, ShmBuffer, ShmBufferContainer
from shmenv.errors import (
    ClosedError,
    EnvError,
    RecvTimeoutError,
    ResourceError,
    ShmenvError,
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
    "UsageError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerTimeoutError",
    "create_env_manager",
    "get_env_manager_cls",
    "retry_wrapper",
    "timeout_wrapper",
]
