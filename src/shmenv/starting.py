"""What the start of a process must not do to others: the user's program, its other processes, its terminal."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import multiprocessing.resource_tracker
import operator
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess, set_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any

from shmenv.errors import ResourceError

logger = logging.getLogger("shmenv")

NO_MAIN_GUARD = 78  # exit code (EX_CONFIG) of a process that makes a pool while it is being started itself
GUARD_HINT = (
    "A worker imports the main script, and that script makes a pool on import: put the part that runs under "
    "`if __name__ == '__main__':`"
)


POOL_DESCRIPTORS, WORKER_DESCRIPTORS = 6, 4  # of the manager, at least, while the workers start

_preloads: list[str] = []  # what preload() was told


def preload(*modules: str) -> None:
    """Have the process from which workers are forked import modules, once, so that each worker has them already.

    For envs whose libraries take seconds to import. Call it before the first pool or manager is made. It counts for
    start method "forkserver", unless the program has set up multiprocessing's fork server itself. A module that cannot
    be imported is left to the workers. One that starts threads, or opens a GPU, on import does not survive the fork.

    Args:
        *modules: their names.
    """
    _preloads.extend(name for name in modules if name not in _preloads)


def refuse_in_starting_process() -> None:
    """End a process that makes a pool while multiprocessing is still starting it; its parent explains."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(NO_MAIN_GUARD)


def check_descriptors(num_workers: int) -> None:
    """Refuse before any worker starts what the limit of file descriptors is certain to stop amid the start.

    Raises:
        ResourceError: too few are left. The text says how many are needed, and how many there may be.
    """
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = POOL_DESCRIPTORS + num_workers * WORKER_DESCRIPTORS
    try:
        used = len(os.listdir("/proc/self/fd")) - 1  # one is the folder's
    except OSError:
        return
    if limit == resource.RLIM_INFINITY or used + need <= limit:
        return
    fits = max(0, limit - used - POOL_DESCRIPTORS) // WORKER_DESCRIPTORS
    text = (
        f"{num_workers} workers need {need} file descriptors, but {used} of the {limit} that this process may have "
        f"are in use. Raise the limit, as by `ulimit -n {used + need}` (the hard one is {most})"
    )
    raise ResourceError(errno.EMFILE, text + (f", or take fewer workers: {fits} would do" if fits else ""))


def warn_of_threads(method: str) -> None:
    """Forking a process with threads copies locks that nobody will ever release."""
    count = threading.active_count()
    if method == "fork" and count > 1:
        logger.warning(
            "context='fork' with %d live threads may deadlock the workers; use 'forkserver' or 'spawn'", count
        )


def prepare(context: multiprocessing.context.BaseContext) -> None:
    """Start the processes that multiprocessing needs beside the workers, if they do not run yet.

    A fork server of ours imports the worker once, instead of every worker anew, and what `preload` has named. It is not
    disturbed in that by Ctrl-C.

    Raises:
        OSError: they cannot be started.
    """
    if context.get_start_method() == "fork":
        return
    multiprocessing.resource_tracker.ensure_running()
    if context.get_start_method() != "forkserver":
        return
    server: Any = getattr(forkserver, "_forkserver", None)
    if getattr(server, "_preload_modules", None) == ["__main__"] and server._forkserver_pid is None:
        context.set_forkserver_preload([*_preloads, "shmenv.preloaded"])  # last: it lets Ctrl-C in again
        with interrupts_held():
            forkserver.ensure_running()
    else:  # the user's: held interrupts would be handed down to all its processes
        forkserver.ensure_running()


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C and all else that has a handler back: what must be done whole, or a start until it is recorded.

    A child inherits the mask, until it ignores Ctrl-C: else it would print a traceback from amid its imports.
    For the caller the mask is not enough: any other thread, numpy has some, takes the signal in this one's place.
    """
    came: dict[int, Any] = {}  # signals, each with the frame of its last time
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # no other is interrupted
        handlers = {number: signal.getsignal(number) for number in range(1, signal.NSIG)}
        handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in handlers:  # first: where the mask changes, Python looks for signals
            signal.signal(number, came.__setitem__)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    with contextlib.ExitStack() as stack:  # each is called, also where another raises
        for number, frame in came.items():
            stack.callback(handlers[number], number, frame)


def process_class(context: multiprocessing.context.BaseContext) -> type[BaseProcess]:
    """The class of a context's processes. From a fork server they are started without a wait for it: see `_Served`."""
    if context.get_start_method() == "forkserver":
        return _ServedProcess
    return context.Process  # type: ignore[attr-defined, no-any-return]


class _ServedProcess(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> popen_forkserver.Popen:
        return _Served(process_obj)


class _Served(popen_forkserver.Popen):
    """A process of the fork server. Its pid is None until the server tells it, milliseconds after the start.

    The sentinel is readable then, and again once the process has ended. `poll` takes up either.
    """

    pid: int | None = None  # type: ignore[assignment]

    def _launch(self, process_obj: BaseProcess) -> None:
        """As in CPython 3.11 to 3.13, but for the last line, which reads the pid."""
        prepared = spawn.get_preparation_data(process_obj.name)
        data = BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(prepared, data)
            reduction.dump(process_obj, data)
        finally:
            set_spawning_popen(None)
        self.sentinel, end = forkserver.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        closed = os.dup(end), self.sentinel  # the first tells the child, by its end, of this process's
        self.finalizer = util.Finalize(self, util.close_fds, closed)  # type: ignore[attr-defined]
        with open(end, "wb", closefd=True) as pipe:
            pipe.write(data.getbuffer())

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code; None while there is none."""
        if self.pid is None and self.returncode is None:
            if flag == os.WNOHANG and not wait([self.sentinel], 0):
                return None
            try:
                self.pid = forkserver.read_signed(self.sentinel)
            except (OSError, EOFError):
                self.returncode = 255  # the server has ended; multiprocessing says so, too
        return super().poll(flag)


class QuietName(str):
    """A process name whose unpickling, the first of all in a new process, makes that process ignore Ctrl-C.

    For the children of a fork server, which inherit nothing from their real parent.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return operator.getitem, ((str(self), _IgnoreInterrupts()), 0)  # nothing that needs the caller's sys.path


class _IgnoreInterrupts:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return signal.signal, (signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def default_method_kept() -> Iterator[None]:
    """Leave multiprocessing's default start method open if it is; starting a process by another one settles it."""
    is_open = multiprocessing.get_start_method(allow_none=True) is None
    try:
        yield
    finally:
        if is_open:
            multiprocessing.set_start_method(None, force=True)
