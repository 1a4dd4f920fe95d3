"""Starts, watches and ends the worker processes of one pool."""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import multiprocessing.util  # first: what it registers to run at exit must run after what is registered here
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from shmenv import _memory, codec, worker
from shmenv._port import Port
from shmenv.cpu import limited_threads
from shmenv.errors import EnvError, ResourceError, UsageError, WorkerDiedError, WorkerError, WorkerTimeoutError
from shmenv.plan import Plan
from shmenv.segment import Segment, StackLog
from shmenv.starting import (
    GUARD_HINT,
    NO_MAIN_GUARD,
    QuietName,
    default_method_kept,
    interrupts_held,
    prepare,
    process_class,
)

logger = logging.getLogger("shmenv")

TERM_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
STACK_GRACE = 0.2  # seconds for a hanging worker to print its stack
FIRST_DELAY = 0.1  # seconds before the second restart of a worker within the period; doubled each time
LONGEST_DELAY = 10.0  # seconds
RENEWED, RECYCLED = "renewed after a failed reset", "recycled"  # why a worker is ended on purpose
PRINTS = {-signal.SIGSEGV, -signal.SIGFPE, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL}  # faulthandler, at these
EXIT_GRACE = 1.0  # seconds for the exit code of a dead worker to arrive (a fork server passes it on)

_live: weakref.WeakSet[Supervisor] = weakref.WeakSet()
_registered = False


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds (None: for ever), and how often a worker is replaced.

    Attributes:
        start, reset, step: of building all envs of a worker, of one reset, of one step.
        close: that the workers get to close their envs.
        max_restarts: how often one worker is replaced within `restart_period` seconds.
    """

    start: float | None
    reset: float | None
    step: float | None
    close: float
    max_restarts: int
    restart_period: float

    @property
    def timed(self) -> bool:
        """Whether workers have to publish when they began what they do."""
        return self.reset is not None or self.step is not None

    def by_phase(self, starting: bool = False, closing: bool = False) -> tuple[float | None, ...]:
        """The limits in the order of the phases of core/channel.h; a call has none.

        Args:
            starting: it is a successor: nobody waits for it to build its envs, so that is timed, too.
            closing: nor for this one to close its envs.
        """
        either = max(self.reset or 0.0, self.step or 0.0)
        close = self.close + TERM_GRACE if closing else None
        return either, self.start if starting or self.timed else None, self.reset, self.step, None, close


@dataclass
class Handle:
    """One worker process as the manager holds it."""

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
    failure: worker.Failed | None = None  # why a successor could not build its envs


class Supervisor:
    """The worker processes of one pool, from start to end.

    Called by: the thread that makes the pool, then the one that uses it; `stop` by any.
    """

    def __init__(
        self,
        context: multiprocessing.context.BaseContext,
        ranges: Iterable[range],
        setup: Callable[[int, int, Connection, Plan | None], worker.Setup],
        stacks: StackLog,
        limits: Limits,
    ) -> None:
        self._context = context
        self._ranges = tuple(ranges)
        self._setup = setup
        self._stacks = stacks
        self.limits = limits
        self._plan: Plan | None = None
        self._segment: Segment | None = None
        self._restarted: dict[int, deque[float]] = {}  # when each worker was restarted, within the period
        self._fruitless: dict[int, int] = {}  # how often in a row its successor did not get through its start
        self._told = 0  # up to where errors have told what stands in the log
        self._port: Port | None = None
        self._watcher: _memory.Watcher | None = None
        self._stopping = threading.Lock()
        self._stopped = False
        self._owner = os.getpid()
        self.handles: list[Handle] = []
        self._reported: dict[int, worker.Report] = {}
        _remember(self)

    # -- start

    def start(self, first_only: bool = False) -> list[worker.Report]:
        """Start all workers that are not there yet side by side, and wait until each has built its envs.

        Args:
            first_only: start worker 0 alone.

        Raises:
            EnvError: a constructor raised.
            WorkerTimeoutError: one did not return in time.
            WorkerDiedError: a worker ended instead.
            ResourceError, UsageError: no process could be started.
        """
        with limited_threads(), default_method_kept():  # a fork server started here hands the limits down, too
            self._prepare()
            for worker_id in range(len(self.handles), 1 if first_only else len(self._ranges)):
                with interrupts_held():
                    self.handles.append(self._start_one(worker_id, 0))
            for handle in self.handles:
                if not self._adopt(handle, None) and handle.pid is None:
                    raise UsageError(f"a worker ended while it was being started. {GUARD_HINT}")
        return self._reports()

    def _prepare(self) -> None:
        try:
            prepare(self._context)
        except OSError as error:
            raise ResourceError(error.errno, f"no workers can be started: {error.strerror}") from error

    def _start_one(self, worker_id: int, generation: int) -> Handle:
        try:
            ours, theirs = multiprocessing.Pipe()
        except OSError as error:
            raise ResourceError(error.errno, f"worker {worker_id} cannot be started: {error.strerror}") from error
        setup = self._setup(worker_id, generation, theirs, self._plan)
        process = process_class(self._context)(
            target=worker.main, args=(setup,), name=QuietName(f"shmenv-worker-{worker_id}"), daemon=False
        )
        handle = Handle(
            worker_id,
            self._ranges[worker_id],
            process,
            ours,
            generation=generation,
            stacks_from=self._stacks.size(),
        )
        try:
            process.start()
        except AssertionError as error:  # multiprocessing: daemonic processes are not allowed to have children
            raise UsageError(f"no workers can be started from this process: {error}") from error
        except (BrokenPipeError, EOFError, ConnectionResetError) as error:
            raise UsageError(f"a worker ended while it was being started. {GUARD_HINT}") from error
        except OSError as error:
            raise ResourceError(error.errno, f"worker {worker_id} cannot be started: {error}") from error
        finally:
            theirs.close()
        if process.pid is not None:
            self._adopt(handle)
        elif self._watcher is not None:
            self._watcher.watch(worker_id, process.sentinel)  # rings once the fork server has told which process it is
        return handle

    def _adopt(self, handle: Handle, seconds: float | None = 0.0) -> bool:
        """Get hold of the process that a worker is, once the fork server has told it, and time it from then on.

        Args:
            handle: the worker.
            seconds: how long to wait for that; None: for ever.

        Returns:
            Whether there is hold of it. If not, it has not been told yet, or the process has ended.

        Raises:
            ResourceError: no more descriptors. The process is killed.
        """
        process = handle.process
        if handle.pidfd >= 0 or handle.died:
            return handle.pidfd >= 0
        if process.pid is None and not wait([process.sentinel], seconds):
            return False
        with interrupts_held():
            if process.exitcode is not None or process.pid is None:
                return False
            handle.pid = process.pid
            try:
                pidfd = _memory.pidfd_open(handle.pid)
            except ProcessLookupError:  # it has ended; the fork server tells how at any moment
                return False
            except OSError as error:
                process.kill()
                raise ResourceError(
                    error.errno, f"worker {handle.worker_id} cannot be watched: {error.strerror}"
                ) from error
            if process.exitcode is not None:  # the number may be another process's by now
                os.close(pidfd)
                return False
            handle.pidfd = pidfd
            if self._watcher is not None and not self._stopped:
                self._watch_one(handle, starting=True)
        return True

    def _reports(self) -> list[worker.Report]:
        deadline = None if self.limits.start is None else time.monotonic() + self.limits.start
        reports = self._reported
        while len(reports) < len(self.handles):
            waiting = [handle for handle in self.handles if handle.worker_id not in reports]
            # Not the pipes alone: under fork other workers hold copies of their far ends, and no end of file comes.
            sources = [handle.pidfd for handle in waiting] + [handle.conn for handle in waiting if handle.open]
            ready = wait(sources, None if deadline is None else max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._start_timed_out(waiting)
            for handle in waiting:
                while handle.open and handle.worker_id not in reports and handle.conn.poll():
                    try:
                        message = handle.conn.recv()
                    except (EOFError, OSError):
                        handle.open = False
                        break
                    if isinstance(message, worker.Building):
                        handle.building = message.env_id
                    elif isinstance(message, worker.Failed):
                        raise self._start_failed(handle, message)
                    else:
                        reports[handle.worker_id] = message
                if handle.worker_id not in reports and handle.pidfd in ready:
                    self._note_exit(handle)
                    if handle.exitcode == NO_MAIN_GUARD:
                        raise UsageError(GUARD_HINT)
                    raise self.died_error(handle, _stage(handle), _no_pool(handle))
        return [reports[worker_id] for worker_id in sorted(reports)]

    def _start_failed(self, handle: Handle, message: worker.Failed) -> Exception:
        if message.env_id is None:
            where = f"worker {handle.worker_id} (envs {_span(handle.ids)}) could not start"
        else:
            where = f"the constructor of env {message.env_id} in worker {handle.worker_id} raised"
        env_id = handle.ids.start if message.env_id is None else message.env_id
        return self._env_error(handle, env_id, "construct", where, message.record)

    def _env_error(self, handle: Handle, env_id: int, command: str, where: str, record: bytes) -> EnvError:
        remote = codec.load_error(record)
        return env_error(handle, env_id, command, f"{where}: {remote.type_name}: {remote.message}", remote)

    def _start_timed_out(self, waiting: list[Handle]) -> Exception:
        handle = waiting[0]
        stack = self.stack_of(handle)
        others = f" (and workers {[other.worker_id for other in waiting[1:]]})" if len(waiting) > 1 else ""
        return WorkerTimeoutError(
            f"worker {handle.worker_id} (pid {handle.pid}){others} was not ready within start_timeout="
            f"{self.limits.start} s: {_stage(handle)}. All workers were ended. Raise start_timeout if the envs need "
            f"longer.\n\n{stack}",
            worker_id=handle.worker_id,
            env_ids=handle.ids,
            pid=handle.pid,
            exitcode=None,
        )

    def ask_first(self, question: worker.Question) -> Any:
        """Ask the first env something, before `go`.

        Raises:
            EnvError: it raised. WorkerDiedError: its worker ended.
        """
        handle = self.handles[0]
        try:
            handle.conn.send(question)
            wait([handle.conn, handle.pidfd])
            record, status = handle.conn.recv() if handle.conn.poll() else (b"", 2)
        except (EOFError, OSError):
            status = 2
        if status == 2:
            wait([handle.pidfd], EXIT_GRACE)  # its pipe ends before it does
            self._note_exit(handle)
            raise self.died_error(handle, f"asked for {question.name!r}", "No pool was made.")
        if status:
            raise self._env_error(handle, handle.ids.start, "call", f"env {handle.ids.start} raised", record)
        return codec.load(record)

    def go(self, plan: Plan) -> None:
        """Hand every worker the plan: the segment is there, commands may come."""
        for handle in self.handles:
            try:
                handle.conn.send(plan)
            except OSError:  # it died after its report; the watcher will say so
                pass
            handle.conn.close()

    def watch(self, port: Port, segment: Segment, plan: Plan) -> None:
        """From now on a death rings the pool's semaphore, and workers that take too long are killed."""
        self._port, self._segment, self._plan = port, segment, plan
        address = segment.buffer.address + plan.layout.offset("semaphore")
        slots, log = len(self.handles), self._stacks.fileno()
        self._watcher = _memory.Watcher(address, segment.buffer, slots, log, worker.STACK_SIGNAL)
        for handle in self.handles:
            port.expect_worker(handle.worker_id, handle.ids.start)  # it waits for `go`, and only then takes commands
            self._watch_one(handle)

    def _watch_one(self, handle: Handle, starting: bool = False, closing: bool = False) -> None:
        assert self._watcher is not None and self._segment is not None and self._plan is not None
        assert handle.pid is not None
        address = self._segment.buffer.address + self._plan.layout.offset(f"worker/{handle.worker_id}")
        limits = self.limits.by_phase(starting, closing)
        self._watcher.watch(handle.worker_id, handle.pidfd, handle.pid, address, limits)

    def restart_delay(self, handle: Handle, started: bool) -> float | None:
        """Seconds until a dead worker may be replaced: none at first, more each time. None: its budget is used up.

        Args:
            handle: the worker.
            started: whether it had built its envs. One that never does uses up its budget however long it takes.
        """
        if handle.leave and started:
            return 0.0
        now, times = time.monotonic(), self._restarted.setdefault(handle.worker_id, deque())
        while times and times[0] < now - self.limits.restart_period:
            times.popleft()
        fruitless = 0 if started else self._fruitless.get(handle.worker_id, 0) + 1
        self._fruitless[handle.worker_id] = fruitless
        if max(len(times), fruitless) >= self.limits.max_restarts:
            return None
        times.append(now)
        return 0.0 if len(times) == 1 else min(FIRST_DELAY * 2.0 ** (len(times) - 2), LONGEST_DELAY)

    def restart(self, worker_id: int) -> None:
        """Replace a dead worker. Its channels were made ready; it may have been given commands already."""
        with self._stopping:
            if self._stopped:
                return
            old = self.handles[worker_id]
            self._dismiss(old)
            with limited_threads(), default_method_kept():
                self._prepare()
                assert self._port is not None
                self._port.expect_worker(worker_id, self._ranges[worker_id].start)
                with interrupts_held():
                    self.handles[worker_id] = self._start_one(worker_id, old.generation + 1)

    def renew(self, worker_id: int) -> None:
        """End a worker at once, so that a successor takes its place."""
        handle = self.handles[worker_id]
        if handle.died or not self._adopt(handle, EXIT_GRACE) or _ended(handle):
            return
        handle.leave = RENEWED
        _kill(handle, signal.SIGKILL)

    def recycle(self, worker_id: int) -> None:
        """Let a worker end after the command at hand, so that a fresh one takes its place."""
        assert self._port is not None
        handle = self.handles[worker_id]
        if handle.died or handle.leave or not self._adopt(handle, EXIT_GRACE):
            return
        handle.leave = RECYCLED
        self._watch_one(handle, closing=True)
        self._port.order_one_to_quit(worker_id)

    @property
    def pids(self) -> list[int]:
        """The process of each worker; 0 where none runs yet."""
        return [handle.pid or 0 for handle in self.handles]

    # -- death

    def newly_dead(self, look: bool = False) -> Iterator[Handle]:
        """Each worker that has ended and was not told of yet. Their exit codes are known where the system tells them.

        Args:
            look: ask the system too, not the watcher alone: the second net, cast at each heartbeat of a wait.
        """
        for handle in self.handles:
            watcher = self._watcher
            if watcher is None or self._stopped:
                return
            if handle.died or not self._has_ended(handle, watcher, look):
                continue
            watcher.unwatch(handle.worker_id)
            self._note_exit(handle)
            late = watcher.late(handle.worker_id)
            if late is not None:
                handle.late = self._late_text(late[0])
                handle.stacks_from = late[1]
            with contextlib.suppress(EOFError, OSError):
                while handle.generation and handle.failure is None and handle.conn.poll():
                    message = handle.conn.recv()
                    handle.failure = message if isinstance(message, worker.Failed) else None
            yield handle

    def _has_ended(self, handle: Handle, watcher: _memory.Watcher, look: bool) -> bool:
        if handle.pidfd >= 0:
            return watcher.is_dead(handle.worker_id) or (look and _ended(handle))
        try:
            return not self._adopt(handle) and (handle.pid or handle.process.exitcode) is not None
        except ResourceError as error:
            logger.warning("%s; it was killed", error)
            return True

    def _late_text(self, doing: int) -> str:
        phase, env_id = doing & 0xF, doing >> 4 & 0x0FFFFFFF
        seconds = self.limits.by_phase(True, True)[phase]
        if phase == 0:
            return f"it did not take up a command within {seconds} s (stopped, swapped out, or stuck)"
        name = ("idle", "start", "reset", "step", "call", "close")[phase]
        return f"{worker.PHASE_NAMES[phase]} of env {env_id} took longer than {name}_timeout={seconds} s"

    def is_alive(self, handle: Handle) -> bool:
        """Whether a worker runs, as far as is known. Called by: any thread."""
        watcher = self._watcher  # stop() takes it away, perhaps in another thread and just now
        if handle.pidfd < 0:
            return False
        return not (handle.died or self._stopped or (watcher is not None and watcher.is_dead(handle.worker_id)))

    def _note_exit(self, handle: Handle) -> None:
        handle.died = True
        if handle.pid is not None:
            _kill_group(handle.pid, signal.SIGKILL)  # what the env has started does not outlive its worker
        handle.exitcode = handle.process.exitcode
        if handle.exitcode is None:  # a fork server passes it on
            wait([handle.process.sentinel], EXIT_GRACE)
            handle.exitcode = handle.process.exitcode

    def died_error(self, handle: Handle, doing: str, fate: str) -> WorkerError:
        """The error that tells of a dead worker. `doing` says what it was at, `fate` what becomes of its envs."""
        printed = ""
        if handle.late or handle.exitcode in PRINTS:
            printed = self._stacks.text(max(handle.stacks_from, self._told))
        self._told = self._stacks.size()
        how = f"{exit_text(handle.exitcode)} {doing}"
        if handle.late:
            how = f"was killed {doing}: {handle.late}"
        elif handle.leave:
            how = f"was ended to be {handle.leave}"
        if handle.failure is not None:
            remote = codec.load_error(handle.failure.record)
            how += f"; it could not build env {handle.failure.env_id}: {remote.type_name}: {remote.message}"
            printed = remote.traceback_text
        return (WorkerTimeoutError if handle.late else WorkerDiedError)(
            f"worker {handle.worker_id} (pid {handle.pid}), which runs env {_span(handle.ids)}, {how}. {fate}"
            + (f"\n\nWhat it printed at its end:\n{printed}" if printed else ""),
            worker_id=handle.worker_id,
            env_ids=handle.ids,
            pid=handle.pid,
            exitcode=handle.exitcode,
        )

    def stack_of(self, handle: Handle) -> str:
        """The stacks of a hanging worker's threads, as faulthandler prints them, also from native code."""
        if handle.pid is None or not _catches(handle.pid, worker.STACK_SIGNAL):
            return "(its stack is not to be had: it is still importing)"
        start = before = self._stacks.size()
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(handle.pidfd, worker.STACK_SIGNAL)
        deadline = time.monotonic() + STACK_GRACE
        while time.monotonic() < deadline:  # nothing tells when the last line is out: until it grows no more
            time.sleep(0.01)
            size = self._stacks.size()
            if size == before > start:
                break
            before = size
        text = self._stacks.text(start)
        return f"Its stack:\n{text}" if text else "(it did not print its stack: stopped, or stuck in the kernel)"

    # -- end

    def stop(self) -> None:
        """End all workers: ask, wait close_timeout, SIGTERM, SIGKILL to their groups. Idempotent; raises for none.

        Blocks: close_timeout + TERM_GRACE seconds and what the system needs to end killed processes.
        """
        if self._owner != os.getpid():  # a child of the user's, forked while the pool was open
            return
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
            for handle in self.handles:
                with contextlib.suppress(ResourceError):
                    self._adopt(handle, EXIT_GRACE)  # one that is not told of by then finds the order to quit
            if self._port is not None:
                self._port.order_quit()
            for handle in self.handles:
                with contextlib.suppress(OSError, ValueError):  # dead, or told to go long ago
                    handle.conn.send(None)
            interrupts = [self._await_ends(self.limits.close)]
            for number, grace in ((signal.SIGTERM, TERM_GRACE), (signal.SIGKILL, 10.0)):
                left = [handle for handle in self.handles if not _ended(handle)]
                for handle in left:
                    _kill(handle, number)
                if left:
                    interrupts.append(self._await_ends(grace))
            if self._watcher is not None:
                self._watcher.close()
            for handle in self.handles:
                if _ended(handle) and not handle.died:
                    self._note_exit(handle)
                self._dismiss(handle)
            self._port = self._watcher = self._segment = None
            del self._setup  # these four hold the segment, and who closed a pool may keep it for long
            for interrupt in filter(None, interrupts):
                raise interrupt

    def _dismiss(self, handle: Handle) -> None:
        handle.conn.close()
        if handle.pidfd >= 0:
            os.close(handle.pidfd)
            handle.pidfd = -1
        process: Any = handle.process
        try:
            process.close()
        except ValueError:  # stuck in the kernel, or not told of yet: nobody can end it, so nobody shall wait for it
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
            process._popen.close()

    def disown(self) -> None:
        """Called by: a child that the user forked, where multiprocessing would wait for workers not its own."""
        for handle in self.handles:
            multiprocessing.process._children.discard(handle.process)  # type: ignore[attr-defined]

    def _await_ends(self, seconds: float) -> KeyboardInterrupt | None:
        """Wait for the workers to end. Ctrl-C cuts the wait short, and is handed back: nothing may be left behind."""
        deadline = time.monotonic() + seconds
        try:
            while left := [handle for handle in self.handles if not _ended(handle)]:
                if not wait([handle.pidfd for handle in left], max(0.0, deadline - time.monotonic())):
                    break
        except KeyboardInterrupt as interrupt:
            return interrupt
        return None


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


def _remember(supervisor: Supervisor) -> None:
    """Have every pool that is still open at exit closed before multiprocessing waits for its processes."""
    global _registered
    _live.add(supervisor)
    if not _registered:
        atexit.register(_stop_all)
        _registered = True


def _stop_all() -> None:
    for supervisor in list(_live):
        supervisor.stop()


def _ended(handle: Handle) -> bool:
    return handle.died or handle.pidfd < 0 or bool(wait([handle.pidfd], 0))


def _kill(handle: Handle, number: int) -> None:
    if handle.pid is not None:
        _kill_group(handle.pid, number)
    with contextlib.suppress(OSError):  # not a group leader yet
        signal.pidfd_send_signal(handle.pidfd, number)


def _kill_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _catches(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _stage(handle: Handle) -> str:
    return "while starting up" if handle.building is None else f"in the constructor of env {handle.building}"


def _no_pool(handle: Handle) -> str:
    """What to say when a worker ends before the pool is open."""
    text = "No pool was made, and the other workers were ended."
    if handle.building is None and handle.exitcode == 1:
        text += (
            " It did not get as far as its envs: a worker that is not forked imports the main script, which must be a "
            "file and must not raise then. What it printed stands on stderr."
        )
    return text


def _span(ids: range) -> str:
    return str(ids.start) if len(ids) == 1 else f"{ids.start}-{ids.stop - 1}"
