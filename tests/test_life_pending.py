"""What else may be asked while a worker is being replaced or a reset waits for its next attempt; and odd pools."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import NAMES, ScriptedEnv, act, actions
from gymnasium.spaces import Box, Dict, Discrete, Text
from life import CountedEnv, entries
from support import eventually

import shmenv
from shmenv.exchange import Exchange

MakePool = Callable[..., shmenv.Pool]
KILL = act("kill")


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


@contextmanager
def slow_successor(make_pool: MakePool, log: str, **options: Any) -> Iterator[tuple[shmenv.Pool, Callable[[], None]]]:
    """A pool of two workers; the first is killed in a step, its successor stands at a door in its constructor."""
    door = log + ".door"

    class SlowEnv(CountedEnv):
        def __init__(self) -> None:
            super().__init__(log)
            if len(entries(log, "construct")) > 1:
                while not os.path.exists(door):
                    time.sleep(0.005)

    pool = make_pool([SlowEnv, ScriptedEnv], num_workers=2, **options)
    pool.reset()
    pool.send(np.array([KILL, 0]))

    def let_in() -> None:
        open(door, "a").close()

    try:
        yield pool, let_in
    finally:
        let_in()


def others_first(pool: shmenv.Pool) -> None:
    """Until the death is noticed; the other env's row comes meanwhile."""
    deadline = time.monotonic() + 30
    rows = 0
    while not pool.stats()["restarts"]:
        assert time.monotonic() < deadline
        try:
            rows += len(pool.recv(timeout=0.01))
        except shmenv.RecvTimeoutError:
            pass
        except shmenv.WorkerDiedError:
            break
    if not rows:
        pool.recv(min_envs=1)


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_other_envs_are_stepped_called_and_reset_while_a_worker_is_being_replaced(
    policy: str, make_pool: MakePool, log: str
) -> None:
    with slow_successor(make_pool, log, on_error=policy) as (pool, let_in):
        others_first(pool)
        for t in range(2, 6):
            pool.send([0], env_id=[1])
            assert pool.recv(min_envs=1).obs.tolist() == [[0, t]]
        assert pool.call("where", env_id=[1]) == ((0, 5),)
        assert pool.reset(env_id=[1]).obs.tolist() == [[1, 0]]
        assert pool.pending == (policy == "restart")
        let_in()
        if policy == "restart":
            assert pool.recv().info[0]["abnormal"]
        else:
            pool.reset(env_id=[0])
        assert pool.step(actions(2)).obs.tolist() == [[0, 1], [1, 1]]


def test_a_whole_reset_waits_for_the_successor_and_discards_its_row(make_pool: MakePool, log: str) -> None:
    with slow_successor(make_pool, log, on_error="restart") as (pool, let_in):
        others_first(pool)
        threading.Timer(0.1, let_in).start()
        assert pool.reset(seed=9).obs[:, 1].tolist() == [0, 0]
        assert pool.pending == 0 and entries(log, "reset")[-1]["seed"] == 9
        assert pool.step(actions(2)).obs[:, 1].tolist() == [1, 1]
    assert pool.stats()["losses"] == 1


def test_a_call_to_an_env_that_is_being_replaced_waits_for_it(make_pool: MakePool, log: str) -> None:
    with slow_successor(make_pool, log, on_error="restart") as (pool, let_in):
        others_first(pool)
        threading.Timer(0.1, let_in).start()
        assert pool.call("where") == ((0, 0), (0, 1))
        assert pool.recv().final_obs.tolist() == [[0, 0]]


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_close_does_not_wait_for_a_successor(policy: str, make_pool: MakePool, log: str) -> None:
    with slow_successor(make_pool, log, on_error=policy, close_timeout=0.2) as (pool, _):
        others_first(pool)
        begin = time.monotonic()
        pool.close()
        assert time.monotonic() - begin < 10


def test_close_from_another_thread_ends_a_wait_for_a_successor(make_pool: MakePool, log: str) -> None:
    with slow_successor(make_pool, log, on_error="restart", close_timeout=0.2) as (pool, _):
        others_first(pool)
        timer = threading.Timer(0.1, pool.close)
        timer.start()
        with pytest.raises(shmenv.ClosedError):
            pool.recv()
        timer.join()


def test_close_during_the_wait_for_a_restart_that_is_held_back_starts_nobody(make_pool: MakePool) -> None:
    pool = make_pool([partial(ScriptedEnv, script={(0, 0): "kill"})], max_restarts=50, on_error="restart")
    pool.send_reset()
    with pytest.raises(shmenv.RecvTimeoutError):
        pool.recv(timeout=0.6)
    assert 2 <= pool.stats()["restarts"] <= 6  # at once, then after 0.1 s, 0.2 s, 0.4 s
    pool.close()
    assert not any(worker["alive"] for worker in pool.stats()["workers"])


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_ctrl_c_while_a_worker_is_replaced_loses_nothing(policy: str, make_pool: MakePool, log: str) -> None:
    with slow_successor(make_pool, log, on_error=policy) as (pool, let_in):
        others_first(pool)
        if policy == "raise":
            pool.send_reset(env_id=[0])
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pool.recv()
        timer.join()
        assert pool.pending == 1
        let_in()
        assert pool.recv().obs.tolist() == [[0, 0]]
        assert pool.step(actions(2)).obs.tolist() == [[0, 1], [0, 2]]


def test_ctrl_c_at_any_moment_of_a_death_loses_no_answer(make_pool: MakePool) -> None:
    """Covers a death that is noticed and never sorted out, since the signal came in between."""
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, on_error="restart", max_restarts=9, restart_period=0.0)
    pool.reset()

    def drain() -> None:
        while pool.pending or timer.is_alive():
            if pool.pending:
                pool.recv(min_envs=1, timeout=20)

    interrupts = 0
    for k in range(25):
        timer = threading.Timer(k * 0.0003, os.kill, (os.getpid(), signal.SIGINT))
        pool.send(np.array([KILL, 0]))
        try:
            timer.start()
            drain()
        except KeyboardInterrupt:
            interrupts += 1
        drain()
        assert pool.pending == 0
    assert interrupts == 25 and pool.stats()["losses"] == 25
    assert pool.call("where") == ((0, 0), (0, 25))


def test_send_reset_of_a_lost_env_is_answered_by_its_successor(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    pool.send(np.array([KILL, 0]))
    seen: list[int] = []
    while pool.pending:
        try:
            seen += pool.recv(min_envs=1).env_id.tolist()
        except shmenv.WorkerDiedError as error:
            assert error.env_ids == (0,)
            pool.send_reset(env_id=[0])
    assert sorted(seen) == [0, 1]


@pytest.mark.parametrize("options", [{"copy": True}, {"debug": True}, {"slots": 4}, {"slots": 4, "debug": True}, {}])
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_a_loss_row_is_right_in_every_kind_of_batch_and_views_stay_valid_as_long(
    mode: str, options: dict[str, Any], make_pool: MakePool
) -> None:
    slots = options.get("slots", 2)
    pool = make_pool([ScriptedEnv] * 3, num_workers=3, on_error="restart", autoreset=mode, max_restarts=50, **options)
    last, t = pool.reset().copy(), 0
    held: list[tuple[shmenv.Batch, Any]] = []
    for k in range(9):
        batch = pool.step(actions(3, {k % 3: "kill"} if k % 2 else None))
        assert not options.get("copy") or not batch.is_view
        held = [(view, obs) for view, obs in held[-slots:] if view.valid()]
        for view, obs in held:
            assert view.obs.tolist() == obs
        if mode == "same_step" or not k % 2:
            t += 1
        if k % 2:
            lost = k % 3
            assert batch.final_obs[lost].tolist() == last.obs[lost].tolist()
            assert batch.obs[lost].tolist() == ([0, 0] if mode == "same_step" else last.obs[lost].tolist())
            assert batch.reward[lost] == 0 and batch.truncated[lost] and batch.info[lost]["abnormal"]
        held.append((batch, batch.obs.tolist()))
        last = batch.copy()
    assert pool.stats()["losses"] == 4


def test_a_loss_row_fills_out_too(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, on_error="restart")
    out = pool.reset().copy()
    pool.step(actions(2))
    pool.send(actions(2, {1: "kill"}))
    batch = pool.recv(out=out)
    assert batch is out
    assert batch.obs.tolist() == [[0, 2], [0, 0]] and batch.reward.tolist() == [2, 0]
    assert batch.final_obs[1].tolist() == [0, 1] and batch.info[1]["abnormal"] and not batch.info[0]


class TextEnv(gymnasium.Env[Any, Any]):
    """Its observations have a leaf that fits no array."""

    def __init__(self) -> None:
        self.observation_space = Dict({"where": Box(0, 1e9, (1,), np.float32), "name": Text(20)})
        self.action_space = Discrete(len(NAMES))
        self.scripted = ScriptedEnv()

    def _obs(self) -> dict[str, Any]:
        t = self.scripted.t
        return {"where": np.array([t], np.float32), "name": f"at{t}" * (t % 4 + 1)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.scripted.reset()
        return self._obs(), {"big": "x" * 3000}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.scripted.step(action)
        return self._obs(), 1.0, False, False, {}


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("fault", ["kill", "raise"])
def test_a_loss_row_has_the_last_observation_also_where_it_fits_no_array(
    fault: str, mode: str, shared_memory: bool, make_pool: MakePool
) -> None:
    pool = make_pool([TextEnv] * 2, num_workers=2, on_error="restart", autoreset=mode, shared_memory=shared_memory)

    def at(obs: Any, k: int) -> tuple[float, str]:
        if not shared_memory:
            obs, k = obs[k], 0
            return float(obs["where"][0]), obs["name"]
        return float(obs["where"][k, 0]), obs["name"][k]

    pool.reset()
    pool.step(actions(2))
    batch = pool.step(actions(2, {1: fault}))
    assert at(batch.obs, 0) == (2, "at2at2at2")
    assert at(batch.final_obs, 1) == (1, "at1at1")
    assert at(batch.obs, 1) == ((0, "at0") if mode == "same_step" else (1, "at1at1"))
    assert batch.info[1]["abnormal"] and ("big" in batch.info[1]) == (mode == "same_step")
    if mode == "disabled":
        pool.reset(env_id=[1])
    if mode == "next_step":
        assert at(pool.step(actions(2)).obs, 1) == (0, "at0")
    assert at(pool.step(actions(2)).obs, 1) == (1, "at1at1")


def test_a_wait_for_more_than_can_still_come_ends_with_what_is_lost(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=4, batch_size=3, max_restarts=0)
    pool.reset()
    pool.send(actions(4, {0: "kill", 2: "exit"}))
    lost = []
    for _ in range(2):
        with pytest.raises(shmenv.WorkerDiedError, match="lost for good") as caught:
            pool.recv()
        lost.append(caught.value.worker_id)
    assert sorted(lost) == [0, 2]
    assert pool.recv().env_id.tolist() == [1, 3]
    with pytest.raises(shmenv.UsageError):
        pool.recv()


def test_losing_all_envs_again_and_again_leaves_a_pool_that_works(make_pool: MakePool, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL, "shmenv")
    pool = make_pool([ScriptedEnv] * 3, num_workers=3, on_error="restart", max_restarts=99, restart_period=0.01)
    pool.reset()
    for _ in range(6):
        batch = pool.step(np.array([KILL] * 3))
        assert batch.truncated.all() and batch.obs.tolist() == [[0, 0]] * 3
        for worker in pool.stats()["workers"]:
            os.kill(worker["pid"], signal.SIGKILL)
        eventually(lambda: not any(worker["alive"] for worker in pool.stats()["workers"]))
        assert pool.step(actions(3)).truncated.all()
        assert pool.step(actions(3)).obs.tolist() == [[0, 1]] * 3
    assert pool.stats()["losses"] == 36


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_step_whose_number_wraps_to_zero_is_lost_like_any_other(
    before: int, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers a mark that was never set taken for the first half of an autoreset."""
    monkeypatch.setattr(Exchange, "first_command", 2**32 - 1 - before)
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, on_error="restart")
    pool.reset()
    for _ in range(3):
        batch = pool.step(np.array([KILL, 0]))
        assert batch.info[0]["abnormal"] and batch.truncated.tolist() == [True, False]
        assert batch.reward[0] == 0 and batch.final_obs[0].tolist() == [0, 0]
