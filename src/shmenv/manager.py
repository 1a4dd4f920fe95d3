"""The env managers: `{env_id: action}` in, `{env_id: timestep}` out, for code written against DI-engine's."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from shmenv import manager_config
from shmenv._steps import chosen, mark, ready
from shmenv.arguments import PackedOptions
from shmenv.errors import EnvError, RecvTimeoutError, ShmenvError, UsageError, WorkerError
from shmenv.managed import orders
from shmenv.manager_base import EnvState, ManagerBase
from shmenv.pool import Pool
from shmenv.timestep import Odd, with_obs


class AsyncSubprocessEnvManager(ManagerBase):
    """Runs envs in worker processes, and hands out each timestep as soon as it is there.

    Made closed. `launch()` starts the workers and resets the envs; then, until `done`, `step` takes actions for some or
    all envs of `ready_obs`. Envs whose episode ended are reset in the background. An action whose timestep `step` has
    not returned yet is owed (STEPPING): it comes with a later `step`, `step({})` included.

    What an env or a worker fails at is raised once, by the next call that waits: `EnvError`, `WorkerDiedError`,
    `WorkerTimeoutError`. Its env is in ERROR then, until `reset({id: ...})`; timesteps of other envs stay owed.
    With `on_error="restart"` the env is restarted instead and its timestep says `info["abnormal"]`; with "close" the
    manager is closed before it raises.

    Args:
        env_fn: one function an env, run in the workers only. Envs in DI-engine's style (`reset(**kwargs) -> obs`,
            `step -> timestep`), Gymnasium's, or PettingZoo's parallel ones.
        cfg: some keys of `default_config()`, or all.

    Raises:
        UsageError: env_fn holds no functions, or cfg an unknown key or a wrong value.
    """

    config: ClassVar[dict[str, Any]] = manager_config.ASYNC
    _waits_for_resets = False  # whether ready_obs waits until no reset is under way

    # -- reset

    def reset(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Reset envs, in whatever state, and wait for all of them. Episode counts go on.

        A timestep that such an env still owes is dropped; those of other envs are not touched.

        Args:
            reset_param: by env id the keyword arguments of its `reset`, or None for none. They are kept for that
                env's later resets. None: all envs, with what is kept.

        Raises:
            ClosedError: it is closed. UsageError: an id is unknown, or a value no dict. Nothing changed.
            EnvError, WorkerDiedError, WorkerTimeoutError: an env cannot be reset, and is in ERROR; the others are.
        """
        with self._unbroken:
            self._reset(self._open(), self._checked_params(reset_param))

    def _reset(self, pool: Pool, params: dict[int, dict[str, Any]]) -> None:
        ids = sorted(params)
        while asked := self._owed.intersection(ids):
            self._receive(len(asked))
        self._keep_going_on(self._going_on.difference(ids))
        before = dict(self._reset_param)
        self._reset_param.update(params)
        try:
            self._send_resets(pool, ids)
        except UsageError:  # the arguments cannot be pickled
            self._reset_param = before
            raise
        while asked := self._owed.intersection(ids):
            self._receive(len(asked))
        self._raise_failure(ids)

    def _checked_params(self, reset_param: Any) -> dict[int, dict[str, Any]]:
        if reset_param is None:
            return dict(self._reset_param)
        if not isinstance(reset_param, Mapping):
            raise UsageError(f"reset_param must be a dict by env id, not a {type(reset_param).__name__}")
        for value in reset_param.values():
            if value is not None and not isinstance(value, Mapping):
                raise UsageError(f"reset_param must hold a dict of arguments, or None, by env id, not {value!r}")
        return {self._known(i): dict(value or {}) for i, value in reset_param.items()}

    def _send_resets(self, pool: Pool, ids: list[int]) -> None:
        """Start resets of envs that owe nothing; what they had to tell is dropped."""
        asked, last = set(ids), None
        told = [error for error in self._failures if asked.issuperset(_ids_of(error))]
        while ids:
            options = [self._reset_options(i) for i in ids]
            try:
                pool.send_reset(options=options, env_id=ids)
                break
            except WorkerError as error:  # nothing was sent
                new = self._note(error, spared=asked)
                if error is last:  # told again: they are lost for good
                    self._env_states.update(dict.fromkeys(asked.intersection(error.env_ids), EnvState.ERROR))
                    ids = [i for i in ids if i not in error.env_ids]
                if new or error is last:
                    self._failures.append(error)
                last = error
        self._failures = [error for error in self._failures if error not in told]
        self._env_states.update(dict.fromkeys(ids, EnvState.RESET))
        self._owed.update(ids)
        self._resets.update(ids)
        going_on = {i for i in ids if self._may_go_on(i)}
        if not going_on.issubset(self._going_on):
            self._going_on.update(going_on)
            pool.go_on(sorted(going_on), True)
        if len(going_on) < len(ids):
            self._keep_going_on(self._going_on.difference(ids).union(going_on))
        self._ended.difference_update(ids)
        self._doomed.difference_update(ids)
        for table in filter(None, (self._held, self._odd)):
            for i in ids:
                table.pop(i, None)

    def _reset_options(self, env_id: int) -> dict[str, Any] | PackedOptions:
        arguments = self._reset_param[env_id]
        told = (
            self._env_seed[env_id], self._env_dynamic_seed, self._env_seeding[env_id], self._seeded_at[env_id],
            self._env_num, self._env_replay_path[env_id],
        )  # fmt: skip
        if arguments:  # the caller may change what they hold at any time
            return orders(arguments, *told)
        kept = self._packed.get(env_id)
        if kept is None or kept[0] != told:
            kept = self._packed[env_id] = told, PackedOptions.of(orders(arguments, *told))
        return kept[1]

    # -- the loop

    @property
    def ready_obs(self) -> dict[int, Any]:
        """The newest observation of each env that takes an action now, ascending. Waits until there is one.

        Returns:
            {} if all envs are done, or if timesteps are owed and nothing else can be ready before `step` returns them:
            `step({})` does. Observations have memory of their own, unless `copy_on_get` is off.

        Raises:
            ClosedError: it is closed. UsageError: no env can become ready without a call of yours; the text says why.
            RecvTimeoutError: `ready_timeout` is over. Nothing is lost; ask again.
            EnvError, WorkerDiedError, WorkerTimeoutError: an env failed, and is in ERROR. Ask again for the others.
        """
        with self._unbroken:
            self._open()
            return self._await_ready()

    def _await_ready(self) -> dict[int, Any]:
        limit = self._cfg["ready_timeout"]
        deadline = None if limit is None else time.monotonic() + limit
        polled = False
        while True:
            self._raise_failure()
            found = ready(self._env_states, EnvState.RUN, self._ready_obs, self._undelivered)
            if self._resets:
                if self._waits_for_resets or not (found or self._held):
                    need = 1 if self._is_stepping() or not self._waits_for_resets else len(self._owed)
                    if not self._receive(need, None if deadline is None else max(0.0, deadline - time.monotonic())):
                        raise RecvTimeoutError(f"no env was ready within {limit} s: {self!r}. Ask again")
                    continue
                if not polled:  # what has come meanwhile
                    polled = True
                    self._receive(1, timeout=0.0)
                    continue
            if found or self.done or self._is_stepping():
                return found
            raise UsageError(f"no env can become ready: {self!r}. reset() those in ERROR and NEED_RESET")

    def step(self, actions: Mapping[int, Any]) -> dict[int, Any]:
        """Give some ready envs an action each, and wait for timesteps.

        Waits until `wait_num` of the owed timesteps are there (no more than actions were given; 1 for `{}`) and one of
        them does not end its episode, or until none is owed; then until `step_wait_timeout` seconds have passed since
        the start of the call, if any are still owed. With step_wait_timeout None it waits for all envs in `actions`.

        Args:
            actions: by env id, any object that can be pickled; the env gets what it was. May be empty.

        Returns:
            By ascending env id the timesteps that are there, each as the env gave it: perhaps not of all envs in
            `actions`, perhaps of envs stepped before. Their `obs` is as the space declares it.

        Raises:
            UsageError: an env is unknown or not ready. ClosedError: it is closed. Nothing was sent.
            EnvError, WorkerDiedError, WorkerTimeoutError: an env failed, and is in ERROR. Other timesteps stay owed;
                envs that are still in RUN did not get their actions, since the failure was known before.
        """
        start = time.monotonic()
        with self._unbroken:
            pool = self._open()
            ids, chosen_actions = self._chosen(actions)
            self._raise_failure()
            if ids:
                self._send(pool, ids, chosen_actions)
            self._collect(ids, start)
            self._take_over(pool, self._order(actions))
            self._await_in_place()
        timesteps, self._undelivered = self._undelivered, {}
        return timesteps

    def _order(self, actions: Mapping[int, Any]) -> list[int]:
        return sorted(self._held)

    def _chosen(self, actions: Any) -> tuple[list[int], list[Any]]:
        """The envs in `actions`, ascending, and their actions."""
        if not isinstance(actions, Mapping):
            raise UsageError(f"actions must be a dict by env id, not a {type(actions).__name__}")
        states, run = self._env_states, EnvState.RUN
        found = chosen(actions if type(actions) is dict else dict(actions), states, run, self._undelivered)
        if found is not None:
            return found
        for i in actions:
            state = EnvState.STEPPING if self._known(i) in self._undelivered else states[i]
            if state is not run:
                hint = {
                    EnvState.STEPPING: "its last timestep is still owed",
                    EnvState.RESET: "wait for it by ready_obs",
                    EnvState.DONE: "it has played its episodes",
                }.get(state, f"reset({{{i}: None}}) it first")
                raise UsageError(f"env {i} cannot be stepped in state {state.name}: {hint}. Nothing was sent")
        ids = sorted(actions)
        return ids, [actions[i] for i in ids]

    def _send(self, pool: Pool, ids: list[int], actions: list[Any]) -> None:
        while True:
            try:
                pool.send(actions, env_id=None if len(ids) == self._env_num else ids)
                break
            except WorkerError as error:  # nothing was sent
                self._fail(error)
                self._raise_failure()
        mark(self._env_states, ids, EnvState.STEPPING)
        self._owed.update(ids)

    def _owed_steps(self) -> int:
        return len(self._owed) - len(self._resets)

    def _is_stepping(self) -> bool:
        return bool(self._held) or self._owed_steps() > 0

    def _collect(self, asked: list[int], start: float) -> None:
        """Receive until enough timesteps are held."""
        linger = self._cfg["step_wait_timeout"]
        while owed := self._owed_steps():
            timeout = None
            if linger is None:
                need = len(self._owed.intersection(asked)) if asked else owed
                if not need:
                    return
            else:
                need = int(min(self._cfg["wait_num"], max(1, len(asked)))) - len(self._held)
                if need <= 0 and not self._all_over():
                    timeout = start + linger - time.monotonic()
                    if timeout <= 0:
                        return
                need = min(max(need, 1), owed)
            self._receive(need, timeout)
            self._raise_failure()

    def _all_over(self) -> bool:
        """Whether no env takes another action after the timesteps that are held."""
        over = self._odd.keys() if self._cfg["reset_inplace"] else self._odd.keys() | self._ended
        return len(over) == len(self._held)

    def _take_over(self, pool: Pool, ids: list[int]) -> None:
        """Deliver the held timesteps: what they say of their envs is so from here, and resets that follow start."""
        cfg, over = self._cfg, list[int]()
        held, self._held = self._held, {}
        taken = held if list(held) == ids else {i: held[i] for i in ids}
        self._undelivered = {**taken, **self._undelivered} if self._undelivered else taken
        mark(self._env_states, ids, EnvState.RUN, self._ended, self._odd)
        for i in self._odd.keys() & ids:
            if self._odd.pop(i).lost:
                over.append(i)
            else:
                self._env_states[i] = EnvState.ERROR
            self._ended.discard(i)
        for i in self._doomed.difference(self._ended, over).intersection(ids):
            self._env_states[i] = EnvState.ERROR
        counts, enough = self._env_episode_count, cfg["episode_num"]
        for i in sorted(self._ended.intersection(ids)):
            counts[i] += 1
            if counts[i] >= enough:
                self._env_states[i] = EnvState.DONE
            else:
                over.append(i)
        self._ended.difference_update(ids)
        if not cfg["auto_reset"]:
            self._env_states.update(dict.fromkeys(over, EnvState.NEED_RESET))
            return
        self._in_place.update(over if cfg["reset_inplace"] else ())
        done = self._take_resets(pool, over)
        left = [i for i in over if i not in done]
        if left:
            self._send_resets(pool, left)

    def _take_resets(self, pool: Pool, over: list[int]) -> list[int]:
        """Take over what envs have reset by themselves, as far as they are ready. Returns these."""
        going_on = sorted(self._going_on.intersection(over))
        done, obs = pool.take_resets(going_on) if going_on else ([], None)
        if not done:
            return []
        self._ready_obs.update(zip(done, self._reader.observations(obs, len(done)), strict=True))
        self._env_states.update(dict.fromkeys(done, EnvState.RUN))
        last = [i for i in done if not self._may_go_on(i)]
        if last:
            self._keep_going_on(self._going_on.difference(last))
        return done

    def _await_in_place(self) -> None:
        """Wait for the resets whose observations take the places of the last ones in what is delivered."""
        while asked := self._owed.intersection(self._in_place):
            self._receive(len(asked))
        for i in self._in_place:
            if self._env_states[i] is EnvState.RUN and i in self._undelivered:
                self._undelivered[i] = with_obs(self._undelivered[i], self._ready_obs[i])
        self._in_place.clear()

    # -- what arrives

    def _receive(self, need: int, timeout: float | None = None) -> bool:
        """Take at least `need` answers, whatever to, or one error. False: time ran out first."""
        pool = self._open()
        pool._turn.waits = True  # Ctrl-C may end this
        try:
            batch = pool.recv(min_envs=need, timeout=timeout)
        except RecvTimeoutError:
            return False
        except (EnvError, WorkerError) as error:
            self._fail(error)
            return True
        finally:
            pool._turn.waits = False
        ids, states = batch.env_id.tolist(), self._env_states
        observations = self._reader.observations(batch.obs, len(ids))
        self._owed.difference_update(ids)
        self._ready_obs.update(zip(ids, observations, strict=True))  # before the states say that they are there
        resets = self._resets.intersection(ids) if self._resets else ()
        self._resets.difference_update(resets)
        held, odd = dict[int, Any](), dict[int, Odd]()
        if len(resets) < len(ids):
            timesteps, odd = self._reader.timesteps(batch, observations)
            held = dict(zip(ids, timesteps, strict=True))
        for i in resets:
            states[i] = EnvState.RUN
            held.pop(i, None)
            if i in self._doomed:
                self._doomed.discard(i)
                if i in pool.needs_reset_ids:  # not tried again: the worker has ended since it gave that answer
                    states[i] = EnvState.ERROR
        for i, what in ((ids[row], what) for row, what in odd.items()):
            if what.error is None:
                self._odd[i] = what
            else:
                states[i] = EnvState.ERROR
                self._failures.append(self._unreadable(i, what.error))
                del held[i]
        self._ended.update(batch.env_id[batch.terminated | batch.truncated].tolist())
        self._held.update(held)
        return True

    def _unreadable(self, env_id: int, error: ValueError) -> EnvError:
        failure = EnvError(
            f"the timestep of env {env_id} cannot be read here: {error}. reset({{{env_id}: None}}) it",
            env_id=env_id, worker_id=-1, command="step", type_name="ValueError",
        )  # fmt: skip
        failure.__cause__ = error
        return failure

    def _fail(self, error: ShmenvError) -> None:
        """Keep an error for the next call to raise, unless it was told before."""
        if self._note(error):
            self._failures.append(error)

    def _note(self, error: ShmenvError, spared: Collection[int] = ()) -> bool:
        """Take over what an error says of envs, but for those spared. Returns whether there was anything new."""
        pool, new = self._open(), False
        coming, unable = pool.pending_ids, pool.needs_reset_ids
        for i in set(_ids_of(error)).difference(spared):
            state = self._env_states[i]
            if i in coming or i in self._held:  # its answer was published, or its reset is tried again
                restarts = self._cfg.on_error == "restart"
                if state in (EnvState.STEPPING, EnvState.RESET) and not restarts and i not in self._doomed:
                    self._doomed.add(i)
                    new = True
            elif i in self._owed or (state == EnvState.RUN and i in unable):
                self._owed.discard(i)
                self._resets.discard(i)
                self._ready_obs.pop(i, None)
                self._env_states[i] = EnvState.ERROR
                new = True
        return new

    def _raise_failure(self, ids: Sequence[int] | None = None) -> None:
        """Raise the first error that has come and was not told yet. ids: only of these envs."""
        for error in self._failures:
            if ids is None or not set(ids).isdisjoint(_ids_of(error)):
                self._failures.remove(error)
                if self._cfg.on_error == "close":
                    self.close()
                raise error


class SyncSubprocessEnvManager(AsyncSubprocessEnvManager):
    """Steps envs in lock-step: every `step` waits for all of its envs, and `ready_obs` for all resets.

    So which envs are ready when depends on the envs alone, never on how fast they are. Otherwise it is as
    `AsyncSubprocessEnvManager`; `wait_num` and `step_wait_timeout` have no say. `step` returns the timesteps in the
    order of `actions`; after an error the next one also returns those that are owed since, behind them.
    """

    config: ClassVar[dict[str, Any]] = manager_config.SYNC
    _waits_for_resets = True

    def _order(self, actions: Mapping[int, Any]) -> list[int]:
        ids = list(actions)
        if ids == list(self._held):
            return ids
        return [*(i for i in ids if i in self._held), *sorted(self._held.keys() - actions.keys())]

    def _collect(self, asked: list[int], start: float) -> None:
        while owed := self._owed_steps():
            self._receive(owed)
            self._raise_failure()


def _ids_of(error: ShmenvError) -> tuple[int, ...]:
    return error.env_ids if isinstance(error, WorkerError) else (error.env_id,) if isinstance(error, EnvError) else ()
