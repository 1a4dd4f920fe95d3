"""The 46 defects of the managers that shmenv's were made after, each as a test of what is right: docs/defects.md."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from envs import Gate, ScriptedEnv
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from managed_envs import (
    AlarmEnv,
    AttrError,
    BadSeedEnv,
    BuiltHereEnv,
    GivesEnv,
    NestedEnv,
    OldEnv,
    StatEnv,
    Timestep,
    UnpickledObsEnv,
    UnseededEnv,
)
from support import SOURCE, TESTS, Script, eventually, is_gone

import shmenv
from shmenv import AsyncSubprocessEnvManager, EnvState, SyncSubprocessEnvManager

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])


def release(gate: Gate) -> None:
    """Let the env that stands before the gate through, once it does."""
    os.close(eventually(gate.try_hold))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """A watchdog, at ten times what is promised."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def workers(manager: Any) -> list[int]:
    return [worker["pid"] for worker in manager._pool.stats()["workers"]]


def states(manager: Any) -> list[EnvState]:
    return list(manager._env_states.values())


@pytest.fixture
def gates(tmp_path: Path) -> list[Gate]:
    return [Gate(tmp_path / f"gate{i}") for i in range(3)]


# -- hangs and lost errors


@BOTH
def test_01_ready_obs_never_waits_for_what_cannot_come(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=1)] * 2, cls, episode_num=1)
    with pytest.raises(shmenv.ClosedError):
        manager.ready_obs  # noqa: B018
    manager.launch()
    while not manager.done:
        manager.step(dict.fromkeys(manager.ready_obs, 0))
    assert manager.ready_obs == {}
    manager.reset({0: None})
    manager.step({0: "catched_error"})
    with pytest.raises(shmenv.UsageError, match=r"no env can become ready.*0: ERROR, 1: DONE"):
        manager.ready_obs  # noqa: B018


@BOTH
def test_02_a_failed_seeding_raises_from_launch_and_reset(make_manager: Make, cls: Any) -> None:
    manager = make_manager([BadSeedEnv] * 2, cls)
    manager.seed([1, 13])
    with pytest.raises(shmenv.EnvError, match="unlucky") as caught:
        manager.launch()
    assert caught.value.env_id == 1 and manager.closed
    manager.seed(5, dynamic_seed=False)
    with pytest.raises(shmenv.EnvError, match="positional argument"):
        manager.launch()
    manager.seed(5)
    manager.launch()
    manager.seed({0: 13})
    with pytest.raises(shmenv.EnvError, match="unlucky"):
        manager.reset()
    assert states(manager) == [EnvState.ERROR, EnvState.RUN]


@BOTH
def test_03_a_failed_auto_reset_is_told_by_the_next_call_and_leaves_other_envs_alone(
    make_manager: Make, cls: Any
) -> None:
    manager = make_manager([partial(StatEnv, length=1, later="error"), StatEnv], cls, wait_num=1)
    manager.launch()
    got = manager.step({0: 0, 1: 0})
    with pytest.raises(shmenv.EnvError, match="the env's own error") as caught:
        while True:
            got |= manager.step(dict.fromkeys(manager.ready_obs, 0))
    assert caught.value.env_id == 0 and caught.value.command == "reset" and "managed_envs.py" in str(caught.value)
    assert states(manager)[0] == EnvState.ERROR and got[0].obs.tolist() == [0, 1]
    while manager.t[1] < 2:
        manager.step({1: 0} if 1 in manager.ready_obs else {})
    manager.reset({0: {"stat": "fine"}})
    assert states(manager)[0] == EnvState.RUN


@BOTH
@pytest.mark.parametrize("word", ["block", "block_native", "block_catching", "stop"])
def test_04_a_step_that_hangs_ends_after_a_fraction_of_a_second(make_manager: Make, cls: Any, word: str) -> None:
    manager = make_manager([AlarmEnv] * 2, cls, step_timeout=0.2)
    manager.launch()
    with within(10), pytest.raises(shmenv.WorkerTimeoutError, match="step") as caught:
        while True:
            manager.step({i: word if i == 0 else 0 for i in manager.ready_obs})
    assert caught.value.env_ids == (0,)
    while EnvState.STEPPING in states(manager):
        manager.step({})
    manager.reset({0: None})
    assert states(manager) == [EnvState.RUN] * 2 and manager.t[1] > 0
    assert [default for default, _ in manager.alarm] == [False, False]
    assert all(remaining > 900 for _, (remaining, _) in manager.alarm)


def test_04_a_constructor_that_hangs_ends_too(make_manager: Make) -> None:
    manager = make_manager([StatEnv, hanging_env], start_timeout=0.3)
    with within(20), pytest.raises(shmenv.WorkerTimeoutError, match="constructor of env 1"):
        manager.launch()
    assert manager.closed


def hanging_env() -> Any:
    threading.Event().wait()


@BOTH
def test_05_close_ends_hanging_workers_within_one_deadline_for_all(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 4, AsyncSubprocessEnvManager, wait_num=1, close_timeout=0.2)
    manager.launch()
    manager.step({0: 0, 1: "block", 2: "block_native", 3: "block_catching"})
    pids = workers(manager)
    with within(10):
        manager.close()
    assert all(map(is_gone, pids)) and manager.closed


@BOTH
def test_06_close_never_raises_for_a_dead_worker_and_leaves_none(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 3, cls)
    manager.launch()
    pids = workers(manager)
    os.kill(pids[0], signal.SIGKILL)
    manager.close()
    manager.close()
    assert all(map(is_gone, pids))


@BOTH
@pytest.mark.parametrize(("word", "text"), [("kill", "SIGKILL"), ("segfault", "SIGSEGV"), ("exit", "exit code 3")])
def test_07_a_dead_worker_is_told_by_env_and_cause(make_manager: Make, cls: Any, word: str, text: str) -> None:
    manager = make_manager([StatEnv] * 2, cls)
    manager.launch()
    with pytest.raises(shmenv.WorkerDiedError, match=text) as caught:
        while True:
            manager.step({i: word if i == 1 else 0 for i in manager.ready_obs})
    assert caught.value.env_ids == (1,) and caught.value.exitcode in (-9, -11, 3)
    assert states(manager)[1] == EnvState.ERROR and not manager.closed
    manager.reset({1: None})
    assert 1 in manager.ready_obs


@BOTH
def test_07_an_env_lost_while_idle_is_told_before_anything_is_sent(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls)
    manager.launch()
    os.kill(manager.pid[1], signal.SIGKILL)
    eventually(lambda: not manager._pool.stats()["workers"][1]["alive"])
    with pytest.raises(shmenv.WorkerDiedError, match="SIGKILL"):
        manager.step({0: 0, 1: 0})
    assert states(manager) == [EnvState.RUN, EnvState.ERROR]
    assert list(manager.step({0: 0})) == [0] and manager.steps[0] == 1
    manager.reset({1: None})
    assert list(manager.ready_obs) == [0, 1]


@BOTH
@pytest.mark.parametrize(
    ("word", "type_name"),
    [("odd", "OddError"), ("held", "HeldError"), ("attr", "AttrError"), ("interrupt", "KeyboardInterrupt"),
     ("sys_exit", "SystemExit")],
)  # fmt: skip
def test_08_any_exception_arrives_whole(make_manager: Make, cls: Any, word: str, type_name: str) -> None:
    manager = make_manager([StatEnv], cls)
    manager.launch()
    with pytest.raises(shmenv.EnvError, match="Traceback") as caught:
        manager.step({0: word})
    assert caught.value.type_name.endswith(type_name) and caught.value.env_id == 0
    if word == "attr":
        assert isinstance(caught.value.__cause__, AttrError) and caught.value.__cause__.code == 7
    manager.reset({0: None})
    assert manager.step({0: 0})[0].obs.tolist() == [1, 1]


@BOTH
def test_09_results_of_other_envs_come_with_the_next_step(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=9)] * 3, cls)
    manager.launch()
    got: dict[int, Any] = {}
    with pytest.raises(shmenv.EnvError) as caught:
        got = manager.step({0: 0, 1: "error", 2: 0})
        while True:
            got |= manager.step({})
    assert caught.value.env_id == 1 and not manager.closed
    while len(got) < 2:
        got |= manager.step({})
    assert sorted(got) == [0, 2] and all(timestep.obs.tolist() == [0, 1] for timestep in got.values())
    assert states(manager) == [EnvState.RUN, EnvState.ERROR, EnvState.RUN] and sorted(manager.ready_obs) == [0, 2]
    assert manager.steps == [1, 1, 1]


@BOTH
def test_09_on_error_close_closes_instead(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls, on_error="close")
    manager.launch()
    pids = workers(manager)
    with pytest.raises(shmenv.EnvError):
        while True:
            manager.step({i: "error" for i in manager.ready_obs if i == 1} | {0: 0} if not manager.steps[0] else {})
    assert manager.closed and all(map(is_gone, pids))


@BOTH
def test_09_on_error_restart_delivers_an_abnormal_timestep_and_goes_on(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls, on_error="restart", episode_num=2)
    manager.launch()
    manager.step({0: 0})
    got: dict[int, Any] = {}
    word = "kill"
    while 0 not in got:
        got = manager.step({i: word if i == 0 else 0 for i in manager.ready_obs})
        word = "played"
    assert got[0].info["abnormal"] and "SIGKILL" in got[0].info["error"] and got[0].reward == 0 and got[0].done
    assert got[0].obs.tolist() == [0, 1]
    while states(manager)[0] != EnvState.RUN:
        manager.step({i: 0 for i in manager.ready_obs if i != 0})
    assert manager.ready_obs[0].tolist() == [0, 0] and manager._env_episode_count[0] == 0


@BOTH
def test_10_an_answer_that_is_late_is_never_taken_for_another(make_manager: Make, cls: Any, gates: list[Gate]) -> None:
    manager = make_manager([partial(StatEnv, gate=gates[0].path), StatEnv], cls, reset_timeout=0.3)
    manager.launch()
    with pytest.raises(shmenv.WorkerTimeoutError, match="reset"):
        manager.reset({0: {"stat": "wait"}})
    assert states(manager) == [EnvState.ERROR, EnvState.RUN]
    manager.reset({0: None})
    manager.step({0: "first", 1: 0})
    while manager.steps != [1, 1] or EnvState.STEPPING in states(manager):
        manager.step({})
    assert manager.actions[0] == ["first"] and manager.ready_obs[0].tolist() == [0, 1]


def test_11_attributes_of_a_waiting_env_take_nothing_away(make_manager: Make, gates: list[Gate]) -> None:
    manager = make_manager([partial(StatEnv, gate=gates[0].path), StatEnv], AsyncSubprocessEnvManager, wait_num=1)
    manager.launch()
    manager.step({0: "wait", 1: 0})
    opener = threading.Thread(target=release, args=[gates[0]])
    opener.start()
    assert manager.name == ["env", "env"] and manager.t == [1, 1]
    opener.join()
    assert manager.step({})[0].obs.tolist() == [0, 1]


def test_11_attributes_can_be_read_while_an_env_is_reset(make_manager: Make, gates: list[Gate]) -> None:
    waiting = partial(StatEnv, length=1, gate=gates[0].path, later="wait")
    manager = make_manager([waiting, StatEnv], AsyncSubprocessEnvManager)
    manager.launch()
    got = manager.step({0: 0, 1: 0})
    while 0 not in got:
        got = manager.step({})
    opener = threading.Thread(target=release, args=[gates[0]])
    opener.start()
    assert manager.name == ["env", "env"]
    opener.join()
    while 0 not in manager.ready_obs:
        pass
    assert manager.ready_obs[0].tolist() == [1, 0]


def test_12_a_waiting_env_cannot_be_stepped_again(make_manager: Make, gates: list[Gate]) -> None:
    manager = make_manager([partial(StatEnv, gate=gates[0].path), StatEnv], AsyncSubprocessEnvManager, wait_num=1)
    manager.launch()
    manager.step({0: "wait", 1: 0})
    assert states(manager) == [EnvState.STEPPING, EnvState.RUN]
    with pytest.raises(shmenv.UsageError, match="env 0 cannot be stepped in state STEPPING"):
        manager.step({1: 0, 0: 1})
    release(gates[0])
    assert manager.step({})[0].obs.tolist() == [0, 1]
    assert manager.steps == [1, 1]


# -- wrong data


@pytest.mark.parametrize("wrong", [np.zeros(1, np.float32), np.zeros((1, 4), np.float32), np.float32(5), None])
def test_13_an_observation_of_another_shape_is_the_envs_error(make_manager: Make, wrong: Any) -> None:
    manager = make_manager([partial(GivesEnv, Box(-9, 9, (4,), np.float32), np.zeros(4, np.float32))])
    manager.launch()
    with pytest.raises(shmenv.EnvError, match=r"float32 \(4,\)"):
        manager.step({0: wrong})
    manager.reset({0: None})
    assert manager.step({0: np.ones(4, np.float32)})[0].obs.tolist() == [1] * 4


def test_13_a_dict_needs_exactly_its_keys(make_manager: Make) -> None:
    space = Dict(a=Box(-9, 9, (2,), np.float32))
    manager = make_manager([partial(GivesEnv, space, {"a": np.zeros(2, np.float32)})])
    manager.launch()
    with pytest.raises(shmenv.EnvError, match=r"exactly the keys \['a'\]"):
        manager.step({0: {"a": np.zeros(2, np.float32), "b": 1}})


@pytest.mark.parametrize("wrong", [16777217, 0.5j, "text", 2**200])
def test_14_no_cast_changes_a_number(make_manager: Make, wrong: Any) -> None:
    manager = make_manager([partial(GivesEnv, Box(-9, 9, (1,), np.float32), np.zeros(1, np.float32))])
    manager.launch()
    with pytest.raises(shmenv.EnvError, match=r"float32 \(1,\)"):
        manager.step({0: np.array([wrong])})


def test_14_strict_dtype_refuses_every_cast(make_manager: Make) -> None:
    env = partial(GivesEnv, Box(-9, 9, (1,), np.float32), np.zeros(1, np.float32))
    for strict in (False, True):
        manager = make_manager([env], strict_dtype=strict)
        manager.launch()
        if not strict:
            assert manager.step({0: np.array([0.5])})[0].obs.dtype == np.float32
            continue
        with pytest.raises(shmenv.EnvError, match="strict_dtype"):
            manager.step({0: np.array([0.5])})


@BOTH
def test_15_each_part_of_a_nested_observation_has_its_own_dtype(make_manager: Make, cls: Any) -> None:
    manager = make_manager([NestedEnv] * 2, cls)
    manager.seed(0)
    manager.launch()
    obs = manager.ready_obs[1]
    inner = obs["inner"]
    assert [part.dtype.name for part in (obs["image"], obs["half"], *inner["pair"], inner["flags"])] == [
        "uint8", "float16", "int64", "int16", "bool",
    ]  # fmt: skip
    env = NestedEnv()
    env.seed(1)
    assert repr(env.reset()["image"]) == repr(obs["image"])


RECORD = np.dtype([("x", "<f4"), ("y", "u1", (2,))])


@pytest.mark.parametrize(
    "first",
    [np.ones(2, np.float16), np.ones(2, ">i4"), np.array([1j], np.complex64), np.array(["2026-11-29"], "M8[D]"),
     np.array([(0.5, [1, 2])], RECORD), np.array((0.5, [1, 2]), RECORD),
     np.array([True]), np.zeros((0, 3)), np.array([0.1], np.longdouble)],
    ids=lambda value: str(value.dtype),
)  # fmt: skip
def test_16_any_dtype_of_fixed_size_goes_through_shared_memory(make_manager: Make, first: Any) -> None:
    manager = make_manager([partial(GivesEnv, None, first)])
    manager.launch()
    obs = manager.step({0: first.copy()})[0].obs
    assert obs.dtype == first.dtype and obs.shape == first.shape and obs.tobytes() == first.tobytes()


def test_16_what_has_no_fixed_size_is_pickled_beside_it(make_manager: Make) -> None:
    space = Tuple((Text(9), Box(-9, 9, (1,), np.float32)))
    manager = make_manager([partial(GivesEnv, space, ("first", np.zeros(1, np.float32)))] * 2)
    manager.launch()
    assert manager.ready_obs[1][0] == "first"
    got = manager.step({0: ("long " * 999, np.ones(1, np.float32)), 1: ("b", np.ones(1, np.float32))})
    assert got[0].obs[0] == "long " * 999 and got[1].obs[0] == "b" and got[1].obs[1].tolist() == [1]


def test_17_bool_observations_work_with_every_numpy(make_manager: Make) -> None:
    manager = make_manager([partial(OldEnv, (2,), np.bool_)])
    manager.launch()
    assert manager.ready_obs[0].dtype == np.bool_ and manager.step({0: 1})[0].obs.tolist() == [True, True]


@BOTH
@pytest.mark.parametrize("obs", [np.array([-7, 0], np.float32), None, np.zeros((3, 3))], ids=["fits", "none", "other"])
def test_18_an_abnormal_timestep_keeps_the_observation_that_the_env_gave(
    make_manager: Make, cls: Any, obs: Any
) -> None:
    manager = make_manager([partial(GivesEnv, StatEnv().observation_space, np.zeros(2, np.float32))] * 2, cls)
    manager.launch()
    got = manager.step({0: Timestep(obs, None, True, {"abnormal": True}), 1: np.array([1, 2], np.float32)})
    while 0 not in got:
        got |= manager.step({})
    assert np.array_equal(got[0].obs, obs) and got[0].reward is None and got[0].info == {"abnormal": True}
    assert states(manager)[0] == EnvState.ERROR and manager._env_episode_count[0] == 0


@BOTH
@pytest.mark.parametrize("copies", [True, False])
def test_19_the_terminal_observation_is_neither_lost_nor_overwritten(
    make_manager: Make, cls: Any, copies: bool
) -> None:
    manager = make_manager([partial(StatEnv, length=2)], cls, copy_on_get=copies)
    manager.launch()
    manager.step({0: 0})
    last = manager.step({0: 0})[0].obs
    assert manager.ready_obs[0].tolist() == [1, 0] and last.tolist() == [0, 2]
    manager.close()
    manager = make_manager([partial(StatEnv, length=2)], cls, copy_on_get=copies, reset_inplace=True)
    manager.launch()
    manager.step({0: 0})
    timestep = manager.step({0: 0})[0]
    assert timestep.done and timestep.obs.tolist() == [1, 0]
    assert timestep.info["final_observation"].tolist() == [0, 2]
    assert states(manager) == [EnvState.RUN] and manager.ready_obs[0].tolist() == [1, 0]


def test_20_an_env_is_ready_only_when_its_new_observation_is_there(make_manager: Make) -> None:
    manager = make_manager([partial(StatEnv, length=1)], AsyncSubprocessEnvManager, episode_num=300)
    manager.launch()
    wrong: list[Any] = []
    stop = threading.Event()

    def watch() -> None:
        last = -1.0
        while not stop.is_set():
            if manager._env_states[0] == EnvState.RUN:
                obs = manager._ready_obs.get(0)
                if obs is not None and (obs[0] < last or obs[1] != 0):
                    wrong.append(obs)
                last = last if obs is None else float(obs[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    while not manager.done:
        manager.step(dict.fromkeys(manager.ready_obs, 0))
    stop.set()
    watcher.join()
    assert not wrong


def test_21_a_reset_touches_only_the_envs_that_are_reset(make_manager: Make, gates: list[Gate]) -> None:
    manager = make_manager(
        [StatEnv, StatEnv, partial(StatEnv, gate=gates[2].path)], AsyncSubprocessEnvManager, wait_num=1
    )
    manager.launch()
    got = manager.step({0: 0, 1: 0, 2: "wait"})
    manager.reset({1: None})
    release(gates[2])
    while len(got) < (3 if 1 in got else 2):
        got |= manager.step({})
    assert got[0].obs.tolist() == [0, 1] == got[2].obs.tolist()
    assert {i: obs.tolist() for i, obs in manager.ready_obs.items()} == {0: [0, 1], 1: [1, 0], 2: [0, 1]}


def test_21_an_error_of_another_env_outlives_a_reset(make_manager: Make) -> None:
    manager = make_manager([StatEnv, StatEnv, StatEnv], AsyncSubprocessEnvManager, wait_num=1)
    manager.launch()
    failed: list[Any] = []
    try:
        manager.step({0: "error", 1: 0, 2: 0})
        manager.reset({1: None})
        while states(manager)[0] == EnvState.STEPPING:
            manager.step({})
        manager.ready_obs  # noqa: B018
    except shmenv.EnvError as error:
        failed.append(error.env_id)
    assert failed == [0]


@BOTH
def test_22_a_reset_in_place_has_the_parameters_of_any_reset(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=1)], cls, reset_inplace=True, episode_num=3)
    manager.seed(3)
    manager.launch({0: {"level": 5}})
    assert manager.step({0: 0})[0].done and manager.step({0: 0})[0].done
    assert manager.resets[0] == [{"level": 5}] * 3 and manager.seedings == [[(3,)]]
    assert manager.step({0: 0})[0].obs.tolist() == [2, 1]
    assert manager.done


@BOTH
def test_23_a_step_is_played_once_whatever_becomes_of_it(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv], cls, max_retry=5, retry_waiting_time=0.0)
    manager.launch()
    with pytest.raises(shmenv.EnvError):
        manager.step({0: "error_once"})
    assert manager.steps == [1]


@BOTH
def test_23_retry_step_asks_for_more(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv], cls, max_retry=5, retry_waiting_time=0.0, retry_step=True)
    manager.launch()
    assert manager.step({0: "error_once"})[0].obs.tolist() == [0, 1] and manager.steps == [2]


def test_24_unseeded_envs_draw_different_numbers(make_manager: Make, context: str) -> None:
    for num_workers in (3, 1):
        manager = make_manager([UnseededEnv] * 3, context=context, num_workers=num_workers)
        manager.launch()
        assert len({obs.tobytes() for obs in manager.ready_obs.values()}) == 3


@BOTH
def test_25_seeds_are_copied_kept_and_given_again(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls)
    mine = [7, 8]
    manager.seed(mine, dynamic_seed=True)
    manager.launch()
    manager.reset()
    assert mine == [7, 8] and manager.seedings == [[(7, True)], [(8, True)]]
    manager.close()
    manager.launch()
    assert manager._seed == [7, 8]
    manager.seed({1: 5}, dynamic_seed=False)
    manager.reset()
    assert manager.seedings == [[(7, True)], [(8, True), (5, False)]]
    for seeds in ((1, 2), np.array([1, 2]), 1, np.int64(1)):
        manager.seed(seeds)
        manager.reset()
        assert manager._seed == [1, 2]
    for wrong in (True, 1.0, [1], "12", {5: 1}, [1, True], [1, None], -1, None):
        with pytest.raises(shmenv.UsageError):
            manager.seed(wrong)
    with pytest.raises(shmenv.UsageError, match="dynamic_seed"):
        manager.seed(1, dynamic_seed=1)


def test_25_an_env_without_a_seed_method_gets_its_seed_with_reset(make_manager: Make) -> None:
    manager = make_manager([ScriptedEnv] * 2)
    manager.seed(3)
    manager.launch()
    manager.reset()
    assert [[seed for seed, _ in each] for each in manager.seen] == [[3, None], [4, None]]
    manager.seed(8, dynamic_seed=False)
    manager.reset()
    manager.reset()
    assert [[seed for seed, _ in each] for each in manager.seen] == [[3, None, 8, 8], [4, None, 9, 9]]


@BOTH
def test_25_a_new_process_is_seeded_too(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls, max_retry=2, retry_type="renew", retry_waiting_time=0.0)
    manager.seed([7, 20])
    manager.launch()
    with pytest.raises(shmenv.WorkerDiedError):
        while True:
            manager.step({0: "kill"} if 0 in manager.ready_obs else {})
    manager.reset({0: None})
    assert manager.seedings == [[(9,)], [(20,)]]
    os.kill(manager.pid[1], signal.SIGKILL)
    manager.reset({1: None})
    assert manager.seedings == [[(9,)], [(22,)]]


# -- state machine and interface


@BOTH
def test_26_a_manual_reset_shows_as_such(make_manager: Make, cls: Any, gates: list[Gate]) -> None:
    manager = make_manager([partial(StatEnv, gate=gates[0].path), StatEnv], cls)
    manager.launch()
    seen: list[EnvState] = []

    def watch() -> None:
        hold = eventually(gates[0].try_hold)
        seen.append(manager._env_states[0])
        os.close(hold)

    watcher = threading.Thread(target=watch)
    watcher.start()
    manager.reset({0: {"stat": "wait"}})
    watcher.join()
    assert seen == [EnvState.RESET] and states(manager)[0] == EnvState.RUN


@BOTH
def test_27_without_auto_reset_all_episodes_are_played(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=i + 1) for i in range(3)], cls, auto_reset=False, episode_num=3)
    manager.launch()
    while not manager.done:
        for i, timestep in manager.step(dict.fromkeys(manager.ready_obs, 0)).items():
            if timestep.done and not manager.env_state_done(i):
                assert manager._env_states[i] == EnvState.NEED_RESET
                manager.reset({i: None})
    assert manager._env_episode_count == {0: 3, 1: 3, 2: 3} and manager.steps == [3, 6, 9]


@BOTH
def test_28_an_env_in_error_can_be_reset_and_stays_visible(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 3, cls)
    manager.launch()
    got: dict[int, Any] = {}
    actions: dict[int, Any] = {0: "catched_error", 1: 0, 2: 0}
    while len(got) < 3:
        got |= manager.step(actions)
        actions = {}
    assert [bool(got[i].info.get("abnormal")) for i in range(3)] == [True, False, False]
    assert states(manager) == [EnvState.ERROR, EnvState.RUN, EnvState.RUN] and sorted(manager.ready_obs) == [1, 2]
    assert not manager.done
    manager.reset({0: None})
    assert sorted(manager.ready_obs) == [0, 1, 2] and states(manager)[0] == EnvState.RUN


def test_29_sync_envs_stay_in_lock_step_however_slow_their_resets_are(make_manager: Make, gates: list[Gate]) -> None:
    waiting = partial(StatEnv, length=1, gate=gates[1].path, later="wait")
    manager = make_manager([partial(StatEnv, length=2), waiting])
    manager.launch()
    for _ in range(4):
        opener = threading.Thread(target=release, args=[gates[1]])
        opener.start()
        assert list(manager.step({1: 0, 0: 0})) == [1, 0]
        assert list(manager.ready_obs) == [0, 1]
        opener.join()


def test_30_an_async_step_neither_lingers_nor_spins(make_manager: Make, gates: list[Gate]) -> None:
    env_fns = [partial(StatEnv, length=10**9, gate=gate.path) for gate in gates]
    manager = make_manager(env_fns, AsyncSubprocessEnvManager, wait_num=1)
    manager.launch()
    assert 0 not in manager.step({0: "wait", 1: 0})
    start = time.monotonic()
    steps = 0
    while steps < 300:  # with ten milliseconds a step it would be three seconds
        steps += len(manager.step({1: 0} if 1 in manager.ready_obs else {}))
    assert time.monotonic() - start < 2
    release(gates[0])
    got: dict[int, Any] = {}
    while 0 not in got:
        got = manager.step({})
    assert manager.step({}) == {} or manager.t[1] > 300


def test_30_a_wait_uses_no_processor_time(make_manager: Make, gates: list[Gate]) -> None:
    manager = make_manager([partial(StatEnv, gate=gates[0].path)])
    manager.launch()
    opener = threading.Timer(0.5, release, args=[gates[0]])
    opener.start()
    before = time.thread_time()
    manager.step({0: "wait"})
    assert time.thread_time() - before < 0.25
    opener.join()


@BOTH
def test_31_attribute_access_never_surprises(make_manager: Make, cls: Any) -> None:
    import copy
    import pickle

    manager = make_manager([StatEnv] * 2, cls)
    assert not hasattr(manager, "name") and getattr(manager, "name", "default") == "default"
    manager.launch()
    assert [str(error) for error in manager.an_error] == ["only a value"] * 2 and not manager.closed
    with pytest.raises(shmenv.EnvError, match="a property that fails"):
        manager.no_luck  # noqa: B018
    assert not hasattr(manager, "nmae") and not manager.closed
    for travel in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            travel(manager)
    assert not hasattr(cls.__new__(cls), "name")


@pytest.mark.parametrize("flag", ["-O", "-OO"])
def test_32_checks_do_not_depend_on_assert(flag: str) -> None:
    program = """
from managed_envs import StatEnv
from shmenv import SyncSubprocessEnvManager, UsageError
def refused(call):
    try:
        call()
    except UsageError:
        return
    raise SystemExit("not refused")
manager = SyncSubprocessEnvManager([StatEnv] * 2, {"context": "fork"})
for call in (manager.reset, lambda: manager.step({})):
    refused(call)
manager.launch()
for call in (manager.launch, lambda: manager.step({5: 0}), lambda: manager.reset({2: {}}), lambda: manager.seed([1])):
    refused(call)
manager.close()
"""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(SOURCE), str(TESTS)]))
    done = subprocess.run([sys.executable, flag, "-c", program], env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_33_timeouts_are_floats_and_the_smaller_deadline_of_a_reset_counts(make_manager: Make) -> None:
    for limits in ({"reset_timeout": 0.25}, {"connect_timeout": 0.25}, {"reset_timeout": 9.0, "connect_timeout": 0.25}):
        manager = make_manager([StatEnv], **limits)
        with within(10), pytest.raises(shmenv.WorkerTimeoutError, match=r"reset.*0\.25 s"):
            manager.launch({0: {"stat": "block"}})
        assert manager.closed


def test_33_the_waiting_time_between_attempts_counts(make_manager: Make) -> None:
    manager = make_manager([StatEnv], max_retry=3, retry_waiting_time=0.1)
    start = time.monotonic()
    with pytest.raises(shmenv.EnvError, match="own error"):
        manager.launch({0: {"stat": "error"}})
    assert 0.2 <= time.monotonic() - start < 3


@BOTH
def test_34_a_failed_launch_names_the_env_and_leaves_nothing(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 3, cls)
    with pytest.raises(shmenv.EnvError, match=r"env 0.*raised in reset: RuntimeError: the env's own error") as caught:
        manager.launch({i: {"stat": "error"} for i in range(3)})
    assert caught.value.env_id == 0 and isinstance(caught.value.__cause__, RuntimeError)
    assert manager.closed and not [p for p in psutil.Process().children() if "shmenv" in p.name()]
    manager.launch(dict.fromkeys(range(3), None))
    assert len(manager.ready_obs) == 3


@BOTH
def test_34_a_failed_reset_is_told_for_its_env_while_the_others_are_reset(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 3, cls)
    manager.launch()
    with pytest.raises(shmenv.EnvError) as caught:
        manager.reset({0: None, 1: {"stat": "error"}, 2: None})
    assert caught.value.env_id == 1
    assert states(manager) == [EnvState.RUN, EnvState.ERROR, EnvState.RUN]
    assert [obs.tolist() for obs in manager.ready_obs.values()] == [[1, 0], [1, 0]]


@BOTH
def test_35_replays_are_asked_for_before_and_after_launch_and_errors_are_told(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls)
    manager.enable_save_replay("one")
    manager.launch()
    manager.reset()
    assert manager.replays == [["one"], ["one"]]
    manager.enable_save_replay(["a", "b"])
    assert manager.replays == [["one", "a"], ["one", "b"]]
    with pytest.raises(shmenv.EnvError, match="no such folder"):
        manager.enable_save_replay("refused")
    manager.close()
    with pytest.raises(shmenv.EnvError, match="no such folder"):
        manager.launch()
    with pytest.raises(shmenv.UsageError, match="3 paths"):
        manager.enable_save_replay(["a", "b", "c"])


# -- processes, memory, speed


@BOTH
def test_36_each_env_is_built_once_and_in_a_worker(make_manager: Make, cls: Any, tmp_path: Path) -> None:
    manager = make_manager([partial(BuiltHereEnv, str(tmp_path), f"env{i}") for i in range(2)], cls)
    assert manager.closed and not list(tmp_path.iterdir())
    assert manager.action_space == Discrete(2) and manager.env_ref.name == "env0"
    assert [path.name for path in tmp_path.iterdir()] == ["env0"]
    manager.launch()
    builders = [(tmp_path / f"env{i}").read_text().split() for i in range(2)]
    assert builders == [[str(pid)] for pid in manager.pid]


def test_37_workers_are_not_forked_from_a_process_with_threads_by_default() -> None:
    assert SyncSubprocessEnvManager.default_config().context == "forkserver"
    with SyncSubprocessEnvManager([StatEnv] * 2, {}) as manager:
        stop = threading.Event()
        other = threading.Thread(target=stop.wait)
        other.start()
        manager.launch()
        assert all(psutil.Process(pid).ppid() != os.getpid() for pid in manager.pid)
        stop.set()
        other.join()


@BOTH
def test_38_shared_memory_works_under_every_start_method(make_manager: Make, cls: Any, context: str) -> None:
    manager = make_manager([UnpickledObsEnv], cls, context=context)
    manager.launch()
    assert manager.step({0: 0})[0].obs.tolist() == [0, 1]


@BOTH
def test_39_close_leaves_no_process_and_closes_every_env(make_manager: Make, cls: Any, tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    manager = make_manager([partial(StatEnv, mark=str(mark))] * 3, cls)
    manager.launch()
    pids = workers(manager)
    manager.step({0: 0})
    manager.close()
    assert mark.read_text() == "closed\n" * 3
    assert not any(map(psutil.pid_exists, pids))


def test_39_no_worker_outlives_a_killed_manager(start_script: Callable[..., Script]) -> None:
    script = start_script("""
        import os, signal, threading
        from managed_envs import StatEnv
        from shmenv import AsyncSubprocessEnvManager
        if __name__ == "__main__":
            manager = AsyncSubprocessEnvManager([StatEnv] * 3, {"context": "fork", "wait_num": 1})
            manager.launch()
            print(*manager.pid, flush=True)
            manager.step({0: 0, 1: "block_native", 2: "block_catching"})
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    pids = [int(pid) for pid in script.line().split()]
    eventually(lambda: all(map(is_gone, pids)), timeout=10)


@BOTH
def test_40_ctrl_c_is_the_managers_alone(make_manager: Make, cls: Any) -> None:
    manager = make_manager([StatEnv] * 2, cls)
    manager.launch()
    for pid in workers(manager):
        os.kill(pid, signal.SIGINT)
    got: dict[int, Any] = {}
    actions = {0: 0, 1: 0}
    while len(got) < 2:
        got |= manager.step(actions)
        actions = {}
    assert [timestep.obs.tolist() for timestep in got.values()] == [[0, 1]] * 2


def test_40_ctrl_c_in_a_step_loses_nothing(make_manager: Make, gates: list[Gate]) -> None:
    manager = make_manager([partial(StatEnv, gate=gates[0].path), StatEnv])
    manager.launch()

    def interrupt() -> None:
        release_later = eventually(gates[0].try_hold)
        os.kill(os.getpid(), signal.SIGINT)
        holds.append(release_later)

    holds: list[int] = []
    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        manager.step({0: "wait", 1: 0})
    other.join()
    os.close(holds[0])
    assert {i: timestep.obs.tolist() for i, timestep in manager.step({}).items()} == {0: [0, 1], 1: [0, 1]}


def test_41_an_env_may_start_processes(make_manager: Make) -> None:
    class Mine(SyncSubprocessEnvManager):
        @property
        def method_name_list(self) -> list[str]:
            return ["start_process"]

    manager = make_manager([StatEnv], Mine)
    manager.launch()
    assert manager.start_process() == [None]


def test_42_a_with_block_closes_and_a_forgotten_manager_leaves_nothing() -> None:
    with SyncSubprocessEnvManager([StatEnv], {"context": "fork"}) as manager:
        manager.launch()
        pids = workers(manager)
    assert manager.closed and all(map(is_gone, pids))
    manager.launch()
    pids = workers(manager)
    del manager
    eventually(lambda: all(map(is_gone, pids)))


def test_42_a_program_that_ends_takes_its_workers_along(start_script: Callable[..., Script]) -> None:
    script = start_script("""
        from managed_envs import StatEnv
        from shmenv import SyncSubprocessEnvManager
        if __name__ == "__main__":
            manager = SyncSubprocessEnvManager([StatEnv] * 2, {"context": "fork"})
            manager.launch()
            print(*manager.pid)
    """)
    code, out, errors = script.finish()
    assert code == 0 and errors == ""
    assert all(is_gone(int(pid)) for pid in out.split())


@BOTH
def test_43_observations_are_not_pickled(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(UnpickledObsEnv, length=2)] * 2, cls, episode_num=2)
    manager.launch()
    count = 0
    while not manager.done:
        count += len(manager.step(dict.fromkeys(manager.ready_obs, 0)))
    assert count == 8
    manager.close()
    manager = make_manager([UnpickledObsEnv], cls, shared_memory=False)
    with pytest.raises(shmenv.EnvError, match="an observation was pickled"):
        manager.launch()


@BOTH
def test_44_resets_need_no_threads(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=1)] * 4, cls, episode_num=20)
    manager.launch()
    before, seen = threading.active_count(), set()
    threads = len(os.listdir("/proc/self/task"))
    while not manager.done:
        manager.step(dict.fromkeys(manager.ready_obs, 0))
        seen.add((threading.active_count(), len(os.listdir("/proc/self/task"))))
    assert seen == {(before, threads)}


def test_45_a_reader_never_sees_half_an_array(context: str) -> None:
    """What is read while it is written, is read again; at length in test_seqlock.py."""
    buffer = shmenv.ShmBuffer(np.int64, (5000,))
    stop = threading.Event()

    def write() -> None:
        value = 0
        while not stop.is_set():
            buffer.fill(np.full(5000, value))
            value += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            array = buffer.get()
            assert (array == array[0]).all()
    finally:
        stop.set()
        writer.join()


def test_46_workers_load_no_torch_and_use_one_thread(make_manager: Make) -> None:
    manager = make_manager([StatEnv], context="spawn")
    manager.launch()
    assert "torch" not in manager.modules[0] and "numpy" in manager.modules[0]
    assert manager.limits == [{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}]
