"""Every exception of shmenv, sorted by whose fault it is."""

from __future__ import annotations

from collections.abc import Sequence


class ShmenvError(Exception):
    """Base of all errors that shmenv raises on purpose."""


class UsageError(ShmenvError, ValueError):
    """The caller's fault: unknown or repeated id, wrong shape, wrong order of calls. Nothing was sent or changed."""


class UnequalEnvsError(UsageError):
    """The caller's fault: the envs of one pool differ in shape or dtype of their spaces.

    Attributes:
        what: in what they differ: "observations", "actions" or "rewards".
    """

    def __init__(self, message: str, *, what: str) -> None:
        super().__init__(message)
        self.what = what


class ClosedError(UsageError):
    """The caller's fault: the object was closed before, or by another thread during this call."""


class RecvTimeoutError(ShmenvError, TimeoutError):
    """Nobody's fault: time ran out. Every pending env still is; call again."""


class ResourceError(ShmenvError, OSError):
    """The system's fault: too little memory, too few processes or descriptors. Says how much, and what helps."""


class DamageError(ShmenvError):
    """Found in what an env's worker has written: it cannot be read. A pool tells of it as that env's `EnvError`.

    Attributes:
        env_id: the env.
    """

    def __init__(self, message: str, env_id: int) -> None:
        super().__init__(message)
        self.env_id = env_id


class EnvError(ShmenvError):
    """The env author's fault: an env raised, or returned what does not fit. Its worker lives; reset that env.

    The original exception is `__cause__` where it could be pickled; the worker's traceback is in the text either way.

    Attributes:
        env_id: the env.
        worker_id: the worker that runs it.
        command: what was asked of the env: "construct", "reset", "step", "call" or "close".
        type_name: qualified name of the original exception's class.
        traceback_text: the traceback as the worker formatted it.
    """

    def __init__(
        self, message: str, *, env_id: int, worker_id: int, command: str, type_name: str = "", traceback_text: str = ""
    ) -> None:
        super().__init__(message)
        self.env_id = env_id
        self.worker_id = worker_id
        self.command = command
        self.type_name = type_name
        self.traceback_text = traceback_text


class WorkerError(ShmenvError):
    """The system's fault: a worker process is gone or hangs, its envs with it.

    Attributes:
        worker_id: the worker.
        env_ids: all envs it ran, ascending.
        pid: its process id.
        exitcode: its exit code; minus the signal's number if a signal ended it; None if not known.
    """

    def __init__(
        self, message: str, *, worker_id: int, env_ids: Sequence[int], pid: int | None, exitcode: int | None
    ) -> None:
        super().__init__(message)
        self.worker_id = worker_id
        self.env_ids = tuple(env_ids)
        self.pid = pid
        self.exitcode = exitcode


class WorkerDiedError(WorkerError):
    """A worker process ended: killed, crashed, or left by `os._exit`."""


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker did not get done in time with what it was asked, and was killed for it."""
