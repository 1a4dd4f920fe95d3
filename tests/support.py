"""What tests share besides envs: waits with a deadline, and programs that run in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import shmenv

TESTS = Path(__file__).parent
SOURCE = Path(shmenv.__path__[0]).parent


def eventually(predicate: Callable[[], Any], timeout: float = 10.0) -> Any:
    """The first true value of the predicate; looks again and again until the deadline, and fails there."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {predicate}")
        time.sleep(0.002)


def is_gone(pid: int) -> bool:
    """No such process, or one that has ended and only waits to be noticed by its parent."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def settled(pool: shmenv.Pool, steps: int) -> bool:
    """So many steps are done and answered: the workers that did them sleep again."""
    stats = pool.stats()
    return stats["steps"] >= steps and all(
        is_gone(worker["pid"]) or psutil.Process(worker["pid"]).status() == psutil.STATUS_SLEEPING
        for worker in stats["workers"]
    )


class Script:
    """A Python program in a process group of its own."""

    def __init__(self, source: str, folder: Path, *arguments: str) -> None:
        self.path = folder / f"program{len(list(folder.glob('program*.py')))}.py"
        self.path.write_text(textwrap.dedent(source))
        self.errors_path = self.path.with_suffix(".err")
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(SOURCE), str(TESTS)]))
        with open(self.errors_path, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(self.path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                start_new_session=True,
            )

    @property
    def errors(self) -> str:
        return self.errors_path.read_text()

    def line(self, timeout: float = 30.0) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        watchdog = _Watchdog(self.process, timeout)
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.stop()
        assert line, f"ended without a line; its errors: {self.errors}"
        return line.rstrip("\n")

    def finish(self, timeout: float = 30.0) -> tuple[int, str, str]:
        """Exit code, the rest of its output, its errors."""
        try:
            out, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not ended within {timeout} s; its errors: {self.errors}") from None
        return self.process.returncode, out, self.errors

    def kill(self) -> None:
        """Ends the whole group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class _Watchdog:
    """Kills a process unless stopped in time, so that a blocking read of its output ends."""

    def __init__(self, process: subprocess.Popen[str], timeout: float) -> None:
        self.timer = threading.Timer(timeout, process.kill)
        self.timer.start()

    def stop(self) -> None:
        self.timer.cancel()
        self.timer.join()
