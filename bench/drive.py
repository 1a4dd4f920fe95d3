"""A contestant's process as compare.py drives it: orders, answers, CPU time, and a stop for those that never rest."""

import json
import os
import signal
import subprocess
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil

from contestants import ROOT, Contestant

CHILD = Path(__file__).with_name("child.py")
RESTLESS = 0.05  # cores used while nothing is asked of it, from which on it is stopped when it is not its turn


class Broken(Exception):
    """What a contestant could not do, and why."""


class Driven:
    """One child process, with all that it starts.

    Args:
        contestant: what it is.
        log: file that gets what its library prints.

    Raises:
        Broken: it is not installed.
    """

    def __init__(self, contestant: Contestant, log: Path) -> None:
        self.contestant = contestant
        self.name = contestant.name
        self.restless = False
        self.processes: list[psutil.Process] = []
        if contestant.missing:
            raise Broken(contestant.missing)
        # What the caller added for shmenv's Python would be in the way of another.
        environ = {key: value for key, value in os.environ.items() if contestant.venv is None or key != "PYTHONPATH"}
        if contestant.venv and contestant.package == "shmenv":
            environ["PYTHONPATH"] = str(ROOT / "src")
        command = [str(contestant.python), str(CHILD), contestant.module]
        command += [contestant.kind] if contestant.kind else []
        with log.open("ab") as stderr:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environ,
                cwd=log.parent,  # PufferLib leaves a link where it is imported
                start_new_session=True,  # Ctrl-C is for the caller, which ends this one
            )
        self.root = psutil.Process(self.child.pid)

    @property
    def ended(self) -> bool:
        """Whether it is no more."""
        return self.child.poll() is not None

    def order(self, do: str, timeout: float = 60.0, **what: Any) -> dict[str, Any]:
        """Has it do something, and waits until it is done; see `ask` and `answer`."""
        self.ask(do, **what)
        return self.answer(timeout)

    def ask(self, do: str, **what: Any) -> None:
        """Has it do something."""
        assert self.child.stdin
        self.proceed()
        try:
            self.child.stdin.write(json.dumps({"do": do, **what}).encode() + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` will tell

    def answer(self, timeout: float) -> dict[str, Any]:
        """What came of it.

        Raises:
            Broken: it can't, with its reason; or it has ended, or taken more than so many seconds, and is no more.
        """
        assert self.child.stdout
        line = self.child.stdout.readline() if wait([self.child.stdout.fileno()], timeout) else None
        if not line:
            self.end()
            raise Broken(f"no answer within {timeout:g} s" if line is None else "its process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Broken(answer["error"])
        return answer

    def look(self) -> None:
        """Remembers the processes that it has now."""
        try:
            self.processes = [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            pass  # it has just ended, and what it has left behind is among those remembered

    def cpu(self) -> float:
        """Seconds of CPU time that its processes have used until now."""
        total = 0.0
        for process in self.processes:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def rest(self) -> None:
        """Its turn is over."""
        if self.restless:
            self._signal(signal.SIGSTOP)

    def proceed(self) -> None:
        """Its turn has come."""
        if self.restless:
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends it with all its processes."""
        if self.child.poll() is None:
            self.look()
        self._signal(signal.SIGKILL)
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe
            pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue
