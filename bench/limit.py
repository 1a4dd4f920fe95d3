"""How near does a pool in lock-step come to processes that step the same envs and never talk?

The limit is one free-running process a worker, each with its share of the envs: no manager, no batch, no other process
to wait for, and nobody gets the observations. Beside it, in turn and in the same run: Pool, Gymnasium's AsyncVectorEnv
and SyncVectorEnv. Before the clock starts all but the limit are compared value for value over the same actions.

    .venv/bin/python bench/limit.py --rounds 7 cartpole
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import shmenv
from cases import CASES, Case
from free import Limit
from machine import describe
from shmenv.cli.demo import GymnasiumPlayer, Player, PoolPlayer, check_values
from shmenv.cpu import usable_cores

LIMIT, POOL, ASYNC, SYNC = "the limit", "shmenv.Pool", "AsyncVectorEnv", "SyncVectorEnv"


def speed_of(player: Player, num_envs: int, actions: list[np.ndarray[Any, Any]], seconds: float) -> float:
    """Env steps per second in lock-step."""
    batches = 0
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        player.step(actions[batches % len(actions)])
        batches += 1
    return batches * num_envs / (now - start)


def measure(case: Case, num_workers: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Env steps per second of each contender, one number a round; the contenders take turns."""
    actions = case.actions()
    with ExitStack() as stack:
        # Gymnasium's first: it forks, which is right only while there are no threads.
        starts: dict[str, Callable[[], Player]] = {
            ASYNC: lambda: GymnasiumPlayer(partial(AsyncVectorEnv, shared_memory=True), case.env_fns),
            SYNC: lambda: GymnasiumPlayer(SyncVectorEnv, case.env_fns),
            POOL: lambda: PoolPlayer(case.env_fns, num_workers=num_workers),
        }
        players: dict[str, Player] = {}
        for name, start in starts.items():
            players[name] = start()
            stack.callback(players[name].close)
        limit = Limit(case, num_workers)
        stack.callback(limit.close)
        check_values(players, case.title, actions)
        contenders: dict[str, Callable[[float], float]] = {LIMIT: limit.speed}
        for name in (POOL, ASYNC, SYNC):
            contenders[name] = partial(speed_of, players[name], case.num_envs, actions)
        for run in contenders.values():
            run(0.2)  # caches and frequencies settle
        speeds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, run in contenders.items():
                speeds[name].append(run(seconds))
    return speeds


def print_table(title: str, speeds: dict[str, list[float]]) -> None:
    print(f"\n{title}: median (lowest - highest) of {len(speeds[LIMIT])} rounds in turn")
    print(f"{'':16}{'of the limit':>14}{'x Async':>10}{'x Sync':>10}   env steps/s")
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, own in medians.items():
        ratios = f"{own / medians[LIMIT]:14.2f}{own / medians[ASYNC]:10.2f}{own / medians[SYNC]:10.2f}"
        print(f"{name:16}{ratios}   {own:,.0f} ({min(speeds[name]):,.0f} - {max(speeds[name]):,.0f})")


def case_name(text: str) -> str:
    if text not in CASES:  # not by choices: those would have to hold the empty list of no argument, and show it
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(CASES)}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(CASES)
    parser.add_argument("cases", nargs="*", metavar="case", type=case_name, help=f"what to step: {names} (all of them)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="processes (usable cores)")
    chosen = parser.parse_args()
    print(describe(), f"shmenv {shmenv.__version__}, {chosen.workers} workers", sep="\n")
    for name in chosen.cases or CASES:
        print_table(CASES[name].title, measure(CASES[name], chosen.workers, chosen.rounds, chosen.seconds))


if __name__ == "__main__":
    main()
