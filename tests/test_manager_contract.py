"""The managers' contract, table by table: config, states, members, steps."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import Gate, ScriptedEnv
from gymnasium.spaces import Box
from managed_envs import GivesEnv, NestedEnv, OldEnv, StatEnv, Timestep, WideEnv, WideTimestep
from seeded import BareEnv, ParallelEnv
from support import eventually

import shmenv
from shmenv import AsyncSubprocessEnvManager, EnvState, SyncSubprocessEnvManager

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])


def play(manager: Any, rounds: int = 10**6) -> list[dict[int, Any]]:
    """The canonical loop; all timesteps it got."""
    got = []
    while not manager.done and rounds:
        got.append(manager.step(dict.fromkeys(manager.ready_obs, 0)))
        rounds -= 1
    return got


# -- names and config


def test_the_registry_knows_both_managers_by_name() -> None:
    assert shmenv.ENV_MANAGER_REGISTRY["subprocess"] is SyncSubprocessEnvManager
    assert shmenv.ENV_MANAGER_REGISTRY["async_subprocess"] is AsyncSubprocessEnvManager
    assert shmenv.get_env_manager_cls({"type": "async_subprocess"}) is AsyncSubprocessEnvManager
    with pytest.raises(shmenv.UsageError, match="'subproces'; did you mean 'subprocess'"):
        shmenv.get_env_manager_cls({"type": "subproces"})
    with pytest.raises(shmenv.UsageError, match="needs a type"):
        shmenv.get_env_manager_cls({})


def test_a_manager_is_created_from_its_config_which_stays_as_it_is() -> None:
    cfg = {"type": "async_subprocess", "import_names": ["json"], "episode_num": 2, "cfg_type": "Any"}
    before = copy.deepcopy(cfg)
    manager = shmenv.create_env_manager(cfg, [StatEnv])
    assert type(manager) is AsyncSubprocessEnvManager and manager.closed
    assert cfg == before


def test_a_key_error_of_a_constructor_is_not_taken_for_an_unknown_name() -> None:
    class Picky(SyncSubprocessEnvManager):
        def __init__(self, **kwargs: Any) -> None:
            raise KeyError("my own")

    registry = type(shmenv.ENV_MANAGER_REGISTRY)()
    registry.register("picky")(Picky)
    with pytest.raises(KeyError, match="my own"):
        registry.build("picky", env_fn=[StatEnv], cfg={})
    with pytest.raises(shmenv.UsageError, match="taken"):
        registry.register("picky", StatEnv)


@BOTH
def test_the_default_config_has_every_key_as_attribute_and_is_the_callers_own(cls: Any) -> None:
    config = cls.default_config()
    asynchronous = cls is AsyncSubprocessEnvManager
    expected = {
        "episode_num": math.inf, "max_retry": 1, "step_timeout": None, "auto_reset": True, "reset_timeout": None,
        "connect_timeout": 60.0, "retry_waiting_time": 0.1, "retry_type": "reset", "shared_memory": True,
        "copy_on_get": True, "context": "forkserver", "reset_inplace": False, "cfg_type": f"{cls.__name__}Dict",
        "wait_num": 2 if asynchronous else math.inf, "step_wait_timeout": 0.0 if asynchronous else None,
    }  # fmt: skip
    assert {key: config[key] for key in expected} == expected
    assert config.episode_num == math.inf
    config.episode_num = 3
    assert config["episode_num"] == 3 and cls.default_config().episode_num == math.inf
    assert not hasattr(config, "episodes")
    assert copy.deepcopy(config) == config


def test_a_subclass_may_have_defaults_of_its_own(make_manager: Make) -> None:
    class Mine(AsyncSubprocessEnvManager):
        config = {"episode_num": 1}  # noqa: RUF012

    manager = make_manager([StatEnv], Mine)
    manager.launch()
    assert len(play(manager)) == 3 and Mine.default_config().wait_num == 2


@pytest.mark.parametrize(
    ("cfg", "text"),
    [
        ({"episodes_num": 3}, "'episodes_num'; did you mean 'episode_num'"),
        ({"xyz": 1}, "'xyz'; there are episode_num"),
        ({"episode_num": 0}, "episode_num"),
        ({"episode_num": 1.5}, "episode_num"),
        ({"episode_num": True}, "episode_num"),
        ({"max_retry": -1}, "max_retry"),
        ({"max_retry": "5"}, "max_retry"),
        ({"step_timeout": 0}, "step_timeout"),
        ({"step_timeout": "1"}, "step_timeout"),
        ({"reset_timeout": -1.0}, "reset_timeout"),
        ({"connect_timeout": False}, "connect_timeout"),
        ({"retry_type": "restart"}, "'reset' or 'renew'"),
        ({"retry_waiting_time": -1}, "retry_waiting_time"),
        ({"auto_reset": 1}, "auto_reset"),
        ({"shared_memory": None}, "shared_memory"),
        ({"copy_on_get": "no"}, "copy_on_get"),
        ({"wait_num": 0}, "wait_num"),
        ({"step_wait_timeout": -1}, "step_wait_timeout"),
        ({"reset_inplace": True, "auto_reset": False}, "reset_inplace"),
        ({"on_error": "ignore"}, "on_error"),
        ({"on_restart": 3}, "on_restart"),
        ({"context": "thread"}, "context"),
        ({"num_workers": 0}, "num_workers"),
        ({"max_restarts": 1.5}, "max_restarts"),
        ({"recycle_after": 0}, "recycle_after"),
        ({"start_timeout": "1"}, "start_timeout"),
        ({"affinity": "tight"}, "affinity"),
        ([("episode_num", 3)], "a dict"),
    ],
)
def test_a_config_error_is_told_when_the_manager_is_made(cfg: Any, text: str) -> None:
    with pytest.raises(shmenv.UsageError, match=text):
        SyncSubprocessEnvManager([StatEnv], cfg)


def test_env_fn_must_be_functions() -> None:
    for wrong in ([], StatEnv, [StatEnv()], None):
        with pytest.raises(shmenv.UsageError, match="env_fn"):
            SyncSubprocessEnvManager(wrong)  # type: ignore[arg-type]


# -- states


def test_the_states_have_the_numbers_they_always_had() -> None:
    assert [(state.name, int(state)) for state in EnvState] == [
        ("VOID", 0), ("INIT", 1), ("RUN", 2), ("RESET", 3), ("DONE", 4), ("ERROR", 5), ("NEED_RESET", 6),
        ("STEPPING", 7),
    ]  # fmt: skip


def states(manager: Any) -> list[EnvState]:
    return list(manager._env_states.values())


def test_every_key_is_checked_and_numbers_of_any_kind_are_taken(make_manager: Make) -> None:
    for key in SyncSubprocessEnvManager.default_config().keys() - {"cfg_type"}:
        with pytest.raises(shmenv.UsageError, match=key):
            SyncSubprocessEnvManager([StatEnv], {key: object()})
    numbers = {"episode_num": np.int64(1), "step_timeout": np.float32(30), "reset_timeout": 6000, "num_workers": 8}
    manager = make_manager([partial(StatEnv, length=1)] * 2, **numbers, context=multiprocessing.get_context("fork"))
    manager.launch()
    assert len(play(manager)[0]) == 2 and manager.done


@BOTH
def test_an_env_runs_until_it_has_played_its_episodes(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=2), partial(StatEnv, length=3)], cls, episode_num=2)
    assert manager.closed and states(manager) == [EnvState.VOID] * 2
    manager.launch()
    assert not manager.closed and states(manager) == [EnvState.RUN] * 2
    done: list[int] = []
    steps = [0, 0]
    for timesteps in play(manager):
        for i, timestep in timesteps.items():
            steps[i] += 1
            done += [i] * timestep.done
    assert sorted(done) == [0, 0, 1, 1] and steps == [4, 6] == manager.steps
    assert states(manager) == [EnvState.DONE] * 2 and manager.env_state_done(1)
    assert manager.ready_obs == {} and manager.done
    manager.close()
    assert manager.closed and states(manager) == [EnvState.VOID] * 2 and not manager.done


@BOTH
def test_a_reset_revives_an_env_that_is_done_and_keeps_its_count(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=1)] * 2, cls, episode_num=1)
    manager.launch()
    play(manager)
    manager.reset({1: None})
    assert states(manager) == [EnvState.DONE, EnvState.RUN]
    assert not manager.env_state_done(1)
    manager.step({1: 0})
    assert states(manager)[1] == EnvState.DONE and manager._env_episode_count[1] == 2


@BOTH
def test_launching_again_starts_new_processes_and_counts_from_zero(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=1)], cls, episode_num=1)
    manager.launch()
    first = manager.time_id
    play(manager)
    manager.close()
    manager.launch()
    assert manager.time_id != first and not manager.done
    play(manager)
    assert manager.done


# -- calls in the wrong state


@BOTH
def test_a_closed_manager_refuses_everything(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv], cls)
    for _ in range(2):
        for call in (manager.reset, lambda: manager.ready_obs, lambda: manager.step({0: 0}), lambda: manager.step({})):
            with pytest.raises(shmenv.ClosedError, match="closed"):
                call()
        manager.launch()
        with pytest.raises(shmenv.UsageError, match="launched already"):
            manager.launch()
        manager.close()
        manager.close()


@BOTH
def test_a_wrong_call_is_refused_and_changes_nothing(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls, auto_reset=False)
    with pytest.raises(shmenv.UsageError, match="each of the 2 envs"):
        manager.launch({0: {}})
    with pytest.raises(shmenv.UsageError, match="env_id 2"):
        manager.launch({0: {}, 2: {}})
    manager.launch()
    for actions in ({2: 0}, {-1: 0}, {"0": 0}, {True: 0}, [0, 0], None):
        with pytest.raises(shmenv.UsageError):
            manager.step(actions)
    wrong_params: tuple[Any, ...] = ({5: None}, {0: 3}, [0], {0: {}, "1": {}})
    for params in wrong_params:
        with pytest.raises(shmenv.UsageError):
            manager.reset(params)
    with pytest.raises(shmenv.UsageError, match="lock"):
        manager.step({0: threading.Lock()})
    with pytest.raises(shmenv.UsageError, match="lock"):
        manager.reset({0: {"stat": threading.Lock()}})
    assert states(manager) == [EnvState.RUN] * 2 and manager.steps == [0, 0]
    manager.reset()
    assert [len(each) for each in manager.resets] == [2, 2] and manager.resets[0][1] == {}
    for _ in range(3):
        manager.step({0: 0})
    with pytest.raises(shmenv.UsageError, match="env 0 cannot be stepped in state NEED_RESET"):
        manager.step({1: 0, 0: 0})
    assert manager.steps == [3, 0]


# -- reset


@BOTH
def test_reset_parameters_stick_until_others_are_given(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=1)] * 2, cls)
    manager.launch({0: {"stat": "a"}, 1: {"stat": "b"}})
    while len(manager.resets[0]) < 3 or len(manager.resets[1]) < 3:
        manager.step(dict.fromkeys(manager.ready_obs, 0))
    manager.reset({1: {"stat": "c"}})
    manager.reset()
    manager.reset({0: None})
    manager.reset({0: None})
    first, second = manager.resets
    assert {"stat": "a"} == first[0] == first[1] == first[-3] and first[-2:] == [{}, {}]
    assert second[0] == second[1] == {"stat": "b"} and second[-2:] == [{"stat": "c"}] * 2


def test_a_gymnasium_env_gets_reset_parameters_as_arguments(make_manager: Make) -> None:
    manager = make_manager([ScriptedEnv])
    manager.seed(5)
    manager.launch({0: {"options": {"level": 3}}})
    manager.reset({0: {"seed": 8}})
    assert manager.seen == [[(5, {"level": 3}), (8, None)]]


@BOTH
def test_a_reset_waits_for_all_its_envs(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 3, cls)
    manager.launch()
    manager.step(dict.fromkeys(range(3), 0))
    manager.reset({0: None, 2: None})
    assert manager.ready_env == [0, 1, 2] or cls is AsyncSubprocessEnvManager
    assert manager.ready_obs[0].tolist() == [1, 0] and manager.ready_obs[2].tolist() == [1, 0]


@BOTH
@pytest.mark.parametrize(("retry_type", "is_same"), [("reset", True), ("renew", False)])
def test_a_failed_reset_is_tried_again_in_the_same_process_or_in_a_new_one(
    make_manager: Make, cls: Any, retry_type: str, is_same: bool, tmp_path: Any
) -> None:
    env = partial(StatEnv, mark=str(tmp_path / "mark"))
    manager = make_manager([env, StatEnv], cls, max_retry=2, retry_type=retry_type, retry_waiting_time=0.0)
    manager.seed(3)
    manager.launch()
    before = manager.time_id
    manager.reset({0: {"stat": "error_unmarked"}})
    assert (manager.time_id[0] == before[0]) is is_same and manager.time_id[1] == before[1]
    assert manager._stat == ["error_unmarked", None] and manager._seed == [3 if is_same else 5, 4]
    assert states(manager) == [EnvState.RUN] * 2 and len(manager.ready_obs) == 2
    with pytest.raises(shmenv.EnvError, match="env 1"):
        manager.reset({1: {"stat": "error"}})
    assert len(manager.resets[1]) == (3 if is_same else 1)
    assert states(manager) == [EnvState.RUN, EnvState.ERROR]


@BOTH
def test_how_resets_are_tried_again_can_be_changed_while_it_runs(make_manager: Make, cls: Any, tmp_path: Any) -> None:
    env_fns = [partial(StatEnv, mark=str(tmp_path / name)) for name in "ab"]
    manager = make_manager(env_fns, cls, retry_waiting_time=0.0)
    manager.change(max_retry=2)
    manager.launch()
    before = manager.time_id
    manager.reset({0: {"stat": "error_unmarked"}})
    assert manager.time_id == before
    manager.change(retry_type="renew")
    assert manager.cfg.retry_type == "renew" and manager.cfg.max_retry == 2
    manager.reset({1: {"stat": "error_unmarked"}})
    assert manager.time_id[0] == before[0] and manager.time_id[1] != before[1]
    manager.change(max_retry=1)
    with pytest.raises(shmenv.EnvError, match="env 0"):
        manager.reset({0: {"stat": "error_once"}})


def test_keys_for_the_workers_count_from_the_next_launch_on(make_manager: Make) -> None:
    manager = make_manager([StatEnv] * 2)
    manager.launch()
    pids = set(manager.pid)
    manager.change(num_workers=1, step_timeout=0.3)
    assert set(manager.pid) == pids and len(pids) == 2
    manager.close()
    manager.launch()
    assert len(set(manager.pid)) == 1
    with pytest.raises(shmenv.WorkerTimeoutError):
        manager.step({0: "block", 1: 0})


def test_keys_for_the_loop_count_at_once(make_manager: Make) -> None:
    manager = make_manager([partial(StatEnv, length=1)])
    manager.launch()
    manager.step({0: 0})
    manager.change(episode_num=2)
    manager.step(dict.fromkeys(manager.ready_obs, 0))
    assert manager.done


def test_a_change_that_is_refused_changes_nothing(make_manager: Make) -> None:
    manager = make_manager([StatEnv], max_retry=3)
    before = manager.cfg
    for keys in ({"max_retry": 5, "retry_kind": "renew"}, {"max_retry": 5, "step_timeout": -1}):
        with pytest.raises(shmenv.UsageError):
            manager.change(**keys)
    assert manager.cfg == before
    manager.cfg["max_retry"] = 7  # a copy
    assert manager.cfg == before


@BOTH
def test_a_worker_that_keeps_dying_is_given_up_and_leaves_the_others_alone(make_manager: Make, cls: Any) -> None:
    restarted: list[int] = []

    def on_restart(env_id: int, reason: str) -> None:
        assert "SIGKILL" in reason
        restarted.append(env_id)

    manager = make_manager([StatEnv] * 3, cls, max_restarts=1, on_restart=on_restart)
    manager.launch()
    for _ in range(2):
        with pytest.raises(shmenv.WorkerDiedError):
            manager.reset({1: {"stat": "kill"}})
    for _ in range(2):
        with pytest.raises(shmenv.WorkerDiedError, match="for good"):
            manager.reset()
        assert states(manager) == [EnvState.RUN, EnvState.ERROR, EnvState.RUN]
        assert sorted(manager.ready_obs) == [0, 2]
    assert restarted == [1]


@BOTH
def test_a_recycled_worker_costs_an_abnormal_timestep_at_most(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=2)] * 2, cls, recycle_after=2, episode_num=5)
    manager.launch()
    before = manager.time_id
    played = [0, 0]
    for timesteps in play(manager):
        for i, timestep in timesteps.items():
            played[i] += not timestep.info.get("abnormal")
    assert manager._env_episode_count == {0: 5, 1: 5} and all(10 <= count <= 16 for count in played)
    assert not set(before) & set(manager.time_id)


def test_close_from_another_thread_ends_a_step_that_waits(make_manager: Make) -> None:
    manager = make_manager([StatEnv] * 2, close_timeout=0.1)
    manager.launch()
    closer = threading.Timer(0.1, manager.close)
    closer.start()
    with pytest.raises(shmenv.ClosedError):
        manager.step({0: "block", 1: 0})
    closer.join()
    assert manager.closed and states(manager) == [EnvState.VOID] * 2


# -- what timesteps are like


@BOTH
@pytest.mark.parametrize("shared_memory", [True, False])
def test_timesteps_come_back_as_the_env_made_them(make_manager: Make, cls: Any, shared_memory: bool) -> None:
    manager = make_manager([WideEnv], cls, shared_memory=shared_memory)
    manager.seed(3)
    manager.launch()
    env = WideEnv()
    env.seed(3)
    assert same(manager.ready_obs[0], env.reset())
    for action in range(3):
        timestep, expected = manager.step({0: action})[0], env.step(action)
        assert type(timestep) is WideTimestep and same(tuple(timestep), tuple(expected))
        if expected.done:
            break
        assert same(manager.ready_obs[0], expected.obs)


def same(one: Any, two: Any) -> bool:
    """Equal in value, type, dtype and shape; an array without dimensions counts as a scalar."""
    if isinstance(one, np.ndarray | np.generic) and isinstance(two, np.ndarray | np.generic):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@BOTH
def test_without_shared_memory_observations_may_be_any_object(make_manager: Make, cls: Any) -> None:
    first = {"text": "a", "ragged": [1, [2, None]], "tuple": (np.float16(1), {3})}
    manager = make_manager([partial(GivesEnv, None, first)] * 2, cls, shared_memory=False)
    manager.launch()
    assert same(manager.ready_obs[1], first)
    for obs in ("other", None, (1, 2), np.zeros((2, 2)), first):
        got = manager.step({1: obs})
        assert same(got[1].obs, obs) and same(manager.ready_obs[1], obs)


class Sum:
    """A timestep that is no tuple."""

    def __init__(self, obs: Any, reward: Any, done: bool) -> None:
        self.obs, self.reward, self.done = obs, reward, done
        self.info: dict[str, Any] = {"sum": True}


class SumEnv(StatEnv):
    def step(self, action: Any) -> Any:
        obs, reward, done, _ = super().step(action)
        return Sum(obs, reward, done)


class ShortEnv(StatEnv):
    def step(self, action: Any) -> Any:
        return tuple(super().step(action))[:3]


class OldGymEnv(StatEnv):
    def step(self, action: Any) -> Any:
        return tuple(super().step(action))


def test_timesteps_may_be_any_object_or_a_plain_tuple(make_manager: Make) -> None:
    manager = make_manager([SumEnv, OldGymEnv])
    manager.launch()
    timesteps = manager.step({0: 0, 1: 0})
    assert type(timesteps[0]) is Sum and timesteps[0].obs.tolist() == [0, 1] and timesteps[0].info == {"sum": True}
    assert type(timesteps[1]) is shmenv.BaseEnvTimestep and timesteps[1].obs.tolist() == [0, 1]
    assert same(timesteps[1].reward, np.array([1], np.float32))
    manager = make_manager([partial(SumEnv, length=1)], reset_inplace=True)
    manager.launch()
    timestep = manager.step({0: 0})[0]
    assert type(timestep) is Sum and timestep.obs.tolist() == [1, 0]
    assert timestep.info["final_observation"].tolist() == [0, 1]


def test_a_gymnasium_env_makes_timesteps_that_tell_when_it_was_cut_short(make_manager: Make) -> None:
    manager = make_manager([partial(ScriptedEnv, length=2), partial(ScriptedEnv, length=2, truncates=True)])
    manager.launch()
    first = manager.step({0: 0, 1: 0})
    assert same(first[0], shmenv.BaseEnvTimestep(np.array([0, 1], np.float32), 1.0, False, {}))
    second = manager.step({0: 0, 1: 0})
    assert second[0].done is True and second[0].info == {}
    assert second[1].done is True and second[1].info == {"TimeLimit.truncated": True}


def test_a_parallel_env_is_one_env_with_a_dict_of_agents(make_manager: Make) -> None:
    manager = make_manager([ParallelEnv])
    manager.launch()
    timestep = manager.step({0: {"red": 1, "blue": 2}})[0]
    assert timestep.obs["red"].shape == (2,) and timestep.reward.tolist() == [2.0, 3.0] and not timestep.done


def test_what_is_no_timestep_is_the_envs_error(make_manager: Make) -> None:
    manager = make_manager([ShortEnv])
    manager.launch()
    with pytest.raises(shmenv.EnvError, match="a timestep with obs, reward, done and info, not a tuple of 3"):
        manager.step({0: 0})


def test_an_env_that_declares_nothing_is_described_by_its_first_observation(make_manager: Make) -> None:
    manager = make_manager([partial(BareEnv, np.zeros(2))])
    manager.launch()
    assert manager.ready_obs[0].tolist() == [0, 0] and manager.observation_space is None
    with pytest.raises(shmenv.UsageError, match="no action space"):
        manager.random_action()


@pytest.mark.parametrize(
    "action",
    [3, True, None, "left", 2.5, np.int64(1), np.array([1]), np.array(2.5, np.float16), [1, [2]], {"a": (1, None)},
     b"x", 10**30, Timestep(1, 2, 3, 4), np.zeros((300, 300)), math.nan],
    ids=str,
)  # fmt: skip
def test_any_object_can_be_an_action_and_arrives_as_it_is(make_manager: Make, action: Any) -> None:
    manager = make_manager([StatEnv])
    manager.launch()
    manager.step({0: action})
    arrived = manager.actions[0][0]
    assert pickle.dumps(arrived) == pickle.dumps(action) and type(arrived) is type(action)


def test_actions_are_captured_before_step_waits(make_manager: Make, tmp_path: Any) -> None:
    gate = Gate(tmp_path / "gate")
    manager = make_manager([StatEnv, partial(StatEnv, gate=gate.path)], AsyncSubprocessEnvManager, wait_num=1)
    manager.launch()
    action = ["wait"]
    mutable = {0: "go", 1: "wait"}
    manager.step(mutable)
    mutable[1] = action[0] = "changed"
    release(gate)
    assert manager.step({})[1].obs.tolist() == [0, 1]
    assert manager.actions == [["go"], ["wait"]]


def release(gate: Gate) -> None:
    """Let the env that stands before the gate through, once it does."""
    os.close(eventually(gate.try_hold))


@pytest.mark.parametrize("shape", [(3,), [2, 2], {"a": (2,), "b": {"c": (1, 2)}}], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, None], ids=str)
def test_an_env_that_declares_itself_by_info_works(make_manager: Make, shape: Any, dtype: Any) -> None:
    shape = tuple(shape) if isinstance(shape, list) else shape
    manager = make_manager([partial(OldEnv, shape, dtype)] * 2)
    assert manager.env_info() == OldEnv(shape, dtype).info()
    assert manager.observation_space == OldEnv(shape, dtype).info().obs_space
    assert manager.reward_space == OldEnv(shape, dtype).info().rew_space
    manager.launch()
    env = OldEnv(shape, dtype)
    assert same(manager.ready_obs[1], env.reset())
    assert same(tuple(manager.step({0: 5, 1: 5})[1]), tuple(env.step(5)))


@BOTH
def test_observations_belong_to_the_caller(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=2)] * 2, cls)
    manager.launch()
    kept = [manager.ready_obs[0]]
    for _ in range(6):
        kept.append(manager.step({0: 0})[0].obs)
        kept.append(manager.ready_obs.get(0, kept[-1]))
        while 0 not in manager.ready_obs:
            pass
    assert all(obs.base is None for obs in kept)
    assert [obs.tolist() for obs in kept[:4]] == [[0, 0], [0, 1], [0, 1], [0, 2]]


def test_without_copies_an_observation_stays_until_the_second_next_command(make_manager: Make) -> None:
    manager = make_manager([partial(StatEnv, length=9)] * 2, copy_on_get=False)
    manager.launch()
    first = manager.ready_obs[0]
    second = manager.step({0: 0, 1: 0})[0].obs
    assert (first.tolist(), second.tolist()) == ([0, 0], [0, 1]) and second.base is not None
    third = manager.step({0: 0, 1: 0})[0].obs
    assert (second.tolist(), third.tolist()) == ([0, 1], [0, 2])


# -- spaces, reference env, everything else by name


@BOTH
def test_spaces_are_known_before_and_after(make_manager: Make, cls: Any) -> None:
    manager = make_manager([NestedEnv] * 2, cls)
    assert manager.env_num == 2
    assert manager.observation_space == NestedEnv.SPACE and manager.closed
    assert manager.action_space == NestedEnv().action_space and manager.reward_space is None
    manager.launch()
    manager.close()
    assert manager.observation_space == NestedEnv.SPACE


def test_the_reference_env_is_env_0_before_and_after_launch(make_manager: Make) -> None:
    manager = make_manager([partial(StatEnv, "zero"), partial(StatEnv, "one")])
    before = manager.env_ref.time_id
    assert manager.env_ref.name == "zero" and manager.env_ref.reward_shaping([{}]) == [{"shaped": True}]
    assert not hasattr(manager.env_ref, "nothing")
    with pytest.raises(shmenv.EnvError, match="missing 1 required"):
        manager.env_ref.reward_shaping()
    manager.launch()
    assert manager.env_ref.time_id == manager.time_id[0] == before
    with pytest.raises(AttributeError, match="info"):
        manager.env_info()


def test_a_reference_env_that_dies_is_told_and_can_be_asked_for_again(make_manager: Make) -> None:
    manager = make_manager([StatEnv] * 2)
    os.kill(manager.env_ref.pid, signal.SIGKILL)
    with pytest.raises(shmenv.WorkerDiedError, match="SIGKILL"):
        manager.env_ref.pid  # noqa: B018
    assert manager.env_ref.name == "env"
    manager.close()  # it was never launched
    assert manager.closed


@BOTH
def test_attributes_of_the_envs_come_as_a_list_by_env_id(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, f"env{i}") for i in range(3)], cls)
    manager.seed([314] * 3)
    manager.launch({i: {"stat": f"stat {i}"} for i in range(3)})
    assert manager._seed == [314] * 3 and manager._stat == ["stat 0", "stat 1", "stat 2"]
    assert manager.name == manager._name == ["env0", "env1", "env2"]
    with pytest.raises(AttributeError, match="nothing"):
        manager.nothing  # noqa: B018
    with pytest.raises(shmenv.UsageError, match=r"start_process.*method_name_list"):
        manager.start_process()


def test_a_subclass_may_let_more_methods_through(make_manager: Make) -> None:
    class Mine(SyncSubprocessEnvManager):
        @property
        def method_name_list(self) -> list[str]:
            return [*super().method_name_list, "start_process"]

    manager = make_manager([StatEnv] * 2, Mine)
    manager.launch()
    assert manager.start_process() == [None, None]


def test_images_figures_shaping_and_random_actions(make_manager: Make) -> None:
    manager = make_manager([partial(StatEnv, length=1), StatEnv], episode_num=1)
    manager.seed(4)
    manager.launch()
    first = [manager.random_action() for _ in range(9)]
    assert all(action in (0, 1) for each in first for action in each.values())
    manager.seed(4)
    assert [manager.random_action() for _ in range(9)] == first
    manager.step({0: 0, 1: 0})
    assert list(manager.random_action()) == [1] == list(manager.ready_imgs)
    assert same(manager.ready_imgs[1], np.full((2, 2, 3), 1, np.uint8))
    assert manager.reward_shaping(1, [{"a": 1}]) == [{"a": 1, "shaped": True}]
    manager.enable_save_figure(1, "here")
    assert manager.replays == [[], ["figure here"]]


def test_connections_are_waited_for(make_manager: Make) -> None:
    pipes = [multiprocessing.Pipe() for _ in range(3)]
    ends = [end for end, _ in pipes]
    try:
        pipes[2][1].send(1)
        assert AsyncSubprocessEnvManager.wait(ends, 1, 0.0) == ([ends[2]], [2])
        pipes[0][1].send(1)
        assert AsyncSubprocessEnvManager.wait(ends, 2, 0.0) == ([ends[0], ends[2]], [0, 2])
        pipes[1][1].send(1)
        assert AsyncSubprocessEnvManager.wait(ends, 1, None) == (ends, [0, 1, 2])
        with pytest.raises(shmenv.UsageError, match="wait_num"):
            AsyncSubprocessEnvManager.wait(ends, 4)
    finally:
        for pipe in pipes:
            for end in pipe:
                end.close()


# -- async steps


def test_an_async_step_returns_when_wait_num_results_are_in(make_manager: Make, tmp_path: Any) -> None:
    gates = [Gate(tmp_path / f"gate{i}") for i in range(3)]
    manager = make_manager([partial(StatEnv, gate=gate.path) for gate in gates], AsyncSubprocessEnvManager, wait_num=2)
    manager.launch()
    assert set(manager.step({0: "wait", 1: 0, 2: 0})) == {1, 2}
    assert states(manager)[0] == EnvState.STEPPING and list(manager.ready_obs) == [1, 2]
    assert manager.active_env == [0, 1, 2] and manager.ready_env == manager.ready_obs_id == [1, 2]
    assert list(manager.step({2: 0})) == [2]
    release(gates[0])
    got = manager.step({1: 0})
    while len(got) < 2:
        got |= manager.step({})
    assert got[0].obs.tolist() == [0, 1] and got[1].obs.tolist() == [0, 2]


def test_an_async_step_goes_on_while_all_it_has_are_ends_of_episodes(make_manager: Make, tmp_path: Any) -> None:
    gate = Gate(tmp_path / "gate")
    manager = make_manager(
        [partial(StatEnv, length=1), partial(StatEnv, gate=gate.path)], AsyncSubprocessEnvManager, wait_num=1
    )
    manager.launch()
    opener = threading.Thread(target=release, args=[gate])
    opener.start()
    assert list(manager.step({0: 0, 1: "wait"})) == [0, 1]
    opener.join()


def test_step_wait_timeout_lingers_and_none_waits_for_all_that_were_asked(make_manager: Make, tmp_path: Any) -> None:
    gates = [Gate(tmp_path / f"gate{i}") for i in range(2)]
    for linger in (30.0, None):
        manager = make_manager(
            [partial(StatEnv, gate=gate.path) for gate in gates],
            AsyncSubprocessEnvManager,
            wait_num=1,
            step_wait_timeout=linger,
        )
        manager.launch()
        opener = threading.Thread(target=release, args=[gates[1]])
        opener.start()
        assert list(manager.step({0: 0, 1: "wait"})) == [0, 1]
        opener.join()


def test_ready_obs_is_empty_while_all_are_stepping_and_an_empty_step_gets_their_results(
    make_manager: Make, tmp_path: Any
) -> None:
    gates = [Gate(tmp_path / f"gate{i}") for i in range(2)]
    manager = make_manager(
        [partial(StatEnv, length=1, gate=gates[0].path), partial(StatEnv, gate=gates[1].path)],
        AsyncSubprocessEnvManager,
        wait_num=1,
        episode_num=1,
    )
    manager.launch()
    opener = threading.Thread(target=release, args=[gates[0]])
    opener.start()
    manager._cfg.wait_num = 2  # two are not to be had before the second gate opens
    second = threading.Thread(target=release, args=[gates[1]])
    second.start()
    assert list(manager.step({0: "wait", 1: "wait"})) == [0, 1]
    opener.join()
    second.join()
    assert manager.step({}) == {}


def test_ready_obs_gives_up_after_its_timeout_and_loses_nothing(make_manager: Make, tmp_path: Any) -> None:
    gate = Gate(tmp_path / "gate")
    manager = make_manager([partial(StatEnv, length=1, gate=gate.path, later="wait")], ready_timeout=0.05)
    manager.launch()
    assert manager.step({0: 0})[0].done
    with pytest.raises(shmenv.RecvTimeoutError, match=r"0\.05 s.*0: RESET"):
        manager.ready_obs  # noqa: B018
    release(gate)
    assert eventually(lambda: ready_or_none(manager))[0].tolist() == [1, 0]


def ready_or_none(manager: Any) -> Any:
    try:
        return manager.ready_obs
    except shmenv.RecvTimeoutError:
        return None


@dataclass(frozen=True)
class FrozenTimestep:
    """What an env may return, and nobody can change."""

    obs: Any
    reward: Any
    done: Any
    info: Any


class FrozenEnv:
    """Its timesteps are of a class that refuses every change; an episode lasts one step."""

    observation_space = Box(-9, 9, (1,), np.float32)

    def reset(self) -> Any:
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> FrozenTimestep:
        return FrozenTimestep(np.full(1, 5, np.float32), 2.5, True, {"given": action})


def test_timesteps_that_cannot_be_changed_get_the_next_observation_in_a_copy(make_manager: Callable[..., Any]) -> None:
    manager = make_manager([FrozenEnv] * 2, SyncSubprocessEnvManager, reset_inplace=True)
    manager.launch()
    for timestep in manager.step({0: "a", 1: "b"}).values():
        assert type(timestep) is FrozenTimestep and timestep.obs.tolist() == [0] and timestep.reward == 2.5
        assert timestep.info["final_observation"].tolist() == [5]


def test_a_death_that_is_told_late_costs_no_env_that_was_reset_since(make_manager: Callable[..., Any]) -> None:
    manager = make_manager([FrozenEnv] * 4, SyncSubprocessEnvManager, num_workers=2)
    manager.launch()
    os.kill(manager._pool.stats()["workers"][0]["pid"], signal.SIGKILL)
    eventually(lambda: not manager._pool.stats()["workers"][0]["alive"])
    manager.reset({1: None})
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        manager.step(dict.fromkeys(range(4), "a"))
    assert caught.value.env_ids == (0, 1)
    assert manager._env_states[0] == EnvState.ERROR and manager._env_states[1] == EnvState.RUN
    assert manager.step({1: "b"})[1].info == {"given": "b"}


@pytest.mark.parametrize(
    "seed", [np.uint8(254), np.int8(126), np.uint16(2**16 - 1), np.int32(2**31 - 1), np.int64(2**63 - 1)]
)
def test_a_narrow_integer_of_numpy_seeds_all_envs_as_the_same_int_does(make_manager: Make, seed: Any) -> None:
    manager = make_manager([StatEnv] * 3)
    manager.seed(seed)
    manager.launch()
    assert manager._seed == [int(seed), int(seed) + 1, int(seed) + 2]


class FrameEnv(StatEnv):
    """Renders a number, and in what mode."""

    frames = 0

    def render(self, mode: str = "array") -> tuple[int, str]:
        return self.frames, mode


@BOTH
def test_render_reaches_each_env_as_other_methods_do(make_manager: Make, cls: Any) -> None:
    manager = make_manager([FrameEnv] * 2, cls)
    assert manager.env_ref.render() == (0, "array")
    manager.launch()
    assert manager.render() == [(0, "array")] * 2 and manager.render(mode="human") == [(0, "human")] * 2
    assert manager.ready_imgs == dict.fromkeys(range(2), (0, "array")) and manager.env_ref.render() == (0, "array")
