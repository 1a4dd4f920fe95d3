"""Envs of a manager begin the reset after an episode by themselves: what it promises of resets holds all the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from envs import Gate
from managed_envs import StatEnv
from support import eventually

import shmenv
from shmenv import AsyncSubprocessEnvManager, EnvState, SyncSubprocessEnvManager

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])


def release(gate: Gate) -> None:
    """Let the env that stands before the gate through, once it does."""
    os.close(eventually(gate.try_hold))


def play_until_ready(manager: Any, env_id: int) -> Any:
    """Observation of the env's next episode, in which others may take steps."""
    while env_id not in (found := manager.ready_obs):
        manager.step({})
    return found[env_id]


@BOTH
def test_the_last_episode_is_followed_by_no_reset_and_each_other_by_one(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=2)] * 3, cls, episode_num=3, num_workers=2)
    manager.launch()
    while not manager.done:
        manager.step(dict.fromkeys(manager.ready_obs, 0))
    assert [len(each) for each in manager.resets] == [3] * 3 and manager.steps == [6] * 3


@BOTH
def test_fewer_episodes_asked_for_meanwhile_end_an_env_at_once(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=2)], cls)
    manager.launch()
    manager.step({0: 0})
    manager.change(episode_num=1)
    assert manager.step({0: 0})[0].done and manager.done
    assert len(manager.resets[0]) == 1


@BOTH
def test_auto_reset_switched_off_and_on_counts_for_the_next_episode(make_manager: Make, cls: Any) -> None:
    manager = make_manager([partial(StatEnv, length=1)], cls)
    manager.launch()
    manager.change(auto_reset=False)
    manager.step({0: 0})
    assert manager._env_states[0] == EnvState.NEED_RESET and len(manager.resets[0]) == 1
    manager.change(auto_reset=True)
    manager.reset({0: None})
    manager.step({0: 0})
    assert play_until_ready(manager, 0).tolist() == [2, 0]


@BOTH
def test_a_seed_given_amid_an_episode_or_its_last_step_counts_for_the_next(
    make_manager: Make, cls: Any, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    manager = make_manager([partial(StatEnv, length=2, gate=gate.path)] * 2, cls, wait_num=1)
    manager.seed(1)
    manager.launch()
    manager.step({0: 0, 1: 0})
    while len(manager.ready_env) < 2:
        manager.step({})
    manager.seed(5)
    ended = manager.step({0: 0, 1: 0})
    while len(ended) < 2:
        ended |= manager.step({})
    assert [play_until_ready(manager, i).tolist() for i in range(2)] == [[1, 0]] * 2
    assert manager.seedings == [[(1,), (5,)], [(2,), (6,)]]


def test_a_seed_given_while_the_last_step_is_played_counts_too(make_manager: Make, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    env_fns = [partial(StatEnv, length=1, gate=gate.path), StatEnv]
    manager = make_manager(env_fns, AsyncSubprocessEnvManager, wait_num=1)
    manager.launch()
    got = manager.step({0: "wait", 1: 0})
    assert list(got) == [1]
    manager.seed({0: 9})
    release(gate)
    while 0 not in got:
        got = manager.step({})
    play_until_ready(manager, 0)
    assert manager.seedings == [[(9,)], []]


@BOTH
def test_a_step_is_answered_before_the_reset_that_follows(make_manager: Make, cls: Any, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    manager = make_manager([partial(StatEnv, length=1, gate=gate.path, later="wait")], cls)
    manager.launch()
    assert manager.step({0: 0})[0].obs.tolist() == [0, 1]
    assert manager._env_states[0] == EnvState.RESET and manager.ready_env == []
    release(gate)
    assert manager.ready_obs[0].tolist() == [1, 0]


@BOTH
@pytest.mark.parametrize("fault", ["error", "kill", "block_native"])
def test_a_reset_that_fails_is_told_once_and_the_env_can_be_revived(make_manager: Make, cls: Any, fault: str) -> None:
    env_fns = [partial(StatEnv, length=1, later=fault), StatEnv]
    manager = make_manager(env_fns, cls, reset_timeout=0.2, wait_num=1)
    manager.launch()
    got, errors = manager.step({0: 0, 1: 0}), list[shmenv.ShmenvError]()
    while not errors or manager._env_states[0] == EnvState.RESET:
        try:
            got |= manager.step(dict.fromkeys(manager.ready_obs, 0))
        except shmenv.ShmenvError as error:
            errors.append(error)
    assert got[0].done and got[0].obs.tolist() == [0, 1] and len(errors) == 1
    assert manager._env_states[0] == EnvState.ERROR
    manager.reset({0: {"stat": "fine"}})
    assert manager._env_states[0] == EnvState.RUN and manager.ready_obs[0][1] == 0


@BOTH
@pytest.mark.parametrize(("retry_type", "is_same"), [("reset", True), ("renew", False)])
def test_a_reset_that_fails_is_tried_again_with_the_same_orders(
    make_manager: Make, cls: Any, retry_type: str, is_same: bool, tmp_path: Path
) -> None:
    env = partial(StatEnv, length=1, mark=str(tmp_path / "mark"), later="error_unmarked")
    manager = make_manager([env], cls, max_retry=2, retry_type=retry_type, retry_waiting_time=0.0)
    manager.seed(3)
    manager.launch()
    before = manager.time_id
    manager.step({0: 0})
    assert play_until_ready(manager, 0).tolist() == [1 if is_same else 0, 0]
    assert (manager.time_id == before) is is_same and manager._seed == [3 if is_same else 4]


def test_an_env_that_is_reset_with_arguments_gets_them_as_they_are_then(make_manager: Make) -> None:
    manager = make_manager([partial(StatEnv, length=1)])
    levels = [1]
    manager.launch({0: {"levels": levels}})
    levels.append(2)
    manager.step({0: 0})
    manager.ready_obs  # noqa: B018
    assert manager.resets == [[{"levels": [1]}, {"levels": [1, 2]}]]
