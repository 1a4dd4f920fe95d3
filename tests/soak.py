"""Random faults under load for as long as asked, a line a minute; ends with an error if anything drifts.

usage: python tests/soak.py MINUTES [SEED]

Two pools live through all of it: one is stepped first come, first served, with four steady envs beside eight faulty
ones, the other in lock-step. Their envs raise, crash, exit and run out of memory; their workers are killed and stopped
from outside. A third pool is opened and closed all the time. Each command must be answered or reported once and in
order, the steady envs must equal a plain loop bit for bit, and descriptors, threads, mappings, memory in files and the
process's own memory must stay where they were after the first minute.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import resource
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
from test_fault_storm import FaultStorm, FaultyLedgerEnv, disturbances
from test_life_storm import LedgerEnv, N

import shmenv

STEADY = range(N, N + 4)
COLUMNS = (
    "minute", "steps", "rows", "lost", "told", "kills", "stops", "restarts", "pools", "rss MiB", "file KiB", "fds",
    "threads", "maps", "children",
)  # fmt: skip
PADDING = 3000  # characters of an info now and then: more than fits a row's side area


class SteadyEnv(LedgerEnv):
    """A seeded random walk with the spaces of the ledger, and infos of all lengths."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.count = 0
        return self.rng.integers(2**40, size=2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        obs = self.rng.integers(2**40, size=2) + int(action)
        info = {"noise": self.rng.normal(), "text": "x" * int(self.rng.integers(2) * self.rng.integers(PADDING))}
        return obs, self.rng.normal(), bool(self.rng.integers(9) == 0), False, info


class MixedStorm(FaultStorm):
    """Faulty envs beside steady ones, which are compared with envs of this process."""

    def __init__(self, pool: shmenv.Pool, rng: random.Random) -> None:
        super().__init__(pool, "same_step", rng)
        first = pool.reset(seed=7)
        self.twins = {i: SteadyEnv() for i in STEADY}
        for i, twin in self.twins.items():
            assert (first.obs[i] == twin.reset(seed=7 + i)[0]).all()

    def move(self) -> None:
        """Step some of those that are idle, and take some of what is there."""
        idle = [i for i in (*range(N), *STEADY) if i not in self.asked]
        for i in self.rng.sample(idle, self.rng.randint(0 if self.asked else 1, len(idle))):
            self.ask(i)
        if self.pool.pending:
            self.take(self.rng.randint(1, self.pool.pending))

    def check(self, i: int, batch: shmenv.Batch, k: int) -> None:
        if i < N:
            super().check(i, batch, k)
            return
        obs, reward, terminated, _, info = self.twins[i].step(self.asked.pop(i))
        assert batch.reward[k] == reward and bool(batch.terminated[k]) == terminated
        assert ((batch.final_obs if terminated else batch.obs)[k] == obs).all()
        assert (batch.final_info if terminated else batch.info)[k] == info
        if terminated:
            assert (batch.obs[k] == self.twins[i].reset()[0]).all()
        self.answered += 1


def footprint() -> dict[str, int]:
    """What this process holds."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    with open("/proc/self/maps") as maps:
        mapped = sum("memfd:shmenv" in line for line in maps)
    blocks, fds = 0, os.listdir("/proc/self/fd")
    for name in fds:
        try:
            if "memfd:shmenv" in os.readlink(f"/proc/self/fd/{name}"):
                blocks += os.stat(f"/proc/self/fd/{name}").st_blocks
        except OSError:
            continue  # the one that listed the folder
    with open("/proc/self/task/" + str(os.getpid()) + "/children") as children:
        count = len(children.read().split())
    return {
        "rss MiB": pages * resource.getpagesize() >> 20, "file KiB": blocks >> 1, "fds": len(fds),
        "threads": len(os.listdir("/proc/self/task")), "maps": mapped, "children": count,
    }  # fmt: skip


def drift(now: dict[str, int], before: dict[str, int]) -> list[str]:
    """What has grown since the first minute by more than chance explains.

    Descriptors, threads and children change while workers are replaced, by two a worker at most.
    """
    slack = {"rss MiB": 24, "file KiB": 4096, "fds": 16, "threads": 1, "maps": 0, "children": 2}
    return [f"{name}: {before[name]} -> {now[name]}" for name in slack if now[name] > before[name] + slack[name]]


def soak(minutes: float, seed: int) -> int:
    """Run, print, and return the exit code."""
    rng, empty = random.Random(seed), footprint()
    options: dict[str, Any] = {"restart_period": 0.0, "max_restarts": 10**9}
    # The steady envs have workers of their own: two of six, as twelve envs are split.
    envs = [FaultyLedgerEnv] * N + [SteadyEnv] * len(STEADY)
    with ExitStack() as stack:
        first = stack.enter_context(shmenv.Pool(envs, num_workers=6, **options))
        second = stack.enter_context(
            shmenv.Pool([FaultyLedgerEnv] * N, num_workers=3, autoreset="disabled", on_error="restart", **options)
        )
        storm, steps = MixedStorm(first, rng), FaultStorm(second, "disabled", rng)
        second.reset()
        counts = [
            stack.enter_context(disturbances(first, random.Random(seed + 1), 1.0, range(4))),
            stack.enter_context(disturbances(second, random.Random(seed + 2), 1.0, range(3))),
        ]
        print("".join(f"{name:>9}" for name in COLUMNS), flush=True)
        begin, before, pools, minute = time.monotonic(), None, 0, 0
        while minute < minutes:
            due = begin + 60 * (minute + 1)
            while time.monotonic() < due:
                for _ in range(20):
                    storm.move()
                    steps.step_all()
                with shmenv.Pool([LedgerEnv] * 3, num_workers=2) as third:
                    third.reset()
                    assert third.step(np.arange(3)).obs[:, 0].tolist() == [0, 1, 2]
                pools += 1
            minute += 1
            now = footprint()
            stats = [pool.stats() for pool in (first, second)]
            row = {
                "minute": minute, "steps": sum(each["steps"] for each in stats), "pools": pools,
                "rows": storm.answered + steps.answered, "lost": storm.lost + steps.lost,
                "told": storm.reported + steps.reported, "kills": sum(each["kills"] for each in counts),
                "stops": sum(each["stops"] for each in counts),
                "restarts": sum(each["restarts"] for each in stats), **now,
            }  # fmt: skip
            print("".join(f"{row[name]:>9}" for name in COLUMNS), flush=True)
            before = before or now
            if wrong := drift(now, before):
                print("DRIFT", *wrong, sep="\n  ", flush=True)
                return 1
    left = footprint()
    print(f"closed: {left['fds']} descriptors, {left['threads']} threads, {left['maps']} mappings", flush=True)
    return int(left["maps"] > 0 or left["threads"] > empty["threads"])


if __name__ == "__main__":
    logging.getLogger("shmenv").setLevel(logging.CRITICAL)
    sys.exit(soak(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
