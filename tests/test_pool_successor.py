"""A worker that takes a dead one's place: how long it may take to start, and that nobody waits for that."""

from __future__ import annotations

import errno
import multiprocessing.forkserver
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envs import ScriptedEnv, act
from life import CountedEnv, entries
from support import eventually, is_gone

import shmenv
from shmenv import _memory

MakePool = Callable[..., shmenv.Pool]
OK, HANG, KILL = act("ok"), act("hang"), act("kill")
LIMIT = 0.3  # seconds for a step


@contextmanager
def stopped_server() -> Iterator[Callable[..., None]]:
    """The hook that stops the fork server when a worker is about to be replaced; it goes on at the end."""
    server: Any = multiprocessing.forkserver._forkserver

    def stop(*env_and_reason: object) -> None:
        os.kill(server._forkserver_pid, signal.SIGSTOP)

    try:
        yield stop
    finally:
        os.kill(server._forkserver_pid, signal.SIGCONT)


@pytest.mark.parametrize("script", [{}, {(9, i): "ok" for i in range(100_000)}], ids=["short", "long"])
def test_others_go_on_while_the_fork_server_starts_a_successor(script: Any, make_pool: MakePool) -> None:
    """Covers a pause of all envs until the fork server has told which process it has started; and, where the factories
    are longer than a pipe holds, until that process has imported all it needs.
    """
    with stopped_server() as stop:
        pool = make_pool(
            [partial(ScriptedEnv, script=script)] * 3,
            num_workers=3, context="forkserver", on_error="restart", on_restart=stop,
        )  # fmt: skip
        pool.reset()
        pool.send([KILL, OK, OK])
        t, steps_after = 0, 0
        while steps_after < 20:
            t += 1
            batch = pool.recv(min_envs=2, timeout=20)
            assert batch.env_id.tolist() == [1, 2] and batch.obs[:, 1].tolist() == [t, t]
            pool.send([OK, OK], env_id=[1, 2])
            worker = pool.stats()["workers"][0]
            steps_after += worker["pid"] is None
            assert not (steps_after and worker["alive"])
    while 0 in pool.pending_ids:
        batch = pool.recv(min_envs=1, timeout=20)
    assert batch.info[batch.env_id.tolist().index(0)]["abnormal"]
    pool.send([OK], env_id=[0])
    while pool.pending:
        pool.recv(timeout=20)
    worker = pool.stats()["workers"][0]
    assert worker["alive"] and not is_gone(worker["pid"])


def test_a_pool_may_be_closed_while_the_fork_server_starts_a_successor(
    make_pool: MakePool,
) -> None:
    """The guard of all tests sees that the process ends, of which nobody knew yet."""
    with stopped_server() as stop:
        pool = make_pool([ScriptedEnv] * 2, num_workers=2, context="forkserver", on_restart=stop)
        pool.reset()
        with pytest.raises(shmenv.WorkerDiedError):
            pool.step(np.array([KILL, OK]))
        assert pool.recv().env_id.tolist() == [1]
        pool.send([OK], env_id=[1])  # starts the successor
        assert pool.stats()["workers"][0]["pid"] is None
        pool.close()
        assert pool.closed


def test_a_successor_that_has_ended_before_anybody_looks_is_replaced_in_turn(
    make_pool: MakePool, tmp_path: Path
) -> None:
    """Covers a process that is waited for for ever, for its number is no process's any more."""
    log = str(tmp_path / "log")
    pool = make_pool(
        [partial(CountedEnv, log, constructs=["ok", "exit"]), ScriptedEnv],
        num_workers=2, context="forkserver", on_error="restart",
    )  # fmt: skip
    pool.reset()
    pool.send([KILL, OK])
    assert pool.recv(min_envs=1).env_id.tolist() == [1]

    def death_is_noticed() -> bool:
        noticed = bool(pool.stats()["restarts"])
        pool.send([OK], env_id=[1])  # once more when it is: a call whose answer is in leaves the start to the next
        pool.recv(min_envs=1)
        return noticed

    def second_has_ended() -> bool:
        tried = entries(log, "construct")
        return len(tried) > 1 and is_gone(tried[1]["pid"])

    eventually(death_is_noticed)
    eventually(second_has_ended)
    batch = pool.recv(timeout=20)
    assert batch.env_id.tolist() == [0] and batch.info[0]["abnormal"]
    assert pool.stats()["restarts"] == 2 and len(entries(log, "construct")) == 3


def test_a_successor_that_cannot_be_watched_is_replaced_in_turn(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, context="forkserver", on_error="restart")
    pool.reset()
    hold_of, refused = _memory.pidfd_open, list[int]()

    def refuse_once(pid: int) -> int:
        if refused:
            return hold_of(pid)
        refused.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(_memory, "pidfd_open", refuse_once)
    assert pool.step(np.array([KILL, OK])).info[0]["abnormal"]
    assert pool.stats()["restarts"] == 2 and is_gone(refused[0])
    assert pool.step(np.array([OK, OK])).obs[:, 1].tolist() == [1, 2]


def test_a_successor_may_take_longer_to_start_than_a_step_may_take(make_pool: Callable[..., shmenv.Pool]) -> None:
    pool = make_pool(
        [ScriptedEnv] * 2,
        num_workers=2,
        worker_init=lambda worker_id: time.sleep(4 * LIMIT),
        step_timeout=LIMIT,
        reset_timeout=LIMIT,
        on_error="restart",
    )
    pool.reset()
    for _ in range(3):
        pool.step(np.array([OK, OK]))
    batch = pool.step(np.array([HANG, OK]))
    assert "step_timeout" in batch.info[0]["error"]
    assert pool.step(np.array([OK, OK])).obs[0].tolist() == [0.0, 1.0]
    stats = pool.stats()
    assert (stats["timeouts"], stats["restarts"]) == (1, 1)
