"""What a pool tells about itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
from envs import Gate, ScriptedEnv, actions
from support import eventually

import shmenv

MakePool = Callable[..., shmenv.Pool]


def test_stats_count_steps_by_worker(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 5, num_workers=2)
    assert pool.stats()["steps"] == 0
    pool.reset()
    for _ in range(10):
        pool.step(actions(5))
    stats = pool.stats()
    assert (stats["num_envs"], stats["num_workers"], stats["steps"]) == (5, 2, 50)
    assert stats["steps_per_second"] > 0
    assert stats["segment_bytes"] >= 2 * 5 * 2 * 4
    assert [worker["worker_id"] for worker in stats["workers"]] == [0, 1]
    assert [i for worker in stats["workers"] for i in worker["env_ids"]] == [0, 1, 2, 3, 4]
    for worker in stats["workers"]:
        assert worker["alive"] is True and psutil.pid_exists(worker["pid"])
        assert worker["steps"] == 10 * len(worker["env_ids"])
        assert worker["busy_seconds"] > 0 and worker["wait_seconds"] >= 0
        assert worker["spins"] >= 0 and worker["parks"] >= 0 and worker["spins"] + worker["parks"] > 0
    for name in ("spins", "parks", "heartbeats"):
        assert stats[name] >= 0


def test_resets_are_no_steps(make_pool: MakePool) -> None:
    pool = make_pool([partial(ScriptedEnv, length=1)] * 2, autoreset="next_step")
    pool.reset()
    for _ in range(4):
        pool.step(actions(2))
    assert pool.stats()["steps"] == 4


def test_stats_answer_while_envs_are_busy(make_pool: MakePool, gate: Callable[[int], Gate]) -> None:
    pool = make_pool([partial(ScriptedEnv, gate=gate(0).path), ScriptedEnv], num_workers=2)
    pool.reset()
    pool.send(actions(2, {0: "slow"}))
    held = eventually(gate(0).try_hold)
    eventually(lambda: pool.stats()["workers"][1]["steps"] == 1)
    assert pool.stats()["workers"][0]["steps"] == 0
    os.close(held)
    pool.recv(timeout=10)
    assert pool.stats()["steps"] == 2


def test_busy_time_is_the_time_in_steps(make_pool: MakePool, gate: Callable[[int], Gate]) -> None:
    pool = make_pool([partial(ScriptedEnv, gate=gate(0).path), ScriptedEnv], num_workers=2)
    pool.reset()
    pool.send(actions(2, {0: "slow"}))
    held = eventually(gate(0).try_hold)
    threading.Event().wait(0.2)  # the length of the step that is measured
    os.close(held)
    pool.recv(timeout=10)

    def measured() -> list[dict[str, Any]]:
        pool.step(actions(2))  # a worker adds up when its next wait ends
        workers: list[dict[str, Any]] = pool.stats()["workers"]
        return workers if workers[0]["busy_seconds"] >= 0.2 and workers[1]["wait_seconds"] > 0.15 else []

    slow, quick = eventually(measured)
    assert quick["busy_seconds"] < slow["busy_seconds"]


def test_an_idle_pool_uses_no_processor(make_pool: MakePool) -> None:
    """Covers workers and managers that go on spinning in a pause of the trainer."""
    pool = make_pool([ScriptedEnv] * 4, num_workers=4)
    pool.reset()
    for _ in range(20):
        pool.step(actions(4))
    processes = [psutil.Process(worker["pid"]) for worker in pool.stats()["workers"]]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    eventually(lambda: all(process.status() == psutil.STATUS_SLEEPING for process in processes))
    before = used()
    threading.Event().wait(0.5)  # the stretch that is measured
    assert used() - before <= 0.05
    assert pool.step(actions(4)).obs[:, 1].tolist() == [21] * 4


def test_stats_of_a_closed_pool_still_tell_its_size(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset()
    pool.step(actions(2))
    pool.close()
    stats = pool.stats()
    assert (stats["num_envs"], stats["steps"]) == (2, 2)
    assert not any(worker["alive"] for worker in stats["workers"])
