"""The workloads of compare.py, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium

from cases import CASES, Asleep, Busy, Case, Computing, Idle, Renewing, Short, Silent, Talkative

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
        loop: of bench/loops.py, with whose policy the envs are stepped; None: by actions that are there before.
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
    loop: str | None = None

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


def _recorded() -> Any:
    return gymnasium.wrappers.RecordEpisodeStatistics(CARTPOLE())


def _monitored() -> Any:
    from stable_baselines3.common.monitor import Monitor

    return Monitor(CARTPOLE())


def _loops(name: str, loop: str, title: str, make: Callable[[], Any], *counts: int) -> dict[str, "Workload"]:
    cases = {count: Case(f"{count} CartPole, {title}", make, count) for count in counts}
    return {f"loop-{name}{count}": Workload(case, loop=loop) for count, case in cases.items()}


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
    **_loops("a", "none", "no policy", CARTPOLE, 64),
    **_loops("b", "numpy", "numpy MLP", CARTPOLE, 64, 8),
    **_loops("c", "lean", "one lean torch net", CARTPOLE, 64, 8),
    **_loops("d", "cleanrl", "CleanRL's ppo.py", _recorded, 64, 8),
    "loop-e16": Workload(Case("16 envs of 200 us, 28 kB, small CNN", partial(Computing, 200e-6), 16), loop="cnn"),
    **_loops("sb3-", "sb3", "SB3's collect_rollouts", _monitored, 64, 8),
}
