"""One worker process, as the manager holds it."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from shmenv import _memory
from shmenv.errors import ResourceError
from shmenv.worker import Failed

RENEWED, RECYCLED = "renewed after a failed reset", "recycled"  # why a worker is ended on purpose
EXIT_GRACE = 1.0  # seconds for the exit code of a dead worker to arrive (a fork server passes it on)


@dataclass
class Handle:
    """A worker process from its start until it is dismissed; a successor has a handle of its own."""

    worker_id: int
    ids: range
    process: BaseProcess
    conn: Connection
    pid: int | None = None  # None, and no pidfd, until the fork server has told which process it is
    pidfd: int = -1
    open: bool = True  # whether the pipe may still bring something
    building: int | None = None  # the env whose constructor runs, while the worker starts
    generation: int = 0
    stacks_from: int = 0  # where in the log its own lines can begin
    exitcode: int | None = None
    died: bool = False
    leave: str = ""  # RENEWED or RECYCLED: what it was told to end for
    late: str = ""  # what it was killed for taking too long with
    damage: str = ""  # what it was killed for having overwritten
    failure: Failed | None = None  # why a successor could not build its envs

    def take_hold(self) -> bool:
        """Open the process that the fork server has told. Returns False if it has ended.

        Raises:
            ResourceError: no more descriptors. The process is killed.
        """
        process = self.process
        exitcode = process.exitcode
        self.pid = process.pid
        if exitcode is not None or self.pid is None:
            return False
        try:
            pidfd = _memory.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended; the fork server tells how at any moment
            return False
        except OSError as error:
            process.kill()
            raise ResourceError(error.errno, f"worker {self.worker_id} cannot be watched: {error.strerror}") from error
        if process.exitcode is not None:  # the number may be another process's by now
            os.close(pidfd)
            return False
        self.pidfd = pidfd
        return True

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once it has ended; where there was no hold of it, multiprocessing's."""
        return self.pidfd if self.pidfd >= 0 else self.process.sentinel

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more, or there is no hold of it yet."""
        return self.died or self.pidfd < 0 or bool(wait([self.pidfd], 0))

    def kill(self, number: int) -> None:
        """Send a signal to it and all that its envs have started."""
        if self.pid is not None:
            _kill_group(self.pid, number)
        with contextlib.suppress(OSError):  # not a group leader yet
            signal.pidfd_send_signal(self.pidfd, number)

    def note_exit(self) -> None:
        """It has ended: learn how.

        Blocks: EXIT_GRACE at most.
        """
        self.died = True
        if self.pid is not None:
            _kill_group(self.pid, signal.SIGKILL)  # what the env has started does not outlive its worker
        self.exitcode = self.process.exitcode
        if self.exitcode is None:  # a fork server passes it on
            wait([self.process.sentinel], EXIT_GRACE)
            self.exitcode = self.process.exitcode

    def dismiss(self) -> None:
        """Close all that leads to it."""
        self.conn.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        process: Any = self.process
        try:
            process.close()
        except ValueError:  # stuck in the kernel, or not told of yet: nobody can end it, so nobody shall wait for it
            self.disown()
            process._popen.close()

    def disown(self) -> None:
        """Have multiprocessing not wait for it."""
        multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]


def _kill_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
