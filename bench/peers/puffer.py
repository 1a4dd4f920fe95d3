"""PufferLib's Multiprocessing, over the worker numbers and batch sizes that its documentation recommends to try."""

from functools import partial
from typing import Any

import numpy as np
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.vector import Multiprocessing

from peers.player import Values, row_of_env_0
from workloads import Workload


class PufferPlayer:
    comparable = True

    def __init__(self, workload: Workload, **config: Any) -> None:
        n = workload.num_envs
        makes = [partial(GymnasiumPufferEnv, env_creator=make) for make in workload.case.env_fns]
        self.envs = Multiprocessing(makes, [[]] * n, [{}] * n, n, overwork=True, **config)
        self.close = self.envs.close

    def reset(self) -> Any:
        self.envs.async_reset(0)
        self.answer = self.envs.recv()
        return self.answer[0][0]

    def step(self, actions: np.ndarray[Any, Any]) -> int:
        ids = self.answer[5]
        self.envs.send(actions[ids])
        self.answer = self.envs.recv()
        return len(ids)

    def values(self) -> Values | None:
        obs, reward, terminated, truncated, _, ids, _ = self.answer
        return row_of_env_0(ids, obs, reward, terminated | truncated)


def settings(workload: Workload) -> list[dict[str, Any]]:
    n = workload.num_envs
    if workload.batch:  # first come, first served: batches of any workers, and in no fixed order
        free = {"batch_size": workload.batch, "zero_copy": False, "sync_traj": False}
        return [{"num_workers": workers, **free} for workers in (2, 4, n)]
    if not workload.suits_one_process:
        return [{"num_workers": workload.workers, "batch_size": n}]
    numbers = (1, 2, 4, n) if workload.waits else (1, 2, 4)
    tried = [{"num_workers": workers, "batch_size": n} for workers in numbers if n % workers == 0]
    # Its double buffering: one half is stepped while the caller has the other.
    tried += [{"num_workers": workers, "batch_size": n // 2} for workers in (2, 4) if n % workers == 0]
    return tried


def start(workload: Workload, **config: Any) -> PufferPlayer:
    return PufferPlayer(workload, **config)
