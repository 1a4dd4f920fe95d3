"""Gymnasium's vector envs. A copy of the observations is not asked for: Pool hands out none either."""

from typing import Any, Literal

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from peers.player import Values
from workloads import Workload


class VectorPlayer:
    comparable = True

    def __init__(self, workload: Workload, kind: Literal["sync", "async"]) -> None:
        make = SyncVectorEnv if kind == "sync" else AsyncVectorEnv
        self.envs = make(workload.case.env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        self.close = self.envs.close

    def reset(self) -> Any:
        return self.envs.reset(seed=0)[0][0]

    def step(self, actions: np.ndarray[Any, Any]) -> int:
        self.answer = self.envs.step(actions)
        return len(actions)

    def values(self) -> Values:
        obs, reward, terminated, truncated, _ = self.answer
        return Values(obs[0], reward[0], terminated[0] or truncated[0])


def settings(workload: Workload, kind: str) -> list[dict[str, Any]]:
    if kind == "async" and not workload.suits_process_an_env:
        return []
    return [{}] if workload.suits_one_process else []


def start(workload: Workload, kind: Literal["sync", "async"]) -> VectorPlayer:
    return VectorPlayer(workload, kind)
