"""An env whose process writes where it should not, over its own row, words and counters: others must not suffer."""

from __future__ import annotations

import gc
import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete, Text
from life import assert_same, one_row
from reference import Loop
from seeded import WalkEnv
from support import eventually

import shmenv
from shmenv.worker import Worker

MakePool = Callable[..., shmenv.Pool]
N, SEED = 4, 5


class Scribbler:
    """What env 0's worker may write to in shared memory, as found from inside its process."""

    def __init__(self) -> None:
        (self.worker,) = [thing for thing in gc.get_objects() if type(thing) is Worker]
        self.plan, self.buffer = self.worker._plan, self.worker._setup.segment.buffer
        self.rng = random.Random(0)

    def array(self, name: str) -> np.ndarray[Any, Any]:
        return self.plan.array(name, self.buffer) if name in self.plan.layout else np.zeros((1, N), np.uint32)

    def spoil(self, array: np.ndarray[Any, Any]) -> None:
        array[...] = np.frombuffer(self.rng.randbytes(array.nbytes), array.dtype).reshape(array.shape)

    def rsp(self) -> None:
        self.array("rsp/0")[...] += 5

    def ended(self) -> None:
        self.spoil(self.array("ended/0"))

    def counters(self) -> None:
        self.spoil(self.array("worker/0")[128:])  # the second line is the worker's

    def phase(self) -> None:
        self.array("worker/0").view(np.uint64)[17] |= 15  # of `doing`: there are six

    def flags(self) -> None:
        self.array("flags")[:, 0] = self.rng.getrandbits(32)

    def error_flag(self) -> None:
        self.array("flags")[:, 0] |= 1

    def heads(self) -> None:
        for name in ("flags", "heads", "final_heads"):
            self.array(name)[:, 0] = self.rng.getrandbits(32)

    def row(self) -> None:
        for name in ("reward", "terminated", "truncated", "notes", "final_notes", "obs/0"):
            self.spoil(self.array(name)[:, 0])


WAYS = ("rsp", "ended", "counters", "phase", "flags", "error_flag", "heads", "row")


class ScribblingEnv(WalkEnv):
    """A walk like any other, while a thread of its process scribbles."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.thread = way, threading.Thread(target=self.scribble, daemon=True)

    def step(self, action: Any) -> Any:
        if self.thread.ident is None:
            self.thread.start()
        return super().step(action)

    def scribble(self) -> None:
        write = getattr(Scribbler(), self.way)
        while True:
            write()
            time.sleep(0.0002)


@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("mode", ["same_step", "disabled"])
@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_scribbles_over_its_own_memory_harms_no_other_env(
    way: str, mode: str, policy: str, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """What becomes of the scribbler's own env is anybody's guess, but it is a row or an error of those there are."""
    caplog.set_level(logging.CRITICAL, "shmenv")
    envs = [partial(ScribblingEnv, way), *[WalkEnv] * (N - 1)]
    pool = make_pool(envs, num_workers=N, autoreset=mode, on_error=policy, step_timeout=2.0, restart_period=0.0)
    loop = Loop([WalkEnv] * N, mode)
    rng = random.Random(way)
    first, wanted = pool.reset(seed=SEED), loop.reset({i: SEED + i for i in range(N)})
    assert all((first.obs[i] == wanted[i].obs).all() for i in range(1, N))
    counts, asked = [0] * N, dict[int, int]()
    end = time.monotonic() + 10
    while min(counts[1:]) < 100 or (counts[0] < 100 and time.monotonic() < end):
        try:
            for i in set(range(N)) - set(pool.pending_ids):
                if i in pool.needs_reset_ids:
                    pool.send_reset(env_id=[i])
                    asked[i] = -1
                else:
                    asked[i] = rng.randrange(4)
                    pool.send([asked[i]], env_id=[i])
            batch = pool.recv(min_envs=1, timeout=30)
            pool.stats()
        except (shmenv.EnvError, shmenv.WorkerDiedError, shmenv.WorkerTimeoutError) as error:
            assert (error.env_id if isinstance(error, shmenv.EnvError) else error.env_ids) in (0, (0,)), error
            counts[0] += 1
            continue
        for k, i in enumerate(batch.env_id.tolist()):
            counts[i] += 1
            if i:
                row = loop.reset(env_id=[i])[i] if asked[i] < 0 else loop.step({i: asked[i]})[i]
                assert_same(one_row(batch, k), row, f"env {i}")


@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("amid_others", [False, True])
def test_a_worker_whose_answer_is_taken_back_is_found_out_without_any_timeout(
    amid_others: bool, policy: str, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers a recv that would wait for ever, and an env that would starve because others are always at hand."""
    caplog.set_level(logging.CRITICAL, "shmenv")
    pool = make_pool([WalkEnv] * 2, num_workers=2, on_error=policy)
    pool.reset(seed=SEED)  # with which no episode ends at once
    answers = pool._plan.array("rsp/0", pool._exchange.buffer)
    pool.send([0], env_id=[0])
    eventually(lambda: pool._exchange.port.is_answered(0))
    answers -= 1
    told, end = "", time.monotonic() + 30
    while not told:
        assert time.monotonic() < end
        if amid_others and pool.pending == 1:
            pool.send([0], env_id=[1])
        try:
            batch = pool.recv(min_envs=1)
        except shmenv.WorkerDiedError as error:
            assert error.env_ids == (0,) and policy == "raise"
            told = str(error)
        else:
            told = "".join(batch.info[k]["error"] for k in range(len(batch)) if batch.env_id[k] == 0)
    assert "its answer of env 0 was taken back" in told
    while pool.pending:
        assert pool.recv(min_envs=1).env_id.tolist() == [1]
    pool.reset()
    assert len(pool.step(np.zeros(2, int))) == 2 and pool.stats()["restarts"] == 1


class UnreadableEnv(gymnasium.Env[Any, Any]):
    """An observation, and a call's result, of a class that only the worker can make."""

    observation_space = Text(5)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return "hello", {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return Stranger() if action else "hello", 1.0, False, False, {}

    def stranger(self) -> Any:
        return Stranger()


class Stranger:
    """Pickles, but refuses to be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> Stranger:
    raise LookupError("unknown here")


def test_an_observation_that_cannot_be_unpickled_here_is_that_envs_error(make_pool: MakePool) -> None:
    """Covers a pool of which every call raises from then on."""
    pool = make_pool([UnreadableEnv] * 3, num_workers=2)
    pool.reset()
    with pytest.raises(shmenv.EnvError, match=r"env 1 .*unpickled here: LookupError: unknown here") as caught:
        pool.step(np.array([0, 1, 0]))
    assert caught.value.env_id == 1
    batch = pool.recv()
    assert batch.env_id.tolist() == [0, 2] and batch.obs == ("hello", "hello")
    pool.reset(env_id=1)
    assert pool.step(np.zeros(3, int)).obs == ("hello",) * 3
    for ids in (None, [2]):
        with pytest.raises(shmenv.EnvError, match="LookupError: unknown here") as caught:
            pool.call("stranger", env_id=ids)
        assert caught.value.command == "call"
    assert pool.step(np.zeros(3, int)).obs == ("hello",) * 3


def test_under_restart_such_an_observation_is_a_loss_row(make_pool: MakePool) -> None:
    pool = make_pool([UnreadableEnv] * 2, num_workers=2, on_error="restart")
    pool.reset()
    batch = pool.step(np.array([0, 1]))
    assert batch.obs == ("hello", "hello") and batch.truncated.tolist() == [False, True]
    assert "unknown here" in batch.info[1]["error"]
    assert pool.step(np.zeros(2, int)).reward.tolist() == [1.0, 1.0]
