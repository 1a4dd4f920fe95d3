"""Wrappers of single functions: to carry them to another process, to try them again, to give up on them in time."""

from __future__ import annotations

import ctypes
import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle

from shmenv.errors import UsageError

IDLE_SECONDS = 1.0  # how long a thread of `timeout_wrapper` waits for the next call before it ends

Function = Callable[..., Any]


class CloudPickleWrapper:
    """Carries any object, also lambdas and local functions, through plain pickle.

    Attributes:
        data: the object.
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getstate__(self) -> bytes:
        return bytes(cloudpickle.dumps(self.data))

    def __setstate__(self, state: bytes) -> None:
        self.data = cloudpickle.loads(state)


def retry_wrapper(func: Function | None = None, max_retry: int = 10, waiting_time: float = 0.1) -> Any:
    """Call a function until it succeeds. Usable as `@retry_wrapper` and as `@retry_wrapper(max_retry=3)`.

    Args:
        func: the function; None makes a decorator.
        max_retry: attempts in total, 1 or more.
        waiting_time: seconds between two attempts.

    Returns:
        A function like `func`. It raises RuntimeError after the last attempt, with the last error's text, that error as
        its cause. KeyboardInterrupt and SystemExit pass at once.
    """
    is_time = isinstance(waiting_time, int | float) and waiting_time >= 0
    if not isinstance(max_retry, int) or isinstance(max_retry, bool) or max_retry < 1 or not is_time:
        raise UsageError(f"retry_wrapper: {max_retry!r} attempts {waiting_time!r} s apart; 1 or more, 0 s or more")
    if func is None:
        return functools.partial(retry_wrapper, max_retry=max_retry, waiting_time=waiting_time)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for attempt in range(1, max_retry + 1):
            try:
                return func(*args, **kwargs)
            except Exception as error:
                if attempt == max_retry:
                    raise RuntimeError(
                        f"{_name(func)} failed {max_retry} times; the last time {type(error).__name__}: {error}"
                    ) from error
            time.sleep(waiting_time)

    return wrapper


def timeout_wrapper(func: Function | None = None, timeout: float | None = None) -> Any:
    """Give up on a function after some time: `timeout_wrapper(func, 0.5)` or `@timeout_wrapper(timeout=0.5)`.

    The function runs in a thread kept for such calls, so that the caller can leave whatever it does, and no signal
    handler is touched. What was given up is ended by a TimeoutError as soon as it runs Python code again; code that
    never does keeps that thread. For whole envs use the managers' timeouts: they end processes.

    Args:
        func: the function; None makes a decorator.
        timeout: seconds for one call; None: `func` itself is returned.

    Returns:
        A function like `func`. It raises TimeoutError when time is up, and whatever `func` raises before.
    """
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        raise UsageError(f"timeout_wrapper: timeout must be seconds, more than 0, or None, not {timeout!r}")
    if func is None:
        return functools.partial(timeout_wrapper, timeout=timeout)
    if timeout is None:
        return func

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        job = _Job(functools.partial(func, *args, **kwargs))
        helper = _Helper.take()
        helper.jobs.put(job)
        if not job.done.wait(timeout) and helper.abandon(job):
            raise TimeoutError(f"{_name(func)} did not return within {timeout} s")
        if job.error is not None:
            raise job.error
        return job.result

    return wrapper


class _Job:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.call()
        except BaseException as error:
            self.error = error


class _Helper:
    """A thread that runs one job after another, and is no longer used once a job was given up."""

    _idle: ClassVar[list[_Helper]] = []
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._abandoned = False
        self._thread = threading.Thread(target=self._serve, name="shmenv-timeout", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls) -> _Helper:
        with cls._lock:
            while cls._idle:
                helper = cls._idle.pop()
                if helper._thread.is_alive():  # not in a forked child
                    return helper
        return cls()

    def _serve(self) -> None:
        try:
            while not self._abandoned:
                try:
                    job = self.jobs.get(timeout=IDLE_SECONDS)
                except queue.Empty:
                    with self._lock:
                        if self not in self._idle:  # taken just now: its job is coming
                            continue
                        self._idle.remove(self)
                    return
                job.run()
                with self._lock:
                    if not self._abandoned:
                        self._idle.append(self)
                        job.done.set()
        except TimeoutError:  # thrown into this thread when the job had just ended by itself
            pass

    def abandon(self, job: _Job) -> bool:
        """Give up on the job, unless it has just been done."""
        with self._lock:
            if job.done.is_set():
                return False
            self._abandoned = True
            if self._thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread.ident), ctypes.py_object(TimeoutError)
                )
            return True


def _name(func: Function) -> str:
    return getattr(func, "__qualname__", repr(func))
