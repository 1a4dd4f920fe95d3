"""A pool whose first worker is asked before the others are started."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import psutil
import pytest
from envs import ScriptedEnv
from support import is_gone

import shmenv

MakePool = Callable[..., shmenv.Pool]


def test_a_deferred_pool_asks_its_first_env_and_keeps_it(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=3, deferred=True)
    pid = pool.ask_first("pid")
    workers = [child.pid for child in psutil.Process().children() if child.pid == pid]
    assert pool.closed and workers == [pid] and pool.ask_first("add", 1, second=2) == 3
    with pytest.raises(shmenv.EnvError, match="missing asset") as caught:
        pool.ask_first("fail")
    assert caught.value.env_id == 0 and caught.value.command == "call"
    for refused in (pool.reset, lambda: pool.call("pid")):
        with pytest.raises(shmenv.ClosedError):
            refused()
    pool.start()
    assert pool.call("pid")[0] == pid and len(set(pool.call("pid"))) == 3 and len(pool.reset()) == 3
    for late in (pool.start, partial(pool.ask_first, "pid")):
        with pytest.raises(shmenv.UsageError, match="was started"):
            late()


def test_a_deferred_pool_that_is_never_started_is_closed_as_any_other(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3, deferred=True)
    pid = pool.ask_first("pid")
    pool.close()
    pool.close()
    assert pool.closed and is_gone(pid)
    with pytest.raises(shmenv.UsageError):
        pool.start()


def test_a_constructor_that_fails_late_leaves_nothing_behind(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv, partial(ScriptedEnv, at_start="raise")], num_workers=2, deferred=True)
    pid = pool.ask_first("pid")
    with pytest.raises(shmenv.EnvError, match="constructor of env 1"):
        pool.start()
    assert pool.closed and is_gone(pid)
