"""Replacing workers: how often, how soon, with which seeds, who is told; and what is lost for good."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envs import ScriptedEnv, act, actions
from life import CountedEnv, entries
from reference import MODES
from support import eventually

import shmenv

MakePool = Callable[..., shmenv.Pool]
KILL = act("kill")


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def pid_of(pool: shmenv.Pool, worker_id: int = 0) -> int:
    return int(pool.stats()["workers"][worker_id]["pid"])


# -- budget


def test_a_worker_is_replaced_max_restarts_times_ever_later_and_then_lost_for_good(
    make_pool: MakePool, log: str
) -> None:
    pool = make_pool([partial(CountedEnv, log), ScriptedEnv], num_workers=2, max_restarts=3, on_error="restart")
    pool.reset()
    for _ in range(3):
        assert pool.step(np.array([KILL, 0])).info[0]["abnormal"]
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        pool.step(np.array([KILL, 0]))
    for part in ("worker 0", "env 0", "lost for good", "max_restarts=3", "SIGKILL", "step of env 0"):
        assert part in str(caught.value)
    assert pool.recv().env_id.tolist() == [1]
    times = [each["time"] for each in entries(log, "construct")]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(gaps) == 3 and gaps[1] >= 0.1 and gaps[2] >= 0.2
    for attempt in (pool.reset, lambda: pool.send([0], env_id=[0]), lambda: pool.call("where")):
        with pytest.raises(shmenv.WorkerDiedError, match="lost for good"):
            attempt()
    pool.send([0], env_id=[1])
    assert pool.recv().obs[0, 1] == 5
    assert pool.stats()["restarts"] == 3 and not pool.stats()["workers"][0]["alive"]


def test_the_budget_renews_itself_with_time(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv], max_restarts=1, restart_period=0.05, on_error="restart")
    pool.reset()
    for _ in range(4):
        assert pool.step([KILL]).info[0]["abnormal"]
        time.sleep(0.06)  # the period itself is under test
    assert pool.stats()["restarts"] == 4


@pytest.mark.parametrize("fault", ["raise", "exit", "hang", "sys_exit"])
def test_a_constructor_that_fails_in_each_successor_uses_up_the_budget(
    fault: str, make_pool: MakePool, log: str
) -> None:
    pool = make_pool(
        [ScriptedEnv, partial(CountedEnv, log, (), ["ok"] + [fault] * 9)],
        num_workers=2, max_restarts=2, on_error="restart", start_timeout=0.4, restart_period=0.3,
    )  # fmt: skip
    pool.reset()
    with pytest.raises(shmenv.WorkerDiedError if fault != "hang" else shmenv.WorkerTimeoutError) as caught:
        pool.step(np.array([0, KILL]))
    text = str(caught.value)
    assert "lost for good" in text and "env 1" in text and "construct" in text
    if fault == "raise":
        assert "KeyError: 'missing asset'" in text and "Traceback" in text
    assert len(entries(log, "construct")) == 3
    assert pool.recv().obs.tolist() == [[0, 1]]


def test_a_constructor_that_fails_once_more_is_overcome(make_pool: MakePool, log: str) -> None:
    pool = make_pool(
        [partial(CountedEnv, log, (), ["ok", "raise", "kill", "ok"]), ScriptedEnv], num_workers=1, on_error="restart"
    )
    pool.reset(seed=3)
    batch = pool.step(np.array([KILL, 0]))
    assert batch.info[0]["abnormal"] and batch.info[1]["abnormal"]
    assert batch.obs.tolist() == [[0, 0], [0, 0]]
    assert pool.step(actions(2)).obs.tolist() == [[0, 1], [0, 1]]
    assert entries(log, "reset")[-1]["seed"] == 3 + 1 * 2  # its first new start, after some processes without one


def test_a_successor_whose_spaces_differ_is_no_successor(make_pool: MakePool, log: str) -> None:
    class OtherEnv(ScriptedEnv):
        def __init__(self, log: str) -> None:
            super().__init__()
            if os.path.exists(log):
                self.observation_space = self.action_space
            open(log, "a").close()

    pool = make_pool([partial(OtherEnv, log)], max_restarts=1, on_error="restart")
    pool.reset()
    with pytest.raises(shmenv.WorkerDiedError, match="a new env must be like the old"):
        pool.step([KILL])


def test_a_process_that_cannot_be_started_is_tried_again_within_the_budget(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers an env that nobody ever replaces because the system was short of processes for a moment."""
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, max_restarts=4, on_error="restart")
    pool.reset()
    start, refusals = pool._workers._start_one, 2

    def refuse(*arguments: Any) -> Any:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise shmenv.ResourceError(11, "no more processes")
        return start(*arguments)

    monkeypatch.setattr(pool._workers, "_start_one", refuse)
    assert pool.step(np.array([KILL, 0])).info[0]["abnormal"]
    refusals = 99
    with pytest.raises(shmenv.WorkerDiedError, match=r"lost for good.*no more processes"):
        pool.step(np.array([KILL, 0]))
    assert pool.recv().env_id.tolist() == [1]


# -- who is told


def test_the_hook_is_told_of_each_env_whose_worker_is_replaced_and_why(make_pool: MakePool) -> None:
    told: list[tuple[int, str]] = []
    pool = make_pool(
        [ScriptedEnv] * 3,
        num_workers=2,
        on_error="restart",
        on_restart=lambda env_id, reason: told.append((env_id, reason)),
    )
    pool.reset()
    pid = pid_of(pool, 1)
    pool.step(actions(3, {2: "kill"}))
    assert [env_id for env_id, _ in told] == [1, 2]
    assert all(f"worker 1 (pid {pid})" in reason and "SIGKILL" in reason for _, reason in told)


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_a_hook_that_raises_or_uses_the_pool_breaks_nothing(
    policy: str, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    pools: list[shmenv.Pool] = []

    def hook(env_id: int, reason: str) -> None:
        pools[0].step(actions(2))

    pool = make_pool([ScriptedEnv] * 2, num_workers=2, on_error=policy, on_restart=hook)
    pools.append(pool)
    pool.reset()
    pool.send(actions(2, {0: "kill", 1: "exit"}))
    with caplog.at_level(logging.ERROR, "shmenv"):
        while pool.pending:
            try:
                assert all(info["abnormal"] for info in pool.recv(min_envs=1).info)
            except shmenv.WorkerDiedError:
                assert policy == "raise"
    assert caplog.text.count("on_restart raised for env") == 2 and "in use" in caplog.text
    assert pool.reset().obs.tolist() == ([[0, 0]] * 2 if policy == "raise" else [[1, 0]] * 2)


def test_a_hook_may_close_the_pool(make_pool: MakePool) -> None:
    pools: list[shmenv.Pool] = []
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, on_error="restart", on_restart=lambda *_: pools[0].close())
    pools.append(pool)
    pool.reset()
    with pytest.raises(shmenv.ClosedError):
        pool.step(actions(2, {0: "kill"}))
    assert pool.closed


def test_a_restart_is_logged_as_a_warning(make_pool: MakePool, caplog: pytest.LogCaptureFixture) -> None:
    pool = make_pool([ScriptedEnv], on_error="restart")
    pool.reset()
    with caplog.at_level(logging.INFO, "shmenv"):
        pool.step([KILL])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "A new worker starts it anew" in record.getMessage()


# -- seeds


@pytest.mark.parametrize("mode", MODES)
def test_a_restarted_env_gets_its_seed_moved_on_by_the_number_of_envs_a_restart(
    mode: str, make_pool: MakePool, log: str
) -> None:
    def fail_and_go_on() -> None:
        pool.step(np.array([0, 0, KILL]))
        if mode == "next_step":
            pool.step(actions(3))
        elif mode == "disabled":
            pool.reset(env_id=[2])
        pool.step(actions(3))

    pool = make_pool(
        [ScriptedEnv, ScriptedEnv, partial(CountedEnv, log)], num_workers=3, autoreset=mode, on_error="restart"
    )
    pool.reset(seed=100)
    fail_and_go_on()
    assert pool.seeds == [100, 101, 105]
    fail_and_go_on()
    assert pool.seeds == [100, 101, 108]
    pool.reset(seed=[7], env_id=[2])
    assert pool.seeds == [100, 101, 7]
    fail_and_go_on()
    assert [each["seed"] for each in entries(log, "reset")] == [102, 105, 108, 7, 10]
    assert pool.seeds == [100, 101, 10]
    pool.close()
    assert pool.seeds == [100, 101, 10]


def test_a_reset_after_a_restart_keeps_its_options_beside_the_moved_seed(make_pool: MakePool, log: str) -> None:
    pool = make_pool([partial(CountedEnv, log)])
    pool.reset(seed=4)
    with pytest.raises(shmenv.WorkerDiedError):
        pool.step([KILL])
    pool.reset(options={"level": 2})
    pool.reset()
    found = [(each["seed"], each["options"]) for each in entries(log, "reset")]
    assert found == [(4, None), (5, {"level": 2}), (None, None)]


def test_a_refused_reset_changes_no_seed(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset(seed=4)
    pool.send(actions(2))
    with pytest.raises(shmenv.UsageError):
        pool.reset(seed=[9], env_id=[0])
    assert pool.seeds == [4, 5]


# -- recycling


@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("mode", MODES)
def test_a_worker_is_recycled_after_so_many_episodes_without_an_error(
    mode: str, policy: str, make_pool: MakePool, log: str
) -> None:
    pool = make_pool(
        [partial(CountedEnv, log, length=2)], recycle_after=3, autoreset=mode, on_error=policy, max_restarts=0
    )
    pool.reset(seed=1)
    pid, ends, losses = pid_of(pool), 0, 0
    while ends < 8:  # a loss row is none
        batch = pool.step([0])
        lost = "abnormal" in batch.info[0]
        if lost:
            assert mode == "same_step" and "recycled" in batch.info[0]["error"]
        losses += lost
        ends += int(batch.terminated[0])
        if mode == "disabled" and batch.terminated[0]:
            pool.reset()
        if ends < 3:
            assert pid_of(pool) == pid
    eventually(lambda: pool.stats()["workers"][0]["alive"])
    stats = pool.stats()
    assert stats["recycled"] == 2 and stats["restarts"] == 0 and stats["losses"] == losses
    assert losses == (2 if mode == "same_step" else 0)
    assert len(entries(log, "construct")) == 3


def test_a_recycled_worker_that_does_not_close_its_envs_is_killed(make_pool: MakePool) -> None:
    class StuckEnv(ScriptedEnv):
        def close(self) -> None:
            time.sleep(3600)

    pool = make_pool([partial(StuckEnv, length=1)], recycle_after=1, autoreset="next_step", close_timeout=0.1)
    pool.reset()
    begin = time.monotonic()
    for _ in range(4):
        pool.step([0])
    assert time.monotonic() - begin < 20
    assert pool.stats()["recycled"] == 2


def test_stats_count_what_happened(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=2, on_error="restart", step_timeout=0.25)
    pool.reset()
    pool.step(actions(4, {0: "raise"}))
    pool.step(actions(4, {2: "kill"}))
    pool.step(actions(4, {3: "hang"}))
    stats = pool.stats()
    assert (stats["restarts"], stats["timeouts"], stats["recycled"]) == (2, 1, 0)
    assert stats["losses"] in (4, 5)  # env 2 had answered before env 3 hung, and is lost with its next step
    os.kill(pid_of(pool), signal.SIGKILL)
    eventually(lambda: not pool.stats()["workers"][0]["alive"])
    pool.step(actions(4))
    pool.close()
    assert pool.stats()["restarts"] == 3 and pool.stats()["losses"] == 7
