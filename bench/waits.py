"""How should either side of a pool wait? Microseconds a batch by several ways of waiting, in pools that take turns.

The ways: park at once; spin for 200 us, then park; spin through waits that are expected to last 2 ms at most; the
same up to 5 ms, which is the default; always spin for 2 ms. The last line is the default with affinity="spread"; in
the others workers are moved apart, as by default. The scenes: without a policy and with those of bench/policies.py
(those with torch where that is installed), alone and beside others: a foreign CPU hog, a second pool, and a cgroup
that grants one and a half cores (needs root).

    .venv/bin/python bench/waits.py --rounds 5
    PYTHONPATH=src .peers/sb3/bin/python bench/waits.py --rounds 5    with torch
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import shmenv
from cases import CASES, Case
from loops import make_loop
from machine import describe
from peers.loop import PoolEnvs
from shmenv import cpu
from shmenv.cli.cores import two_against_one, words
from shmenv.cpu import Waits

US = 1000
WAYS = {
    "park at once": Waits(0, 0),
    "200 us": Waits(200 * US, 0),
    "expect, 2 ms at most": Waits(patience_ns=2000 * US),
    "expect, 5 ms at most: the default": Waits(),
    "2 ms": Waits(2000 * US, 0),
}
BATCHES = 200  # a turn


def make_pool(case: Case, num_workers: int, waits: Waits | None, affinity: Any = None) -> shmenv.Pool:
    """A pool that waits in this way; None: in its own."""
    choose = cpu.choose_waits
    if waits is not None:
        spin_ns = waits.spin_ns * (1 if num_workers <= cpu.usable_cores() else 2)  # as a pool does
        cpu.choose_waits = lambda num_workers: waits._replace(spin_ns=spin_ns)
    try:
        return shmenv.Pool(case.env_fns, num_workers=num_workers, affinity=affinity)
    finally:
        cpu.choose_waits = choose


def turn(loop: Any) -> list[float]:
    """Seconds that each of some steps of the loop takes, policy and all."""
    seconds = []
    for _ in range(BATCHES):
        begin = time.perf_counter()
        loop.step()
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


def family(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from family(int(child))


@contextmanager
def quota(cores: float) -> Iterator[None]:
    """While a cgroup grants this process and its children so many cores."""
    v1 = Path("/sys/fs/cgroup/cpu")
    top = v1 if v1.is_dir() else Path("/sys/fs/cgroup")
    group = top / f"shmenv-waits-{os.getpid()}"
    group.mkdir()
    procs = list(family(os.getpid()))
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
Scene = tuple[Case, int, Callable[[], Any], str]


def scenes() -> dict[str, Scene]:
    """Envs, workers, what is beside, and the loop, by title."""
    sixty_four, alone = CASES["cartpole"], ExitStack
    eight = Case("8 CartPole", sixty_four.make, 8)
    found: dict[str, Scene] = {
        "64 do-nothing envs": (CASES["idle-16B"], 2, alone, "none"),
        "64 CartPole": (sixty_four, 2, alone, "none"),
        "8 CartPole": (eight, 2, alone, "none"),
        "64 CartPole in 16 workers": (sixty_four, 16, alone, "none"),
        "64 CartPole beside a CPU hog": (sixty_four, 2, partial(beside, HOG), "none"),
        "64 CartPole beside a second pool": (sixty_four, 2, partial(beside, SECOND_POOL), "none"),
        "64 CartPole with one and a half cores": (sixty_four, 2, partial(quota, 1.5), "none"),
        "64 CartPole, numpy MLP": (sixty_four, 2, alone, "numpy"),
        "8 CartPole, numpy MLP": (eight, 2, alone, "numpy"),
    }
    if find_spec("torch"):
        found |= {
            "64 CartPole, lean torch net": (sixty_four, 2, alone, "lean"),
            "8 CartPole, lean torch net": (eight, 2, alone, "lean"),
            "64 CartPole, CleanRL's nets": (sixty_four, 2, alone, "cleanrl"),
            "lean torch net, 16 workers": (sixty_four, 16, alone, "lean"),
            "lean torch net beside a CPU hog": (sixty_four, 2, partial(beside, HOG), "lean"),
            "lean torch net beside a second pool": (sixty_four, 2, partial(beside, SECOND_POOL), "lean"),
            "lean torch net with one and a half cores": (sixty_four, 2, partial(quota, 1.5), "lean"),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(words(two_against_one()), describe(), sep="\n")
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
    for title, (case, num_workers, other, name) in scenes().items():
        with ExitStack() as stack:
            pools = {
                way: stack.enter_context(make_pool(case, num_workers, None if waits == Waits() else waits))
                for way, waits in WAYS.items()
            }
            pools["the default, spread"] = stack.enter_context(make_pool(case, num_workers, None, "spread"))
            loops: dict[str, Any] = {way: make_loop(name, PoolEnvs(pool)) for way, pool in pools.items()}
            times: dict[str, list[float]] = {way: [] for way in loops}
            with other():
                for number in range(rounds):
                    order = list(loops)
                    for way in order[number % len(order) :] + order[: number % len(order)]:
                        times[way] += turn(loops[way])
        print(f"\n{title}: us a batch, median (1st to 9th decile) and mean")
        for way, seconds in times.items():
            low, *_, high = statistics.quantiles(seconds, n=10)
            middle, mean = statistics.median(seconds) * 1e6, statistics.mean(seconds) * 1e6
            print(f"  {way:34}{middle:8.0f}  ({low * 1e6:.0f} to {high * 1e6:.0f}){mean:8.0f}", flush=True)


if __name__ == "__main__":
    main()
