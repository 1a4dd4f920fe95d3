"""Which batches are views of shared memory, until when they are valid, and which own their memory."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import Gate, ScriptedEnv, act, actions
from seeded import MixedEnv, WalkEnv
from support import eventually

import shmenv

MakePool = Callable[..., shmenv.Pool]


def test_a_lockstep_batch_is_a_view_until_the_step_after_the_next(make_pool: MakePool) -> None:
    """Covers observations that change in place on the next step, and buffers that no two steps share."""
    pool = make_pool([ScriptedEnv] * 3)
    first = pool.reset()
    kept = first.obs.copy()
    assert first.is_view and first.valid()
    second = pool.step(actions(3))
    assert second.is_view and second.valid()
    assert first.valid() and np.array_equal(first.obs, kept)
    third = pool.step(actions(3))
    assert not first.valid() and second.valid() and third.valid()
    assert second.obs.tolist() == [[0, 1]] * 3 and third.obs.tolist() == [[0, 2]] * 3
    assert np.shares_memory(first.obs, third.obs) and not np.shares_memory(first.obs, second.obs)


def test_a_lockstep_batch_costs_no_copy_in_the_callers_process(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    for _ in range(5):
        pool.step(actions(3))
    assert pool.stats()["copied_bytes"] == 0
    pool.send(actions(2), env_id=[0, 2])
    batch = pool.recv(min_envs=2)
    own = (batch.obs, batch.reward, batch.terminated, batch.truncated)
    assert pool.stats()["copied_bytes"] == sum(array.nbytes for array in own)


def test_more_slots_keep_views_valid_for_longer(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, slots=4)
    batches = [pool.reset()] + [pool.step(actions(2)) for _ in range(3)]
    assert all(batch.valid() for batch in batches)
    assert [batch.obs[0, 1] for batch in batches] == [0, 1, 2, 3]
    pool.step(actions(2))
    assert [batch.valid() for batch in batches] == [False, True, True, True]


def test_a_view_ends_when_its_rows_are_written_not_when_others_are(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=2)
    pool.reset()
    pool.send(actions(2), env_id=[0, 1])
    low = pool.recv()
    for _ in range(5):
        pool.send(actions(2), env_id=[2, 3])
        pool.recv()
    assert low.valid() and low.obs.tolist() == [[0, 1]] * 2
    for _ in range(2):
        pool.send(actions(1), env_id=[1])
        pool.recv()
    assert low.is_view and not low.valid()


def test_a_copy_outlives_every_step(make_pool: MakePool) -> None:
    pool = make_pool([MixedEnv] * 2)
    batch = pool.reset(seed=1)
    own = batch.copy()
    assert not own.is_view and own.valid()
    pool.action_space.seed(0)
    again = [pool.step([pool.action_space.sample() for _ in range(2)]) for _ in range(6)]
    assert own.valid() and len(again) == 6
    other = make_pool([MixedEnv] * 2).reset(seed=1)
    for leaf, expected in (
        (own.obs["image"], other.obs["image"]),
        (own.obs["inner"][1]["half"], other.obs["inner"][1]["half"]),
    ):
        assert np.array_equal(leaf, expected)
    assert own.obs["word"] == other.obs["word"]


def test_a_copying_pool_gives_copies(make_pool: MakePool) -> None:
    """Covers a kept observation that is overwritten, leaf by leaf, by the next step."""
    pool = make_pool([MixedEnv] * 2, copy=True)
    pool.action_space.seed(0)
    first = pool.reset(seed=1)
    image, half = first.obs["image"].copy(), first.obs["inner"][1]["half"].copy()
    for _ in range(5):
        batch = pool.step([pool.action_space.sample() for _ in range(2)])
        assert not batch.is_view and batch.valid()
        assert not np.shares_memory(batch.obs["image"], first.obs["image"])
    assert np.array_equal(first.obs["image"], image) and np.array_equal(first.obs["inner"][1]["half"], half)
    assert first.valid()


def test_scattered_rows_are_copies_and_consecutive_ones_views(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 5, num_workers=2)
    pool.reset()
    pool.send(actions(5))
    scattered = []
    pool.recv()
    for ids in ([0, 2, 4], [1, 3]):
        pool.send(actions(len(ids)), env_id=ids)
        scattered.append(pool.recv())
    assert [batch.is_view for batch in scattered] == [False, False]
    pool.send(actions(3), env_id=[1, 2, 3])
    pool.recv()
    pool.send(actions(3), env_id=[0, 2, 4])
    pool.recv()
    for _ in range(3):
        pool.send(actions(5))
        pool.recv()
    assert [batch.obs.tolist() for batch in scattered] == [[[0, 2]] * 3, [[0, 2]] * 2]
    assert all(batch.valid() for batch in scattered)


def test_final_observations_are_as_valid_as_the_batch(make_pool: MakePool) -> None:
    pool = make_pool([partial(ScriptedEnv, length=1)] * 2)
    pool.reset()
    first = pool.step(actions(2))
    assert first.final_obs.tolist() == [[0, 1]] * 2 and first.obs.tolist() == [[1, 0]] * 2
    second = pool.step(actions(2))
    assert first.final_obs.tolist() == [[0, 1]] * 2
    own = second.copy()
    for _ in range(3):
        pool.step(actions(2))
    assert own.final_obs.tolist() == [[1, 1]] * 2 and own.obs.tolist() == [[2, 0]] * 2


def test_recv_into_an_earlier_batch_reuses_its_memory(make_pool: MakePool) -> None:
    pool = make_pool([MixedEnv] * 4, num_workers=2)
    twin = make_pool([MixedEnv] * 4, num_workers=2)
    pool.reset(seed=0)
    twin.reset(seed=0)
    pool.action_space.seed(0)
    out = None
    for ids in ([0, 2], [1, 3], [2, 3], [0, 1]):
        given = [pool.action_space.sample() for _ in ids]
        pool.send(given, env_id=ids)
        twin.send(given, env_id=ids)
        before = None if out is None else out.obs["image"]
        batch = pool.recv(out=out)
        expected = twin.recv().copy()
        if out is None:
            out = batch.copy()
            continue
        assert batch is out and batch.obs["image"] is before
        assert not batch.is_view and batch.valid()
        assert batch.env_id.tolist() == ids
        assert np.array_equal(batch.obs["image"], expected.obs["image"])
        assert batch.obs["word"] == expected.obs["word"]
        assert np.array_equal(batch.reward, expected.reward)
        assert np.array_equal(batch.terminated, expected.terminated)
        assert [dict(info) for info in batch.info] == [dict(info) for info in expected.info]


def test_recv_into_a_batch_that_does_not_fit_is_a_usage_error(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    view = pool.reset()
    other = make_pool([WalkEnv] * 2).reset().copy()
    small = pool.reset(env_id=[0])
    pool.send(actions(2), env_id=[0, 2])
    wrongs: list[Any] = [view, other, small, np.zeros((2, 2))]
    for wrong in wrongs:
        with pytest.raises(shmenv.UsageError):
            pool.recv(out=wrong)
    assert pool.pending == 2
    assert pool.recv().obs.tolist() == [[1, 1], [0, 1]]


def test_views_stay_readable_after_the_pool_is_closed_and_gone(make_pool: MakePool) -> None:
    """A view never turns into a segfault: the block is unmapped when the last view of it is gone."""
    pool = shmenv.Pool([WalkEnv] * 2, context="fork")
    obs = pool.reset(seed=3).obs
    kept = obs.copy()
    pool.close()
    del pool
    gc.collect()
    assert np.array_equal(obs, kept)


def test_a_view_says_so_when_its_pool_is_closed(make_pool: MakePool) -> None:
    pool = make_pool([WalkEnv] * 2)
    batch = pool.reset(seed=3)
    own = batch.copy()
    pool.close()
    assert np.array_equal(batch.obs, own.obs)
    assert own.valid()


def test_debugging_poisons_rows_that_are_given_up(make_pool: MakePool, gate: Callable[[int], Gate]) -> None:
    """Covers kept views that look plausible, and are the next step's."""
    env = [partial(ScriptedEnv, gate=gate(i).path) for i in range(2)]
    pool = make_pool(env, num_workers=2, debug=True)
    first = pool.reset()
    pool.step(actions(2))
    pool.send([act("slow"), act("slow")])
    held = [eventually(gate(i).try_hold) for i in range(2)]
    assert not first.valid()
    assert (first.obs != np.array([[0, 0], [0, 0]])).all()  # NaN, too, differs from everything
    for door in held:
        os.close(door)
    assert pool.recv(timeout=10).obs.tolist() == [[0, 2]] * 2


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_a_batch_travels_as_a_copy(make_pool: MakePool, mode: str, duplicate: Callable[[Any], Any]) -> None:
    """Covers batches that are handed to a learner in another process."""
    pool = make_pool([partial(ScriptedEnv, length=1)] * 2, autoreset=mode)
    pool.reset()
    batch = pool.step(actions(2))
    assert batch.is_view
    twin = duplicate(batch)
    assert not twin.is_view and twin.valid()
    assert (twin.final_obs is twin.obs) == (mode == "next_step")
    pool.step(actions(2))
    pool.step(actions(2))
    assert twin.obs.tolist() == [[1, 0] if mode == "same_step" else [0, 1]] * 2
    assert twin.final_obs.tolist() == [[0, 1]] * 2
    assert twin.env_id.tolist() == [0, 1] and twin.reward.tolist() == [1, 1] and twin.terminated.all()
    assert list(twin.info) == [{}, {}]


def test_a_batch_is_exchanged_by_dlpack_without_a_copy(make_pool: MakePool) -> None:
    """torch itself is tried in test_torch.py."""
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    batch = pool.step(actions(3))
    for array in (batch.obs, batch.reward, batch.terminated):
        other = np.from_dlpack(array)
        assert np.shares_memory(other, array) and np.array_equal(other, array)


class CompiledWayEnv(ScriptedEnv):
    """Wants no observation of its worker to go through Python, whichever object stands for their dtype."""

    def __init__(self, pickled: bool) -> None:
        super().__init__()
        self.pickled = pickled
        from shmenv.observation import ObservationWriter

        def write(*_: object) -> bytes:
            raise AssertionError("an observation took the slow way")

        ObservationWriter.write = write  # type: ignore[assignment]

    def reset(self, **arguments: Any) -> Any:
        obs, info = super().reset(**arguments)
        return self._own(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return self._own(obs), *rest

    def _own(self, obs: Any) -> Any:
        own = np.array(obs)
        return pickle.loads(pickle.dumps(own)) if self.pickled else own  # its dtype is a copy of numpy's


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_the_declared_array_is_copied_by_compiled_code_alone(make_pool: MakePool, start_method: str) -> None:
    pool = make_pool(
        [partial(CompiledWayEnv, False), partial(CompiledWayEnv, True), partial(CompiledWayEnv, False)],
        num_workers=1,
        context=start_method,
    )
    pool.reset()
    for number in range(1, 6):
        assert pool.step(actions(3)).obs[:, 1].tolist() == [number] * 3
