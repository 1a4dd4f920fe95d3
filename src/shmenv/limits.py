"""What is allowed to a worker before it is ended, or given up."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from shmenv.worker import PHASE_NAMES

TERM_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
FIRST_DELAY = 0.1  # seconds before the second restart of a worker within the period; doubled each time
LONGEST_DELAY = 10.0  # seconds


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

    def excess_text(self, doing: int) -> str:
        """What took longer than it may, by the word that the worker has published (core/channel.h)."""
        phase, env_id = doing & 0xF, doing >> 4 & 0x0FFFFFFF
        seconds = self.by_phase(True, True)[phase]
        if phase == 0:
            return f"it did not take up a command within {seconds} s (stopped, swapped out, or stuck)"
        name = ("idle", "start", "reset", "step", "call", "close")[phase]
        return f"{PHASE_NAMES[phase]} of env {env_id} took longer than {name}_timeout={seconds} s"


class Restarts:
    """The replacements of one worker: how many are left, and how soon the next may come."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._times: deque[float] = deque()  # when it was replaced, within the period
        self._fruitless = 0  # how often in a row its successor did not get through its start

    def next_delay(self, started: bool) -> float | None:
        """Count one more. Returns the seconds until it may take place: none at first, more each time. None: used up.

        Args:
            started: whether the worker that has ended had built its envs. One that never does uses up the replacements
                however long it takes.
        """
        now, times = time.monotonic(), self._times
        while times and times[0] < now - self._limits.restart_period:
            times.popleft()
        self._fruitless = 0 if started else self._fruitless + 1
        if max(len(times), self._fruitless) >= self._limits.max_restarts:
            return None
        times.append(now)
        return 0.0 if len(times) == 1 else min(FIRST_DELAY * 2.0 ** (len(times) - 2), LONGEST_DELAY)
