"""tianshou's vectorised env on a pool: BaseVectorEnv's interface, DummyVectorEnv's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import shmenv
from shmenv.adapters import require

require("tianshou", "2.0", "tianshou")

from tianshou.env import BaseVectorEnv  # noqa: E402

from shmenv.adapters.actions import Answer, given  # noqa: E402
from shmenv.adapters.agent import serve_inside, serving  # noqa: E402
from shmenv.adapters.columns import row_of  # noqa: E402
from shmenv.adapters.refusals import dropped, raise_original  # noqa: E402

Array = np.ndarray[Any, Any]
Ids = int | Sequence[int] | Array | None


class ShmVectorEnv(BaseVectorEnv):  # type: ignore[misc]  # Any where the framework is not installed
    """tianshou's vectorised env, stepped by a `shmenv.Pool`.

    What DummyVectorEnv returns, this returns; what SubprocVectorEnv takes, this takes. Ended envs are the caller's to
    reset. The differences, and why they are there, stand in docs/adapters.md.

    Args:
        env_fns: one function an env. They run in the workers only.
        wait_num: how many envs `step` waits for; None: all it was given. With fewer than all, or with a timeout, it is
            asynchronous: infos say in "env_id" which envs these are, and `step(None)` waits for more.
        timeout: seconds after which `step` returns what is ready, at least one env.
        share_memory: taken for SubprocVectorEnv's sake. Observations come through shared memory either way.
        context: start method of the workers; None is "forkserver".
        **pool_options: what else `Pool` takes: num_workers, on_error, step_timeout, reset_timeout, max_retry, affinity,
            shared_memory, and so on.

    Raises:
        What an env's constructor raised; its `__cause__`, an EnvError, says which env that was.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: str | None = None,
        **pool_options: Any,
    ) -> None:
        # Not the base class's: that starts a worker an env.
        self._env_fns = env_fns
        self.env_num = n = len(env_fns)
        self.wait_num = wait_num or n
        assert 1 <= self.wait_num <= n, f"wait_num should be in [1, {n}], but got {wait_num}"
        self.timeout = timeout
        assert timeout is None or timeout > 0, f"timeout is {timeout}, it should be positive if provided!"
        self.is_async = self.wait_num != n or timeout is not None
        self.waiting_id: list[int] = []  # in the order in which they were given actions
        self.ready_id = list(range(n))
        self.is_closed = True
        self._pool: shmenv.Pool = _asked(
            lambda: shmenv.Pool(
                serving(serve_inside, env_fns),
                context=context,
                autoreset="disabled",
                reset_first=False,
                copy=True,
                **pool_options,
            )
        )
        self.is_closed = False
        self._space, self._batched = self._pool.observation_space, pool_options.get("shared_memory", True)
        # Kept here: who samples from them goes on sampling from those that `seed` seeds.
        self._action_spaces = _asked(lambda: self._pool.call("read", "action_space"))

    @property
    def pool(self) -> shmenv.Pool:
        """The pool that steps the envs: for its `stats` and `seeds`."""
        return self._pool

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:
        """Read an attribute of some envs, looked up through their wrappers."""
        ids = self._asked_ids(id)
        if key == "action_space":
            return [self._action_spaces[i] for i in ids]
        return list(_asked(lambda: self._pool.call("read", key, env_id=ids))) if ids else []

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:
        """Set an attribute of some envs, inside all their wrappers."""
        ids = self._asked_ids(id)
        if ids:
            _asked(lambda: self._pool.call("write", key, value, env_id=ids))

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[Array, Array]:
        """Reset some envs.

        Args:
            env_id: which. None: all.
            **kwargs: for the `reset` of each of them; also `seed`, the same for all.

        Returns:
            The first observations (n, ...) and infos (n,), in the order of env_id.
        """
        ids = self._asked_ids(env_id)
        seed = kwargs.pop("seed", None)
        seeds = None if seed is None else [seed] * len(ids)
        batch = self._answer(lambda: self._pool.reset(seeds, kwargs or None, ids))
        rows = _places(batch, ids)
        return self._observations(batch.obs, rows), np.array([batch.info[row] for row in rows])

    def step(self, action: Any, id: Ids = None) -> tuple[Array, Array, Array, Array, Array]:
        """Step some envs.

        Args:
            action: one an env, in the order of id. None, if it is asynchronous: only wait for more.
            id: which. None: all.

        Returns:
            Observations (n, ...), rewards (n,), terminated, truncated bool (n,), infos (n,): of these envs in the order
            of id; if it is asynchronous, of those that are ready, in the order in which they were given actions.
        """
        if not self.is_async:
            ids = self._asked_ids(id)
            if action is None:
                raise ValueError("action must be not-None for non-async")
            self._send(action, ids)
            return self._results(self._answer(lambda: self._pool.recv(len(ids))), ids)
        self._assert_is_not_closed()
        if action is not None:
            ids = self._asked_ids(id)
            self._send(action, ids)
            self.waiting_id += ids
            self.ready_id = [i for i in self.ready_id if i not in ids]
        batch = self._answer(self._first_ready)
        come = set(batch.env_id.tolist())
        ready = [i for i in self.waiting_id if i in come]
        self.waiting_id = [i for i in self.waiting_id if i not in ready]
        self.ready_id += ready
        return self._results(batch, ready)

    def _send(self, action: Any, ids: list[int]) -> None:
        assert len(action) == len(ids)
        given(lambda each: self._pool.send(each, ids), action, self._action_spaces[0], lambda: list(action), len(ids))

    def _first_ready(self) -> shmenv.Batch:
        try:
            return self._pool.recv(max(1, min(self.wait_num, self._pool.pending)), self.timeout)
        except shmenv.RecvTimeoutError:
            return self._pool.recv(1)

    def _results(self, batch: shmenv.Batch, ids: list[int]) -> tuple[Array, Array, Array, Array, Array]:
        """The rows in the order of ids, as tianshou stacks them."""
        rows = _places(batch, ids)
        infos = np.array([{**batch.info[row], "env_id": i} for row, i in zip(rows, ids, strict=True)])
        obs = self._observations(batch.obs, rows)
        return obs, batch.reward[rows], batch.terminated[rows], batch.truncated[rows], infos

    def _observations(self, obs: Any, rows: list[int]) -> Array:
        """Rows of a batch's observations: an array, of objects where each is a dict or the like."""
        if isinstance(obs, np.ndarray):
            return obs[rows]
        singles = [row_of(self._space, obs, row, self._batched) for row in rows]
        if isinstance(singles[0], tuple):
            raise TypeError("Tuple observation space is not supported. Please change it to array or dict space")
        try:
            return np.stack(singles)
        except ValueError:  # of different lengths
            return np.array(singles, dtype=object)

    def seed(self, seed: int | Sequence[int] | None = None) -> list[Any]:
        """Seed all envs and their action spaces; an env without a method `seed` is reset with it.

        Args:
            seed: an int gives env i `seed + i`; a sequence one each.

        Returns:
            What `seed` returned of each env; [its seed] where it has none.
        """
        ids = self._asked_ids(None)
        if seed is None or isinstance(seed, int | np.integer):
            seeds = [None if seed is None else int(seed) + i for i in ids]
        else:
            seeds = list(seed)
            assert len(seeds) == len(ids), f"{len(ids)} envs, but {len(seeds)} seeds"
        for space, each in zip(self._action_spaces, seeds, strict=True):
            space.seed(each)
        told = [_asked(partial(self._pool.call, "seed", seeds[i], env_id=i))[0] for i in ids]
        without = [i for i in ids if not told[i][0]]
        if without:
            self._answer(lambda: self._pool.reset([seeds[i] for i in without], env_id=without))
        return [answer if has_method else [seeds[i]] for i, (has_method, answer) in enumerate(told)]

    def render(self, **kwargs: Any) -> list[Any]:
        """What each env's `render` returns."""
        self._assert_is_not_closed()
        if self.waiting_id:
            raise RuntimeError(f"Environments {self.waiting_id} are still stepping, cannot render them now.")
        return list(_asked(lambda: self._pool.call("show", kwargs)))

    def close(self) -> None:
        """End the workers."""
        self._assert_is_not_closed()
        self.is_closed = True
        self._pool.close()

    def _asked_ids(self, id: Ids) -> list[int]:
        """The envs that are meant, if they can be asked now."""
        self._assert_is_not_closed()
        ids = [int(i) for i in self._wrap_id(id)]
        if self.is_async:
            self._assert_id(ids)
        return ids

    def _answer(self, ask: Callable[[], shmenv.Batch]) -> shmenv.Batch:
        """What the pool answers. If an env failed, then in lock-step the other rows of this call are dropped."""
        try:
            return ask()
        except (shmenv.EnvError, shmenv.WorkerError) as error:
            first = error
        failed = (first.env_id,) if isinstance(first, shmenv.EnvError) else first.env_ids
        owed = self._pool.pending_ids
        self.ready_id += [i for i in failed if i in self.waiting_id and i not in owed]
        self.waiting_id = [i for i in self.waiting_id if i not in self.ready_id]
        if not self.is_async:
            list(dropped(self._pool))  # one failure tells enough
        raise_original(first)


def _asked(ask: Callable[[], Answer]) -> Answer:
    """What the pool answers, or what an env raised."""
    try:
        return ask()
    except shmenv.EnvError as error:
        raise_original(error)


def _places(batch: shmenv.Batch, ids: list[int]) -> list[int]:
    """The row of each id."""
    place = {i: row for row, i in enumerate(batch.env_id.tolist())}
    return [place[i] for i in ids]
