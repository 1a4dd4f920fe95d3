"""Long runs, with and without kills: every command is answered or reported exactly once. Run by `make stress`."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmenv

pytestmark = pytest.mark.stress

SECONDS = float(os.environ.get("SHMENV_STRESS_SECONDS", "20"))  # of each test
MakePool = Callable[..., shmenv.Pool]


class Ledger:
    """Writes how many steps it took, and by which action, all over its observation."""

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        self.count = 0
        return np.zeros(500, np.int64), {}

    def step(self, action: Any) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        self.count += 1
        return np.full(500, self.count * 1000 + int(action)), self.count, False, False, {"count": self.count}


def check(batch: shmenv.Batch, counts: np.ndarray[Any, Any], actions: np.ndarray[Any, Any]) -> None:
    """Each row holds the next step of its env, whole."""
    wanted = counts[batch.env_id] * 1000 + actions[batch.env_id]
    np.testing.assert_array_equal(batch.obs, np.repeat(wanted[:, None], 500, axis=1))
    np.testing.assert_array_equal(batch.reward, counts[batch.env_id])
    assert [info["count"] for info in batch.info] == counts[batch.env_id].tolist()


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_lock_step_plays_every_step_once_and_loses_no_wake_up(num_workers: int, make_pool: MakePool) -> None:
    pool = make_pool([Ledger] * 10, num_workers=num_workers)
    pool.reset()
    counts = np.zeros(10, np.int64)
    rng = np.random.default_rng(0)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        actions = rng.integers(1000, size=10)
        counts += 1
        check(pool.step(list(actions)), counts, actions)
        if counts[0] % 500 == 0:
            time.sleep(0.002)  # let the workers park
    assert pool.stats()["steps"] == counts.sum()
    assert pool.stats()["heartbeats"] == 0


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_first_k_plays_every_step_once_and_loses_no_wake_up(num_workers: int, make_pool: MakePool) -> None:
    pool = make_pool([Ledger] * 10, num_workers=num_workers)
    pool.reset()
    counts, actions = np.zeros(10, np.int64), np.zeros(10, np.int64)
    idle = np.arange(10)
    rng = np.random.default_rng(0)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        # any of the idle ones, but not none if nothing is pending
        chosen = rng.permutation(idle)[: rng.integers(0 if pool.pending else 1, len(idle) + 1)]
        actions[chosen] = rng.integers(1000, size=len(chosen))
        if len(chosen):
            pool.send(list(actions[chosen]), chosen)
        batch = pool.recv(min_envs=int(rng.integers(1, pool.pending + 1)))
        counts[batch.env_id] += 1
        check(batch, counts, actions)
        idle = np.concatenate([np.setdiff1d(idle, chosen), batch.env_id])
    assert pool.stats()["heartbeats"] == 0


@pytest.mark.parametrize("num_workers", [4, 8])
def test_each_command_is_answered_or_reported_exactly_once_when_a_worker_is_killed(
    num_workers: int, make_pool: MakePool
) -> None:
    delays = []  # seconds from a kill until the caller knows
    rng = random.Random(0)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        pool = make_pool([Ledger] * 8, num_workers=num_workers)
        pool.reset()
        victim = rng.choice(pool.stats()["workers"])
        killed_at: list[float] = []

        def kill(pid: int = victim["pid"], when: list[float] = killed_at) -> None:
            when.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

        timer = threading.Timer(rng.uniform(0, 0.03), kill)
        timer.start()
        counts, sent = np.zeros(8, np.int64), np.zeros(8, np.int64)
        idle = np.arange(8)
        lost: list[shmenv.WorkerDiedError] = []
        steps_after = 0
        while steps_after < 50:
            steps_after += bool(lost)
            try:
                if len(idle):
                    pool.send([0] * len(idle), idle)
                    sent[idle] += 1
                    idle = idle[:0]
                batch = pool.recv(min_envs=rng.randint(1, pool.pending))
            except shmenv.WorkerDiedError as error:
                delays.append(time.monotonic() - killed_at[0])
                lost.append(error)
                idle = np.setdiff1d(idle, error.env_ids)
                continue
            counts[batch.env_id] += 1
            check(batch, counts, np.zeros(8, np.int64))
            idle = np.setdiff1d(batch.env_id, lost[0].env_ids) if lost else batch.env_id
        timer.join()
        while pool.pending:
            batch = pool.recv()
            counts[batch.env_id] += 1
            check(batch, counts, np.zeros(8, np.int64))
        assert [list(error.env_ids) for error in lost] == [victim["env_ids"]]
        unanswered = sent - counts
        others = np.setdiff1d(np.arange(8), victim["env_ids"])
        assert not unanswered[others].any()
        assert set(unanswered[victim["env_ids"]].tolist()) <= {0, 1}
        pool.close()
    tell(f"{num_workers} workers, kill to error, ms", delays)
    assert max(delays) < 1.0


def tell(what: str, seconds: list[float]) -> None:
    """The distribution of a latency; seen with `pytest -s`."""
    low, middle, high, worst = np.percentile(seconds, [5, 50, 95, 100]) * 1e3
    print(f"\n{what}: {len(seconds)} times, 5 % {low:.2f}, median {middle:.2f}, 95 % {high:.2f}, worst {worst:.2f}")
