"""Steps and resets that take too long: who is killed for it, when, and what the error says."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import ScriptedEnv, act, actions
from support import eventually, settled

import shmenv

MakePool = Callable[..., shmenv.Pool]
LIMIT = 0.25
BOUND = 10 * (LIMIT + 0.2)  # the limit, and 0.2 s for the stacks


@pytest.mark.parametrize("where", ["step", "reset", "autoreset"])
@pytest.mark.parametrize("fault", ["hang", "hang_native", "stop"])
def test_who_takes_too_long_is_named_with_what_it_did(fault: str, where: str, make_pool: MakePool) -> None:
    script = {"step": {(0, 1): fault}, "reset": {(0, 0): fault}, "autoreset": {(1, 0): fault}}[where]
    name = "step" if where == "step" else "reset"
    pool = make_pool(
        [ScriptedEnv, ScriptedEnv, partial(ScriptedEnv, script=script, length=1), ScriptedEnv],
        num_workers=2, autoreset="next_step" if where == "autoreset" else "same_step", **{f"{name}_timeout": LIMIT},
    )  # fmt: skip
    pid = pool.stats()["workers"][1]["pid"]
    if where != "reset":
        pool.reset()
    if where == "autoreset":
        pool.step(actions(4))
    begin = time.monotonic()
    with pytest.raises(shmenv.WorkerTimeoutError) as caught:
        pool.reset() if where == "reset" else pool.step(actions(4))
    assert LIMIT <= time.monotonic() - begin < BOUND
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert (error.worker_id, error.env_ids, error.pid, error.exitcode) == (1, (2, 3), pid, -signal.SIGKILL)
    assert f"{name} of env 2 took longer than {name}_timeout={LIMIT} s" in str(error)
    assert "env 3 took" not in str(error)
    if fault != "stop":
        assert "envs.py" in str(error) and f" in {name}\n" in str(error)
    assert pool.recv().env_id.tolist() == [0, 1]
    assert pool.stats()["timeouts"] == 1


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_an_idle_worker_that_is_stopped_is_killed_once_it_is_asked_for_something(
    policy: str, make_pool: MakePool
) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, step_timeout=LIMIT, on_error=policy)
    pool.reset()
    eventually(lambda: settled(pool, 0))
    os.kill(pool.stats()["workers"][0]["pid"], signal.SIGSTOP)
    begin = time.monotonic()
    while time.monotonic() - begin < 2 * LIMIT:  # not while nobody wants anything of it
        pool.send([0], env_id=[1])
        pool.recv()
    assert pool.stats()["timeouts"] == 0
    begin = time.monotonic()
    if policy == "raise":
        with pytest.raises(shmenv.WorkerTimeoutError, match="did not take up a command"):
            pool.step(actions(2))
    else:
        assert "did not take up a command" in pool.step(actions(2)).info[0]["error"]
    assert time.monotonic() - begin < BOUND


def test_a_stopped_worker_that_is_called_is_killed_too(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, step_timeout=LIMIT)
    pool.reset()
    eventually(lambda: settled(pool, 0))
    os.kill(pool.stats()["workers"][0]["pid"], signal.SIGSTOP)
    with pytest.raises(shmenv.WorkerTimeoutError, match="did not take up a command"):
        pool.call("where")
    assert pool.call("where", env_id=1) == ((0, 0),)


def test_each_env_of_a_worker_has_its_own_time(make_pool: MakePool) -> None:
    """Covers a clock that runs over all envs of a worker, and one that a long reset borrows from the steps."""

    class LongEnv(ScriptedEnv):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            time.sleep(LIMIT / 3)  # the env's work, nobody waits for it here
            return super().step(action)

        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            time.sleep(LIMIT * 1.2)
            return super().reset(**kwargs)

    pool = make_pool([LongEnv] * 4, num_workers=1, step_timeout=LIMIT)
    pool.reset()
    assert pool.step(actions(4)).obs[:, 1].tolist() == [1] * 4
    assert pool.stats()["timeouts"] == 0


def test_a_pool_that_was_idle_for_long_has_forgotten_no_time_and_counted_none(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=2, step_timeout=0.2, reset_timeout=0.2)
    pool.reset()
    for pause in (0.45, 0.0):
        time.sleep(pause)  # the caller's own work
        for _ in range(50):
            pool.step(actions(4))
    assert pool.stats()["timeouts"] == pool.stats()["restarts"] == 0
    with pytest.raises(shmenv.WorkerTimeoutError):
        pool.step(actions(4, {3: "hang"}))


def test_time_runs_out_while_the_callers_thread_holds_on_to_the_interpreter(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, step_timeout=LIMIT)
    pool.reset()
    pid = pool.stats()["workers"][0]["pid"]
    pool.send(np.array([act("hang_native"), 0]))
    number, begin = 3, time.monotonic()
    while time.monotonic() - begin < LIMIT + 0.5:
        number = pow(number, 3, 1 << 200_000)  # long operations that never let go of the interpreter
    assert not pool.stats()["workers"][0]["alive"], pid
    with pytest.raises(shmenv.WorkerTimeoutError):
        while True:
            pool.recv(min_envs=1)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_successor_is_not_late_while_its_process_starts(context: str, make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv], context=context, step_timeout=0.1, reset_timeout=0.1, on_error="restart")
    pool.reset()
    batch = pool.step([act("kill")])
    assert batch.info[0]["abnormal"] and batch.obs.tolist() == [[0, 0]]
    assert (pool.stats()["restarts"], pool.stats()["timeouts"]) == (1, 0)


def test_the_timeout_of_a_step_is_no_timeout_of_recv(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, step_timeout=LIMIT, on_error="restart")
    pool.reset()
    pool.send(actions(2, {0: "hang"}))
    assert pool.recv(min_envs=1).env_id.tolist() == [1]
    with pytest.raises(shmenv.RecvTimeoutError):
        pool.recv(timeout=0.01)
    batch = pool.recv(timeout=30)
    assert batch.env_id.tolist() == [0] and "step_timeout" in batch.info[0]["error"]
    eventually(lambda: pool.stats()["workers"][0]["alive"])


def test_a_worker_stopped_at_any_moment_is_late_once_it_is_asked_for_something(make_pool: MakePool) -> None:
    """Covers one that is stopped between its answer and its wait for the next command."""
    pool = make_pool(
        [ScriptedEnv] * 2, num_workers=1, on_error="restart", restart_period=0.0, step_timeout=0.1, reset_timeout=0.1
    )
    pool.reset()
    for k in range(8):
        pid = pool.stats()["workers"][0]["pid"]
        pool.send(actions(2))
        timer = threading.Timer(k * 0.00005, os.kill, (pid, signal.SIGSTOP))
        timer.start()
        while pool.pending:
            pool.recv(min_envs=1, timeout=20)
        timer.join()
        pool.step(actions(2))
        pool.reset()
