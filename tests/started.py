"""Processes for tests of what travels to them: started by any method, gone after the block."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import pytest

from shmenv import UsageError


@contextmanager
def started(method: str, target: Callable[..., Any], *arguments: Any) -> Iterator[BaseProcess]:
    """A process that runs `target`; killed at the end of the block if it still lives."""
    context: Any = multiprocessing.get_context(method)
    process: BaseProcess = context.Process(target=target, args=arguments)
    with _no_warning_about_threads():
        process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def finish(process: BaseProcess, timeout: float = 30.0) -> None:
    """Wait until it has ended well."""
    process.join(timeout)
    assert process.exitcode == 0


def fork(target: Callable[..., Any], *arguments: Any) -> int:
    """The quickest way to a process that is only there to be killed; ends it with 1 if `target` raises."""
    with _no_warning_about_threads():
        pid = os.fork()
    if pid == 0:
        _run(target, arguments)
    return pid


@contextmanager
def _no_warning_about_threads() -> Iterator[None]:
    """From Python 3.12 on a fork beside threads warns; here these are watchdogs and watchers, which hold no lock."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded", category=DeprecationWarning)
        yield


def _run(target: Callable[..., Any], arguments: tuple[Any, ...]) -> NoReturn:
    code = 1
    try:
        target(*arguments)
        code = 0
    finally:
        os._exit(code)


def kill(pid: int) -> None:
    """SIGKILL, and proof that nothing else had ended it."""
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


BAD_TIMEOUTS = [-1, -0.001, float("nan"), 10**400, "1", b"1", True, [1.0], 1j, object()]


def refuses_bad_timeouts(wait: Callable[[Any], Any]) -> None:
    """Every bad timeout is a UsageError, whether or not there would be something to wait for."""
    for timeout in BAD_TIMEOUTS:
        with pytest.raises(UsageError, match="timeout"):
            wait(timeout)


INTERRUPTED = """
    from shmenv import Ring, Semaphore, SeqlockBuffer
    thing = {make}
    try:
        print("ready", flush=True)
        {wait}
    except KeyboardInterrupt:
        print("interrupted")
"""
