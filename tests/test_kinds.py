"""Envs of dm_env and of old Gym, whose manner the worker finds out, against a plain loop."""

from __future__ import annotations

import types
import warnings
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import dm_env
import gymnasium
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


class GameEnv(gymnasium.Env[Any, Any]):
    """Counts its steps. What it gives to `answer` is what `step` returns."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, answer: Callable[..., Any] = lambda *five: five) -> None:
        self.answer, self.t = answer, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.answer(np.full(2, self.t, np.float32), 1.0, bool(action == 1), bool(action == 2), {"lives": 3})


DoneOf5 = namedtuple("DoneOf5", "obs reward done info env_id")
DoneOf6 = namedtuple("DoneOf6", "env_id obs reward done info more")
FlagsOf5 = namedtuple("FlagsOf5", "obs reward info truncated terminated")
Unnamed = namedtuple("Unnamed", "observation reward done info env_id")
ANSWERS: dict[str, Callable[..., Any]] = {
    "done of five": lambda obs, reward, over, cut, info: DoneOf5(obs, reward, over, info, None),
    "done of six": lambda obs, reward, over, cut, info: DoneOf6(7, obs, reward, over, info, "more"),
    "flags of five": lambda obs, reward, over, cut, info: FlagsOf5(obs, reward, info, cut, over),
    "object": lambda obs, reward, over, cut, info: types.SimpleNamespace(obs=obs, reward=reward, done=over, info=info),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_step_returns_with_names_is_read_by_its_names(name: str, make_pool: MakePool, make_manager: Any) -> None:
    pool = make_pool([partial(GameEnv, ANSWERS[name])], autoreset="disabled")
    pool.reset()
    batch = pool.step([0])
    assert batch.obs.tolist() == [[1, 1]] and batch.reward.tolist() == [1]
    assert not batch.terminated[0] and not batch.truncated[0] and batch.info[0] == {"lives": 3}
    batch = pool.step([1])
    assert batch.terminated[0] and not batch.truncated[0] and batch.info[0] == {"lives": 3}
    manager = make_manager([partial(GameEnv, ANSWERS[name])])
    manager.launch()
    assert [(t.done, t.info) for t in (manager.step({0: action})[0] for action in (0, 1))] == [
        (False, {"lives": 3}),
        (True, {"lives": 3}),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        lambda obs, reward, over, cut, info: Unnamed(obs, reward, over, info, None),
        lambda obs, reward, over, cut, info: (obs, reward, over, info, None),
    ],
    ids=["names", "plain"],
)
def test_five_values_that_are_not_those_of_a_step_are_refused(answer: Callable[..., Any], make_pool: MakePool) -> None:
    pool = make_pool([partial(GameEnv, answer)])
    pool.reset()
    with pytest.raises(shmenv.EnvError, match="step must return"):
        pool.step([0])


class OtherStepEnv(GameEnv):
    """From its third step on, and after a reset with options, it steps in another way."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options:
            self.step = self.other  # type: ignore[method-assign]
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.t == 1:
            self.step = self.other  # type: ignore[method-assign]
        return super().step(action)

    def other(self, action: Any) -> Any:
        return np.full(2, 5, np.float32), 42.0, False, False, {}


def by_functions(env: Any) -> Any:
    """An env that has its functions as attributes of the object, not of its class."""
    return types.SimpleNamespace(
        observation_space=env.observation_space, reset=env.reset, step=lambda action: env.step(action)
    )


@pytest.mark.parametrize(
    "wrap", [lambda env: env, gymnasium.Wrapper, by_functions], ids=["bare", "wrapped", "by functions"]
)
@pytest.mark.parametrize("retries", [{}, {"retry_step": True, "max_retry": 2}], ids=["once", "retries"])
def test_an_env_may_put_another_step_in_place_of_its_own(
    wrap: Callable[[Any], Any], retries: dict[str, Any], make_pool: MakePool
) -> None:
    pool = make_pool([lambda: wrap(OtherStepEnv())], **retries)
    pool.reset()
    assert [pool.step([0]).reward.tolist() for _ in range(3)] == [[1], [1], [42]]
    pool = make_pool([lambda: wrap(OtherStepEnv())], **retries)
    pool.reset(options={"other": True})
    assert pool.step([0]).reward.tolist() == [42]


def stand_in(action: Any) -> Any:
    return np.full(2, 7, np.float32), 7.0, False, False, {}


def test_set_attr_can_put_another_step_in_place(
    make_pool: MakePool, make_manager: Any, make_vector_env: Callable[..., Any]
) -> None:
    pool = make_pool([GameEnv] * 2)
    pool.reset()
    pool.set_attr("step", stand_in, env_id=1)
    assert pool.step([0, 0]).reward.tolist() == [1, 7]
    for mode in ("NextStep", "SameStep"):
        env = make_vector_env([GameEnv] * 2, autoreset_mode=mode)
        env.reset()
        env.set_attr("step", stand_in)
        assert env.step([0, 0])[1].tolist() == [7, 7]


@pytest.mark.parametrize("again", [lambda env: env, gymnasium.Wrapper], ids=["bare", "wrapped"])
def test_one_object_as_two_envs_is_refused(
    again: Callable[[Any], Any], make_pool: MakePool, make_manager: Any, make_vector_env: Callable[..., Any]
) -> None:
    env = GameEnv()
    env_fns = [GameEnv, lambda: env, GameEnv, lambda: again(env)]
    for make in (
        lambda: make_pool(env_fns, num_workers=1),
        lambda: make_vector_env(env_fns, num_workers=1),
        lambda: make_vector_env(env_fns, num_workers=1, autoreset_mode="SameStep"),
        lambda: make_manager(env_fns, num_workers=1).launch(),
    ):
        with pytest.raises(shmenv.UsageError, match="env 1 and env 3 returned the same object: each call must make"):
            make()
    pool = make_pool(env_fns, num_workers=2)  # in two processes these are two objects
    pool.reset()
    assert pool.step([0] * 4).obs[:, 0].tolist() == [1, 1, 1, 1]


class Simulator:
    """A dm_env env in all but its base class."""

    def observation_spec(self) -> Any:
        return {"position": specs.Array((3,), np.float64)}

    def action_spec(self) -> Any:
        return specs.Array((1,), np.float64)


class GymnasiumBridge(GameEnv):
    """Hands on what it does not know to the env inside."""

    inside = Simulator()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


class PlainBridge(Simulator):
    """Of no base class, with spaces besides the specs."""

    observation_space, action_space = GameEnv.observation_space, GameEnv.action_space
    reset, step = GameEnv.reset, GameEnv.step
    answer = staticmethod(lambda *five: five)


class DingBridge(PlainBridge):
    """In DI-engine's manner."""

    def reset(self) -> Any:  # type: ignore[override]
        return GameEnv.reset(self)[0]  # type: ignore[arg-type]

    def step(self, action: Any) -> Any:
        return shmenv.BaseEnvTimestep(*(GameEnv.step(self, action)[k] for k in (0, 1, 2, 4)))  # type: ignore[arg-type]


@pytest.mark.parametrize("bridge", [GymnasiumBridge, PlainBridge, DingBridge])
def test_an_env_with_spaces_is_none_of_dm_env_whatever_specs_it_has(bridge: Any, make_pool: MakePool) -> None:
    pool = make_pool([bridge])
    assert pool.reset().obs.tolist() == [[0, 0]]
    assert pool.step([0]).obs.tolist() == [[1, 1]]


class ReservedEnv(gymnasium.Env[Any, Any]):
    """Refuses to show its `__dict__`."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise RuntimeError("asked for its __dict__")
        return super().__getattribute__(name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, False, False, {}


def test_no_env_is_asked_for_its_dict(make_pool: MakePool) -> None:
    """Covers attributes that CPython makes slower, for good, for whoever's `__dict__` somebody wanted to see."""
    pool = make_pool([ReservedEnv] * 2, num_workers=1)
    pool.reset()
    assert pool.step([0, 1]).obs.tolist() == [[1], [1]]
