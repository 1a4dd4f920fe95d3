"""Stable-Baselines3's SubprocVecEnv: one process an env. Forked, since 64 imports of it would take minutes."""

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv

from peers.player import Values
from workloads import Workload


class Sb3Player:
    comparable = True

    def __init__(self, workload: Workload) -> None:
        self.envs = SubprocVecEnv(workload.case.env_fns, start_method="fork")
        self.close = self.envs.close

    def reset(self) -> Any:
        self.envs.seed(0)
        return self.envs.reset()[0]

    def step(self, actions: np.ndarray[Any, Any]) -> int:
        self.answer = self.envs.step(actions)
        return len(actions)

    def values(self) -> Values:
        obs, reward, done, _ = self.answer
        return Values(obs[0], reward[0], done[0])


def settings(workload: Workload) -> list[dict[str, Any]]:
    return [{}] if workload.suits_process_an_env and not workload.batch else []


def start(workload: Workload) -> Sb3Player:
    return Sb3Player(workload)
