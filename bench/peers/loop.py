"""Each library in the loops of bench/loops.py, with one torch thread unless the kind ends with a plus."""

import os
from functools import partial
from typing import Any

import numpy as np

from free import Limit
from loops import Apart, check, make_loop
from workloads import Workload

THREADS = "+"
SETTLED = 12  # steps before the values are compared


class LoopPlayer:
    comparable = False

    def __init__(self, workload: Workload, envs: Any, same_step: bool | None) -> None:
        self.workload, self.envs, self.same_step = workload, envs, same_step
        self.close = envs.close

    def reset(self) -> None:
        assert self.workload.loop
        self.loop = make_loop(self.workload.loop, self.envs)

    def step(self, actions: Any) -> int:
        return int(self.loop.step())

    def check(self) -> bool | None:
        """Whether the first rows were compared with plain envs.

        Raises:
            AssertionError: values differ.
        """
        if self.envs.num_envs != self.workload.num_envs:
            return None  # batches of some envs, whose rows are not those of an env
        for _ in range(1 if self.workload.loop == "sb3" else SETTLED):
            self.loop.step()
        check(self.loop, self.workload.case.env_fns, self.same_step)
        return True

    def values(self) -> None:
        return None


class PoolEnvs:
    """A shmenv.Pool; two planes, so the stored observations are copies as everyone's."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.num_envs, self.close = pool, len(pool), pool.close

    def reset(self, *, seed: int | None = None) -> tuple[Any, Any]:
        return self.pool.reset(seed=seed).obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        batch = self.pool.step(actions)
        return batch.obs, batch.reward, batch.terminated, batch.truncated, {}


class VecEnvs:
    """Stable-Baselines3's SubprocVecEnv."""

    def __init__(self, workload: Workload) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self.envs = SubprocVecEnv(workload.case.env_fns, start_method="fork")
        self.num_envs, self.close = workload.num_envs, self.envs.close

    def reset(self, *, seed: int | None = None) -> tuple[Any, Any]:
        self.envs.seed(seed)
        return self.envs.reset(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        obs, reward, done, _ = self.envs.step(actions)
        return obs, reward, done, np.zeros_like(done), {}


class PufferEnvs:
    """PufferLib's Serial or Multiprocessing."""

    def __init__(self, workload: Workload, **config: Any) -> None:
        from pufferlib.emulation import GymnasiumPufferEnv
        from pufferlib.vector import Multiprocessing, Serial

        n = workload.num_envs
        makes = [partial(GymnasiumPufferEnv, env_creator=make) for make in workload.case.env_fns]
        self.num_envs = config.get("batch_size", n)
        if config:
            self.envs = Multiprocessing(makes, [[]] * n, [{}] * n, n, overwork=True, **config)
        else:
            self.envs = Serial(makes, [[]] * n, [{}] * n, n)
        self.close = self.envs.close

    def reset(self, *, seed: int | None = None) -> tuple[Any, Any]:
        self.envs.async_reset(seed)
        return self.envs.recv()[0], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.envs.send(actions)
        obs, reward, terminated, truncated, *_ = self.envs.recv()
        return obs, reward, terminated, truncated, {}


SB3 = ("vec", "dummy", "subproc")


def settings(workload: Workload, kind: str) -> list[dict[str, Any]]:
    if not workload.loop:
        return []
    if kind == "limit":
        return [{}] if workload.loop != "sb3" or _has_sb3() else []
    if (workload.loop == "sb3") != (kind in SB3) and kind != "subproc":
        return []
    if kind.endswith(THREADS) and workload.loop in ("none", "numpy"):
        return []  # no torch
    if kind == "puffer":
        n = workload.num_envs
        tried: list[dict[str, Any]] = [{}, *({"num_workers": workers, "batch_size": n} for workers in (1, 2))]
        return [*tried, {"num_workers": 2, "batch_size": n // 2}]
    return [{}]


def start(workload: Workload, kind: str, **config: Any) -> LoopPlayer | Limit:
    assert workload.loop
    if kind == "limit":
        return Apart(workload.case, workload.loop, min(len(os.sched_getaffinity(0)), workload.num_envs))
    if workload.loop not in ("none", "numpy") and not kind.endswith(THREADS):
        import torch

        torch.set_num_threads(1)
    kind, fns = kind.removesuffix(THREADS), workload.case.env_fns
    if kind == "pool":
        import shmenv

        return LoopPlayer(workload, PoolEnvs(shmenv.Pool(fns, num_workers=workload.workers)), True)
    if kind == "puffer":
        return LoopPlayer(workload, PufferEnvs(workload, **config), None)
    if kind == "subproc" and workload.loop != "sb3":
        return LoopPlayer(workload, VecEnvs(workload), True)
    return LoopPlayer(workload, _vector(workload, kind, fns), workload.loop == "sb3")


def _vector(workload: Workload, kind: str, fns: list[Any]) -> Any:
    """As they come: ended episodes spend a step on their reset."""
    if kind in ("sync", "async"):
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        return SyncVectorEnv(fns) if kind == "sync" else AsyncVectorEnv(fns)
    if kind == "shm":
        from shmenv.adapters.gymnasium import ShmVectorEnv

        return ShmVectorEnv(fns, num_workers=workload.workers)
    if kind == "vec":
        from shmenv.adapters.sb3 import ShmVecEnv

        return ShmVecEnv(fns, num_workers=workload.workers)
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    return DummyVecEnv(fns) if kind == "dummy" else SubprocVecEnv(fns, start_method="fork")


def _has_sb3() -> bool:
    from importlib.util import find_spec

    return find_spec("stable_baselines3") is not None
