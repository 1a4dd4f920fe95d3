"""The rewards that envs give with their rows."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import actions
from gymnasium.spaces import Box
from seeded import GivesEnv

import shmenv

MakePool = Callable[..., shmenv.Pool]
SPACE = Box(-9, 9, (1,), np.float32)


def rewards(*values: Any, **options: Any) -> Callable[[], GivesEnv]:
    return partial(GivesEnv, SPACE, [np.zeros(1, np.float32)], rewards=list(values), **options)


@pytest.mark.parametrize(
    "value",
    [
        1,
        0.1,
        True,
        -(2**40),
        np.float32(0.1),
        np.float16(0.5),
        np.int8(-4),
        np.bool_(True),
        np.array(2.5),
        np.array([2.5]),
        np.array([[3]], np.int32),
        np.array([0.1], np.float32),
        [1.5],
        Fraction(1, 3),
        float("inf"),
    ],
    ids=repr,
)
def test_anything_of_size_one_is_a_reward(make_pool: MakePool, value: Any) -> None:
    """Covers rewards whose type depends on the vectoriser: they are float64 here, whatever the env gives."""
    pool = make_pool([rewards(value), rewards(0.25)])
    pool.reset()
    reward = pool.step(actions(2)).reward
    assert reward.dtype == np.float64 and reward.shape == (2,)
    expected = float(np.asarray(value, np.float64).reshape(())) if not isinstance(value, Fraction) else float(value)
    assert reward.tolist() == [expected, 0.25]


def test_a_reward_may_be_no_number(make_pool: MakePool) -> None:
    pool = make_pool([rewards(float("nan"))])
    pool.reset()
    assert np.isnan(pool.step(actions(1)).reward).all()


@pytest.mark.parametrize("value", [None, "1", [1.0, 2.0], np.zeros(0), {}, 1j, np.zeros((2, 2))], ids=repr)
def test_what_is_no_reward_is_an_env_error(make_pool: MakePool, value: Any) -> None:
    pool = make_pool([rewards(1.0), rewards(value)])
    pool.reset()
    with pytest.raises(shmenv.EnvError, match="reward") as caught:
        pool.step(actions(2))
    assert (caught.value.env_id, caught.value.command) == (1, "step")
    assert pool.recv().reward.tolist() == [1.0]


def test_a_vector_reward_keeps_its_shape(make_pool: MakePool) -> None:
    space = Box(-9, 9, (2, 3), np.float32)
    first, second = np.arange(6.0).reshape(2, 3), np.ones((2, 3), np.float32) / 3
    pool = make_pool([rewards(first, second, reward_space=space), rewards(second, first, reward_space=space)])
    assert pool.reset().reward.shape == (2, 2, 3)
    batch = pool.step(actions(2))
    assert batch.reward.dtype == np.float64 and batch.reward.shape == (2, 2, 3)
    assert np.array_equal(batch.reward, np.stack([first, second.astype(np.float64)]))
    pool.send(actions(1), env_id=[1])
    assert np.array_equal(pool.recv().reward, first[None])


def test_a_vector_reward_of_another_shape_is_an_env_error(make_pool: MakePool) -> None:
    space = Box(-9, 9, (2,), np.float64)
    pool = make_pool([rewards(np.zeros(2), np.zeros(3), reward_space=space)])
    pool.reset()
    pool.step(actions(1))
    with pytest.raises(shmenv.EnvError, match="reward"):
        pool.step(actions(1))


def test_reset_rows_have_no_reward(make_pool: MakePool) -> None:
    pool = make_pool([rewards(5.0)] * 2)
    pool.reset()
    pool.step(actions(2))
    assert pool.reset().reward.tolist() == [0, 0]
    assert pool.reset(env_id=[1]).reward.tolist() == [0]
