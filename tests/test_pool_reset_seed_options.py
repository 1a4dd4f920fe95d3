"""Resets: seeds, options, some of the envs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import ScriptedEnv, actions
from seeded import DingEnv, GlobalRandomEnv, WalkEnv

import shmenv

MakePool = Callable[..., shmenv.Pool]


def seeds_seen(pool: shmenv.Pool) -> list[int | None]:
    return [seen[-1][0] for seen in pool.get_attr("seen")]


def options_seen(pool: shmenv.Pool) -> list[dict[str, Any] | None]:
    return [seen[-1][1] for seen in pool.get_attr("seen")]


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_env_i_gets_the_seed_plus_i_whatever_the_number_of_workers(make_pool: MakePool, num_workers: int) -> None:
    """Covers the same seed in every env, and seeds that depend on how envs are spread."""
    pool = make_pool([ScriptedEnv] * 4, num_workers=num_workers)
    pool.reset(seed=40)
    assert seeds_seen(pool) == [40, 41, 42, 43] == pool.seeds
    seven: Any = np.int64(7)
    pool.reset(seed=seven)
    assert seeds_seen(pool) == [7, 8, 9, 10] == pool.seeds
    assert all(type(seed) is int for seed in seeds_seen(pool))


def test_a_sequence_of_seeds_gives_one_each(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    for given in ([5, 3, 9], (1, 2, 3), np.array([8, 8, 8]), [2**40, 0, 2**63]):
        pool.reset(seed=given)
        assert seeds_seen(pool) == list(given) == pool.seeds
    pool.reset(seed=[4, None, 6])
    assert seeds_seen(pool) == [4, None, 6] and pool.seeds == [4, 0, 6]


def test_without_a_seed_the_envs_are_left_alone(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    assert pool.seeds == [None, None]
    pool.reset()
    assert seeds_seen(pool) == [None, None] == pool.seeds


def test_the_seeds_last_given_are_remembered(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset(seed=10)
    pool.reset(seed=70, env_id=[1])
    assert pool.seeds == [10, 71, 12]
    assert seeds_seen(pool) == [10, 71, 12]


@pytest.mark.parametrize(
    "wrong", [[1, 2], [1, 2, 3, 4], "abc", 1.5, [1, 2, 0.5], -1, [0, 1, -2], True, {0: 1}, [[1], [2], [3]]], ids=str
)
def test_wrong_seeds_reset_nothing(make_pool: MakePool, wrong: Any) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    with pytest.raises(shmenv.UsageError):
        pool.reset(seed=wrong)
    assert pool.get_attr("episode") == (-1, -1, -1)
    assert pool.seeds == [None] * 3


def test_pools_without_seeds_differ(make_pool: MakePool) -> None:
    """Covers a fixed default seed that makes two runs, and all envs of one, identical."""
    firsts = [make_pool([WalkEnv] * 3).reset().obs for _ in range(2)]
    rows = {tuple(row) for obs in firsts for row in obs.tolist()}
    assert len(rows) == 6


def test_envs_that_draw_from_global_generators_differ(make_pool: MakePool, context: str) -> None:
    """Covers workers that inherit one random state and all draw the same numbers."""
    pool = make_pool([GlobalRandomEnv] * 4, num_workers=4, context=context)
    obs = pool.reset().obs
    assert len({row[0] for row in obs.tolist()}) == 4
    assert len({row[1] for row in obs.tolist()}) == 4


def test_seeded_trajectories_repeat(make_pool: MakePool) -> None:
    runs = []
    for num_workers in (1, 3):
        pool = make_pool([WalkEnv] * 3, num_workers=num_workers)
        obs = [pool.reset(seed=1).obs.copy()]
        obs += [pool.step([1, 2, 3]).obs.copy() for _ in range(20)]
        runs.append(np.stack(obs))
    assert np.array_equal(runs[0], runs[1])


def test_one_dict_of_options_is_for_all(make_pool: MakePool) -> None:
    """Covers options that are taken out of the caller's dict."""
    pool = make_pool([ScriptedEnv] * 2)
    options = {"task": 3, "reset_mask": np.array([True, False])}
    pool.reset(options=options)
    assert list(options) == ["task", "reset_mask"]
    assert [seen["task"] for seen in options_seen(pool) if seen] == [3, 3]
    pool.reset()
    assert options_seen(pool) == [None, None]


def test_options_may_differ_by_env(make_pool: MakePool) -> None:
    """Covers options that must be the same for all envs."""
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset(options=[{"task": 0}, None, {"task": 2}])
    assert options_seen(pool) == [{"task": 0}, None, {"task": 2}]
    pool.reset(options=[{"task": 5}, {"task": 6}], env_id=[2, 0])
    assert options_seen(pool) == [{"task": 6}, None, {"task": 5}]


def test_large_options_arrive_whole(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    level = np.arange(300_000)
    pool.reset(options={"level": level})
    for seen in options_seen(pool):
        assert seen is not None and np.array_equal(seen["level"], level)


@pytest.mark.parametrize("wrong", [[{}], [{}, {}, {}], 3, "ab", [1, 2], [{}, 1]], ids=str)
def test_wrong_options_reset_nothing(make_pool: MakePool, wrong: Any) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    with pytest.raises(shmenv.UsageError):
        pool.reset(options=wrong)
    assert pool.get_attr("episode") == (-1, -1)


def test_options_that_cannot_travel_reset_nothing(make_pool: MakePool) -> None:
    import threading

    pool = make_pool([ScriptedEnv] * 2)
    with pytest.raises(shmenv.UsageError):
        pool.reset(options=[{}, {"lock": threading.Lock()}])
    assert pool.get_attr("episode") == (-1, -1)
    assert pool.reset(seed=3).obs.tolist() == [[0, 0]] * 2


def test_a_partial_reset_touches_those_envs_alone(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=2)
    pool.reset()
    pool.step(actions(4))
    for form in ([3, 1], (1, 3), np.array([3, 1]), np.array([1, 3], np.uint8)):
        episodes = pool.get_attr("episode")
        batch = pool.reset(env_id=form)
        assert batch.env_id.tolist() == [1, 3]
        assert batch.obs.tolist() == [[episodes[1] + 1, 0], [episodes[3] + 1, 0]]
        assert not batch.is_view
    assert pool.call("where") == ((0, 1), (4, 0), (0, 1), (4, 0))
    assert pool.reset(env_id=2).env_id.tolist() == [2]


def test_a_partial_reset_seeds_by_env_id(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4)
    pool.reset(seed=0)
    pool.reset(seed=100, env_id=[3, 1])
    assert seeds_seen(pool) == [0, 101, 2, 103] == pool.seeds
    pool.reset(seed=[7, 8], env_id=[3, 1])
    assert seeds_seen(pool) == [0, 8, 2, 7] == pool.seeds


def test_some_envs_may_be_reset_before_the_others(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset(env_id=[2])
    pool.send(actions(1), env_id=[2])
    assert pool.recv().obs.tolist() == [[0, 1]]
    with pytest.raises(shmenv.UsageError):
        pool.step(actions(3))
    pool.reset(env_id=[0, 1])
    assert pool.step(actions(3)).obs.tolist() == [[0, 1], [0, 1], [0, 2]]


def test_a_ding_style_env_is_seeded_by_its_own_method(make_pool: MakePool) -> None:
    pool = make_pool([DingEnv] * 2)
    first = pool.reset(seed=5).obs.copy()
    assert pool.get_attr("seeds") == ([5], [6])
    for i in range(2):
        env = DingEnv()
        env.seed(5 + i)
        assert np.array_equal(first[i], env.reset())
    pool.reset()
    assert pool.get_attr("seeds") == ([5], [6])


def test_a_ding_style_env_without_declared_spaces_describes_itself(make_pool: MakePool) -> None:
    pool = make_pool([partial(DingEnv, declared=False, length=9)] * 2)
    reference = DingEnv(length=9)
    reference.seed(3)
    batch = pool.reset(seed=3)
    assert batch.obs.dtype == np.float32 and np.array_equal(batch.obs[0], reference.reset())
    obs, reward, _, _ = reference.step(2)
    batch = pool.step([2, 0])
    assert np.array_equal(batch.obs[0], obs) and batch.reward[0] == reward[0]


def test_envs_may_be_stepped_before_their_first_reset_if_that_is_left_to_them(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, reset_first=False)
    assert pool.step([0, 0]).obs.tolist() == [[-1, 1], [-1, 1]]
    pool.send([0], env_id=1)
    assert pool.recv().obs.tolist() == [[-1, 2]]
    with pytest.raises(shmenv.UsageError, match="reset_first must be True or False"):
        make_pool([ScriptedEnv], reset_first="no")
    with pytest.raises(shmenv.UsageError, match="needs a reset"):
        make_pool([ScriptedEnv]).step([0])
