"""What is told of a worker that ended, or an env that failed: the exceptions with their texts."""

from __future__ import annotations

import contextlib
import signal
import time

from shmenv import codec
from shmenv.errors import EnvError, UsageError, WorkerDiedError, WorkerError, WorkerTimeoutError
from shmenv.handle import Handle
from shmenv.segment import StackLog
from shmenv.worker import STACK_SIGNAL, Failed, SameEnvError

STACK_GRACE = 0.2  # seconds for a hanging worker to print its stack
PRINTS = {-signal.SIGSEGV, -signal.SIGFPE, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL}  # faulthandler, at these


class Coroner:
    """Makes the errors that tell of one pool's workers, with the stacks that they have printed."""

    def __init__(self, stacks: StackLog) -> None:
        self._stacks = stacks
        self._told = 0  # up to where errors have told what stands in the log

    def died_error(self, handle: Handle, doing: str, fate: str) -> WorkerError:
        """The error that tells of a dead worker. `doing` says what it was at, `fate` what becomes of its envs."""
        printed = ""
        if handle.late or handle.exitcode in PRINTS:
            printed = self._stacks.text(max(handle.stacks_from, self._told))
        self._told = self._stacks.size()
        self._stacks.forget(self._told)
        how = f"{exit_text(handle.exitcode)} {doing}"
        if handle.late:
            how = f"was killed {doing}: {handle.late}"
        elif handle.damage:
            how = f"was killed: {handle.damage}"
        elif handle.leave:
            how = f"was ended to be {handle.leave}"
        if handle.failure is not None:
            remote = codec.load_error(handle.failure.record)
            how += f"; it could not build env {handle.failure.env_id}: {remote.type_name}: {remote.message}"
            printed = remote.traceback_text
        return (WorkerTimeoutError if handle.late else WorkerDiedError)(
            f"worker {handle.worker_id} (pid {handle.pid}), which runs {_span(handle.ids)}, {how}. {fate}"
            + (f"\n\nWhat it printed at its end:\n{printed}" if printed else ""),
            worker_id=handle.worker_id,
            env_ids=handle.ids,
            pid=handle.pid,
            exitcode=handle.exitcode,
        )

    def died_at_start(self, handle: Handle) -> WorkerError:
        """A worker ended before the pool was open."""
        fate = "No pool was made, and the other workers were ended."
        if handle.building is None and handle.exitcode == 1:
            fate += (
                " It did not get as far as its envs: a worker that is not forked imports the main script, which must "
                "be a file and must not raise then. What it printed stands on stderr."
            )
        return self.died_error(handle, _stage(handle), fate)

    def start_timed_out(self, waiting: list[Handle], limit: float | None) -> WorkerTimeoutError:
        """Workers were not ready within `limit` seconds; the stack of the first is shown.

        Blocks: STACK_GRACE at most.
        """
        handle = waiting[0]
        return WorkerTimeoutError(
            f"worker {handle.worker_id} (pid {handle.pid}) was not ready within start_timeout={limit} s: "
            f"{_stage(handle)}{_nor('was', 'were', waiting[1:])}. All workers were ended. Raise start_timeout if the "
            f"envs need longer.\n\n{self._stack_of(handle)}",
            worker_id=handle.worker_id,
            env_ids=handle.ids,
            pid=handle.pid,
            exitcode=None,
        )

    def close_timed_out(self, waiting: list[Handle], doing: str) -> str:
        """Workers had not ended when a pool closed, in words; the stack of the first is shown. `doing`: what it was at.

        Blocks: STACK_GRACE at most.
        """
        handle = waiting[0]
        return (
            f"worker {handle.worker_id} (pid {handle.pid}), which runs {_span(handle.ids)}, did not end in the time "
            f"that close gave, and is killed {doing}{_nor('did', 'did', waiting[1:])}.\n\n{self._stack_of(handle)}"
        )

    def _stack_of(self, handle: Handle) -> str:
        """The stacks of a hanging worker's threads, as faulthandler prints them, also from native code."""
        if handle.pid is None or not _catches(handle.pid, STACK_SIGNAL):
            return "(its stack is not to be had: it is still importing)"
        start = before = self._stacks.size()
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(handle.pidfd, STACK_SIGNAL)
        deadline = time.monotonic() + STACK_GRACE
        while time.monotonic() < deadline:  # nothing tells when the last line is out: until it grows no more
            time.sleep(0.01)
            size = self._stacks.size()
            if size == before > start:
                break
            before = size
        text = self._stacks.text(start)
        return f"Its stack:\n{text}" if text else "(it did not print its stack: stopped, or stuck in the kernel)"


def start_failed(handle: Handle, message: Failed) -> EnvError | UsageError:
    """A worker could not build its envs."""
    reason = codec.load_error(message.record).exception
    if isinstance(reason, SameEnvError):
        return UsageError(str(reason))
    if message.env_id is None:
        where = f"worker {handle.worker_id} ({_span(handle.ids)}) could not start"
    else:
        where = f"the constructor of env {message.env_id} in worker {handle.worker_id} raised"
    env_id = handle.ids.start if message.env_id is None else message.env_id
    return raised_error(handle, env_id, "construct", where, message.record)


def raised_error(handle: Handle, env_id: int, command: str, where: str, record: bytes) -> EnvError:
    """What an env raised before the pool was open, from its record; `where` says in what."""
    remote = codec.load_error(record)
    return env_error(handle, env_id, command, f"{where}: {remote.type_name}: {remote.message}", remote)


def env_error(handle: Handle, env_id: int, command: str, text: str, remote: codec.RemoteError) -> EnvError:
    """What an env raised in its worker, as an exception of this process: `text`, then the worker's traceback."""
    error = EnvError(
        f"{text}\n\n{remote.traceback_text}",
        env_id=env_id,
        worker_id=handle.worker_id,
        command=command,
        type_name=remote.type_name,
        traceback_text=remote.traceback_text,
    )
    error.__cause__ = remote.exception
    return error


def exit_text(exitcode: int | None) -> str:
    """How a process ended, in words."""
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"ended by itself with exit code {exitcode}"
    name = signal.Signals(-exitcode).name if -exitcode in set(signal.Signals) else f"signal {-exitcode}"
    hint = " (by somebody, or by the kernel for want of memory)" if exitcode == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _catches(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _stage(handle: Handle) -> str:
    return "while starting up" if handle.building is None else f"in the constructor of env {handle.building}"


def _nor(verb: str, verbs: str, others: list[Handle]) -> str:
    """That other workers did not, either."""
    ids = ", ".join(str(other.worker_id) for other in others)
    several = len(others) > 1
    return f"; nor {verbs if several else verb} {'workers' if several else 'worker'} {ids}" if others else ""


def _span(ids: range) -> str:
    return f"env {ids.start}" if len(ids) == 1 else f"envs {ids.start}-{ids.stop - 1}"
