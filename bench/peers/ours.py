"""shmenv's Pool and managers, as they come but for the number of workers, and Pool with a core for each worker."""

from typing import Any

import numpy as np

import shmenv
from peers.managed import ManagerPlayer
from peers.player import Player, Values, row_of_env_0
from workloads import Workload


class PoolPlayer:
    comparable = True

    def __init__(self, workload: Workload, **options: Any) -> None:
        self.pool = shmenv.Pool(workload.case.env_fns, num_workers=workload.workers, **options)
        self.batch_size = workload.batch
        self.close = self.pool.close

    def reset(self) -> Any:
        self.batch = self.pool.reset(seed=0)
        return self.batch.obs[0]

    def step(self, actions: np.ndarray[Any, Any]) -> int:
        if self.batch_size is None:
            self.batch = self.pool.step(actions)
        else:
            ids = self.batch.env_id
            self.pool.send(actions[ids], ids)
            self.batch = self.pool.recv(self.batch_size)
        return len(self.batch)

    def values(self) -> Values | None:
        batch = self.batch
        return row_of_env_0(batch.env_id, batch.obs, batch.reward, batch.terminated | batch.truncated)


def settings(workload: Workload, kind: str) -> list[dict[str, Any]]:
    if workload.waits and kind == ("subprocess" if workload.batch else "async_subprocess"):
        return []
    return [{"wait_num": workload.batch}] if workload.batch and kind == "async_subprocess" else [{}]


def start(workload: Workload, kind: str, **options: Any) -> Player:
    if kind == "pool":
        return PoolPlayer(workload)
    if kind == "spread":
        return PoolPlayer(workload, affinity="spread")
    config = {"type": kind, "num_workers": workload.workers, **options}
    return ManagerPlayer(shmenv.create_env_manager(config, workload.case.env_fns))
