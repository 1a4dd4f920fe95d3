"""What the end of an episode looks like in each autoreset mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from envs import ScriptedEnv, actions
from gymnasium.spaces import Box
from reference import MODES
from seeded import DingEnv, GivesEnv, ParallelEnv

import shmenv

MakePool = Callable[..., shmenv.Pool]


def short(length: int = 2, truncates: bool = False) -> Callable[[], ScriptedEnv]:
    return partial(ScriptedEnv, length=length, truncates=truncates)


def table(pool: shmenv.Pool, steps: int) -> list[tuple[list[float], float, bool]]:
    """(obs, reward, terminated) of env 0, step by step."""
    rows = []
    for _ in range(steps):
        batch = pool.step(actions(pool.num_envs))
        rows.append((batch.obs[0].tolist(), float(batch.reward[0]), bool(batch.terminated[0])))
    return rows


def test_same_step_shows_the_new_episode_at_once(make_pool: MakePool) -> None:
    """Covers autoreset conventions that differ by one step and break bootstrapping."""
    pool = make_pool([short()] * 2, autoreset="same_step")
    pool.reset()
    assert table(pool, 4) == [([0, 1], 1, False), ([1, 0], 2, True), ([1, 1], 1, False), ([2, 0], 2, True)]


def test_next_step_shows_the_new_episode_a_step_later(make_pool: MakePool) -> None:
    """Covers autoreset conventions that differ by one step and break bootstrapping."""
    pool = make_pool([short()] * 2, autoreset="next_step")
    pool.reset()
    assert table(pool, 5) == [
        ([0, 1], 1, False),
        ([0, 2], 2, True),
        ([1, 0], 0, False),
        ([1, 1], 1, False),
        ([1, 2], 2, True),
    ]


def test_disabled_leaves_the_reset_to_the_caller(make_pool: MakePool) -> None:
    pool = make_pool([short(), short(3)], autoreset="disabled")
    pool.reset()
    assert table(pool, 2) == [([0, 1], 1, False), ([0, 2], 2, True)]
    for attempt in (lambda: pool.step(actions(2)), lambda: pool.send(actions(1), env_id=[0])):
        with pytest.raises(shmenv.UsageError, match="0"):
            attempt()
    assert pool.call("where") == ((0, 2), (0, 2))
    assert pool.reset(env_id=[0]).obs.tolist() == [[1, 0]]
    assert pool.step(actions(2)).obs.tolist() == [[1, 1], [0, 3]]


@pytest.mark.parametrize("mode", MODES)
def test_final_obs_and_info_are_those_of_the_ended_step(make_pool: MakePool, mode: str) -> None:
    """Covers terminal observations that are lost, or come a step late."""
    space = Box(-1, 9, (1,), np.float32)
    env = partial(GivesEnv, space, [np.array([t], np.float32) for t in range(5)], infos=[{"t": 1}, {"t": 2}], length=2)
    pool = make_pool([env, partial(GivesEnv, space, [np.zeros(1, np.float32)])], autoreset=mode)
    pool.reset()
    first = pool.step(actions(2))
    assert dict(first.info[0]) == {"t": 1} and dict(first.final_info[0]) == {}
    ended = pool.step(actions(2))
    assert ended.final_obs[0].tolist() == [2]
    assert dict(ended.final_info[0]) == {"t": 2} and dict(ended.final_info[1]) == {}
    assert dict(ended.info[0]) == ({} if mode == "same_step" else {"t": 2})
    assert ended.obs[0].tolist() == ([0] if mode == "same_step" else [2])
    assert (ended.final_obs is ended.obs) == (mode != "same_step")


@pytest.mark.parametrize("mode", MODES)
def test_a_manual_reset_after_the_end_is_the_only_one(make_pool: MakePool, mode: str) -> None:
    """Covers a manual reset after an end that is followed by another reset one step later."""
    for partial_reset in (False, True):
        pool = make_pool([short()] * 2, autoreset=mode)
        pool.reset()
        pool.step(actions(2))
        assert pool.step(actions(2)).terminated.all()
        episodes = pool.get_attr("episode")
        pool.reset(env_id=[0, 1] if partial_reset else None)
        batch = pool.step(actions(2))
        assert batch.obs.tolist() == [[episode + 1, 1] for episode in episodes]
        assert batch.reward.tolist() == [1, 1]


def test_next_step_ignores_the_action_of_a_reset(make_pool: MakePool) -> None:
    pool = make_pool([short(1)], autoreset="next_step")
    pool.reset()
    assert pool.step(actions(1)).terminated.all()
    batch = pool.step(actions(1, {0: "raise"}))
    assert batch.obs.tolist() == [[1, 0]] and batch.reward.tolist() == [0]
    with pytest.raises(shmenv.EnvError):
        pool.step(actions(1, {0: "raise"}))


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_the_pools_own_resets_pass_nothing(make_pool: MakePool, mode: str) -> None:
    """Covers options and seeds that are applied again, or not known to be gone, at an automatic reset."""
    pool = make_pool([short(1)] * 2, autoreset=mode)
    pool.reset(seed=5, options=[{"task": 0}, {"task": 1}])
    pool.step(actions(2))
    if mode == "next_step":
        pool.step(actions(2))
    assert pool.get_attr("seen") == ([(5, {"task": 0}), (None, None)], [(6, {"task": 1}), (None, None)])


@pytest.mark.parametrize("mode", MODES)
def test_truncation_ends_an_episode_as_termination_does(make_pool: MakePool, mode: str) -> None:
    pool = make_pool([short(1, truncates=True)], autoreset=mode)
    pool.reset()
    batch = pool.step(actions(1))
    assert batch.truncated.tolist() == [True] and batch.terminated.tolist() == [False]
    assert batch.final_obs.tolist() == [[0, 1]]
    assert batch.obs.tolist() == ([[1, 0]] if mode == "same_step" else [[0, 1]])


def test_a_failing_automatic_reset_is_told_as_a_reset(make_pool: MakePool) -> None:
    pool = make_pool([partial(ScriptedEnv, length=1, script={(1, 0): "raise"}), ScriptedEnv], autoreset="same_step")
    pool.reset()
    batch = pool.step(actions(2))
    assert batch.terminated.tolist() == [True, False]
    assert batch.obs.tolist() == [[0, 1], [0, 1]] and batch.final_obs[0].tolist() == [0, 1]
    with pytest.raises(shmenv.EnvError) as caught:
        pool.step(actions(2))
    assert (caught.value.env_id, caught.value.command) == (0, "reset")
    assert pool.pending == 0
    assert pool.reset(env_id=[0]).obs.tolist() == [[2, 0]]


@pytest.mark.parametrize("mode", MODES)
def test_a_ding_style_env_ends_by_its_done_flag(make_pool: MakePool, mode: str) -> None:
    pool = make_pool([partial(DingEnv, length=2), partial(DingEnv, length=3)], autoreset=mode)
    first = pool.reset()
    assert first.obs.shape == (2, 3) and first.obs.dtype == np.float32
    pool.step(actions(2))
    batch = pool.step(actions(2))
    assert batch.terminated.tolist() == [True, False] and not batch.truncated.any()
    assert dict(batch.final_info[0]) == {"final_eval_reward": 2.0}
    pool.send(actions(1), env_id=[1])
    batch = pool.recv()
    assert batch.terminated.tolist() == [False] and batch.truncated.tolist() == [True]


def test_a_parallel_env_has_its_agents_side_by_side(make_pool: MakePool) -> None:
    """Covers multi-agent envs that are refused by an asynchronous vectoriser."""
    pool = make_pool([ParallelEnv] * 2, num_workers=2)
    assert list(pool.observation_space) == ["red", "blue"]
    env = ParallelEnv()
    obs, _ = env.reset(seed=4)
    batch = pool.reset(seed=4)
    assert batch.obs["red"].shape == (2, 2) and batch.obs["blue"].shape == (2, 3)
    for agent in ("red", "blue"):
        assert batch.obs[agent][0].tolist() == obs[agent].tolist()
    for t in range(1, 5):
        obs, rewards, *_ = env.step({"red": 3, "blue": 1})
        batch = pool.step({"red": np.array([3, 0]), "blue": np.array([1, 0])})
        seen = batch.final_obs if t == 4 else batch.obs
        for agent in ("red", "blue"):
            assert seen[agent][0].tolist() == obs[agent].tolist()
        assert batch.reward[0].tolist() == list(rewards.values())
        assert batch.terminated.tolist() == [t == 4] * 2
