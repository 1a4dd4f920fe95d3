"""shmenv's managers as DI-engine's: registered there, equal value for value, with its errors and its attributes."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envs import HeldError
from managed_envs import AttrError, StatEnv
from support import eventually, is_gone

import shmenv

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that DI-engine pins
    pytest.importorskip("ding", reason="DI-engine is not installed here: `make frameworks` runs these")
    import gym
    import gymnasium
    import treetensor.numpy as tnp
    from ding.envs import (
        BaseEnvManager,
        BaseEnvManagerV2,
        DingEnvWrapper,
        create_env_manager,
        get_env_manager_cls,
    )
    from ding.envs.env_manager.base_env_manager import EnvState
    from ding.utils import deep_merge_dicts
    from easydict import EasyDict

    from shmenv.adapters.ding import ShmAsyncSubprocessEnvManager, ShmSubprocessEnvManager, ShmSubprocessEnvManagerV2

pytestmark = pytest.mark.filterwarnings("ignore")
Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("cls", [ShmSubprocessEnvManager, ShmAsyncSubprocessEnvManager])


def make_cartpole(length: int) -> Any:
    env = gymnasium.make("CartPole-v1", max_episode_steps=length)
    return DingEnvWrapper(env, EasyDict({}))


class PictureEnv(StatEnv):
    """Is rendered as DI-engine does it: by the env that it wraps."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self._env, self.number = self, number

    def render(self, mode: str = "human") -> Any:
        assert mode == "rgb_array"
        return np.full((2, 2, 3), self.number, np.uint8)


class SampledEnv(StatEnv):
    """Its spaces are old Gym's, and have been sampled from."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space: Any = gym.spaces.Box(-9, 9, (2,), np.float32)
        self.action_space: Any = gym.spaces.Discrete(2)
        self.action_space.seed(5)
        self.action_space.sample()


def test_a_config_needs_only_another_type() -> None:
    types = {
        "shmenv_subprocess": ShmSubprocessEnvManager,
        "shmenv_async_subprocess": ShmAsyncSubprocessEnvManager,
        "shmenv_subprocess_v2": ShmSubprocessEnvManagerV2,
    }
    for name, cls in types.items():
        cfg = EasyDict(type=name, import_names=["shmenv.adapters.ding"])
        assert get_env_manager_cls(cfg) is cls and issubclass(cls, BaseEnvManager)
        theirs = get_env_manager_cls(EasyDict(type=name.removeprefix("shmenv_")))
        assert set(theirs.default_config()) <= set(cls.default_config())
        merged = deep_merge_dicts(cls.default_config(), EasyDict(episode_num=3, shared_memory=False, max_retry=5))
        manager = create_env_manager(EasyDict(**cfg, **merged), [StatEnv] * 2)
        assert type(manager) is cls and manager.closed and manager._episode_num == 3 and manager._max_retry == 5


def play(manager: Any) -> list[Any]:
    """Everything that a seeded manager gives, until all episodes are over."""
    manager.seed(3, dynamic_seed=False)  # else its envs draw from the process's own generator, too
    manager.launch()
    got, chance = [], np.random.default_rng(0)
    while not manager.done:
        obs = manager.ready_obs
        actions = {i: np.int64(chance.integers(2)) for i in obs}
        timesteps = manager.step(actions)
        assert list(timesteps) == list(obs)
        got.append((obs, {i: (t.obs, t.reward, t.done, t.info) for i, t in timesteps.items()}))
    manager.close()
    return got


@pytest.mark.parametrize("shared_memory", [True, False])
def test_values_are_those_of_dings_own_manager(make_manager: Make, shared_memory: bool) -> None:
    env_fns = [partial(make_cartpole, length) for length in (9, 30, 30)]
    cfg = EasyDict(BaseEnvManager.default_config(), episode_num=3)
    theirs = play(BaseEnvManager(env_fns, cfg))
    ours = play(make_manager(env_fns, ShmSubprocessEnvManager, episode_num=3, shared_memory=shared_memory))
    assert len(ours) == len(theirs) > 30
    for (obs, timesteps), (their_obs, their_timesteps) in zip(ours, theirs, strict=True):
        assert obs.keys() == their_obs.keys()
        for i in obs:
            assert np.array_equal(obs[i], their_obs[i]) and obs[i].dtype == their_obs[i].dtype
            (o, reward, done, info), (their_o, their_reward, their_done, their_info) = timesteps[i], their_timesteps[i]
            assert np.array_equal(o, their_o) and o.dtype == their_o.dtype
            assert np.array_equal(reward, their_reward) and reward.dtype == their_reward.dtype
            assert done == their_done and info == their_info


def test_the_task_pipelines_manager_gives_what_dings_gives(make_manager: Make) -> None:
    env_fns = [partial(make_cartpole, length) for length in (30, 30)]
    theirs = BaseEnvManagerV2(env_fns, BaseEnvManagerV2.default_config())
    ours = make_manager(env_fns, ShmSubprocessEnvManagerV2)
    for manager in (ours, theirs):
        manager.seed(3, dynamic_seed=False)
        manager.launch()
    try:
        for t in range(8):
            actions = [np.array([t % 2]), np.array([1])]
            assert np.array_equal(ours.ready_obs, theirs.ready_obs)
            assert type(ours.ready_obs) is type(theirs.ready_obs)
            taken = tnp.stack([tnp.array(each) for each in actions]) if t % 3 == 0 else actions
            for got, wanted in zip(ours.step(taken), theirs.step(actions), strict=True):
                assert type(got) is type(wanted) and set(got.keys()) == set(wanted.keys())
                for key in ("obs", "reward", "done", "env_id"):
                    assert np.array_equal(got[key], wanted[key]), key
    finally:
        theirs.close()


@BOTH
def test_wrong_calls_are_assertion_errors_too(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls)
    closed: list[Make] = [lambda: manager.reset([]), lambda: manager.step([]), lambda: manager.name]
    for wrong in closed:
        with pytest.raises(AssertionError) as told:
            wrong()
        assert isinstance(told.value, shmenv.UsageError)
    manager.launch()
    launched: list[Make] = [manager.launch, lambda: manager.step({2: 0}), lambda: manager.seed([1])]
    for wrong in launched:
        with pytest.raises(AssertionError) as told:
            wrong()
        assert isinstance(told.value, shmenv.UsageError)
    with pytest.raises(TypeError):
        manager.seed("one")
    with pytest.raises(AttributeError):
        _ = manager.no_such_thing
    with pytest.raises(RuntimeError):
        manager.start_process()
    with pytest.raises(AssertionError):
        cls([StatEnv], {"retry_type": "again"})
    assert manager.name == ["env"] * 2 and len(manager.ready_obs) == 2


@BOTH
@pytest.mark.parametrize(
    ("fault", "classes"),
    [
        ("error", (shmenv.EnvError, RuntimeError)),
        ("attr", (shmenv.EnvError, RuntimeError, AttrError)),
        ("held", (shmenv.EnvError, RuntimeError, HeldError)),
        ("kill", (shmenv.WorkerDiedError, RuntimeError, EOFError)),
        ("block", (shmenv.WorkerTimeoutError, RuntimeError, TimeoutError)),
    ],
)
def test_a_failed_step_closes_and_raises_what_dings_would_too(
    make_manager: Make, cls: Any, fault: str, classes: tuple[type[Exception], ...]
) -> None:
    manager = make_manager([StatEnv] * 2, cls, step_timeout=0.5)
    manager.launch()
    pids = manager.pid
    with pytest.raises(classes[0]) as told:
        manager.step({0: 0, 1: fault})
        manager.step({})
    if fault != "held":  # which cannot be pickled, so that its class is not known here
        assert all(isinstance(told.value, cls) for cls in classes)
    assert "env 1" in str(told.value) and 1 in getattr(told.value, "env_ids", (getattr(told.value, "env_id", None),))
    assert manager._closed and manager._env_states == dict.fromkeys(range(2), EnvState.VOID)
    eventually(lambda: all(map(is_gone, pids)))
    manager.launch()
    assert len(manager.ready_obs) == 2


@BOTH
def test_a_failed_reset_is_a_runtime_error_and_closes(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls, max_retry=2, retry_waiting_time=0.0)
    with pytest.raises(RuntimeError) as told:
        manager.launch({0: {"stat": "error"}, 1: {}})
    assert isinstance(told.value, shmenv.EnvError) and manager._closed
    manager.launch()
    with pytest.raises(RuntimeError):
        manager.reset({1: {"stat": "error"}})
    assert manager._closed


@BOTH
def test_on_error_restart_survives_what_closes_dings(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls, on_error="restart")
    manager.launch()
    os.kill(manager.pid[1], signal.SIGKILL)
    lost: dict[int, Any] = {}
    while 1 not in lost:
        lost |= manager.step(dict.fromkeys(manager.ready_obs, 0))
    assert lost[1].info["abnormal"] and not manager.closed


@BOTH
def test_what_ding_reads_and_sets_is_live(make_manager: Make, cls: Any, tmp_path: Path) -> None:
    env_fns = [partial(StatEnv, mark=str(tmp_path / name)) for name in "ab"]
    manager = make_manager(env_fns, cls, max_retry=2, retry_waiting_time=0.0, connect_timeout=8, step_timeout=5)
    assert (manager._connect_timeout, manager._step_timeout, manager._reset_timeout) == (8, 5, None)
    assert manager._retry_type == "reset" and manager._auto_reset and manager._closed
    assert manager._env_ref.name == "env" and manager._env_ref.start_process() is None
    manager.launch()
    assert manager._env_states == dict.fromkeys(range(2), EnvState.RUN) and not manager._closed
    first = manager.time_id
    manager.reset({0: {"stat": "error_unmarked"}})
    assert manager.time_id == first
    manager._retry_type = "renew"
    manager.reset({1: {"stat": "error_unmarked"}})
    assert manager.time_id[0] == first[0] and manager.time_id[1] != first[1]
    manager._episode_num = 1
    while not manager.done:
        manager.step(dict.fromkeys(manager.ready_obs, 0))
    assert manager._env_episode_count == {0: 1, 1: 1}
    assert manager._env_states == dict.fromkeys(range(2), EnvState.DONE)
    manager._step_timeout = 0.3
    manager.close()
    manager.launch()
    with pytest.raises(TimeoutError):
        manager.step({0: "block", 1: 0})
        manager.step({})
    with pytest.raises(AssertionError):
        manager._retry_type = "again"
    assert manager._retry_type == "renew"


@BOTH
def test_pictures_are_rendered_as_ding_does(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(PictureEnv, number) for number in range(3)], cls)
    manager.launch()
    assert {i: picture[0, 0, 0] for i, picture in manager.ready_imgs.items()} == {0: 0, 1: 1, 2: 2}


def test_spaces_of_old_gym_can_be_asked_for_after_they_were_sampled_from(make_manager: Make) -> None:
    manager = make_manager([SampledEnv] * 2, ShmSubprocessEnvManager)
    manager.launch()
    space = SampledEnv().action_space
    assert manager.action_space == space and manager.action_space.sample() == space.sample()
    assert set(manager.random_action()) == {0, 1}
