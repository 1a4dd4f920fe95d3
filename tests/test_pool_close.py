"""The end of a pool: from any state, in bounded time, with nothing left behind."""

from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from envs import Gate, ScriptedEnv, act, actions
from support import Script, eventually, is_gone

import shmenv

MakePool = Callable[..., shmenv.Pool]
QUICK = 10.0  # seconds: ten times the second that is promised where no env is stuck


def pids(pool: shmenv.Pool) -> list[int]:
    return [worker["pid"] for worker in pool.stats()["workers"]]


def close_in_time(pool: shmenv.Pool, seconds: float = QUICK) -> None:
    found = pids(pool)
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < seconds
    assert pool.closed
    assert all(map(is_gone, found))


def test_a_pool_closes_right_after_its_start(make_pool: MakePool, context: str) -> None:
    """Covers a close that takes a minute when nothing has happened yet."""
    close_in_time(make_pool([ScriptedEnv] * 4, num_workers=2, context=context))


def test_a_close_returns_when_the_workers_have_ended_whoever_was_first(make_pool: MakePool) -> None:
    """Covers a second close that returns at once, with the workers still running."""
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, close_timeout=1.0)
    pool.reset()
    found = pids(pool)
    pool.send(actions(2, {0: "hang", 1: "hang"}))
    first = threading.Thread(target=pool.close)
    first.start()
    eventually(lambda: pool.closed)
    pool.close()
    assert all(map(is_gone, found))
    first.join()


def test_closing_twice_is_closing_once(make_pool: MakePool) -> None:
    """Covers a second close that fails."""
    pool = make_pool([ScriptedEnv] * 2)
    pool.close()
    pool.close()
    assert pool.closed


def test_a_closed_pool_says_so_to_every_call(make_pool: MakePool) -> None:
    """Covers a broken pipe where a closed pool is used."""
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset()
    pool.close()
    for attempt in (
        pool.reset,
        lambda: pool.step(actions(2)),
        lambda: pool.send(actions(2)),
        pool.recv,
        lambda: pool.call("where"),
        lambda: pool.get_attr("t"),
        lambda: pool.set_attr("t", 1),
        pool.render,
        lambda: pool.reset(env_id=[99]),
    ):
        with pytest.raises(shmenv.ClosedError):
            attempt()
    assert (pool.num_envs, pool.pending, pool.closed) == (2, 0, True)


def test_the_with_block_closes_also_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), shmenv.Pool([ScriptedEnv], context="fork") as pool:
        pool.reset()
        raise ZeroDivisionError
    assert pool.closed


def test_a_pool_closes_with_results_that_nobody_took(make_pool: MakePool) -> None:
    """Covers a shutdown that deadlocks on unread results."""
    pool = make_pool([ScriptedEnv] * 32, num_workers=4)
    pool.reset()
    pool.send(actions(32))
    close_in_time(pool)


def test_a_pool_closes_while_envs_are_in_a_step(make_pool: MakePool, gate: Callable[[int], Gate]) -> None:
    pool = make_pool([partial(ScriptedEnv, gate=gate(i).path) for i in range(2)], num_workers=2)
    pool.reset()
    pool.send(actions(2, {0: "slow"}))
    held = eventually(gate(0).try_hold)
    close_in_time(pool)
    os.close(held)


@pytest.mark.parametrize("fault", ["hang", "hang_native"])
def test_a_pool_closes_though_an_env_is_stuck(make_pool: MakePool, context: str, fault: str) -> None:
    """Covers a close that waits for ever for an env that never comes back."""
    pool = make_pool([ScriptedEnv] * 3, num_workers=3, context=context, close_timeout=0.2)
    pool.reset()
    pool.send(actions(3, {1: fault}))
    assert pool.recv(min_envs=2).env_id.tolist() == [0, 2]
    close_in_time(pool)


def test_close_may_be_told_how_long_the_envs_get(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, close_timeout=1000.0)
    pool.reset()
    pool.send(actions(2, {1: "hang_native"}))
    found = pids(pool)
    for wrong in (-1, "soon", 1e9):
        with pytest.raises(shmenv.UsageError, match="timeout must be seconds"):
            pool.close(wrong)  # type: ignore[arg-type]
    assert not pool.closed
    pool.close(timeout=0)
    assert pool.closed and all(map(is_gone, found))


def test_a_pool_closes_though_its_workers_are_stopped(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, close_timeout=0.2)
    pool.reset()
    for pid in pids(pool):
        os.kill(pid, signal.SIGSTOP)
    close_in_time(pool)


def test_a_pool_closes_after_all_its_workers_died(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    for pid in pids(pool):
        os.kill(pid, signal.SIGKILL)
    close_in_time(pool)


def test_a_pool_closes_after_errors(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=2)
    pool.reset()
    with pytest.raises(shmenv.EnvError):
        pool.step(actions(3, {0: "raise", 2: "raise"}))
    close_in_time(pool)


def test_each_env_is_closed_in_its_worker(make_pool: MakePool, tmp_path: Path, context: str) -> None:
    """Covers envs whose own close is never run."""
    marks = [tmp_path / f"closed{i}" for i in range(4)]
    pool = make_pool([partial(ScriptedEnv, close_mark=str(mark)) for mark in marks], num_workers=2, context=context)
    found = pool.call("pid")
    pool.close()
    assert [int(mark.read_text()) for mark in marks] == list(found)


def test_an_error_in_one_envs_close_hinders_no_other(
    make_pool: MakePool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers errors of an env's close that are lost, or that keep the other envs open."""
    marks = [tmp_path / f"closed{i}" for i in range(3)]
    pool = make_pool(
        [partial(ScriptedEnv, close_mark=str(mark), fail_close=i == 0) for i, mark in enumerate(marks)], num_workers=1
    )
    pool.reset()
    with caplog.at_level(logging.WARNING, "shmenv"):
        pool.close()
    assert all(mark.exists() for mark in marks)
    told = [record.getMessage() for record in caplog.records]
    assert any("env 0" in text and "the window is gone" in text for text in told), told


class UnclosableEnv(ScriptedEnv):
    """Hangs in its close."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def close(self) -> None:
        self.fail(self.fault)


@pytest.mark.parametrize("fault", ["hang", "hang_native", "stop"])
def test_an_env_that_hangs_in_its_close_is_told_with_its_stack(
    make_pool: MakePool, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    pool = make_pool([ScriptedEnv, partial(UnclosableEnv, fault), ScriptedEnv], num_workers=2, close_timeout=0.2)
    pool.reset()
    with caplog.at_level(logging.WARNING, "shmenv"):
        close_in_time(pool)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "in close of env 1" in told
    assert ("in close\n" in told and "test_pool_close.py" in told) if fault != "stop" else "did not print" in told


def test_a_pool_that_is_dropped_ends_its_workers() -> None:
    pool = shmenv.Pool([ScriptedEnv] * 2, context="fork", num_workers=2)
    pool.reset()
    found = pids(pool)
    del pool
    gc.collect()
    eventually(lambda: all(map(is_gone, found)))


def test_a_pool_does_not_travel(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv])
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            attempt(pool)
    assert pool.reset().obs.tolist() == [[0, 0]]


def test_descriptors_come_back_and_are_few(make_pool: MakePool) -> None:
    """Covers descriptors that survive the close while the object is kept."""
    kept = []
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        pool = make_pool([ScriptedEnv] * 16, num_workers=2)
        assert len(os.listdir("/proc/self/fd")) - before < 2 * 16
        pool.close()
        kept.append(pool)
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_pool_that_is_kept_holds_no_shared_memory(make_pool: MakePool) -> None:
    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:shmenv" in line for line in maps)

    before = mappings()
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset()
    assert mappings() > before
    pool.close()
    assert mappings() == before


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("state", ["idle", "pending", "stuck"])
def test_a_program_may_end_without_closing(start_script: Callable[..., Script], method: str, state: str) -> None:
    """Covers noise of destructors at interpreter shutdown, and an exit that hangs."""
    script = start_script(
        f"""
        import shmenv
        from envs import ScriptedEnv, actions

        if __name__ == "__main__":
            pool = shmenv.Pool([ScriptedEnv] * 2, num_workers=2, context="{method}", close_timeout=0.2)
            pool.reset()
            if "{state}" != "idle":
                pool.send(actions(2, {{0: "hang"}} if "{state}" == "stuck" else {{}}))
            print(*[worker["pid"] for worker in pool.stats()["workers"]])
        """
    )
    code, out, errors = script.finish(30)
    assert (code, errors) == (0, "")
    eventually(lambda: all(is_gone(int(pid)) for pid in out.split()))


def test_an_uncaught_error_ends_the_program(start_script: Callable[..., Script]) -> None:
    script = start_script(
        """
        import shmenv
        from envs import ScriptedEnv, actions

        if __name__ == "__main__":
            pool = shmenv.Pool([ScriptedEnv] * 2, num_workers=2)
            pool.reset()
            pool.step(actions(2, {1: "raise"}))
        """
    )
    code, _, errors = script.finish(30)
    assert code == 1
    assert "missing asset" in errors and errors.strip().splitlines()[-1] != ""
    assert "Exception ignored" not in errors


def test_a_call_in_flight_is_dropped_by_close(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    pool.send([act("hang")], env_id=[0])
    close_in_time(pool)
    with pytest.raises(shmenv.ClosedError):
        pool.recv()
