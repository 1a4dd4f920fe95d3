"""What the start of a process must not do to others: the user's program, its other processes, its terminal."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import operator
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

logger = logging.getLogger("shmenv")

NO_MAIN_GUARD = 78  # exit code (EX_CONFIG) of a process that makes a pool while it is being started itself
GUARD_HINT = (
    "A worker imports the main script, and that script makes a pool on import: put the part that runs under "
    "`if __name__ == '__main__':`"
)


def refuse_in_starting_process() -> None:
    """End a process that makes a pool while multiprocessing is still starting it; its parent explains."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(NO_MAIN_GUARD)


def warn_of_threads(method: str) -> None:
    """Forking a process with threads copies locks that nobody will ever release."""
    count = threading.active_count()
    if method == "fork" and count > 1:
        logger.warning(
            "context='fork' with %d live threads may deadlock the workers; use 'forkserver' or 'spawn'", count
        )


def prepare(context: multiprocessing.context.BaseContext) -> None:
    """Start the processes that multiprocessing needs beside the workers, if they do not run yet.

    A fork server of ours imports the worker once, instead of every worker anew, and is not disturbed in that by Ctrl-C.

    Raises:
        OSError: they cannot be started.
    """
    if context.get_start_method() == "fork":
        return
    multiprocessing.resource_tracker.ensure_running()
    if context.get_start_method() != "forkserver":
        return
    server: Any = getattr(multiprocessing.forkserver, "_forkserver", None)
    if getattr(server, "_preload_modules", None) == ["__main__"] and server._forkserver_pid is None:
        context.set_forkserver_preload(["shmenv.preloaded"])
        with interrupts_held():
            multiprocessing.forkserver.ensure_running()
    else:  # the user's: held interrupts would be handed down to all its processes
        multiprocessing.forkserver.ensure_running()


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until a process is started and recorded, so that it is ended if the start is given up.

    A child inherits the mask, until it ignores Ctrl-C: else it would print a traceback from amid its imports.
    For the caller the mask is not enough: any other thread, numpy has some, takes the signal in this one's place.
    """
    came: list[Any] = []
    handler = signal.getsignal(signal.SIGINT)
    held = callable(handler) and threading.current_thread() is threading.main_thread()  # no other is interrupted
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if held:
        signal.signal(signal.SIGINT, lambda *signal_and_frame: came.append(signal_and_frame))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if held:
            signal.signal(signal.SIGINT, handler)
    if came and callable(handler):
        handler(*came[0])


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
