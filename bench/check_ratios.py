"""Has anything become clearly slower than when bench/ratios.json was stored?

Ratios only: of two contenders that take turns in this run, many and short ones. Of each its 9th decile counts, for what
other programs take away is no news about shmenv, and a short turn may well pass without them. Ratios carry over to
another machine, though not to another number of cores: there, store first. What falls below the margin is measured once
more before it counts.

    make bench-check                 exit code 1 if a ratio is below 0.7 of what is stored; about a minute
    make bench-check ARGS=--store    stores what is measured
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv

import managers
from cases import CASES, Case, Idle, Renewing, Short, Silent, Talkative
from free import Limit
from limit import LIMIT, POOL, SYNC, speed_of
from machine import describe
from managers import OneStep, loop_speed
from shmenv.cli.demo import GymnasiumPlayer, Player, PoolPlayer

STORED = Path(__file__).with_name("ratios.json")
MARGIN = 0.7  # of the stored ratio
WORKERS = managers.WORKERS
WARM, SECONDS, ROUNDS = 0.2, 0.01, 250

Run = Callable[[float], float]  # for so many seconds; env steps a second


@dataclass(frozen=True)
class Group:
    """Contenders that take turns.

    Attributes:
        runs: starts them, to be closed with the stack.
        ratios: what is told of them: whose speed over whose, by label.
    """

    runs: Callable[[ExitStack], dict[str, Run]]
    ratios: dict[str, tuple[str, str]]


def check_first_steps(player: Player, case: Case) -> None:
    """Env 0 answers as in a plain loop."""
    env = case.make()
    np.testing.assert_array_equal(player.reset(seed=0)[0], env.reset(seed=0)[0])
    for actions in case.actions(8):
        for got, want in zip(player.step(actions), env.step(actions[0]), strict=False):  # infos are no player's matter
            np.testing.assert_array_equal(got[0], want)
    env.close()


def player_run(stack: ExitStack, case: Case, start: Callable[..., Player]) -> Run:
    player = stack.enter_context(closing(start(case.env_fns)))
    check_first_steps(player, case)
    return partial(speed_of, player, case.num_envs, case.actions())


pool_run = partial(player_run, start=partial(PoolPlayer, num_workers=WORKERS))
sync_run = partial(player_run, start=partial(GymnasiumPlayer, SyncVectorEnv))


def limit_run(stack: ExitStack, case: Case) -> Run:
    return stack.enter_context(closing(Limit(case, WORKERS))).speed


def manager_run(stack: ExitStack, kind: str, case: Case) -> Run:
    manager: Any = stack.enter_context(closing(managers.start(kind, case.env_fns)))
    if case.make is CASES["cartpole"].make:
        managers.check_values(manager)
    return partial(loop_speed, manager, case.actions())


def cartpole(num_envs: int) -> Case:
    return Case(f"{num_envs} CartPole", CASES["cartpole"].make, num_envs)


def idle(make: Callable[..., Any], *arguments: int) -> Case:
    return Case("64 do-nothing envs", partial(make, *arguments), 64)


def pools(**cases: Case) -> Callable[[ExitStack], dict[str, Run]]:
    """Two pools, by name."""
    return lambda stack: {name: pool_run(stack, case) for name, case in cases.items()}


GROUPS = [
    Group(
        lambda stack: {
            LIMIT: limit_run(stack, cartpole(64)),
            POOL: pool_run(stack, cartpole(64)),
            "subprocess": manager_run(stack, "subprocess", cartpole(64)),
            "async": manager_run(stack, "async_subprocess", cartpole(64)),
        },
        {
            "64 CartPole: Pool / the limit": (POOL, LIMIT),
            "64 CartPole: subprocess manager / the limit": ("subprocess", LIMIT),
            "64 CartPole: async manager / the limit": ("async", LIMIT),
        },
    ),
    Group(
        lambda stack: {LIMIT: limit_run(stack, cartpole(8)), POOL: pool_run(stack, cartpole(8))},
        {"8 CartPole: Pool / the limit": (POOL, LIMIT)},
    ),
    Group(
        lambda stack: {SYNC: sync_run(stack, idle(Idle, 16)), POOL: pool_run(stack, idle(Idle, 16))},
        {"64 do-nothing envs: Pool / SyncVectorEnv": (POOL, SYNC)},
    ),
    Group(
        pools(silent=idle(Silent, 16), talkative=idle(Talkative, 16)),
        {"64 do-nothing envs: infos of 5 numbers / made and not told": ("talkative", "silent")},
    ),
    Group(
        pools(untold=idle(Renewing, 10), short=idle(Short, 10)),
        {"64 do-nothing envs: 10-step episodes / the same, untold": ("short", "untold")},
    ),
    Group(
        lambda stack: {
            "endless": manager_run(stack, "subprocess", idle(Idle, 16)),
            "short": manager_run(stack, "subprocess", idle(OneStep, 16)),
        },
        {"64 do-nothing envs, manager: 1-step episodes / endless ones": ("short", "endless")},
    ),
]


def measure(group: Group) -> dict[str, float]:
    """The ratios of one group, by label."""
    with ExitStack() as stack:
        runs = group.runs(stack)
        for run in runs.values():
            run(WARM)
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                speeds[name].append(run(SECONDS))
    best = {name: statistics.quantiles(values, n=10)[-1] for name, values in speeds.items()}
    return {label: best[one] / best[base] for label, (one, base) in group.ratios.items()}


def compare(stored: dict[str, float]) -> bool:
    """Print a table of all ratios; whether none is below its margin."""
    print(f"{'':62}{'stored':>8}{'now':>8}{'now / stored':>14}")
    slower = 0
    for group in GROUPS:
        found = measure(group)
        if any(ratio < MARGIN * stored[label] for label, ratio in found.items()):
            again = measure(group)
            found = {label: max(ratio, again[label]) for label, ratio in found.items()}
        for label, ratio in found.items():
            share = ratio / stored[label]
            slower += share < MARGIN
            print(f"{label:62}{stored[label]:8.2f}{ratio:8.2f}{share:14.2f}{'  SLOWER' * (share < MARGIN)}", flush=True)
    print(f"{slower} below {MARGIN} of what is stored" if slower else f"none below {MARGIN} of what is stored")
    return not slower


def store() -> None:
    """Measure all ratios, and write them with where and when."""
    ratios: dict[str, float] = {}
    for group in GROUPS:
        for label, ratio in measure(group).items():
            ratios[label] = round(ratio, 3)
            print(f"{label:62}{ratio:8.2f}", flush=True)
    about = {"machine": describe(), "date": f"{datetime.now(UTC):%Y-%m-%d}", "ratios": ratios}
    STORED.write_text(json.dumps(about, indent=2) + "\n")
    print(f"wrote {STORED.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="store the ratios instead of comparing them")
    chosen = parser.parse_args()
    print(describe())
    if chosen.store:
        store()
        return 0
    stored = json.loads(STORED.read_text())
    print(f"stored {stored['date']}: {stored['machine']}")
    return 0 if compare(stored["ratios"]) else 1


if __name__ == "__main__":
    sys.exit(main())
