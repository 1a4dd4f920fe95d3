"""Envs that fail in every way, workers killed and stopped from outside: the ledger of commands stays right.

Each command of each env is delivered once or reported once, in order, whatever dies when. Run by `make stress`; a
short version by `make test`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from reference import MODES
from test_life_storm import LedgerEnv, N, Storm

import shmenv

MakePool = Callable[..., shmenv.Pool]
KILLS = int(os.environ.get("SHMENV_STRESS_KILLS", "2000"))


def out_of_memory() -> None:
    """No more address space than there is in use, as an env that has filled its memory limit has."""
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
    bytearray(1 << 28)


def unknown() -> None:
    raise LookupError("no such thing")


FAULTS: tuple[Callable[[], object], ...] = (
    lambda: os.kill(os.getpid(), signal.SIGKILL),
    lambda: os.kill(os.getpid(), signal.SIGSEGV),
    os.abort,
    lambda: os._exit(3),
    lambda: sys.exit(4),
    lambda: exec("raise KeyboardInterrupt"),
    out_of_memory,
    unknown,
)


class FaultyLedgerEnv(LedgerEnv):
    """Keeps the ledger, and fails in one step of sixty, in a way that its action chooses."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        choice, fault = divmod(int(action) * 2654435761 % 2**32 >> 8, len(FAULTS))
        if choice % 60 == 0:
            FAULTS[fault]()
        return super().step(action)


class FaultStorm(Storm):
    """A storm in which envs raise too, and which may be stepped all together."""

    def take(self, need: int) -> None:
        try:
            super().take(need)
        except shmenv.EnvError as error:
            self.settle_one(error)

    def settle_one(self, error: shmenv.EnvError) -> None:
        """Its env answers what it owes by this, and needs a reset."""
        del self.asked[error.env_id]
        self.reported += 1
        self.to_reset.add(error.env_id)
        self.told.discard(error.env_id)

    def step_all(self) -> None:
        """One lock-step of all, once those are reset that need it."""
        while self.to_reset or self.asked:
            for i in sorted(self.to_reset - self.asked.keys()):
                self.ask(i)
            if self.pool.pending:
                self.take(1)
        tokens = range(self.token + 1, self.token + 1 + N)
        self.token += N
        self.asked = dict(enumerate(tokens))
        try:
            batch = self.pool.step(np.array(tokens))
        except shmenv.EnvError as error:
            self.settle_one(error)
        except shmenv.WorkerDiedError as error:
            if not self.pool.pending:  # told before anything was sent, or of all envs: the others owe nothing
                self.asked = {i: token for i, token in self.asked.items() if i in error.env_ids}
            self.settle(error)
        else:
            assert batch.env_id.tolist() == list(range(N))
            for i in range(N):
                self.check(i, batch, i)
        while self.pool.pending:
            self.take(1)
        assert not self.asked


@contextlib.contextmanager
def disturbances(
    pool: shmenv.Pool, rng: random.Random, pause: float, worker_ids: Sequence[int]
) -> Iterator[dict[str, int]]:
    """Every now and then one of these workers is killed, or stopped for some milliseconds; the dict counts both."""
    counts, over = {"kills": 0, "stops": 0}, threading.Event()

    def disturb() -> None:
        while not over.wait(rng.uniform(0, pause)):
            worker = pool.stats()["workers"][rng.choice(worker_ids)]
            if not worker["alive"]:
                continue
            with contextlib.suppress(ProcessLookupError):
                if rng.random() < 0.8:
                    os.kill(worker["pid"], signal.SIGKILL)
                    counts["kills"] += 1
                else:
                    os.kill(worker["pid"], signal.SIGSTOP)
                    over.wait(rng.uniform(0, 0.02))
                    os.kill(worker["pid"], signal.SIGCONT)
                    counts["stops"] += 1

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield counts
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def load(programs: int) -> Iterator[None]:
    """So many programs compute meanwhile, as fast as they can."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def fault_storm(make_pool: MakePool, mode: str, policy: str, num_workers: int, lock_step: bool, kills: int) -> str:
    rng = random.Random(f"{mode} {policy} {num_workers} {lock_step}")
    pool = make_pool(
        [FaultyLedgerEnv] * N, num_workers=num_workers, autoreset=mode, on_error=policy, restart_period=0.0,
        max_restarts=10**6,
    )  # fmt: skip
    pool.reset()
    run = FaultStorm(pool, mode, rng)
    with disturbances(pool, rng, 0.16 / num_workers, range(num_workers)) as counts:
        if lock_step:
            while counts["kills"] < kills:
                run.step_all()
        else:
            run.run(lambda: counts["kills"] >= kills)
    stats = run.check_losses(policy)
    assert stats["heartbeats"] < 20 + stats["restarts"] // 10
    assert run.answered > kills and run.lost + run.reported > 0
    pool.close()
    return (
        f"{counts['kills']} kills, {counts['stops']} stops, {stats['restarts']} workers replaced: {run.answered} "
        f"answers, {run.lost} lost, {run.reported} reported"
    )


@pytest.mark.parametrize(("mode", "policy", "num_workers", "lock_step"), [
    ("same_step", "raise", 3, True), ("same_step", "restart", 8, False), ("disabled", "raise", 8, True),
    ("next_step", "restart", 3, False), ("next_step", "raise", 1, False),
])  # fmt: skip
def test_each_command_is_delivered_or_reported_once_whatever_fails(
    mode: str, policy: str, num_workers: int, lock_step: bool, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "shmenv")
    fault_storm(make_pool, mode, policy, num_workers, lock_step, kills=10)


@pytest.mark.stress
@pytest.mark.parametrize("lock_step", [True, False], ids=["lock-step", "first-k"])
@pytest.mark.parametrize("num_workers", [8, 3, 1])
@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("mode", MODES)
def test_the_same_with_thousands_of_kills(
    mode: str, policy: str, num_workers: int, lock_step: bool, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """Three workers also have two other programs to compete with."""
    caplog.set_level(logging.CRITICAL, "shmenv")
    with load(2 if num_workers == 3 else 0):
        told = fault_storm(make_pool, mode, policy, num_workers, lock_step, kills=KILLS // 36 + 1)
    print(f"\n{mode}, {policy}, {num_workers} workers, {'lock-step' if lock_step else 'first-k'}: {told}", end="")
