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
from shmenv.pool import Pool
from shmenv.primitives import Ring, Semaphore

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ClosedError",
    "EnvError",
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
    "UsageError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerTimeoutError",
]
