"""Resets that fail: attempts, in which process, by which seed; and the resets that end an episode's last row."""

from __future__ import annotations

import itertools
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
from support import eventually

import shmenv

MakePool = Callable[..., shmenv.Pool]
ERRORS = {"raise": shmenv.EnvError, "kill": shmenv.WorkerDiedError, "hang": shmenv.WorkerTimeoutError}
SEED, OPTIONS = 7, {"level": 3}


def limits(fault: str) -> dict[str, Any]:
    return {"reset_timeout": 0.2} if fault == "hang" else {}


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def second_step_of_two(pool: shmenv.Pool, lock_step: bool) -> tuple[shmenv.Batch, int]:
    """Has env 1 play a whole episode of two steps. Returns its last batch, and the env's row there."""
    pool.reset()
    pool.step(actions(2))
    if lock_step:
        batch = pool.step(actions(2))
    else:
        pool.send(actions(2))
        batch = pool.recv(min_envs=1)
        if 1 not in batch.env_id:  # a slow caller finds both
            assert batch.env_id.tolist() == [0]
            batch = pool.recv()
    row = batch.env_id.tolist().index(1)
    assert batch.reward[row] == 2 and batch.terminated[row] and not batch.truncated[row]
    return batch, row


@pytest.mark.parametrize(
    ("partial_reset", "fault", "retry_type"),
    [
        *itertools.product((True, False), ("raise", "kill"), ("reset", "renew")),
        (True, "hang", "reset"),
        (False, "hang", "renew"),
    ],
)
def test_a_reset_is_tried_max_retry_times_in_all_with_its_seed_and_options(
    partial_reset: bool, fault: str, retry_type: str, make_pool: MakePool, log: str
) -> None:
    pool = make_pool(
        [ScriptedEnv, partial(CountedEnv, log, [fault] * 3)],
        num_workers=2, max_retry=3, retry_type=retry_type, retry_waiting_time=0.02, **limits(fault),
    )  # fmt: skip
    with pytest.raises(ERRORS[fault]) as caught:
        if partial_reset:
            pool.reset(seed=SEED, options=OPTIONS, env_id=[1])
        else:
            pool.reset(seed=SEED, options=OPTIONS)
    assert "reset" in str(caught.value)
    tried = entries(log, "reset")
    assert [(each["seed"], each["options"]) for each in tried] == [(SEED + 1, OPTIONS)] * 3
    assert len({each["pid"] for each in tried}) == (1 if (fault, retry_type) == ("raise", "reset") else 3)
    assert pool.pending == (0 if partial_reset else 1)
    if pool.pending:
        assert pool.recv().obs.tolist() == [[0, 0]]
    with pytest.raises(shmenv.UsageError, match="needs a reset"):
        pool.send([0], env_id=[1])
    pool.reset(env_id=[1])
    assert len(entries(log, "reset")) == 4
    pool.send([0], env_id=[1])
    assert pool.recv().obs.tolist() == [[0, 1]]


@pytest.mark.parametrize("retry_type", ["reset", "renew"])
def test_a_reset_may_succeed_at_its_last_attempt(retry_type: str, make_pool: MakePool, log: str) -> None:
    pool = make_pool(
        [partial(CountedEnv, log, ["raise", "raise_held"])],
        max_retry=3, retry_type=retry_type, retry_waiting_time=0.1,
    )  # fmt: skip
    batch = pool.reset(seed=SEED, options=OPTIONS)
    assert batch.obs.tolist() == [[0, 0]] and batch.reward.tolist() == [0] and not batch.truncated.any()
    tried = entries(log, "reset")
    assert [(each["seed"], each["options"]) for each in tried] == [(SEED, OPTIONS)] * 3
    times = [each["time"] for each in tried]
    assert all(later - earlier >= 0.1 for earlier, later in itertools.pairwise(times))
    assert len({each["pid"] for each in tried}) == (3 if retry_type == "renew" else 1)
    assert pool.step([0]).obs.tolist() == [[0, 1]]
    stats = pool.stats()
    assert (stats["restarts"], stats["losses"]) == (2 if retry_type == "renew" else 0, 0)


@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("lock_step", [True, False])
@pytest.mark.parametrize(("fault", "retry_type"), [("raise", "reset"), ("raise", "renew"), ("kill", "reset"),
                                                   ("hang", "reset"), ("segfault", "renew")])  # fmt: skip
def test_the_row_of_an_ended_episode_survives_a_reset_that_fails(
    fault: str, retry_type: str, lock_step: bool, policy: str, make_pool: MakePool, log: str
) -> None:
    """The genuine reward and last observation are delivered, be it the env or its worker that the reset costs."""
    pool = make_pool(
        [ScriptedEnv, partial(CountedEnv, log, ["ok", fault], length=2)],
        num_workers=2, max_retry=2, retry_type=retry_type, retry_waiting_time=0.01, on_error=policy, **limits(fault),
    )  # fmt: skip
    batch, row = second_step_of_two(pool, lock_step)
    assert batch.final_obs[row].tolist() == [0, 2] and batch.info[row] == batch.final_info[row] == {}
    same_process = (fault, retry_type) == ("raise", "reset")
    assert batch.obs[row].tolist() == [1 if same_process else 0, 0]
    assert len({each["pid"] for each in entries(log, "reset")}) == (1 if same_process else 2)
    pool.send(actions(1), env_id=[1])
    assert pool.recv().obs[0, 1] == 1
    assert pool.stats()["losses"] == 0 and pool.stats()["timeouts"] == (fault == "hang")


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("lock_step", [True, False])
@pytest.mark.parametrize(
    ("fault", "retry_type", "policy"),
    [
        ("raise", "reset", "raise"),
        ("raise", "renew", "restart"),
        ("kill", "reset", "raise"),
        ("hang", "reset", "raise"),
    ],
)
def test_the_last_row_of_an_episode_comes_before_the_error_of_the_reset_that_fails_for_good(
    fault: str, retry_type: str, policy: str, lock_step: bool, shared_memory: bool, make_pool: MakePool, log: str
) -> None:
    """Covers a genuine reward and last observation that nobody gets, for the sake of an error."""
    tries = 2 if fault == "raise" else 3  # that the first worker has ended in its own reset is no attempt yet
    pool = make_pool(
        [ScriptedEnv, partial(CountedEnv, log, ["ok", *[fault] * tries], length=2)],
        num_workers=2, max_retry=2, retry_type=retry_type, retry_waiting_time=0.01, on_error=policy,
        shared_memory=shared_memory, **limits(fault),
    )  # fmt: skip
    batch, row = second_step_of_two(pool, lock_step)
    assert list(batch.final_obs[row]) == list(batch.obs[row]) == [0, 2]
    assert batch.info[row] == batch.final_info[row] == {}
    assert pool.pending == 0 and len(entries(log, "reset")) == 1 + tries
    with pytest.raises(ERRORS[fault], match="reset"):
        pool.step(actions(2))
    with pytest.raises(shmenv.UsageError, match="env 1 cannot be stepped: it needs a reset"):
        pool.step(actions(2))
    assert pool.reset(env_id=[1]).obs[0][1] == 0
    assert [obs[1] for obs in pool.step(actions(2)).obs] == [3, 1]
    assert pool.stats()["losses"] == 0


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_the_last_row_of_an_episode_comes_also_from_a_worker_that_is_lost_for_good(
    policy: str, waits: bool, make_pool: MakePool, log: str
) -> None:
    """The worker ends in the reset, or while the reset waits for its next attempt."""
    pool = make_pool(
        [ScriptedEnv, partial(CountedEnv, log, ["ok", "raise" if waits else "kill"], length=1)],
        num_workers=2, max_retry=2, retry_waiting_time=600.0, max_restarts=0, on_error=policy,
    )  # fmt: skip
    pool.reset()
    for env_id in (0, 1):
        pool.send(actions(1), env_id=[env_id])
        assert env_id or pool.recv().env_id.tolist() == [0]
    if waits:
        eventually(lambda: len(entries(log, "reset")) == 2)
        with pytest.raises(shmenv.RecvTimeoutError):
            pool.recv(timeout=0.1)
        os.kill(pool.stats()["workers"][1]["pid"], signal.SIGKILL)
    batch = pool.recv(timeout=20)
    assert batch.env_id.tolist() == [1] and batch.reward.tolist() == [1] and batch.terminated.tolist() == [True]
    assert batch.final_obs.tolist() == batch.obs.tolist() == [[0, 1]]
    assert pool.pending == 0
    for _ in range(2):
        with pytest.raises(shmenv.WorkerDiedError, match="lost for good"):
            pool.send(actions(1), env_id=[1])
    pool.send(actions(1), env_id=[0])
    assert pool.recv().obs.tolist() == [[0, 2]]


def test_a_loss_row_comes_before_the_error_of_the_reset_after_it(make_pool: MakePool, log: str) -> None:
    pool = make_pool([partial(CountedEnv, log, ["ok", "raise"])], on_error="restart")
    pool.reset()
    pool.step(actions(1))
    batch = pool.step(actions(1, {0: "raise"}))
    assert batch.truncated.tolist() == [True] and batch.info[0]["abnormal"] and "asset" in batch.info[0]["error"]
    assert batch.final_obs.tolist() == batch.obs.tolist() == [[0, 1]]
    with pytest.raises(shmenv.EnvError) as caught:
        pool.step(actions(1))
    assert caught.value.command == "reset"
    assert pool.reset().obs.tolist() == [[1, 0]] and pool.step(actions(1)).obs.tolist() == [[1, 1]]


@pytest.mark.parametrize("fault", ERRORS)
def test_a_step_that_resets_is_tried_again_too(fault: str, make_pool: MakePool, log: str) -> None:
    pool = make_pool(
        [partial(CountedEnv, log, ["ok", fault, "ok", fault, fault], length=1)],
        autoreset="next_step", max_retry=2, retry_waiting_time=0.01, **limits(fault),
    )  # fmt: skip
    pool.reset()
    assert pool.step([0]).terminated.tolist() == [True]
    batch = pool.step([0])
    assert batch.reward.tolist() == [0] and not batch.terminated.any() and batch.obs[0, 1] == 0
    assert pool.step([0]).terminated.tolist() == [True]
    with pytest.raises(ERRORS[fault], match="reset"):
        pool.step([0])
    assert len(entries(log, "reset")) == 5
    assert pool.reset().obs[0, 1] == 0


def test_other_envs_go_on_while_a_reset_waits_for_its_next_attempt_and_a_whole_reset_does_not_wait_for_it(
    make_pool: MakePool, log: str
) -> None:
    pool = make_pool(
        [partial(CountedEnv, log, ["raise"]), ScriptedEnv], num_workers=2, max_retry=2, retry_waiting_time=600.0
    )
    begin = time.monotonic()
    pool.send_reset(seed=1)
    pool.recv(min_envs=1)
    for t in range(1, 6):
        pool.send([0], env_id=[1])
        batch = pool.recv(min_envs=1)
        assert batch.env_id.tolist() == [1] and batch.obs.tolist() == [[0, t]]
    with pytest.raises(shmenv.RecvTimeoutError, match="env 0"):
        pool.recv(timeout=0.01)
    with pytest.raises(shmenv.UsageError, match="env 0 cannot be reset now"):
        pool.reset(env_id=[0])
    assert len(entries(log, "reset")) == 1
    assert pool.reset(seed=5).obs.tolist() == [[0, 0], [1, 0]]
    assert [each["seed"] for each in entries(log, "reset")] == [1, 5]
    assert time.monotonic() - begin < 60
    assert pool.step(actions(2)).obs.tolist() == [[0, 1], [1, 1]]


def test_a_call_waits_for_the_attempts_of_a_reset(make_pool: MakePool, log: str) -> None:
    """Covers the call's answer taken for the reset's."""
    pool = make_pool([partial(CountedEnv, log, ["raise", "raise"])], max_retry=3, retry_waiting_time=0.05)
    pool.send_reset(seed=3)
    assert pool.call("where") == ((0, 0),)
    assert len(entries(log, "reset")) == 3
    assert pool.recv().obs.tolist() == [[0, 0]]


def test_who_only_polls_gets_a_reset_that_is_tried_again(make_pool: MakePool, log: str) -> None:
    pool = make_pool([partial(CountedEnv, log, ["raise", "kill"])], max_retry=3, retry_waiting_time=0.05)
    pool.send_reset()
    deadline = time.monotonic() + 30
    while True:
        assert time.monotonic() < deadline
        try:
            batch = pool.recv(timeout=0)
        except shmenv.RecvTimeoutError:
            continue
        break
    assert batch.obs.tolist() == [[0, 0]]
    assert len(entries(log, "reset")) == 3


def test_a_renewal_that_a_whole_reset_made_needless_kills_nobody(make_pool: MakePool, log: str) -> None:
    pool = make_pool(
        [partial(CountedEnv, log, ["raise"])],
        max_retry=2,
        retry_type="renew",
        retry_waiting_time=0.2,
        on_error="restart",
    )
    pool.send_reset()
    with pytest.raises(shmenv.RecvTimeoutError):
        pool.recv(timeout=0.02)
    pool.reset()
    begin, t = time.monotonic(), 0
    while time.monotonic() - begin < 0.3:
        t += 1
        assert pool.step([0]).obs.tolist() == [[0, t]]
    assert pool.stats()["restarts"] == 0


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_siblings_of_an_env_whose_process_is_renewed_are_lost_with_it(
    policy: str, make_pool: MakePool, log: str
) -> None:
    pool = make_pool(
        [partial(CountedEnv, log, ["ok", "raise"]), ScriptedEnv],
        num_workers=1, max_retry=2, retry_type="renew", retry_waiting_time=0.0, on_error=policy,
    )  # fmt: skip
    pool.reset()
    pool.step(actions(2))
    assert pool.reset(env_id=[0]).obs.tolist() == [[0, 0]]
    if policy == "raise":
        with pytest.raises(shmenv.WorkerDiedError, match="renewed after a failed reset"):
            pool.send([0], env_id=[1])
        with pytest.raises(shmenv.UsageError, match="needs a reset"):
            pool.send([0], env_id=[1])
        assert pool.reset(env_id=[1]).obs.tolist() == [[0, 0]]
    else:
        pool.send([0], env_id=[1])
        batch = pool.recv()
        assert "renewed after a failed reset" in batch.info[0]["error"]
        assert batch.final_obs.tolist() == [[0, 1]] and batch.obs.tolist() == [[0, 0]]
    assert pool.step(actions(2)).obs.tolist() == [[0, 1], [0, 1]]


def test_under_restart_a_reset_whose_worker_is_killed_is_simply_repeated(make_pool: MakePool, log: str) -> None:
    pool = make_pool([partial(CountedEnv, log, ["kill", "exit", "segfault"]), ScriptedEnv], on_error="restart")
    assert pool.reset(seed=2).obs.tolist() == [[0, 0], [0, 0]]
    assert [each["seed"] for each in entries(log, "reset")] == [2] * 4
    assert pool.stats()["restarts"] == 3


def test_a_step_is_repeated_only_if_asked_for_and_each_attempt_has_its_own_time(make_pool: MakePool) -> None:
    script = {(0, 1): "raise_once"}
    pool = make_pool([partial(ScriptedEnv, script=script)], retry_step=True, max_retry=2, retry_waiting_time=0.0)
    pool.reset()
    assert pool.step([0]).obs.tolist() == [[0, 2]]
    pool = make_pool([ScriptedEnv], retry_step=True, max_retry=4, retry_waiting_time=0.15, step_timeout=0.4)
    pool.reset()
    with pytest.raises(shmenv.EnvError, match="missing asset"):  # after three waits, longer than a step may take
        pool.step(np.array([act("raise")]))
    assert pool.call("where") == ((0, 4),)


def test_a_pools_retries_can_be_changed_while_it_runs(make_pool: MakePool) -> None:
    pool = make_pool([partial(ScriptedEnv, {(0, 0): "raise", (2, 0): "raise"})], retry_waiting_time=0.0)
    with pytest.raises(shmenv.EnvError):
        pool.reset()
    pool.reset()
    pool.set_retries(2, retry_waiting_time=0.0)
    assert pool.reset().obs.tolist() == [[3, 0]]
    with pytest.raises(shmenv.UsageError, match="retry_type"):
        pool.set_retries(2, "again")  # type: ignore[arg-type]


def test_a_reset_that_has_failed_for_good_is_told_though_more_attempts_are_allowed_since(make_pool: MakePool) -> None:
    """Covers one that is tried again after a call, by what the call brought in place of its options."""
    pool = make_pool([partial(ScriptedEnv, {(0, 0): "raise"})], retry_waiting_time=0.0)
    pool.send_reset(options=OPTIONS)
    assert pool.call("where") == ((0, 0),)
    pool.set_retries(2, retry_waiting_time=0.0)
    with pytest.raises(shmenv.EnvError, match="missing asset"):
        pool.recv()
    assert pool.pending == 0 and pool.get_attr("seen") == ([(None, OPTIONS)],)
