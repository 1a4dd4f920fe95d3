"""DI-engine's two subprocess managers: one process an env."""

from typing import Any

import numpy as np
from ding.envs import BaseEnvTimestep
from ding.envs.env_manager import get_env_manager_cls
from easydict import EasyDict

from peers.managed import ManagerPlayer
from workloads import Workload

SLOW_START = True


class DingEnv:
    """A Gymnasium env in DI-engine's manner, with as little around it as there can be."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.reward_space = None
        self.next_seed: int | None = None

    def seed(self, seed: int) -> None:
        self.next_seed = seed

    def reset(self) -> Any:
        seed, self.next_seed = self.next_seed, None
        return self.env.reset(seed=seed)[0]

    def step(self, action: np.int64) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return BaseEnvTimestep(obs, reward, terminated or truncated, info)

    def close(self) -> None:
        self.env.close()


def settings(workload: Workload, kind: str) -> list[dict[str, Any]]:
    if not workload.suits_process_an_env:
        return []
    if workload.waits and kind == ("subprocess" if workload.batch else "async_subprocess"):
        return []
    inplace: dict[str, Any] = {"reset_inplace": True}  # by the worker and not by a thread of the caller
    if workload.batch:
        # What ends its wait for the rest is the timeout; None waits for all.
        return [{**inplace, "wait_num": workload.batch, "step_wait_timeout": seconds} for seconds in (0.01, 0.001)]
    if workload.grid:
        return [inplace]
    tried = [inplace, {**inplace, "copy_on_get": False}, {**inplace, "shared_memory": False}, {}]
    if kind == "async_subprocess":
        tried.append({**inplace, "wait_num": workload.num_envs, "step_wait_timeout": None})
    return tried


def start(workload: Workload, kind: str, **config: Any) -> ManagerPlayer:
    env_fns = [lambda make=make: DingEnv(make()) for make in workload.case.env_fns]
    manager = get_env_manager_cls(EasyDict(type=kind))
    return ManagerPlayer(manager(env_fns, EasyDict({**manager.default_config(), **config})))
