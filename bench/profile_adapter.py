"""Where do the microseconds of an adapter's step go?

The parts of ShmVectorEnv.step and of ShmVecEnv.step, timed one by one with the usual wrappers around the envs; those of
Stable-Baselines3 where that is installed. "The rest" is all that is not in a part: checks, flags and rewards copied.
Each timer adds some 0.1 us to its part.

    .venv/bin/python bench/profile_adapter.py
    PYTHONPATH=src .peers/sb3/bin/python bench/profile_adapter.py    with Stable-Baselines3
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np

from cases import Idle
from machine import describe
from shmenv.adapters.gymnasium import ShmVectorEnv

STEPS = 2000
CARTPOLE = partial(gymnasium.make, "CartPole-v1")


class Timers:
    """What some methods take of a step, by a name for each."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}

    def around(self, owner: Any, method: str, name: str) -> None:
        """Time a method of an object."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.now[name] = self.now.get(name, 0.0) + time.perf_counter() - begin

        setattr(owner, method, timed)


def recorded(make: Callable[[], Any]) -> Any:
    return gymnasium.wrappers.RecordEpisodeStatistics(make())


def monitored(make: Callable[[], Any]) -> Any:
    from stable_baselines3.common.monitor import Monitor

    return Monitor(make())


def profile(title: str, envs: Any, timers: Timers) -> None:
    """Print a line: the median of each part, and of the rest, over some steps."""
    envs.reset()
    random = np.random.default_rng(0)
    parts: dict[str, list[float]] = {}
    for _ in range(STEPS):
        actions = random.integers(2, size=envs.num_envs)
        timers.now = {}
        begin = time.perf_counter()
        envs.step(actions)
        whole = time.perf_counter() - begin
        for name, seconds in {**timers.now, "the rest": whole - sum(timers.now.values())}.items():
            parts.setdefault(name, []).append(seconds)
    told = ", ".join(f"{name} {1e6 * statistics.median(seconds):.1f}" for name, seconds in parts.items())
    print(f"{title}: {told}", flush=True)
    envs.close()


def main() -> None:
    print(describe())
    print("us a step, medians")
    for count, case, make in (
        (64, "do-nothing envs", partial(Idle, 16)), (64, "CartPole", CARTPOLE), (8, "CartPole", CARTPOLE)
    ):  # fmt: skip
        envs: Any = ShmVectorEnv([partial(recorded, make)] * count, num_workers=2)
        timers = Timers()
        timers.around(envs.pool, "step", "Pool.step")
        timers.around(envs._newest, "whole", "copies of observations")
        envs._infos = envs._infos  # of the object, so that it can be timed
        timers.around(envs, "_infos", "infos")
        profile(f"ShmVectorEnv, {count} {case}", envs, timers)
        if find_spec("stable_baselines3"):
            from shmenv.adapters.sb3 import ShmVecEnv

            envs, timers = ShmVecEnv([partial(monitored, make)] * count, num_workers=2), Timers()
            timers.around(envs.pool, "send", "Pool.send")
            timers.around(envs.pool, "recv", "Pool.recv")
            profile(f"ShmVecEnv, {count} {case}", envs, timers)


if __name__ == "__main__":
    main()
