"""send and recv: some envs step while others are still busy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import Gate, ScriptedEnv, act, actions
from gymnasium.spaces import Box, Discrete
from reference import same
from seeded import SpaceEnv, WalkEnv
from support import eventually, settled

import shmenv

MakePool = Callable[..., shmenv.Pool]


@pytest.fixture
def gated(make_pool: MakePool, gate: Callable[[int], Gate]) -> Callable[..., shmenv.Pool]:
    """`gated(n)`: a freshly reset pool of n envs, each with a gate and a worker of its own."""

    def make(n: int, **options: Any) -> shmenv.Pool:
        options.setdefault("num_workers", n)
        pool = make_pool([partial(ScriptedEnv, gate=gate(i).path) for i in range(n)], **options)
        pool.reset()
        return pool

    return make


def test_a_slow_env_does_not_hold_up_the_others(gated: Callable[..., shmenv.Pool], gate: Callable[[int], Gate]) -> None:
    """Covers one slow env that stalls everybody, and "asynchronous" pools that wait for their envs in turn."""
    pool = gated(3, batch_size=2)
    pool.send(actions(3, {1: "slow"}))
    for t in range(1, 20):
        batch = pool.recv()
        assert batch.env_id.tolist() == [0, 2]
        assert batch.reward.tolist() == [t, t]
        pool.send(actions(2), env_id=[0, 2])
    os.close(eventually(gate(1).try_hold))
    seen = set()
    while pool.pending:
        seen |= set(pool.recv(min_envs=1).env_id.tolist())
    assert seen == {0, 1, 2}
    assert pool.call("where") == ((0, 20), (0, 1), (0, 20))


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_recv_returns_exactly_the_batch_size(make_pool: MakePool, batch_size: int) -> None:
    pool = make_pool([ScriptedEnv] * 5, batch_size=batch_size, num_workers=2)
    pool.reset()
    pool.send(actions(5))
    seen: list[int] = []
    while pool.pending:
        left = pool.pending
        batch = pool.recv()
        assert len(batch.env_id) == min(batch_size, left)
        assert batch.env_id.tolist() == sorted(batch.env_id.tolist())
        seen += batch.env_id.tolist()
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_recv_without_a_batch_size_waits_for_all_envs(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4)
    pool.reset()
    pool.send(actions(4))
    assert pool.recv().env_id.tolist() == [0, 1, 2, 3]
    pool.send(actions(2), env_id=[1, 3])
    assert pool.recv().env_id.tolist() == [1, 3]


def test_recv_of_at_least_k_returns_all_that_are_ready(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=1, batch_size=1)
    pool.reset()
    pool.send(actions(4))
    eventually(lambda: settled(pool, 4))
    assert pool.recv(min_envs=1, timeout=10).env_id.tolist() == [0, 1, 2, 3]


def test_of_the_envs_that_are_ready_none_comes_twice_before_the_others(make_pool: MakePool) -> None:
    """Covers a scan that always starts at env 0, so that the last env is starved by the first."""
    pool = make_pool([ScriptedEnv] * 4, num_workers=2, batch_size=1)
    pool.reset()
    pool.send(actions(4))
    order = []
    for steps in range(4, 16):
        eventually(partial(settled, pool, steps))
        order += pool.recv().env_id.tolist()
        pool.send(actions(1), env_id=order[-1])
    assert [sorted(order[k : k + 4]) for k in (0, 4, 8)] == [[0, 1, 2, 3]] * 3


def test_no_env_starves(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 6, num_workers=2, batch_size=1)
    pool.reset()
    pool.send(actions(6))
    counts = np.zeros(6, int)

    def all_came_often() -> bool:
        for _ in range(100):
            i = pool.recv().env_id
            counts[i] += 1
            pool.send(actions(1), env_id=i)
        return bool(counts.min() >= 50)

    assert eventually(all_came_often, 30)


def test_recv_with_nothing_pending_is_a_usage_error(make_pool: MakePool) -> None:
    """Covers a recv with nothing in flight that blocks for ever or returns empty arrays."""
    pool = make_pool([ScriptedEnv] * 2)
    with pytest.raises(shmenv.UsageError):
        pool.recv()
    pool.reset()
    for ask in ({}, {"min_envs": 1}, {"timeout": 0.0}):
        with pytest.raises(shmenv.UsageError):
            pool.recv(**ask)
    pool.send(actions(2))
    pool.recv()
    with pytest.raises(shmenv.UsageError):
        pool.recv()


def test_asking_for_more_rows_than_are_pending_is_a_usage_error(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    pool.send(actions(2), env_id=[0, 1])
    for wrong in (3, 0, -1):
        with pytest.raises(shmenv.UsageError):
            pool.recv(min_envs=wrong)
    assert pool.pending == 2
    assert pool.recv(min_envs=2).env_id.tolist() == [0, 1]


def test_a_timeout_leaves_every_env_pending(gated: Callable[..., shmenv.Pool], gate: Callable[[int], Gate]) -> None:
    """Covers a step after a timeout that returns an older result, and an error that does not say who is late."""
    pool = gated(2)
    pool.send(actions(2, {0: "slow", 1: "slow"}))
    held = eventually(gate(0).try_hold)
    for timeout in (0.05, 0):
        with pytest.raises(shmenv.RecvTimeoutError, match="0") as caught:
            pool.recv(timeout=timeout)
        assert isinstance(caught.value, TimeoutError)
        assert pool.pending == 2
    os.close(held)
    assert pool.recv(min_envs=1, timeout=10).env_id.tolist() == [0]
    os.close(eventually(gate(1).try_hold))
    assert pool.recv(timeout=10).reward.tolist() == [1]
    for t in (2, 3):
        batch = pool.step(actions(2))
        assert batch.reward.tolist() == [t, t] and batch.obs.tolist() == [[0, t]] * 2


def test_a_timeout_of_nothing_only_looks(gated: Callable[..., shmenv.Pool]) -> None:
    pool = gated(2)
    pool.send(actions(2))
    eventually(lambda: settled(pool, 2))
    assert pool.recv(timeout=0).env_id.tolist() == [0, 1]


def test_an_env_that_is_busy_takes_no_second_action(
    gated: Callable[..., shmenv.Pool], gate: Callable[[int], Gate]
) -> None:
    """Covers commands stacked on a busy env, which overflow a queue or shift all later results by one."""
    pool = gated(3)
    pool.send([act("slow")], env_id=[1])
    for ids in ([1], [0, 1], [0, 1, 2], None):
        with pytest.raises(shmenv.UsageError, match="1"):
            pool.send(actions(3 if ids is None else len(ids)), env_id=ids)
    assert pool.pending == 1
    os.close(eventually(gate(1).try_hold))
    pool.recv(timeout=10)
    assert pool.call("where") == ((0, 0), (0, 1), (0, 0))


@pytest.mark.parametrize(
    "ids", [[3], [-1], [0, 0], [0, 1, 0], [[0]], [0.5], ["a"], 3, -1, [], np.zeros((1, 1), int)], ids=str
)
def test_an_unknown_or_repeated_id_is_a_usage_error(make_pool: MakePool, ids: Any) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    with pytest.raises(shmenv.UsageError):
        pool.send(actions(np.size(ids)), env_id=ids)
    with pytest.raises(shmenv.UsageError):
        pool.reset(env_id=ids)
    assert pool.pending == 0
    assert pool.call("where") == ((0, 0),) * 3


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda ids: np.array(ids, np.int8)])
def test_actions_go_to_the_ids_in_the_order_given(make_pool: MakePool, form: Callable[[list[int]], Any]) -> None:
    pool = make_pool([partial(SpaceEnv, Box(0, 1, (1,)), Discrete(9))] * 4)
    pool.reset()
    pool.send([3, 1, 2], env_id=form([3, 0, 2]))
    assert pool.recv(min_envs=3).env_id.tolist() == [0, 2, 3]
    assert pool.call("actions_kept") == ([1], [], [2], [3])


def test_one_id_may_be_a_number(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    ones: list[Any] = [2, np.int64(2), np.int32(2)]
    for one in ones:
        pool.send(actions(1), env_id=one)
        assert pool.recv().env_id.tolist() == [2]


def test_a_whole_reset_drops_what_is_pending(gated: Callable[..., shmenv.Pool]) -> None:
    """Covers first observations that cannot be collected from an asynchronous pool: reset twice, and all rows come."""
    pool = gated(6, batch_size=2, num_workers=2)
    pool.send(actions(6))
    assert pool.reset().obs.tolist() == [[1, 0]] * 6
    assert pool.pending == 0
    assert pool.reset().obs.tolist() == [[2, 0]] * 6
    pool.send(actions(6))
    rows = [pool.recv() for _ in range(3)]
    assert sorted(np.concatenate([batch.env_id for batch in rows]).tolist()) == list(range(6))
    assert all(row == [2, 1] for batch in rows for row in batch.obs.tolist())


def test_a_whole_reset_drops_results_that_nobody_took(gated: Callable[..., shmenv.Pool]) -> None:
    pool = gated(2)
    pool.send(actions(2))
    eventually(lambda: settled(pool, 2))
    assert pool.reset().obs.tolist() == [[1, 0]] * 2
    assert pool.step(actions(2)).obs.tolist() == [[1, 1]] * 2


def test_a_busy_env_is_not_reset_alone(gated: Callable[..., shmenv.Pool], gate: Callable[[int], Gate]) -> None:
    pool = gated(2)
    pool.send([act("slow")], env_id=[0])
    with pytest.raises(shmenv.UsageError, match="0"):
        pool.reset(env_id=[0, 1])
    assert pool.reset(env_id=[1]).obs.tolist() == [[1, 0]]
    os.close(eventually(gate(0).try_hold))
    assert pool.recv(timeout=10).obs.tolist() == [[0, 1]]
    assert pool.call("where") == ((0, 1), (1, 0))


def test_random_subsets_lose_and_double_nothing(make_pool: MakePool) -> None:
    """Covers results that are lost, doubled or out of an env's order when random subsets are stepped."""
    n = 7
    pool = make_pool([ScriptedEnv] * n, num_workers=3)
    pool.reset()
    rng = np.random.default_rng(0)
    sent, received = np.zeros(n, int), np.zeros(n, int)
    for _ in range(3000):
        free = np.flatnonzero(sent == received)
        chosen = rng.permutation(free)[: rng.integers(0, len(free) + 1)]
        if len(chosen):
            pool.send(actions(len(chosen)), env_id=chosen)
            sent[chosen] += 1
        if pool.pending:
            batch = pool.recv(min_envs=int(rng.integers(1, pool.pending + 1)))
            received[batch.env_id] += 1
            assert batch.obs[:, 1].tolist() == received[batch.env_id].tolist()
        assert pool.pending == (sent - received).sum()
    assert received.min() > 500


def test_a_slow_automatic_reset_does_not_hold_up_the_others(make_pool: MakePool, gate: Callable[[int], Gate]) -> None:
    """Covers one slow reset that stalls everybody."""
    slow = partial(ScriptedEnv, gate=gate(0).path, length=1, script={(1, 0): "slow"})
    pool = make_pool([slow, ScriptedEnv, ScriptedEnv], num_workers=3, batch_size=2)
    pool.reset()
    pool.send(actions(3))
    for t in range(1, 20):
        batch = pool.recv()
        assert batch.env_id.tolist() == [1, 2] and batch.reward.tolist() == [t, t]
        pool.send(actions(2), env_id=[1, 2])
    os.close(eventually(gate(0).try_hold))
    batch = pool.recv(min_envs=3, timeout=10)
    assert batch.env_id.tolist() == [0, 1, 2]
    assert batch.obs[0].tolist() == [1, 0] and batch.final_obs[0].tolist() == [0, 1] and batch.terminated[0]


@pytest.mark.parametrize("timeout", [-1, -0.1, float("nan"), "1", [1], True], ids=repr)
def test_a_timeout_that_is_no_time_is_a_usage_error(make_pool: MakePool, timeout: Any) -> None:
    pool = make_pool([ScriptedEnv])
    pool.reset()
    pool.send(actions(1))
    with pytest.raises(shmenv.UsageError, match="timeout"):
        pool.recv(timeout=timeout)
    assert pool.recv(timeout=float("inf")).obs.tolist() == [[0, 1]]


def test_a_timeout_is_kept(gated: Callable[..., shmenv.Pool], gate: Callable[[int], Gate]) -> None:
    pool = gated(1)
    pool.send([act("slow")])
    held = eventually(gate(0).try_hold)
    begin = time.monotonic()
    with pytest.raises(shmenv.RecvTimeoutError):
        pool.recv(timeout=0.3)
    assert 0.3 <= time.monotonic() - begin < 3
    os.close(held)
    pool.recv(timeout=10)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("obs", np.empty((1, 2), np.float32)),
        ("obs", np.empty((2, 4), np.float32)[:, ::2]),
        ("obs", np.broadcast_to(np.float32(0), (2, 2))),
        ("final_obs", np.empty((1, 2), np.float32)),
        ("final_obs", None),
        ("reward", np.empty(2, np.float32)),
        ("reward", np.empty(1)),
        ("terminated", np.empty(2, np.int64)),
        ("truncated", None),
    ],
)
def test_a_batch_to_be_filled_is_refused_if_some_array_in_it_cannot_take_the_rows(
    name: str, array: Any, make_pool: MakePool
) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=2)
    pool.reset()
    pool.send(actions(2), env_id=[0, 2])
    out = pool.recv(min_envs=2).copy()
    setattr(out, name, array)
    pool.send(actions(2), env_id=[0, 2])
    with pytest.raises(shmenv.UsageError, match="out has"):
        pool.recv(out=out)
    assert pool.recv().reward.tolist() == [2, 2]


def test_a_batch_of_all_envs_is_the_same_whether_they_were_stepped_or_sent(make_pool: MakePool) -> None:
    stepped, sent = make_pool([WalkEnv] * 3), make_pool([WalkEnv] * 3)
    stepped.reset(seed=1), sent.reset(seed=1)
    for turn in range(30):
        one = stepped.step([0, 1, 2])
        sent.send([0, 1, 2])
        if turn % 5 == 4:  # in two parts
            parts = [sent.recv(1), *([sent.recv()] if sent.pending else [])]
            two = {i: part.obs[k] for part in parts for k, i in enumerate(part.env_id.tolist())}
            assert all(same(two[i], one.obs[i]) for i in range(3))
            continue
        other = sent.recv(timeout=30)
        assert other.is_view and same(one.obs, other.obs) and same(one.reward, other.reward)
        assert same(list(one.info), list(other.info)) and same(list(one.final_info), list(other.final_info))
