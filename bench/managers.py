"""How near does a manager's loop, {id: action} in, {id: timestep} out, come to processes that never talk?

64 CartPole envs in two workers, in turn and in one run: the limit (see limit.py), Pool in lock-step, both managers.
do-nothing envs whose episodes last 1 step, against endless ones: what does a reset cost a manager?

    python bench/managers.py --rounds 5
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np

import shmenv
from cases import CASES, Idle
from free import Limit
from limit import LIMIT, POOL, speed_of
from machine import describe
from shmenv.cli.demo import PoolPlayer

WORKERS = 2


class OneStep(Idle):
    """Its episodes last one step."""

    def step(self, action: np.int64) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, True, False, info


def start(kind: str, env_fns: list[Callable[[], Any]]) -> Any:
    manager = shmenv.create_env_manager({"type": kind, "num_workers": WORKERS}, env_fns)
    manager.seed(0)
    manager.launch()
    return manager


def loop_speed(manager: Any, actions: list[np.ndarray[Any, Any]], seconds: float) -> float:
    """Env steps per second of the loop that users of managers write, with the actions that the others get too."""
    steps = batches = 0
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        chosen = actions[batches % len(actions)]
        steps += len(manager.step({i: chosen[i] for i in manager.ready_obs}))
        batches += 1
    return steps / (now - begin)


def check_values(manager: Any) -> None:
    """The first steps of env 0 are those of a plain loop."""
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        assert np.array_equal(manager.ready_obs[0], obs)
        timestep = manager.step({0: np.int64(0)})[0]
        obs, reward, *_ = env.step(np.int64(0))
        assert np.array_equal(timestep.obs, obs) and timestep.reward == reward
    env.close()


def print_ratios(title: str, speeds: dict[str, list[float]], base: str) -> None:
    print(f"\n{title}")
    middle = statistics.median(speeds[base])
    for name, values in speeds.items():
        print(f"  {name:28}{statistics.median(values) / middle:6.2f} of {base}   {statistics.median(values):,.0f}/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    chosen = parser.parse_args()
    print(describe())
    case = CASES["cartpole"]
    managers = {kind: start(kind, case.env_fns) for kind in ("subprocess", "async_subprocess")}
    for manager in managers.values():
        check_values(manager)
    pool, limit = PoolPlayer(case.env_fns, num_workers=WORKERS), Limit(case, WORKERS)
    pool.reset(0)
    runs: dict[str, Callable[[float], float]] = {
        LIMIT: limit.speed,
        POOL: partial(speed_of, pool, case.num_envs, case.actions()),
        **{f"{kind} manager": partial(loop_speed, manager, case.actions()) for kind, manager in managers.items()},
    }
    speeds = {name: [run(chosen.seconds) for _ in range(1)] for name, run in runs.items()}
    for _ in range(chosen.rounds - 1):
        for name, run in runs.items():
            speeds[name].append(run(chosen.seconds))
    for closed in (*managers.values(), pool, limit):
        closed.close()
    print_ratios(case.title, speeds, LIMIT)

    short: dict[str, Callable[[], Any]] = {
        "endless episodes": partial(Idle, 16),
        "episodes of 1 step": partial(OneStep, 16),
    }
    loops = {name: start("subprocess", [env_fn] * 64) for name, env_fn in short.items()}
    episodes: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(chosen.rounds):
        for name, manager in loops.items():
            episodes[name].append(loop_speed(manager, CASES["idle-16B"].actions(), chosen.seconds))
    for manager in loops.values():
        manager.close()
    print_ratios("64 do-nothing envs, subprocess manager", episodes, "endless episodes")


if __name__ == "__main__":
    main()
