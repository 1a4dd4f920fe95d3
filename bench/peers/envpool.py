"""EnvPool's own CartPole, written in C++ and stepped by threads."""

from typing import Any

import envpool
import numpy as np

from workloads import Workload


class EnvpoolPlayer:
    comparable = False

    def __init__(self, workload: Workload, **config: Any) -> None:
        self.envs = envpool.make_gymnasium("CartPole-v1", num_envs=workload.num_envs, seed=0, **config)
        self.close = self.envs.close

    def reset(self) -> Any:
        self.envs.async_reset()
        self.ids = self.envs.recv()[4]["env_id"]

    def step(self, actions: np.ndarray[Any, Any]) -> int:
        self.envs.send(actions[self.ids], self.ids)
        self.ids = self.envs.recv()[4]["env_id"]
        return len(self.ids)

    def values(self) -> None:
        return None


def settings(workload: Workload) -> list[dict[str, Any]]:
    n = workload.num_envs
    if not workload.is_cartpole or not workload.suits_one_process:
        return []
    tried = [{"num_threads": threads, "batch_size": n} for threads in (1, 2)]
    if n > 1:
        tried += [{"num_threads": threads, "batch_size": n // 2} for threads in (1, 2)]
    return tried


def start(workload: Workload, **config: Any) -> EnvpoolPlayer:
    return EnvpoolPlayer(workload, **config)
