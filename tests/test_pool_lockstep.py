"""reset and step over all envs at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import ScriptedEnv, actions
from gymnasium.spaces import Box, Discrete
from seeded import SpaceEnv

import shmenv

MakePool = Callable[..., shmenv.Pool]


def test_a_reset_gives_a_row_of_each_env(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    batch = pool.reset()
    assert batch.env_id.tolist() == [0, 1, 2]
    assert batch.obs.dtype == np.float32 and batch.obs.tolist() == [[0, 0]] * 3
    assert batch.reward.tolist() == [0, 0, 0]
    assert not batch.terminated.any() and not batch.truncated.any()
    assert [dict(info) for info in batch.info] == [{}] * 3


def test_a_step_gives_a_row_of_each_env(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv, partial(ScriptedEnv, length=2), partial(ScriptedEnv, length=2, truncates=True)])
    pool.reset()
    assert pool.step(actions(3)).obs.tolist() == [[0, 1]] * 3
    batch = pool.step(actions(3))
    assert batch.env_id.tolist() == [0, 1, 2] and batch.env_id.dtype == np.int32
    assert batch.reward.dtype == np.float64 and batch.reward.tolist() == [2, 2, 2]
    assert batch.terminated.dtype == np.bool_ and batch.terminated.tolist() == [False, True, False]
    assert batch.truncated.dtype == np.bool_ and batch.truncated.tolist() == [False, False, True]
    assert batch.obs.tolist() == [[0, 2], [1, 0], [1, 0]]
    assert batch.final_obs[1:].tolist() == [[0, 2], [0, 2]]


def test_a_pool_tells_its_sizes_and_spaces(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=2)
    assert (pool.num_envs, pool.num_workers, pool.pending, pool.closed) == (3, 2, 0, False)
    assert pool.observation_space == Box(-1e9, 1e9, (2,), np.float32)
    assert isinstance(pool.action_space, Discrete)


def test_there_are_never_more_workers_than_envs(make_pool: MakePool) -> None:
    """Covers a configuration with more workers than the machine, or the pool, has use for."""
    assert make_pool([ScriptedEnv]).num_workers == 1
    assert make_pool([ScriptedEnv] * 2, num_workers=2).num_workers == 2
    pids = make_pool([ScriptedEnv] * 5, num_workers=2).call("pid")
    assert len(set(pids)) == 2


@pytest.mark.parametrize(
    "form", [list, tuple, np.array, lambda a: np.array(a, np.int8), lambda a: np.array(a, np.uint8)]
)
def test_actions_come_in_any_form_that_says_the_same(make_pool: MakePool, form: Callable[[list[int]], object]) -> None:
    space = Discrete(5)
    pool = make_pool([partial(SpaceEnv, Box(0, 1, (1,)), space)] * 3)
    pool.reset()
    pool.step(form([4, 0, 2]))
    kept = [kept[0] for kept in pool.call("actions_kept")]
    assert kept == [4, 0, 2] and {type(action) for action in kept} == {np.int64}


def test_an_action_is_taken_before_the_call_returns(make_pool: MakePool) -> None:
    pool = make_pool([partial(SpaceEnv, Box(0, 1, (1,)), Box(-1, 1, (2,), np.float32))] * 2)
    pool.reset()
    action = np.ones((2, 2), np.float32)
    pool.send(action)
    action[:] = 0
    pool.recv(min_envs=2)
    assert [kept[0].tolist() for kept in pool.call("actions_kept")] == [[1, 1], [1, 1]]


def test_an_env_may_keep_its_actions(make_pool: MakePool) -> None:
    pool = make_pool([partial(SpaceEnv, Box(0, 1, (1,)), Box(-9, 9, (2,), np.float32))] * 2, num_workers=1)
    pool.reset()
    for t in range(6):
        pool.step(np.full((2, 2), t, np.float32))
    for kept in pool.call("actions_kept"):
        assert [action.tolist() for action in kept] == [[t, t] for t in range(6)]
        assert all(action.dtype == np.float32 for action in kept)


def test_a_step_before_the_first_reset_is_a_usage_error(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    with pytest.raises(shmenv.UsageError):
        pool.step(actions(2))
    with pytest.raises(shmenv.UsageError):
        pool.send(actions(1), env_id=[1])
    assert pool.reset().obs.tolist() == [[0, 0]] * 2


def test_a_wrong_number_of_actions_steps_no_env(make_pool: MakePool) -> None:
    """Covers a short list of actions that leaves some workers one step ahead, and answers that are then exchanged."""
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    for wrong in ([0, 0], [0] * 4, np.zeros(2, int), np.zeros((3, 1), int), [], 0):
        with pytest.raises(shmenv.UsageError):
            pool.step(wrong)
    assert pool.call("where") == ((0, 0),) * 3
    assert pool.step(actions(3)).obs.tolist() == [[0, 1]] * 3
    assert pool.get_attr("t") == (1, 1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, 3), np.float32),
        np.zeros((2, 2, 1), np.float32),
        np.zeros((2, 2), np.complex64),
        np.zeros((2, 2))[:1],
    ],
    ids=lambda wrong: f"{wrong.dtype}{wrong.shape}",
)
def test_an_action_of_the_wrong_shape_or_kind_steps_no_env(make_pool: MakePool, wrong: np.ndarray) -> None:
    pool = make_pool([partial(SpaceEnv, Box(0, 1, (1,)), Box(-1, 1, (2,), np.float32))] * 2)
    pool.reset()
    with pytest.raises(shmenv.UsageError):
        pool.step(wrong)
    assert pool.call("actions_kept") == ([], [])
    pool.step(np.zeros((2, 2)))  # float64 is the same kind
    assert [kept[0].dtype for kept in pool.call("actions_kept")] == [np.float32] * 2


def test_a_step_while_an_env_is_pending_is_a_usage_error(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    pool.send(actions(1), env_id=[1])
    with pytest.raises(shmenv.UsageError, match="1"):
        pool.step(actions(3))
    assert pool.pending == 1
    assert pool.recv(min_envs=1).env_id.tolist() == [1]
    assert pool.call("where") == ((0, 0), (0, 1), (0, 0))


def test_many_kept_results_add_no_mappings(make_pool: MakePool) -> None:
    """Covers a process that runs out of mappings because each retained result holds one."""
    pool = make_pool([ScriptedEnv] * 2, num_workers=1)
    kept = [pool.reset()]
    with open("/proc/self/maps") as maps:
        before = len(maps.readlines())
    for _ in range(2000):
        kept.append(pool.step(actions(2)).copy())
    with open("/proc/self/maps") as maps:
        assert len(maps.readlines()) < before + 200
    assert [batch.reward[0] for batch in kept[1:]] == list(range(1, 2001))


def test_hundreds_of_envs_take_few_processes(make_pool: MakePool) -> None:
    """Covers hundreds of envs that need as many processes, and their memory."""
    pool = make_pool([ScriptedEnv] * 512, num_workers=2)
    pool.reset(seed=0)
    for t in range(1, 4):
        assert pool.step(actions(512)).obs.tolist() == [[0, t]] * 512
    assert len(pool.stats()["workers"]) == 2


class FlagEnv(ScriptedEnv):
    """Ends with flags of another type."""

    def __init__(self, flag: Any) -> None:
        super().__init__()
        self.flag = flag

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.flag, False, info


@pytest.mark.parametrize("flag", [1, np.bool_(True), np.array(True), np.array([True]), 1.0], ids=repr)
def test_flags_may_be_anything_with_a_truth_value(make_pool: MakePool, flag: Any) -> None:
    pool = make_pool([partial(FlagEnv, flag), partial(FlagEnv, flag * 0)])
    pool.reset()
    assert pool.step(actions(2)).terminated.tolist() == [True, False]


def test_a_flag_without_a_truth_value_is_an_env_error(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv, partial(FlagEnv, np.array([True, False]))])
    pool.reset()
    with pytest.raises(shmenv.EnvError) as caught:
        pool.step(actions(2))
    assert caught.value.env_id == 1
    pool.recv()


def test_two_pools_live_side_by_side(make_pool: MakePool, context: str) -> None:
    first = make_pool([ScriptedEnv] * 2, num_workers=2, context=context)
    second = make_pool([ScriptedEnv] * 3, num_workers=2, context=context)
    first.reset()
    second.reset()
    second.send(actions(3))
    assert first.step(actions(2)).obs.tolist() == [[0, 1]] * 2
    with pytest.raises(shmenv.WorkerDiedError):
        first.step(actions(2, {0: "kill"}))
    first.close()
    assert second.recv().obs.tolist() == [[0, 1]] * 3
    assert second.step(actions(3)).obs.tolist() == [[0, 2]] * 3
