"""Envs of dm_env and of old Gym, whose manner the worker finds out, against a plain loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

import shmenv

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that it is old
    import gym

MakePool = Callable[..., shmenv.Pool]


class CountEnv(dm_env.Environment):  # type: ignore[misc]
    """Counts three steps; the last one is cut off, with discount 0.5, or the end."""

    def __init__(self, is_cut: bool) -> None:
        self.is_cut, self.t = is_cut, 0

    def observation_spec(self) -> Any:
        return {"t": specs.Array((1,), np.int32), "xy": (specs.BoundedArray((2, 2), np.float32, 0, 9),) * 2}

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float64, -1, 1)

    def _look(self) -> Any:
        return {"t": np.array([self.t], np.int32), "xy": (np.full((2, 2), self.t, np.float32),) * 2}

    def reset(self) -> Any:
        self.t = 0
        return dm_env.restart(self._look())

    def step(self, action: Any) -> Any:
        self.t += 1
        reward = float(action.sum()) + self.t
        if self.t < 3:
            return dm_env.transition(reward, self._look(), discount=0.9)
        return dm_env.truncation(reward, self._look(), 0.5) if self.is_cut else dm_env.termination(reward, self._look())


class SeededCountEnv(CountEnv):
    """Has a method for its seed, which dm_env does not know."""

    def seed(self, seed: int) -> None:
        self.given = seed


class OldWrapper(gym.Wrapper[Any, Any]):
    """As most of Gym's wrappers: its reset does not say what it takes."""

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)


class ReturnInfoEnv:
    """As Gym 0.22 to 0.25: seeds and options as arguments of `reset`, which returns the observation alone."""

    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    given = 0

    def seed(self, seed: int | None = None) -> None:
        self.given = seed or 0

    def reset(self, *, seed: Any = None, return_info: bool = False, options: Any = None) -> Any:
        assert not return_info
        return np.array([self.given], np.float32)

    def step(self, action: Any) -> Any:
        return np.array([action], np.float32), 1.0, True, {"TimeLimit.truncated": True}


def make_old_cartpole() -> Any:
    return OldWrapper(gym.make("CartPole-v1", disable_env_checker=True, max_episode_steps=20))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other) and one.dtype == other.dtype


def row(obs: Any, k: int) -> Any:
    if isinstance(obs, dict):
        return {key: row(item, k) for key, item in obs.items()}
    return tuple(row(item, k) for item in obs) if isinstance(obs, tuple) else obs[k]


def test_an_env_of_dm_env_is_as_in_a_plain_loop(make_pool: MakePool) -> None:
    pool = make_pool([partial(CountEnv, False), partial(CountEnv, True)])
    loop = [CountEnv(False), CountEnv(True)]
    generator = np.random.default_rng(0)
    assert pool.action_space == loop[0].action_spec() and pool.observation_space == loop[0].observation_spec()
    batch = pool.reset()
    for k, env in enumerate(loop):
        assert same(row(batch.obs, k), env.reset().observation)
    for _ in range(7):
        action = generator.uniform(-1, 1, (2, 2))
        batch = pool.step(action)
        for k, env in enumerate(loop):
            told = env.step(action[k])
            assert batch.reward[k] == told.reward
            assert batch.terminated[k] == (told.last() and k == 0) and batch.truncated[k] == (told.last() and k == 1)
            assert same(row(batch.final_obs if told.last() else batch.obs, k), told.observation)
            assert (batch.final_info if told.last() else batch.info)[k] == {"discount": told.discount}
            if told.last():
                assert same(row(batch.obs, k), env.reset().observation)


def test_a_manager_hands_out_steps_of_dm_env_as_timesteps(make_manager: Callable[..., Any]) -> None:
    manager = make_manager([partial(CountEnv, True)], episode_num=1)
    manager.launch()
    for t in range(1, 4):
        timestep = manager.step({0: np.zeros(2)})[0]
        assert timestep.reward == t and timestep.done == (t == 3)
    assert timestep.info == {"discount": 0.5, "TimeLimit.truncated": True} and manager.done


def test_seeds_of_dm_env_go_to_a_method_if_there_is_one(make_pool: MakePool) -> None:
    pool = make_pool([partial(SeededCountEnv, False)] * 2)
    pool.reset(seed=4)
    assert pool.get_attr("given") == (4, 5)
    with pytest.raises(shmenv.EnvError, match="a seed was given, but CountEnv"):
        make_pool([partial(CountEnv, False)]).reset(seed=4)


def test_a_wrapped_env_of_gym_0_26_is_as_in_a_plain_loop(make_pool: MakePool) -> None:
    pool, env = make_pool([make_old_cartpole] * 2), make_old_cartpole()
    batch = pool.reset(seed=[6, 9], options={"low": -0.01, "high": 0.01})
    obs, _ = env.reset(seed=6, options={"low": -0.01, "high": 0.01})
    assert same(batch.obs[0], obs)
    ends = 0
    for t in range(60):
        batch = pool.step(np.array([t % 2, 1]))
        obs, reward, terminated, truncated, _ = env.step(t % 2)
        assert (batch.reward[0], batch.terminated[0], batch.truncated[0]) == (reward, terminated, truncated)
        assert same((batch.final_obs if terminated or truncated else batch.obs)[0], obs)
        if terminated or truncated:
            ends += 1
            assert same(batch.obs[0], env.reset()[0])
    assert ends >= 3


def test_an_env_that_returns_its_info_only_if_asked_is_recognised(make_pool: MakePool) -> None:
    pool = make_pool([ReturnInfoEnv] * 2)
    assert pool.reset(seed=3).obs.tolist() == [[3], [4]]
    batch = pool.step(np.array([0, 1]))
    assert batch.final_obs.tolist() == [[0], [1]] and batch.truncated.all() and not batch.terminated.any()
