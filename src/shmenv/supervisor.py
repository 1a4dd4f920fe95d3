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
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from shmenv import _memory, codec, worker
from shmenv._port import Port
from shmenv.cpu import limited_threads
from shmenv.errors import ResourceError, UsageError
from shmenv.failures import Coroner, raised_error, start_failed
from shmenv.handle import EXIT_GRACE, RECYCLED, RENEWED, Handle
from shmenv.limits import TERM_GRACE, Limits, Restarts
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

_live: weakref.WeakSet[Supervisor] = weakref.WeakSet()
_registered = False


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
        self.coroner = Coroner(stacks)
        self.limits = limits
        self._plan: Plan | None = None
        self._segment: Segment | None = None
        self._restarts = [Restarts(limits) for _ in self._ranges]
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
        if handle.pidfd >= 0 or handle.died:
            return handle.pidfd >= 0
        if handle.process.pid is None and not wait([handle.process.sentinel], seconds):
            return False
        with interrupts_held():
            if not handle.take_hold():
                return False
            if self._watcher is not None and not self._stopped:
                self._watch_one(handle, starting=True)
        return True

    def _reports(self) -> list[worker.Report]:
        deadline = None if self.limits.start is None else time.monotonic() + self.limits.start
        reports = self._reported
        while len(reports) < len(self.handles):
            waiting = [handle for handle in self.handles if handle.worker_id not in reports]
            # Not the pipes alone: under fork other workers hold copies of their far ends, and no end of file comes.
            sources = [handle.sentinel for handle in waiting] + [handle.conn for handle in waiting if handle.open]
            ready = wait(sources, None if deadline is None else max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self.coroner.start_timed_out(waiting, self.limits.start)
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
                        raise start_failed(handle, message)
                    else:
                        reports[handle.worker_id] = message
                if handle.worker_id not in reports and handle.sentinel in ready:
                    handle.note_exit()
                    if handle.exitcode == NO_MAIN_GUARD:
                        raise UsageError(GUARD_HINT)
                    raise self.coroner.died_at_start(handle)
        return [reports[worker_id] for worker_id in sorted(reports)]

    def ask_first(self, question: worker.Question) -> Any:
        """Ask the first env something, before `go`.

        Raises:
            EnvError: it raised. WorkerDiedError: its worker ended.
        """
        handle = self.handles[0]
        try:
            handle.conn.send(question)
            wait([handle.conn, handle.sentinel])
            record, status = handle.conn.recv() if handle.conn.poll() else (b"", 2)
        except (EOFError, OSError):
            status = 2
        if status == 2:
            wait([handle.sentinel], EXIT_GRACE)  # its pipe ends before it does
            handle.note_exit()
            raise self.coroner.died_error(handle, f"asked for {question.name!r}", "No pool was made.")
        where = f"env {handle.ids.start} raised"
        if not status:
            try:
                return codec.load_foreign(record)
            except Exception as error:
                where = f"what env {handle.ids.start} gave for {question.name!r} cannot be unpickled here"
                record = codec.dump_error(error)
        raise raised_error(handle, handle.ids.start, "call", where, record)

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
        return self._restarts[handle.worker_id].next_delay(started)

    def restart(self, worker_id: int) -> None:
        """Replace a dead worker. Its channels were made ready; it may have been given commands already."""
        with self._stopping:
            if self._stopped:
                return
            old = self.handles[worker_id]
            old.dismiss()
            with limited_threads(), default_method_kept():
                self._prepare()
                assert self._port is not None
                self._port.expect_worker(worker_id, self._ranges[worker_id].start)
                with interrupts_held():
                    self.handles[worker_id] = self._start_one(worker_id, old.generation + 1)

    def renew(self, worker_id: int) -> None:
        """End a worker at once, so that a successor takes its place."""
        handle = self.handles[worker_id]
        if handle.died or not self._adopt(handle, EXIT_GRACE) or handle.has_ended:
            return
        handle.leave = RENEWED
        handle.kill(signal.SIGKILL)

    def recycle(self, worker_id: int) -> None:
        """Let a worker end after the command at hand, so that a fresh one takes its place."""
        assert self._port is not None
        handle = self.handles[worker_id]
        if handle.died or handle.leave or not self._adopt(handle, EXIT_GRACE):
            return
        handle.leave = RECYCLED
        self._watch_one(handle, closing=True)
        self._port.order_one_to_quit(worker_id)

    def handle_of(self, env_id: int) -> Handle:
        """The worker of an env."""
        return next(handle for handle in self.handles if env_id in handle.ids)

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
        self._end_damaged()
        for handle in self.handles:
            watcher = self._watcher
            if watcher is None or self._stopped:
                return
            if handle.died or not self._has_ended(handle, watcher, look):
                continue
            watcher.unwatch(handle.worker_id)
            handle.note_exit()
            late = watcher.late(handle.worker_id)
            if late is not None:
                handle.late = self.limits.excess_text(late[0])
                handle.stacks_from = late[1]
            with contextlib.suppress(EOFError, OSError):
                while handle.generation and handle.failure is None and handle.conn.poll():
                    message = handle.conn.recv()
                    handle.failure = message if isinstance(message, worker.Failed) else None
            yield handle

    def _end_damaged(self) -> None:
        """Kill workers that wait for commands though an answer of theirs, once there, is there no more."""
        for handle in self.handles:
            port = self._port
            if port is None or handle.damage or not self.is_alive(handle):
                continue
            env_id = next((i for i in handle.ids if port.has_taken_back(i)), None)
            if env_id is not None:
                handle.damage = f"its answer of env {env_id} was taken back; an env writes over memory not its own"
                handle.kill(signal.SIGKILL)

    def _has_ended(self, handle: Handle, watcher: _memory.Watcher, look: bool) -> bool:
        if handle.pidfd >= 0:
            return watcher.is_dead(handle.worker_id) or (look and handle.has_ended)
        try:
            return not self._adopt(handle) and (handle.pid or handle.process.exitcode) is not None
        except ResourceError as error:
            logger.warning("%s; it was killed", error)
            return True

    def is_alive(self, handle: Handle) -> bool:
        """Whether a worker runs, as far as is known. Called by: any thread."""
        watcher = self._watcher  # stop() takes it away, perhaps in another thread and just now
        if handle.pidfd < 0:
            return False
        return not (handle.died or self._stopped or (watcher is not None and watcher.is_dead(handle.worker_id)))

    # -- end

    def stop(self, grace: float | None = None, tell: Callable[[list[Handle]], None] | None = None) -> None:
        """End all workers: ask, wait `grace`, SIGTERM, SIGKILL to their groups. Idempotent; raises for none.

        Args:
            grace: seconds; None: close_timeout.
            tell: called with those that had time, and have not ended in it.

        Blocks: grace + TERM_GRACE and what the system needs to end killed processes.
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
            grace = self.limits.close if grace is None else grace
            interrupts = [self._await_ends(grace)]
            left = [handle for handle in self.handles if not handle.has_ended]
            if tell is not None and left and grace > 0 and interrupts == [None]:
                tell(left)
            for number, grace in ((signal.SIGTERM, TERM_GRACE), (signal.SIGKILL, 10.0)):
                left = [handle for handle in self.handles if not handle.has_ended]
                for handle in left:
                    handle.kill(number)
                if left:
                    interrupts.append(self._await_ends(grace))
            if self._watcher is not None:
                self._watcher.close()
            for handle in self.handles:
                if handle.has_ended and not handle.died:
                    handle.note_exit()
                handle.dismiss()
            self._port = self._watcher = self._segment = None
            del self._setup  # these four hold the segment, and who closed a pool may keep it for long
            for interrupt in filter(None, interrupts):
                raise interrupt

    def disown(self) -> None:
        """Called by: a child that the user forked, where multiprocessing would wait for workers not its own."""
        for handle in self.handles:
            handle.disown()

    def _await_ends(self, seconds: float) -> KeyboardInterrupt | None:
        """Wait for the workers to end. Ctrl-C cuts the wait short, and is handed back: nothing may be left behind."""
        deadline = time.monotonic() + seconds
        try:
            while left := [handle for handle in self.handles if not handle.has_ended]:
                if not wait([handle.pidfd for handle in left], max(0.0, deadline - time.monotonic())):
                    break
        except KeyboardInterrupt as interrupt:
            return interrupt
        return None


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
