"""Stable-Baselines3's vectorised env on a pool: SubprocVecEnv's interface, DummyVecEnv's results."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import shmenv
from shmenv.adapters import require

require("stable_baselines3", "2.9", "sb3")

import gymnasium  # noqa: E402
from stable_baselines3.common.vec_env.base_vec_env import (  # noqa: E402
    VecEnv,
    VecEnvIndices,
    VecEnvObs,
    VecEnvStepReturn,
)

from shmenv.adapters.actions import given  # noqa: E402
from shmenv.adapters.agent import LAST_OBS, serve, serving  # noqa: E402
from shmenv.adapters.columns import copied, row_of  # noqa: E402
from shmenv.adapters.refusals import dropped, raise_original  # noqa: E402


class ShmVecEnv(VecEnv):  # type: ignore[misc]  # Any where the framework is not installed
    """Stable-Baselines3's vectorised env, stepped by a `shmenv.Pool`.

    What DummyVecEnv returns, this returns; what SubprocVecEnv takes, this takes. The differences, and why they are
    there, stand in docs/adapters.md.

    Args:
        env_fns: one function an env. They run in the workers only.
        start_method: of the workers; None is "forkserver".
        **pool_options: what else `Pool` takes: num_workers, on_error, step_timeout, reset_timeout, max_retry, affinity,
            and so on.

    Raises:
        What an env's constructor raised; its `__cause__`, an EnvError, says which env that was.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        start_method: str | None = None,
        **pool_options: Any,
    ) -> None:
        self.waiting, self.closed = False, True
        try:
            self._pool = shmenv.Pool(
                serving(serve, env_fns),
                context=None if start_method is None else multiprocessing.get_context(start_method),
                autoreset="same_step",
                shared_memory=True,
                reset_first=False,
                **pool_options,
            )
        except shmenv.EnvError as error:
            raise_original(error)
        self.closed = False
        try:
            super().__init__(self._pool.num_envs, self._pool.observation_space, self._pool.action_space)
        except BaseException:
            self.close()
            raise

    @property
    def pool(self) -> shmenv.Pool:
        """The pool that steps the envs: for its `stats` and `seeds`."""
        return self._pool

    def reset(self) -> VecEnvObs:
        """Reset all envs, with the seeds and options given since the last reset. A pending step is dropped.

        Returns:
            The first observations, which are yours. What the envs told besides is in `reset_infos`.
        """
        self.waiting = False
        seeds = None if self._seeds == [None] * self.num_envs else self._seeds
        options = [each or None for each in self._options] if any(self._options) else None
        batch = self._answer(partial(self._pool.reset, seeds, options))
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = list(batch.info)
        return copied(batch.obs)

    def step_async(self, actions: np.ndarray) -> None:
        """Start a step of every env; `step_wait` gets the results. Nothing is sent if the actions are wrong."""
        given(self._pool.send, actions, self.action_space, lambda: actions, self.num_envs)
        self.waiting = True

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for what `step_async` has started.

        Returns:
            observations, rewards float32 (num_envs,), dones bool (num_envs,), and a list of one info an env. All are
            yours. Ended envs are reset already; their info holds "terminal_observation".
        """
        n = self.num_envs
        batch = self._answer(partial(self._pool.recv, n))
        self.waiting = False
        done = batch.terminated | batch.truncated
        if batch.info.is_empty():
            infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(n)]
        else:
            infos = [{**info, "TimeLimit.truncated": False} for info in batch.info]
        for k in np.flatnonzero(done).tolist():
            last = {**batch.final_info[k]}
            lost = LAST_OBS not in last  # the worker was, and with it what the env showed
            last_obs = row_of(self.observation_space, batch.final_obs, k, True) if lost else last.pop(LAST_OBS)
            last["TimeLimit.truncated"] = bool(batch.truncated[k] and not batch.terminated[k])
            infos[k] = {**last, "terminal_observation": last_obs}
            self.reset_infos[k] = batch.info[k]
        return copied(batch.obs), batch.reward.astype(np.float32), done, infos

    def _answer(self, ask: Callable[[], shmenv.Batch]) -> shmenv.Batch:
        """What the pool answers. If an env failed, the others' rows of this call are dropped."""
        try:
            return ask()
        except (shmenv.EnvError, shmenv.WorkerError) as error:
            first = error
        self.waiting = False
        list(dropped(self._pool))  # one failure tells enough
        raise_original(first)

    def close(self) -> None:
        """End the workers. Idempotent."""
        self.closed, self.waiting = True, False
        self._pool.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """What each env's `render` returns, if that is images."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is `rgb_array` to obtain images.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        try:
            return list(self._pool.render())
        except shmenv.EnvError as error:
            raise_original(error)

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have such an attribute."""
        return all(self._ask(None, "has", attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Read an attribute of some envs, looked up through their wrappers."""
        return self._ask(indices, "read", attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of some envs' outermost wrappers."""
        self._ask(indices, "write", attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some envs, looked up through their wrappers."""
        return self._ask(indices, "do", method_name, method_args, method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Whether such a wrapper is around some envs."""
        return self._ask(indices, "is_wrapped", wrapper_class)

    def _ask(self, indices: VecEnvIndices, name: str, *args: Any) -> list[Any]:
        """One answer of an env's agent for each index, in this order. What a pending step gives stays where it is."""
        ids = [range(self.num_envs)[i] for i in self._get_indices(indices)]  # from the end, too, as in a list
        try:
            if len(set(ids)) == len(ids):
                return list(self._pool.call(name, *args, env_id=ids)) if ids else []
            return [self._pool.call(name, *args, env_id=i)[0] for i in ids]
        except shmenv.EnvError as error:
            raise_original(error)
