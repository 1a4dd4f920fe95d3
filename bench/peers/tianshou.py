"""tianshou's ShmemVectorEnv: one process an env. Ended envs are the caller's to reset."""

from typing import Any

import numpy as np
from tianshou.env import ShmemVectorEnv

from peers.player import Values, row_of_env_0
from workloads import Workload


class TianshouPlayer:
    comparable = True

    def __init__(self, workload: Workload) -> None:
        self.envs = ShmemVectorEnv(workload.case.env_fns, wait_num=workload.batch)
        self.ready = np.arange(workload.num_envs)
        self.close = self.envs.close

    def reset(self) -> Any:
        self.envs.seed(0)
        # Its seed() of an env is a reset, whose generator is not seeded again by this one's.
        seeds = list(range(len(self.ready)))
        obs = [self.envs.reset(env, seed=seed)[0][0] for env, seed in enumerate(seeds)]
        return obs[0]

    def step(self, actions: np.ndarray[Any, Any]) -> int:
        self.answer = self.envs.step(actions[self.ready], self.ready)
        _, _, terminated, truncated, info = self.answer
        if self.envs.is_async:
            self.ready = np.array([told["env_id"] for told in info])
        ended = terminated | truncated
        if ended.any():
            self.envs.reset(self.ready[ended])
        return len(self.ready)

    def values(self) -> Values | None:
        obs, reward, terminated, truncated, _ = self.answer
        return row_of_env_0(self.ready, obs, reward, terminated | truncated)


def settings(workload: Workload) -> list[dict[str, Any]]:
    return [{}] if workload.suits_process_an_env else []


def start(workload: Workload) -> TianshouPlayer:
    return TianshouPlayer(workload)
