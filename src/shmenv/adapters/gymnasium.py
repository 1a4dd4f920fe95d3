"""Gymnasium's vector env on a pool: AsyncVectorEnv's interface, SyncVectorEnv's results."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import shmenv
from shmenv.adapters import require

require("gymnasium", "1.1", "gymnasium")

import gymnasium  # noqa: E402
from gymnasium import spaces  # noqa: E402
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError  # noqa: E402
from gymnasium.vector import AutoresetMode, VectorEnv  # noqa: E402
from gymnasium.vector.async_vector_env import AsyncState  # noqa: E402
from gymnasium.vector.utils import concatenate, create_empty_array, iterate  # noqa: E402

from shmenv.adapters.actions import Answer, given  # noqa: E402
from shmenv.adapters.agent import serve_vector, serving  # noqa: E402
from shmenv.adapters.batched import action_spaces, check_mode, observation_spaces, unequal  # noqa: E402
from shmenv.adapters.columns import columns_of, final_columns, leave_out, row_of  # noqa: E402
from shmenv.adapters.later import Later  # noqa: E402
from shmenv.adapters.newest import Newest  # noqa: E402
from shmenv.adapters.refusals import (  # noqa: E402
    Seeds,
    check_concurrency,
    checked_mask,
    checked_seeds,
    dropped,
    raise_original,
    report,
    reporting,
)

Array = np.ndarray[Any, Any]
Step = tuple[Any, Array, Array, Array, dict[str, Any]]

_MODES = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.DISABLED: "disabled",
}


class ShmVectorEnv(VectorEnv[Any, Any, Any]):
    """Gymnasium's vector env, stepped by a `shmenv.Pool`.

    What SyncVectorEnv returns, this returns; what AsyncVectorEnv takes, this takes, in its order. The differences, and
    why they are there, stand in docs/adapters.md.

    Args:
        env_fns: one function an env. They run in the workers only.
        shared_memory: False pickles observations whole, as `Pool` does; the results are the same.
        copy: hand out observations that are yours. False: views of the pool's memory where that is possible, valid
            until the second next step.
        context: start method of the workers; None is the pool's default, "forkserver".
        daemon: taken for AsyncVectorEnv's sake. Workers end with this process, and may start processes, either way.
        worker: must be None. The workers are the pool's.
        observation_mode: "same", "different", or the pair of a batched and a single space, as in AsyncVectorEnv.
        autoreset_mode: an AutoresetMode or its value.
        max_concurrency: how many envs may run at once, so at most so many workers.
        **pool_options: what else `Pool` takes: num_workers, batch_size, on_error, step_timeout, reset_timeout,
            max_retry, affinity, slots, and so on.

    Raises:
        RuntimeError: the envs' spaces differ. ValueError: an argument is wrong.
        What an env's constructor raised; its `__cause__`, an EnvError, says which env that was.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: str | tuple[spaces.Space[Any], spaces.Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        **pool_options: Any,
    ) -> None:
        self.closed = True  # until there is something to close: some releases close what is deleted
        if worker is not None:
            raise shmenv.UsageError(
                "ShmVectorEnv has workers of its own and takes no custom `worker`. What an env is to do differently "
                "belongs into a wrapper; autoreset_mode, on_error and worker_init cover the rest"
            )
        self.env_fns, self.shared_memory, self.copy = env_fns, shared_memory, copy
        self.context, self.daemon, self.worker = context, daemon, worker
        self.observation_mode, self.max_concurrency = observation_mode, max_concurrency
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        if max_concurrency is not None:
            check_concurrency(max_concurrency)
            workers = pool_options.get("num_workers")
            pool_options["num_workers"] = min(max_concurrency, len(env_fns) if workers is None else workers)
        check_mode(observation_mode)
        self._state = AsyncState.DEFAULT
        self._call: Later | None = None
        self._same_step = self.autoreset_mode == AutoresetMode.SAME_STEP
        try:
            self._pool = shmenv.Pool(
                serving(serve_vector, env_fns, self._same_step),
                context=None if context is None else multiprocessing.get_context(context),
                autoreset=_MODES[self.autoreset_mode],  # type: ignore[arg-type]
                shared_memory=shared_memory,
                reset_first=False,
                **pool_options,
            )
        except shmenv.UnequalEnvsError as error:
            raise RuntimeError(unequal(error, observation_mode, type(self).__name__)) from error
        except shmenv.EnvError as error:
            raise_original(error)
        try:
            self._describe()
        except BaseException:
            self._pool.close()
            raise
        self.closed = False

    def _describe(self) -> None:
        """Take over what the envs say of themselves, and check that they belong together."""
        pool, n = self._pool, self._pool.num_envs
        self.num_envs = n
        (metadata,), (self.render_mode,) = pool.get_attr("metadata", 0), pool.get_attr("render_mode", 0)
        self.metadata = {**metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.observation_space = observation_spaces(
            pool.get_attr("observation_space"), self.observation_mode, type(self).__name__
        )
        self.single_action_space, self.action_space = action_spaces(pool.get_attr("action_space"))
        self._over = np.zeros(n, np.bool_)  # without autoreset: whose episode has ended
        self._newest = Newest(self.single_observation_space, n, self.copy)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # as Gymnasium's own vector envs
        """The seed of each env's `np_random`."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of each env's generator."""
        return self.get_attr("np_random")

    @property
    def pool(self) -> shmenv.Pool:
        """The pool that steps the envs: for its `stats`, `seeds` and `pending`."""
        return self._pool

    # -- reset

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of a mask.

        Args:
            seed: an int gives env i the seed `seed + i`; a sequence has one for each env.
            options: for every env's reset. `options["reset_mask"]`, bool (num_envs,), chooses envs; it is not passed
                on. The dict stays as it is.

        Returns:
            The newest observation of each env, and the infos of those that were reset.
        """
        seeds, rest, env_id = self._reset_arguments(seed, options)
        drain = env_id is None or not self._pool.pending  # what `send` is owed by others stays owed
        self._begin_reset(env_id)
        return self._was_reset(self._answer(partial(self._pool.reset, seeds, rest, env_id), drain))

    def reset_async(self, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        """Start what `reset` does; `reset_wait` gets the result."""
        seeds, rest, env_id = self._reset_arguments(seed, options)
        if self._pool.pending:
            raise AlreadyPendingCallError(
                "Calling `reset_async` while waiting for a pending call to `send` to complete", "send"
            )
        self._pool.send_reset(seeds, rest, env_id)
        self._begin_reset(env_id)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for what `reset_async` has started.

        Raises:
            multiprocessing.TimeoutError: not within `timeout` seconds. The call stays pending: wait again.
        """
        return self._was_reset(self._wait(AsyncState.WAITING_RESET, timeout))

    def _reset_arguments(
        self, seed: Seeds, options: dict[str, Any] | None
    ) -> tuple[Sequence[int | None] | None, dict[str, Any] | None, Array | None]:
        """Seeds, options and ids for the pool."""
        self._assert_is_running()
        seeds = checked_seeds(seed, self.num_envs)
        if self._state != AsyncState.DEFAULT:
            raise AlreadyPendingCallError(
                f"Calling `reset_async` while waiting for a pending call to `{self._state.value}` to complete",
                self._state.value,
            )
        if options is None or "reset_mask" not in options:
            return seeds, options, None
        env_id = np.flatnonzero(checked_mask(options["reset_mask"], self.num_envs))
        options = {key: value for key, value in options.items() if key != "reset_mask"}  # the caller's stays as it is
        return None if seeds is None else [seeds[i] for i in env_id.tolist()], options, env_id

    def _begin_reset(self, env_id: Array | None) -> None:
        self._state = AsyncState.WAITING_RESET
        self._over[... if env_id is None else env_id] = False

    def _was_reset(self, batch: shmenv.Batch) -> tuple[Any, dict[str, Any]]:
        if len(batch) == self.num_envs:
            return self._newest.whole(self._batched(batch)), self._infos(batch)
        self._newest.some(batch.env_id, self._batched(batch))
        return self._newest.all(), self._infos(batch)

    # -- step

    def step(self, actions: Any) -> Step:
        """Step every env once.

        Args:
            actions: a value of `action_space`, or a list of one action an env. What is neither reaches the envs as it
                is, as long as there is one for each.

        Returns:
            observations, rewards float64 (num_envs,), terminations and truncations bool (num_envs,), and infos.
        """
        self._check_steppable()
        self._state = AsyncState.WAITING_STEP
        return self._stepped(self._answer(partial(self._given, self._pool.step, actions)))

    def step_async(self, actions: Any) -> None:
        """Start what `step` does; `step_wait` gets the result. Nothing is sent if the actions are wrong."""
        self._check_steppable()
        self._given(self._pool.send, actions)
        self._state = AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> Step:
        """Wait for what `step_async` has started.

        Raises:
            multiprocessing.TimeoutError: not within `timeout` seconds. The call stays pending: wait again.
        """
        return self._stepped(self._wait(AsyncState.WAITING_STEP, timeout))

    def _check_steppable(self) -> None:
        self._assert_is_running()
        self._assert_nothing_pending("step_async")
        if self.autoreset_mode == AutoresetMode.DISABLED and self._over.any():
            over = np.flatnonzero(self._over).tolist()
            raise AssertionError(f"envs {over} have ended and need a reset: reset(options={{'reset_mask': ...}})")

    def _given(self, give: Callable[[Any], Answer], actions: Any) -> Answer:
        return given(give, actions, self.action_space, lambda: iterate(self.action_space, actions), self.num_envs)

    def _stepped(self, batch: shmenv.Batch) -> Step:
        obs, infos = self._newest.whole(self._batched(batch)), self._infos(batch)
        terminated, truncated = batch.terminated.copy(), batch.truncated.copy()
        if self.autoreset_mode == AutoresetMode.DISABLED:
            self._over = terminated | truncated
        return obs, batch.reward.copy(), terminated, truncated, infos

    # -- first-k

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Step some envs without waiting for them; `recv` gets their answers.

        Args:
            actions: as for `step`, one for each id, in the order of env_id.
            env_id: which envs, each once. None: all.
        """
        self._assert_is_running()
        self._assert_nothing_pending("send")
        self._pool.send(actions, env_id)

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> Step:
        """Wait until enough envs of `send` have answered; the others come with a later call.

        Args:
            min_envs: return all that are ready, at least so many. None: exactly `batch_size` (an option of the pool;
                by default all), or what is pending if that is less.
            timeout: seconds. None waits for ever, 0 only polls.

        Returns:
            As `step`, but k rows, those of the envs `infos["env_id"]`, int32 (k,), ascending. All other infos have k
            rows, too.

        Raises:
            multiprocessing.TimeoutError: time ran out. Nothing is lost: call again.
        """
        self._assert_is_running()
        self._assert_nothing_pending("recv")
        try:
            batch = reporting(partial(self._pool.recv, min_envs, timeout))
        except shmenv.RecvTimeoutError as error:
            raise multiprocessing.TimeoutError(f"The call to `recv` has timed out: {error}") from error
        obs = self._batched(batch)
        self._newest.some(batch.env_id, obs)
        if self.autoreset_mode == AutoresetMode.DISABLED:
            self._over[batch.env_id] = batch.terminated | batch.truncated
        infos = leave_out(self._infos(batch, range(len(batch))), "env_id")
        infos["env_id"] = batch.env_id.copy()
        return self._newest.handed_out(obs), batch.reward.copy(), batch.terminated.copy(), batch.truncated.copy(), infos

    # -- everything else of the envs

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute that is none."""
        self._assert_is_running()
        self._assert_nothing_pending("call_async")
        return reporting(self._calling(name, args, kwargs))

    def call_async(self, name: str, /, *args: object, **kwargs: object) -> None:
        """Start what `call` does; `call_wait` gets the results."""
        self._assert_is_running()
        self._assert_nothing_pending("call_async")
        self._call = Later(self._calling(name, args, kwargs))
        self._state = AsyncState.WAITING_CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for what `call_async` has started.

        Raises:
            multiprocessing.TimeoutError: not within `timeout` seconds. The call stays pending: wait again.
        """
        self._assert_waiting_for(AsyncState.WAITING_CALL)
        call = self._call
        assert call is not None
        call.join(timeout)
        if call.is_alive():
            raise multiprocessing.TimeoutError(f"The call to `call_wait` has timed out after {timeout} second(s).")
        self._state, self._call = AsyncState.DEFAULT, None
        return reporting(call.result)

    def _calling(self, name: str, args: Any, kwargs: Any) -> Callable[[], tuple[Any, ...]]:
        if name in ("reset", "step", "close"):
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        return self._pool.render if name == "render" else partial(self._pool.call, name, *args, **kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each env; as in Gymnasium, a method is called."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env, where it is found among its wrappers.

        Args:
            name: the attribute.
            values: a list or tuple of one for each env, or one value for all.
        """
        self._assert_is_running()
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        self._assert_nothing_pending("set_attr")
        reporting(partial(self._pool.set_attr, name, values))

    def render(self) -> tuple[Any, ...]:
        """What each env's `render` returns."""
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the workers. Called by: `close`, which passes these on.

        Args:
            timeout: seconds that a pending call and the envs' own `close` may take before the workers are killed. None:
                the pool's `close_timeout`.
            terminate: kill them at once.
        """
        if self._state != AsyncState.DEFAULT:
            gymnasium.logger.warn(
                f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete."
            )
        self._pool.close(0 if terminate else timeout)
        if self._call is not None:
            self._call.join()  # the pool is closed, so it ends

    # -- inside

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    def _assert_nothing_pending(self, caller: str) -> None:
        if self._state != AsyncState.DEFAULT:
            raise AlreadyPendingCallError(
                f"Calling `{caller}` while waiting for a pending call to `{self._state.value}` to complete.",
                self._state.value,
            )

    def _assert_waiting_for(self, state: AsyncState) -> None:
        self._assert_is_running()
        if self._state != state:
            name = state.value
            raise NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)

    def _wait(self, state: AsyncState, timeout: float | None) -> shmenv.Batch:
        """The rows of all envs that were asked, or the errors in their place."""
        self._assert_waiting_for(state)
        pool = self._pool
        try:
            return self._answer(lambda: pool.recv(max(pool.pending, 1), timeout))
        except shmenv.RecvTimeoutError as error:
            raise multiprocessing.TimeoutError(
                f"The call to `{state.value}_wait` has timed out after {timeout} second(s)."
            ) from error

    def _answer(self, ask: Callable[[], shmenv.Batch], drain: bool = True) -> shmenv.Batch:
        """What the pool answers. If an env failed, the others' rows of this call are dropped, as in Gymnasium."""
        try:
            batch = ask()
        except shmenv.RecvTimeoutError:  # the call stays pending, as after Ctrl-C
            raise
        except (shmenv.EnvError, shmenv.WorkerError) as error:
            errors = [error, *(dropped(self._pool) if drain else ())]
        except Exception:  # nothing was sent
            self._state = AsyncState.DEFAULT
            raise
        else:
            self._state = AsyncState.DEFAULT
            return batch
        self._state = AsyncState.DEFAULT
        report(errors)

    def _batched(self, batch: shmenv.Batch) -> Any:
        """The batch's observations as the batched space has them."""
        if self.shared_memory:
            return batch.obs
        space = self.single_observation_space
        empty: Any = create_empty_array(space, len(batch))
        return concatenate(space, batch.obs, empty)

    def _infos(self, batch: shmenv.Batch, places: Sequence[int] | None = None) -> dict[str, Any]:
        """The infos of a batch, one array a key. Rows go to these places in it, or else to those of their envs."""
        infos: dict[str, Any] = {}
        if not self._same_step and batch.info.is_empty():
            return infos
        n = self.num_envs if places is None else len(places)
        where: Any = batch.env_id.tolist() if places is None else places
        if self._same_step and (ended := np.flatnonzero(batch.terminated | batch.truncated).tolist()):
            infos = final_columns(batch, ended, [where[k] for k in ended], n, self._final_obs)
        own = columns_of(batch.info, where, n)
        if self._same_step:
            leave_out(own, "final_obs", "final_info")
        return {**infos, **own} if infos else own

    def _final_obs(self, batch: shmenv.Batch, k: int) -> Any:
        return row_of(self.single_observation_space, batch.final_obs, k, self.shared_memory)
