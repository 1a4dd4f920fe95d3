"""Workers killed at random while envs are stepped as they come: nothing is lost, nothing comes twice, all in order."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from reference import MODES

import shmenv

MakePool = Callable[..., shmenv.Pool]
SECONDS = float(os.environ.get("SHMENV_STRESS_SECONDS", "20"))
N = 8


class LedgerEnv(gymnasium.Env[Any, Any]):
    """obs = [the action, which step of its episode it is]; [-1, 0] after a reset. An episode has seven steps."""

    def __init__(self) -> None:
        self.observation_space = Box(-1, 2**60, (2,), np.int64)
        self.action_space = Discrete(2**60)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return np.array([-1, 0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return np.array([action, self.count]), float(self.count), self.count == 7, False, {"token": int(action)}


@contextmanager
def kills(pool: shmenv.Pool, rng: random.Random, pause: float) -> Iterator[list[float]]:
    """A worker is killed every now and then, at the latest after `pause` seconds; the list is when."""
    times: list[float] = []
    over = threading.Event()

    def kill() -> None:
        while not over.wait(rng.uniform(0, pause)):
            worker = rng.choice(pool.stats()["workers"])
            if worker["alive"]:
                times.append(time.monotonic())
                try:
                    os.kill(worker["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    continue

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield times
    finally:
        over.set()
        thread.join()


class Storm:
    """Steps the envs as they come, and keeps account of each command."""

    def __init__(self, pool: shmenv.Pool, mode: str, rng: random.Random) -> None:
        self.pool, self.mode, self.rng = pool, mode, rng
        self.token = 0
        self.last = {i: [-1, 0] for i in range(N)}  # observation delivered last
        self.over = dict.fromkeys(range(N), False)  # its episode
        self.asked: dict[int, int | None] = {}  # token of the step, None of the reset, that env owes
        self.to_reset: set[int] = set()
        self.told: set[int] = set()  # named by an error, while what they owed was there: it comes, and they are lost
        self.answered, self.lost, self.reported = 0, 0, 0
        self.unreset: set[int] = set()  # the last row of their episode has come, but no reset after it
        self.ends: deque[int | None] = deque(maxlen=200)  # of workers whose end was told; pids come again

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            idle = [i for i in range(N) if i not in self.asked]
            for i in self.rng.sample(idle, self.rng.randint(0 if self.asked else 1, len(idle))):
                self.ask(i)
            if self.pool.pending:
                self.take(self.rng.randint(1, self.pool.pending))
        while self.pool.pending:
            self.take(1)
        assert not self.asked

    def ask(self, i: int) -> None:
        self.token += 1
        try:
            if i in self.to_reset:
                self.pool.send_reset(env_id=[i])
                self.asked[i] = None
            else:
                self.pool.send([self.token], env_id=[i])
                assert i not in self.unreset
                self.asked[i] = self.token
        except shmenv.WorkerDiedError as error:  # nothing was sent: it, or another env of its worker, is lost
            assert i in error.env_ids
            self.settle(error)

    def take(self, need: int) -> None:
        owed = self.pool.pending
        try:
            batch = self.pool.recv(min_envs=min(need, len(self.pool.pending_ids) or 1), timeout=30)
        except shmenv.WorkerDiedError as error:
            self.settle(error)
            assert self.pool.pending < owed, "an error that reports nothing"
            return
        for k, i in enumerate(batch.env_id.tolist()):
            self.check(i, batch, k)

    def settle(self, error: shmenv.WorkerDiedError) -> None:
        """What an error names is either still pending, or will never come: by its end, or by its successor's.

        It is told once: whatever it names needs a reset, at the latest once the answer that is there has come.
        """
        assert error.pid not in self.ends
        self.ends.append(error.pid)
        owed = set(self.pool.pending_ids)
        gone = {i for i in error.env_ids if i in self.asked and i not in owed}
        self.reported += len(gone)
        for i in gone:
            del self.asked[i]
        for i in error.env_ids:
            if i in self.asked:
                self.told.add(i)
            elif i in gone or not (self.mode == "next_step" and self.over[i]):  # else its next step resets it anyway
                self.to_reset.add(i)
            self.unreset.discard(i)

    def check(self, i: int, batch: shmenv.Batch, k: int) -> None:
        token = self.asked.pop(i)  # a KeyError: an answer that nobody asked for
        obs, final = batch.obs[k].tolist(), batch.final_obs[k].tolist()
        ended = bool(batch.terminated[k] or batch.truncated[k])
        if "abnormal" in batch.info[k]:
            assert token is not None and batch.truncated[k] and batch.reward[k] == 0
            assert final == self.last[i]
            assert obs == ([-1, 0] if self.mode == "same_step" else self.last[i])
            self.lost += 1
        elif token is None or (self.mode == "next_step" and self.over[i]):
            assert obs == [-1, 0] and batch.reward[k] == 0 and not ended
            self.to_reset.discard(i)
        else:
            played = [token, self.last[i][1] + 1]
            assert (final if ended else obs) == played and batch.reward[k] == played[1]
            assert ended == (played[1] == 7)
            if ended and self.mode == "same_step" and obs != [-1, 0]:  # two workers have ended in its reset
                assert obs == final
                self.unreset |= {i} - self.told
            info = batch.final_info[k] if ended else batch.info[k]
            assert info["token"] == token
        self.answered += 1
        self.last[i], self.over[i] = obs, ended
        if (ended and self.mode == "disabled") or (i in self.told and not (ended and self.mode == "next_step")):
            self.to_reset.add(i)
        self.told.discard(i)

    def check_losses(self, policy: str) -> dict[str, Any]:
        """What the pool counts as lost is what was told, by rows or by errors as the policy says. Its counters."""
        stats = self.pool.stats()
        assert stats["losses"] == self.lost
        assert self.reported == 0 if policy == "restart" else self.lost == 0
        return stats


def storm(
    make_pool: MakePool, mode: str, policy: str, num_workers: int, until: Callable[[Storm, list[float]], bool]
) -> Storm:
    rng = random.Random(f"{mode} {policy} {num_workers}")
    pool = make_pool(
        [LedgerEnv] * N, num_workers=num_workers, autoreset=mode, on_error=policy, restart_period=0.0, max_restarts=1000
    )
    pool.reset()
    run = Storm(pool, mode, rng)
    with kills(pool, rng, 0.03) as times:
        run.run(lambda: until(run, times))
    stats = run.check_losses(policy)
    assert stats["heartbeats"] < 20
    assert len(times) >= stats["restarts"] > 0
    return run


@pytest.mark.parametrize("num_workers", [8, 3])
@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("mode", MODES)
def test_each_command_is_answered_or_reported_once_and_in_order_while_workers_are_killed(
    mode: str, policy: str, num_workers: int, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "shmenv")
    run = storm(make_pool, mode, policy, num_workers, lambda run, times: len(times) >= 25 and run.answered > 100)
    assert run.lost + run.reported > 0


@pytest.mark.stress
@pytest.mark.parametrize("num_workers", [8, 3])
@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("mode", MODES)
def test_the_same_for_longer(
    mode: str, policy: str, num_workers: int, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "shmenv")
    end = time.monotonic() + SECONDS
    run = storm(make_pool, mode, policy, num_workers, lambda run, times: time.monotonic() > end)
    print(
        f"\n{mode}, {policy}, {num_workers} workers: {run.answered} answers, {run.lost} lost, {run.reported} reported"
    )


class ClockEnv(gymnasium.Env[Any, Any]):
    """A step of 2 ms, and the time at its end as observation. May have a child that holds all pipes of its worker."""

    observation_space = Box(0, np.inf, (1,), np.float64)
    action_space = Discrete(2)

    def __init__(self, has_child: bool) -> None:
        if has_child and os.fork() == 0:
            while True:
                signal.pause()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.002)
        return np.array([time.monotonic()]), 0.0, False, False, {}


@pytest.mark.stress
@pytest.mark.parametrize(("method", "count"), [("fork", 200), ("spawn", 40), ("forkserver", 200)])
def test_a_death_is_noticed_within_100_ms_and_the_others_do_not_pause_for_the_replacement(
    method: str, count: int, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """Prints, over all kills: kill to notice; and how long answers of other envs lay there before they were fetched."""
    caplog.set_level(logging.CRITICAL, "shmenv")
    killed_at, noticed, notices = 0.0, threading.Event(), list[float]()
    back = threading.Event()  # the successor has answered: its env has a child by now

    def hook(env_id: int, reason: str) -> None:
        notices.append(time.monotonic() - killed_at)
        noticed.set()

    pool = make_pool(
        [partial(ClockEnv, i == 0) for i in range(6)], num_workers=6, context=method, on_error="restart",
        on_restart=hook, restart_period=0.0, max_restarts=1000,
    )  # fmt: skip
    pool.reset()
    over = threading.Event()

    def kill() -> None:
        nonlocal killed_at
        rng = random.Random(0)
        while len(notices) < count and back.wait(20):
            time.sleep(rng.uniform(0.03, 0.06))
            noticed.clear()
            back.clear()
            killed_at = time.monotonic()
            os.kill(pool.stats()["workers"][0]["pid"], signal.SIGKILL)
            if not noticed.wait(20):
                break
        over.set()

    thread = threading.Thread(target=kill)
    thread.start()
    pauses: list[tuple[float, float]] = []  # when, seconds that an answer of another env lay there
    deaths: list[float] = []
    pool.send([0] * 6)
    while not over.is_set():
        batch = pool.recv(min_envs=1, timeout=30)
        now = time.monotonic()
        for k, i in enumerate(batch.env_id.tolist()):
            if i:
                pauses.append((now, now - float(batch.obs[k, 0])))
            elif batch.obs[k, 0] > killed_at:
                back.set()
        if len(deaths) < len(notices):
            deaths.append(now)
        pool.send([0] * len(batch), batch.env_id)
    thread.join()
    assert len(notices) == count
    near = [pause for when, pause in pauses if any(abs(when - death) < 0.05 for death in deaths[-count:])]
    for what, seconds in (
        ("kill to notice", notices),
        ("answers of other envs fetched after", [pause for _, pause in pauses]),
        ("the same within 50 ms of a replacement", near),
    ):
        middle, high, worst = np.percentile(seconds, [50, 99, 100]) * 1e3
        print(
            f"\n{method}, {what}, ms: median {middle:.2f}, 99 % {high:.2f}, worst {worst:.2f} of {len(seconds)}", end=""
        )
    assert np.percentile(notices, 99) < 1.0  # ten times what is promised
