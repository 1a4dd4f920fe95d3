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


def preload(context: multiprocessing.context.BaseContext) -> None:
    """Let a fork server that is not running yet import the worker once, instead of every worker anew."""
    server: Any = getattr(multiprocessing.forkserver, "_forkserver", None)
    untouched = getattr(server, "_preload_modules", None) == ["__main__"] and server._forkserver_pid is None
    if context.get_start_method() == "forkserver" and untouched:
        context.set_forkserver_preload(["shmenv.worker"])


@contextlib.contextmanager
def interrupts_held(method: str) -> Iterator[None]:
    """Hold Ctrl-C back until a worker is started and recorded.

    The worker inherits that, until it ignores Ctrl-C: else it would print a traceback of its own from amid its imports.
    A fork server would hand it down to every process of the user's as well; its workers have `QuietName`.
    """
    if method == "forkserver":
        yield
        return
    if method == "spawn":  # starts the tracker, too, which lets Ctrl-C through again; so it is started before
        multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class QuietName(str):
    """A process name whose unpickling, the first of all in a new process, makes that process ignore Ctrl-C."""

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
