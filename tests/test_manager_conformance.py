"""One body over both managers: a plain Python loop is the reference, and each timestep equals its own bit for bit."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from managed_envs import FAULTS, NestedEnv, StatEnv, WideEnv
from seeded import DingEnv, MixedEnv, WalkEnv
from test_manager_contract import same

import shmenv
from shmenv import AsyncSubprocessEnvManager, BaseEnvTimestep, EnvState, SyncSubprocessEnvManager

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
EPISODES = 4


class Plain:
    """One env in this process, played as the managers play it."""

    def __init__(self, env_fn: Callable[[], Any], seed: int, last: float) -> None:
        self.env, self.seed, self.episodes, self.last = env_fn(), seed, 0, last
        self.is_gym = not hasattr(self.env, "seed")
        self.obs = self._reset(first=True)

    def _reset(self, first: bool = False) -> Any:
        if self.is_gym:
            return self.env.reset(**({"seed": self.seed} if first else {}))[0]
        if first:
            self.env.seed(self.seed)
        return self.env.reset()

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if self.is_gym:
            obs, reward, terminated, truncated, info = result
            info = {**info, "TimeLimit.truncated": True} if truncated and not terminated else info
            result = BaseEnvTimestep(obs, reward, terminated or truncated, info)
        self.obs = result.obs
        if result.done:
            self.episodes += 1
            if self.episodes < self.last:
                self.obs = self._reset()
        return result


class Checked:
    """A manager beside plain envs; whatever it answers is compared."""

    def __init__(self, manager: Any, env_fns: dict[int, Any], seed: int = 50) -> None:
        self.manager = manager
        self.sent: dict[int, Any] = {}
        self.plain = {i: Plain(env_fn, seed + i, manager._cfg.episode_num) for i, env_fn in env_fns.items()}
        self.rng = np.random.default_rng(seed)
        self.answers = 0
        manager.seed(seed)
        manager.launch()

    def ready(self) -> list[int]:
        obs = self.manager.ready_obs
        assert list(obs) == sorted(obs)
        for i in obs.keys() & self.plain.keys():
            assert i not in self.sent and same(obs[i], self.plain[i].obs), i
        return list(obs)

    def action(self, i: int) -> Any:
        space = self.plain[i].env.action_space
        space.seed(int(self.rng.integers(1 << 30)))
        return space.sample()

    def send(self, actions: dict[int, Any]) -> dict[int, Any]:
        assert not actions.keys() & self.sent.keys()
        self.sent.update(actions)
        return self.take(self.manager.step(actions))

    def take(self, timesteps: dict[int, Any]) -> dict[int, Any]:
        for i, timestep in timesteps.items():
            action = self.sent.pop(i)  # a second answer to one action would fail here
            self.answers += 1
            if i in self.plain:
                expected = self.plain[i].step(action)
                assert type(timestep) is type(expected)
                assert same(tuple(timestep), tuple(expected)), (i, timestep, expected)
        return timesteps


@BOTH
@pytest.mark.parametrize("env", [DingEnv, NestedEnv, WideEnv, WalkEnv, MixedEnv])
@pytest.mark.parametrize("num_workers", [None, 2])
def test_a_manager_equals_the_plain_loop(make_manager: Make, cls: Any, env: Any, num_workers: int | None) -> None:
    manager = make_manager([env] * 4, cls, episode_num=EPISODES, num_workers=num_workers)
    play(Checked(manager, dict.fromkeys(range(4), env)))


def play(checked: Checked) -> None:
    """Some of the ready envs at a time, until all have played their episodes."""
    manager = checked.manager
    while not manager.done:
        ready = checked.ready()
        some = ready[: int(checked.rng.integers(1, len(ready) + 1))] if ready else []
        checked.send({i: checked.action(i) for i in some})
    assert not checked.sent
    assert manager._env_episode_count == dict.fromkeys(range(manager.env_num), EPISODES)
    assert all(plain.episodes == EPISODES for plain in checked.plain.values())


@BOTH
def test_a_manager_equals_the_plain_loop_under_every_start_method(make_manager: Make, cls: Any, context: str) -> None:
    manager = make_manager([WideEnv] * 3, cls, episode_num=EPISODES, context=context)
    play(Checked(manager, dict.fromkeys(range(3), WideEnv)))


@pytest.mark.parametrize("wait_num", [1, 2, 3, 4])
@pytest.mark.parametrize("linger", [0.0, 0.002, None])
def test_an_async_manager_equals_the_plain_loop_whatever_it_waits_for(
    make_manager: Make, wait_num: int, linger: float | None
) -> None:
    cfg = {"episode_num": EPISODES, "wait_num": wait_num, "step_wait_timeout": linger}
    play(Checked(make_manager([DingEnv] * 4, AsyncSubprocessEnvManager, **cfg), dict.fromkeys(range(4), DingEnv)))


@BOTH
@pytest.mark.parametrize(
    "options", [{"shared_memory": False}, {"copy_on_get": False}, {"strict_dtype": True}, {"affinity": "spread"}],
    ids=str,
)  # fmt: skip
def test_options_of_transport_change_no_value(make_manager: Make, cls: Any, options: dict[str, Any]) -> None:
    manager = make_manager([WideEnv] * 3, cls, episode_num=EPISODES, **options)
    play(Checked(manager, dict.fromkeys(range(3), WideEnv)))


@BOTH
@pytest.mark.parametrize("on_error", ["raise", "restart"])
@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"interrupt", "attr"}))
def test_untouched_envs_equal_the_plain_loop_while_another_fails(
    make_manager: Make, cls: Any, on_error: str, fault: str
) -> None:
    """And every action is answered exactly once: by its timestep, by an abnormal one, or by an error."""
    env_fns = [DingEnv, partial(StatEnv, length=10**9, width=3), DingEnv]
    cfg = {"on_error": on_error, "step_timeout": 0.25, "max_restarts": 100, "episode_num": EPISODES}
    manager = make_manager(env_fns, cls, **cfg)
    checked = Checked(manager, {0: DingEnv, 2: DingEnv})
    failures = 0
    words = [fault, "played", fault]
    while failures < 2 or not (manager.env_state_done(0) and manager.env_state_done(2)):
        try:
            actions = {i: checked.action(i) for i in checked.ready() if i != 1}
            if manager._env_states[1] == EnvState.RUN and words:
                actions[1] = words.pop(0)
            got = checked.send(actions)
        except (shmenv.EnvError, shmenv.WorkerError) as error:
            assert on_error == "raise" and checked.sent.pop(1) == fault
            assert (error.env_ids if isinstance(error, shmenv.WorkerError) else (error.env_id,)) == (1,)
            failures += 1
            manager.reset({1: None})
            continue
        if 1 in got and got[1].info.get("abnormal"):
            assert on_error == "restart" and got[1].info["error"]
            failures += 1
    assert failures == 2 and not checked.sent and not words
    assert manager._env_episode_count == {0: EPISODES, 1: 0, 2: EPISODES}


@BOTH
@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_envs_that_share_a_worker_are_lost_together_and_every_action_is_answered_once(
    make_manager: Make, cls: Any, on_error: str
) -> None:
    env_fns = [DingEnv, DingEnv, partial(StatEnv, length=10**9, width=3), partial(StatEnv, length=10**9, width=3)]
    manager = make_manager(env_fns, cls, on_error=on_error, num_workers=2, max_restarts=100)
    checked = Checked(manager, {0: DingEnv, 1: DingEnv})
    told: list[int] = []
    kills = turn = 0

    def note(got: dict[int, Any]) -> None:
        told.extend(i for i, timestep in got.items() if timestep.info.get("abnormal"))

    while kills < 3 or checked.sent:
        turn += 1
        try:  # an async manager may learn of a death in either call
            actions: dict[int, Any] = {i: checked.action(i) for i in checked.ready() if i < 2 and kills < 3}
            actions |= {i: turn for i in manager.ready_env if i >= 2 and kills < 3}
            if 3 in actions and turn > 10 * (kills + 1):
                actions[3] = "kill"
                kills += 1
            note(checked.send(actions))
        except shmenv.WorkerDiedError as error:
            assert on_error == "raise" and error.env_ids == (2, 3)
            failed = [i for i in (2, 3) if manager._env_states[i] == EnvState.ERROR]
            told += failed
            for i in [i for i in checked.sent if i in failed or manager._env_states[i] == EnvState.RUN]:
                del checked.sent[i]  # in RUN: the death was known before anything was sent
            while any(manager._env_states[i] == EnvState.STEPPING for i in (2, 3)):
                note(checked.take(manager.step({})))
            manager.reset({2: None, 3: None})
    assert told.count(3) == 3 and told.count(2) <= 3


@pytest.mark.parametrize("num_workers", [4, 2])
def test_a_storm_of_kills_loses_no_action_and_doubles_none(make_manager: Make, num_workers: int) -> None:
    chance = random.Random(7)
    manager = make_manager(
        [partial(StatEnv, length=5)] * 4, AsyncSubprocessEnvManager, on_error="restart", num_workers=num_workers,
        max_restarts=1000, restart_period=0.01, wait_num=1,
    )  # fmt: skip
    checked = Checked(manager, {})
    last: dict[int, list[float]] = {}
    lost = kills = steps = 0
    while kills < 25 or steps < 400:
        for i, obs in manager.ready_obs.items():
            last[i] = obs.tolist()
        if chance.random() < 0.08 and kills < 25:
            kills += 1
            with contextlib.suppress(ProcessLookupError):  # killed already
                os.kill(chance.choice(manager._pool.stats()["workers"])["pid"], signal.SIGKILL)
        for i, timestep in checked.send(dict.fromkeys(manager.ready_env, 0)).items():
            if timestep.info.get("abnormal"):
                assert timestep.obs.tolist() == last[i] and timestep.reward == 0
                lost += 1
            else:
                assert timestep.obs.tolist() == [last[i][0], last[i][1] + 1]
                steps += 1
    while checked.sent:
        checked.take(manager.step({}))
    assert lost > 0 and manager._pool.stats()["restarts"] > 0
