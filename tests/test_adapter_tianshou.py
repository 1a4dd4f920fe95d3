"""ShmVectorEnv beside tianshou's DummyVectorEnv: the same values, and its collectors."""

from __future__ import annotations

import inspect
import os
import signal
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Gate, ScriptedEnv, actions
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from reference import same
from seeded import BufferEnv, MixedEnv, SpaceEnv, WalkEnv
from support import eventually

import shmenv

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that tianshou needs
    pytest.importorskip("tianshou", reason="tianshou is not installed here: `make frameworks` runs these")
    from tianshou.algorithm.algorithm_base import RandomActionPolicy
    from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer
    from tianshou.env import BaseVectorEnv, DummyVectorEnv, SubprocVectorEnv, VectorEnvNormObs

    from shmenv.adapters.tianshou import ShmVectorEnv

pytestmark = pytest.mark.filterwarnings("ignore")
Make = Callable[..., ShmVectorEnv]


class LeanPolicy(RandomActionPolicy):  # type: ignore[misc]
    """Pushes a CartPole to where its pole leans."""

    def forward(self, batch: Any, state: Any = None, **kwargs: Any) -> Any:
        return Batch(act=(batch.obs[:, 2] > 0).astype(np.int64))


class KeepingLeanPolicy(LeanPolicy):
    """Has a state and an entry for the buffer besides, without which AsyncCollector fails."""

    def forward(self, batch: Any, state: Any = None, **kwargs: Any) -> Any:
        lean = batch.obs[:, 2]
        return Batch(super().forward(batch), policy=Batch(lean=lean), state=Batch(lean=lean))


class SeedEnv(WalkEnv):
    """Has a method for its seed."""

    def seed(self, seed: int | None) -> list[int | None]:
        self.given = seed
        return [seed, 7]


class OldEnv:
    """Inherits from nothing."""

    observation_space, action_space = Box(-9, 9, (1,), np.float64), Discrete(3)

    def reset(self, seed: int | None = None, flavour: str = "plain") -> Any:
        return np.array([len(flavour)], np.float64), {"flavour": flavour}

    def step(self, action: Any) -> Any:
        return np.array([action], np.float64), 2.0, False, False, {"type": type(action).__name__}

    def close(self) -> None:
        pass


def make_cartpole(length: int = 25) -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=length)


@pytest.fixture
def make(make_vector_env: Callable[..., Any]) -> Make:
    """ShmVectorEnv, closed after the test."""
    return partial(make_vector_env, cls=ShmVectorEnv)


def check(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape
        assert all(map(same, one, other)), (one, other)


@pytest.mark.parametrize("env_fn", [WalkEnv, MixedEnv, BufferEnv, make_cartpole], ids=lambda env_fn: env_fn.__name__)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_values_are_those_of_dummy_vector_env(make: Make, env_fn: Any, shared_memory: bool) -> None:
    ours, theirs = make([env_fn] * 3, shared_memory=shared_memory), DummyVectorEnv([env_fn] * 3)
    assert isinstance(ours, BaseVectorEnv) and len(ours) == 3 and not ours.is_async
    assert ours.seed(5) == theirs.seed(5) == [[5], [6], [7]]
    check(ours.reset(), theirs.reset())
    for t in range(60):
        ids = None if t % 4 else [[0, 1, 2], [2, 0], [1], [1, 2]][t // 4 % 4]
        chosen = [space.sample() for space in ours.action_space][: 3 if ids is None else len(ids)]
        for space in theirs.action_space:
            space.sample()
        given = chosen if isinstance(chosen[0], dict | tuple) else np.stack(chosen)
        result = ours.step(given, ids)
        check(result, theirs.step(given, ids))
        ended = [i for i, over in zip(ids or range(3), result[2] | result[3], strict=True) if over]
        if ended:
            check(ours.reset(ended[::-1]), theirs.reset(ended[::-1]))
    check(ours.reset(1, seed=9), theirs.reset(1, seed=9))
    check(ours.reset(seed=4), theirs.reset(seed=4))
    assert ours.seed([3, 1, 2]) == theirs.seed([3, 1, 2])
    assert all(same(a.sample(), b.sample()) for a, b in zip(ours.action_space, theirs.action_space, strict=True))
    theirs.close()


@pytest.mark.parametrize("space", [Text(9), Dict({"a": Discrete(3), "b": Tuple((Text(4), Box(0, 1, (2,))))})], ids=str)
def test_observations_of_other_spaces_are_stacked_as_there(make: Make, space: Any) -> None:
    ours, theirs = (
        make([partial(SpaceEnv, space, Discrete(2))] * 3),
        DummyVectorEnv([partial(SpaceEnv, space, Discrete(2))] * 3),
    )
    check(ours.reset(seed=3), theirs.reset(seed=3))
    for _ in range(5):
        given = np.zeros(3, np.int64)
        check(ours.step(given), theirs.step(given))


def test_tuple_observations_are_refused_as_there(make: Make) -> None:
    envs = make([partial(SpaceEnv, Tuple((Discrete(3), Discrete(2))), Discrete(2))] * 2)
    with pytest.raises(TypeError, match="Tuple observation space is not supported"):
        envs.reset()


def test_attributes_are_read_through_wrappers_and_set_inside_them(make: Make) -> None:
    ours, theirs = make([make_cartpole] * 3), DummyVectorEnv([make_cartpole] * 3)
    for envs in (ours, theirs):
        envs.set_env_attr("gravity", 5.0, [0, 2])
        envs.set_env_attr("fresh", "new", 1)
    for key, ids in (("gravity", None), ("gravity", [2, 1]), ("fresh", 1)):
        assert ours.get_env_attr(key, ids) == theirs.get_env_attr(key, ids)
    assert ours.observation_space == theirs.observation_space and ours.metadata == theirs.metadata
    assert ours.action_space[1] is ours.get_env_attr("action_space", 1)[0]
    with pytest.raises(AttributeError):
        ours.get_env_attr("fresh", 0)
    ours.reset(seed=0)
    theirs.reset(seed=0)
    check(ours.step(np.array([0, 1, 0])), theirs.step(np.array([0, 1, 0])))  # with another gravity


def test_a_method_for_seeds_is_asked_and_its_answer_returned(make: Make) -> None:
    ours, theirs = make([SeedEnv] * 2), DummyVectorEnv([SeedEnv] * 2)
    assert ours.seed(3) == theirs.seed(3) == [[3, 7], [4, 7]]
    assert ours.get_env_attr("given") == [3, 4]


def test_any_object_and_any_argument_of_its_reset_will_do(make: Make) -> None:
    ours = make([OldEnv] * 2)
    obs, infos = ours.reset([1], flavour="salty")
    assert obs.tolist() == [[5.0]] and infos.tolist() == [{"flavour": "salty"}]
    ours.reset(0)
    assert ours.step(np.array([1, 2]))[4].tolist() == [{"type": "int64", "env_id": 0}, {"type": "int64", "env_id": 1}]


@pytest.mark.parametrize("given", [np.full((2, 2), 0.1), np.full((2, 2), 0.1, np.float32)])
def test_actions_reach_the_envs_as_they_are(make: Make, given: Any) -> None:
    env_fns = [partial(SpaceEnv, Discrete(2), Box(-1, 1, (2,)))] * 2
    ours, theirs = make(env_fns), DummyVectorEnv(env_fns)
    for envs in (ours, theirs):
        envs.reset()
        envs.step(given)
    assert same(ours.get_env_attr("kept"), theirs.get_env_attr("kept"))


def test_arguments_have_subproc_vector_envs_order() -> None:
    theirs = list(inspect.signature(SubprocVectorEnv.__init__).parameters)
    assert list(inspect.signature(ShmVectorEnv.__init__).parameters)[: len(theirs)] == theirs
    envs = ShmVectorEnv([ScriptedEnv] * 2, 1, 9.0, True, "fork")
    assert (envs.wait_num, envs.timeout, envs.is_async) == (1, 9.0, True)
    envs.close()


def test_first_come_first_served(make: Make, gate: Callable[[int], Gate]) -> None:
    env_fns = [ScriptedEnv, partial(ScriptedEnv, gate=gate(1).path), ScriptedEnv]
    envs = make(env_fns, wait_num=2, num_workers=3)
    assert envs.is_async
    envs.reset()
    obs, rewards, _, _, infos = envs.step(actions(3, {1: "slow"}))
    assert [info["env_id"] for info in infos] == [0, 2] and rewards.tolist() == [1, 1] and obs.shape == (2, 2)
    assert envs.waiting_id == [1] and sorted(envs.ready_id) == [0, 2]
    wrong_calls: list[Callable[[], Any]] = [
        lambda: envs.step(actions(1), [1]), lambda: envs.reset(), lambda: envs.get_env_attr("t")
    ]  # fmt: skip
    for wrong in wrong_calls:
        with pytest.raises(AssertionError, match="environment 1 which is stepping now"):
            wrong()
    with pytest.raises(RuntimeError, match="still stepping"):
        envs.render()
    os.close(eventually(gate(1).try_hold))
    *_, infos = envs.step(None)
    assert [info["env_id"] for info in infos] == [1] and envs.waiting_id == [] and envs.ready_id == [0, 2, 1]
    got: list[int] = []
    told = envs.step(actions(2), [2, 1])
    while True:
        got += [info["env_id"] for info in told[4]]
        if not envs.waiting_id:
            break
        told = envs.step(None)
    assert sorted(got) == [1, 2]


def test_a_timeout_returns_what_is_ready(make: Make, gate: Callable[[int], Gate]) -> None:
    envs = make([partial(ScriptedEnv, gate=gate(0).path), ScriptedEnv], timeout=0.2)
    assert envs.is_async and envs.wait_num == 2
    envs.reset()
    assert [info["env_id"] for info in envs.step(actions(2, {0: "slow"}))[4]] == [1]
    os.close(eventually(gate(0).try_hold))
    assert [info["env_id"] for info in envs.step(None)[4]] == [0]


def test_an_error_is_the_envs_own_and_the_others_go_on(make: Make) -> None:
    envs = make([ScriptedEnv] * 3)
    envs.reset()
    with pytest.raises(KeyError, match="missing asset") as told:
        envs.step(actions(3, {1: "raise"}))
    cause = told.value.__cause__
    assert isinstance(cause, shmenv.EnvError) and cause.env_id == 1
    envs.reset(1)
    assert envs.step(actions(3))[1].tolist() == [2, 1, 2]
    os.kill(envs.pool.stats()["workers"][1]["pid"], signal.SIGKILL)
    with pytest.raises(shmenv.WorkerDiedError) as died:
        envs.step(actions(3))
        envs.step(actions(3))  # it may have died after that answer
    envs.reset(list(died.value.env_ids))
    envs.step(actions(3))


def test_after_an_error_of_an_asynchronous_env_it_can_be_reset(make: Make) -> None:
    envs = make([ScriptedEnv] * 2, wait_num=1)
    envs.reset()

    def rest() -> None:
        while envs.waiting_id:
            envs.step(None)

    with pytest.raises(KeyError):
        envs.step(actions(2, {0: "raise"}))
        rest()
    rest()
    assert sorted(envs.ready_id) == [0, 1]
    envs.reset(0)
    assert envs.step(actions(1), [0])[1].tolist() == [1]


def test_wrong_calls_change_nothing(make: Make) -> None:
    envs = make([WalkEnv] * 2)
    envs.reset(seed=1)
    with pytest.raises(AssertionError):
        envs.step(np.zeros(3, int))
    with pytest.raises(ValueError, match="action must be not-None"):
        envs.step(None)
    with pytest.raises(AssertionError):
        make([WalkEnv] * 2, wait_num=3)
    with pytest.raises(AssertionError):
        make([WalkEnv] * 2, timeout=0)
    envs.close()
    for wrong in (envs.close, envs.reset, lambda: envs.step(np.zeros(2, int)), lambda: envs.action_space):
        with pytest.raises(AssertionError, match="cannot be called after close"):
            wrong()


@pytest.mark.parametrize("random", [True, False])
def test_a_collector_collects_what_it_does_with_dummy_vector_env(make: Make, random: bool) -> None:
    def collected(envs: Any) -> Any:
        buffer = VectorReplayBuffer(2000, 4)
        collector = Collector(LeanPolicy(make_cartpole().action_space), envs, buffer)
        envs.seed(11)
        collector.reset(reset_buffer=True, gym_reset_kwargs={"seed": 11})
        by_step = collector.collect(n_step=200, random=random)
        by_episode = collector.collect(n_episode=9, random=random)
        return buffer, by_step, by_episode

    (ours, *our_stats), (theirs, *their_stats) = map(
        collected, (make([make_cartpole] * 4), DummyVectorEnv([make_cartpole] * 4))
    )
    assert len(ours) == len(theirs) > 300
    for key in ("obs", "act", "rew", "terminated", "truncated", "obs_next"):
        assert np.array_equal(ours[:][key], theirs[:][key]), key
    for our, their in zip(our_stats, their_stats, strict=True):
        assert our.n_collected_episodes == their.n_collected_episodes and np.array_equal(our.returns, their.returns)


def test_an_asynchronous_collector_works(make: Make) -> None:
    envs = make([make_cartpole] * 4, wait_num=2, context="forkserver")
    collector = AsyncCollector(KeepingLeanPolicy(make_cartpole().action_space), envs, VectorReplayBuffer(2000, 4))
    collector.reset()
    stats = collector.collect(n_step=300)
    assert stats.n_collected_steps >= 300 and stats.n_collected_episodes > 5


def test_a_wrapper_of_tianshou_goes_around_it(make: Make) -> None:
    ours, theirs = VectorEnvNormObs(make([WalkEnv] * 3)), VectorEnvNormObs(DummyVectorEnv([WalkEnv] * 3))
    check(ours.reset(seed=2), theirs.reset(seed=2))
    for _ in range(5):
        check(ours.step(np.ones(3, np.int64)), theirs.step(np.ones(3, np.int64)))
