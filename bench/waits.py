"""How long should either side yield-spin before it parks? Microseconds a batch, for each pair of budgets.

The workers' budget against the caller's, each in pools of their own that take turns in one run: alone, beside a foreign
CPU hog, while another pool steps as well, with 1 ms of policy work between two steps, and where a cgroup grants one and
a half cores (needs root). With 16 workers both budgets are twice what is said. The last line of each table is
affinity="spread"; in the others workers are moved apart, as by default.

    .venv/bin/python bench/waits.py --rounds 5
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import shmenv
import shmenv.pool
from cases import CASES, Case
from machine import describe
from shmenv.cpu import usable_cores

BUDGETS = [(0, 0), (200, 0), (0, 200), (50, 50), (100, 100), (200, 200), (1000, 1000)]  # us: the workers', the caller's
BATCHES = 200  # a turn


def make_pool(case: Case, num_workers: int, budgets: tuple[int, int], affinity: Any = None) -> shmenv.Pool:
    """A pool with these budgets in place of its own."""
    workers_us, caller_us = budgets
    module: Any = shmenv.pool
    caller_ns = caller_us * (1000 if num_workers <= usable_cores() else 2000)  # as a pool doubles the workers'
    spin_ns, exchange = module.SPIN_NS, module.Exchange
    module.SPIN_NS = workers_us * 1000
    module.Exchange = lambda *args, **options: exchange(*args, **{**options, "spin_ns": caller_ns})
    try:
        pool = shmenv.Pool(case.env_fns, num_workers=num_workers, affinity=affinity)
    finally:
        module.SPIN_NS, module.Exchange = spin_ns, exchange
    pool.reset(seed=0)
    return pool


def turn(pool: shmenv.Pool, actions: list[np.ndarray[Any, Any]], think: float = 0.0) -> list[float]:
    """Seconds that each of some batches takes, without the policy's work."""
    seconds = []
    for k in range(BATCHES):
        until = time.perf_counter() + think
        while time.perf_counter() < until:
            pass
        begin = time.perf_counter()
        pool.step(actions[k % len(actions)])
        seconds.append(time.perf_counter() - begin)
    return seconds


@contextmanager
def beside(*program: str) -> Iterator[None]:
    """While another process runs this program."""
    with subprocess.Popen([sys.executable, "-c", *program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@contextmanager
def quota(cores: float) -> Iterator[None]:
    """While a cgroup grants this process and its children so many cores."""
    v1 = Path("/sys/fs/cgroup/cpu")
    top = v1 if v1.is_dir() else Path("/sys/fs/cgroup")
    group = top / f"shmenv-waits-{os.getpid()}"
    group.mkdir()
    procs = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    try:
        if v1.is_dir():
            (group / "cpu.cfs_quota_us").write_text(f"{cores * 100_000:.0f}")
        else:
            (group / "cpu.max").write_text(f"{cores * 100_000:.0f} 100000")
        for pid in procs:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in procs:
            (top / "cgroup.procs").write_text(str(pid))
        group.rmdir()


HOG = "print(flush=True)\nwhile True: pass"
SECOND_POOL = """
import sys, numpy as np, gymnasium, shmenv
if __name__ == "__main__":
    pool = shmenv.Pool([lambda: gymnasium.make("CartPole-v1")] * 64, num_workers=2, context="fork")
    pool.reset(seed=0)
    print(flush=True)
    while True:
        pool.step(np.zeros(64, np.int64))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(describe())
    few = Case("8 CartPole", CASES["cartpole"].make, 8)
    scenes: dict[str, tuple[Case, int, Callable[[], Any], float]] = {
        "64 do-nothing envs": (CASES["idle-16B"], 2, ExitStack, 0.0),
        "64 CartPole": (CASES["cartpole"], 2, ExitStack, 0.0),
        "8 CartPole": (few, 2, ExitStack, 0.0),
        "64 CartPole in 16 workers": (CASES["cartpole"], 16, ExitStack, 0.0),
        "64 CartPole beside a CPU hog": (CASES["cartpole"], 2, partial(beside, HOG), 0.0),
        "64 CartPole beside a second pool": (CASES["cartpole"], 2, partial(beside, SECOND_POOL), 0.0),
        "64 CartPole, 1 ms of policy work": (CASES["cartpole"], 2, ExitStack, 0.001),
        "64 CartPole with one and a half cores": (CASES["cartpole"], 2, partial(quota, 1.5), 0.0),
    }
    for title, (case, num_workers, other, think) in scenes.items():
        actions = case.actions()
        with ExitStack() as stack:
            pools = {
                f"workers {budgets[0]}, caller {budgets[1]}": stack.enter_context(make_pool(case, num_workers, budgets))
                for budgets in BUDGETS
            }
            pools["spread"] = stack.enter_context(make_pool(case, num_workers, (200, 200), "spread"))
            times: dict[str, list[float]] = {name: [] for name in pools}
            with other():
                for _ in range(rounds):
                    for name, pool in pools.items():
                        times[name] += turn(pool, actions, think)
        print(f"\n{title}: us a batch, median (1st to 9th decile) and mean, by the budgets in us")
        for name, seconds in times.items():
            low, *_, high = statistics.quantiles(seconds, n=10)
            middle, mean = statistics.median(seconds) * 1e6, statistics.mean(seconds) * 1e6
            print(f"  {name:26}{middle:8.0f}  ({low * 1e6:.0f} to {high * 1e6:.0f}){mean:8.0f}")


if __name__ == "__main__":
    main()
