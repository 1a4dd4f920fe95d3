"""The workloads of compare.py, by name."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import gymnasium

from cases import CASES, Asleep, Busy, Case, Idle, Renewing, Short, Silent, Talkative

CARTPOLE = partial(gymnasium.make, "CartPole-v1")
MANY_PROCESSES = 256  # more of them are not started for one contestant


@dataclass(frozen=True)
class Workload:
    """What is stepped, and how.

    Attributes:
        case: the envs.
        workers: processes of everything that can put several envs into one.
        batch: answers that a batch waits for at least; None: all, in lock-step.
        think: seconds that the caller computes between two batches.
        hog: whether a foreign process computes all the time.
        copies: how many of a contestant run at once, each in a process of its own.
        pause: whether what is measured is a pause, and the first step after it.
        waits: whether the envs wait instead of computing, so that more of them than there are cores overlap.
        frames: whether observations are large enough for their copies to count.
        grid: what the workload is one of a series in.
    """

    case: Case
    workers: int = 2
    batch: int | None = None
    think: float = 0.0
    hog: bool = False
    copies: int = 1
    pause: bool = False
    waits: bool = False
    frames: bool = False
    grid: Literal["envs", "workers"] | None = None

    @property
    def title(self) -> str:
        return self.case.title

    @property
    def num_envs(self) -> int:
        return self.case.num_envs

    @property
    def is_cartpole(self) -> bool:
        return self.case.make is CARTPOLE

    @property
    def suits_one_process(self) -> bool:
        """Whether it says something about what steps all envs in the caller's process."""
        return self.batch is None and self.workers in (1, 2, self.num_envs) and self.grid != "workers"

    @property
    def suits_process_an_env(self) -> bool:
        """Whether it says something about what has one process an env, and not too many."""
        return self.workers in (1, 2, self.num_envs) and self.num_envs <= MANY_PROCESSES and self.grid != "workers"


def _cartpoles(count: int, title: str = "") -> Case:
    return Case(title or f"{count} CartPole", CARTPOLE, count)


# 1 ms a step, 20 ms in env 0.
_UNEVEN = partial(Case, make=partial(Asleep, 0.001), num_envs=16, make_first=partial(Asleep, 0.02))

WORKLOADS = {
    "cartpole64": Workload(_cartpoles(64)),
    "cartpole8": Workload(_cartpoles(8)),
    "idle64": Workload(CASES["idle-16B"]),
    "frames64": Workload(Case("64 do-nothing envs, 210x160x3 obs", partial(Idle, 210, 160, 3), 64), frames=True),
    "busy8": Workload(Case("8 envs of 200 us", partial(Busy, 200e-6), 8)),
    "uneven16": Workload(_UNEVEN("16 envs, one 20 times slower, lock-step"), workers=16, waits=True),
    "uneven16-first8": Workload(_UNEVEN("the same, first 8 that are ready"), workers=16, batch=8, waits=True),
    "workers16": Workload(_cartpoles(64, "64 CartPole in 16 workers"), workers=16),
    "hog": Workload(_cartpoles(64, "64 CartPole beside a CPU hog"), hog=True),
    "two": Workload(_cartpoles(64, "64 CartPole, twice at once, each"), copies=2),
    "policy": Workload(_cartpoles(64, "64 CartPole, 1 ms of policy work"), think=0.001),
    "short": Workload(Case("64 do-nothing envs, 10-step episodes", partial(Short, 10), 64)),
    "short-untold": Workload(Case("the same, started anew by the envs, untold", partial(Renewing, 10), 64)),
    "infos": Workload(Case("64 do-nothing envs, infos of 5 numbers", partial(Talkative, 16), 64)),
    "infos-untold": Workload(Case("the same infos, made and not told", partial(Silent, 16), 64)),
    "pause": Workload(_cartpoles(64, "64 CartPole after a pause"), pause=True),
    **{f"envs-{count}": Workload(_cartpoles(count), min(2, count), grid="envs") for count in (1, 4, 16, 256, 1024)},
    **{
        f"workers-{count}": Workload(_cartpoles(64, f"64 CartPole in {count} workers"), count, grid="workers")
        for count in (1, 4, 8, 32, 64)
    },
}
