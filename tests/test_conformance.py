"""One body over every way in: a plain Python loop is the reference, and Pool equals it value for value."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Gate
from reference import MODES, Loop, Row, check, stack
from seeded import BoundEnv, BufferEnv, FailingWalkEnv, GatedWalkEnv, MixedEnv, VectorRewardEnv, WalkEnv
from support import eventually

import shmenv

STEPS = 30  # episodes last 1 to 6 steps, so some ten of them end an env
Env = Callable[[], Any]


def cart_pole() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


class Pair:
    """A pool and the reference beside it, given the same seeds and actions."""

    def __init__(self, pool: shmenv.Pool, env: Env, mode: str, seed: int, space: Any) -> None:
        self.pool, self.loop, self.mode, self.space = pool, Loop([env] * pool.num_envs, mode), mode, space
        self.action_space = self.loop.envs[0].action_space
        self.action_space.seed(seed)
        self.rng = np.random.default_rng(seed)
        self.ended = 0
        self.owed: dict[int, Any] = {}
        seeds = {i: seed + i for i in range(pool.num_envs)}
        self.compare(pool.reset(seed=seed), self.loop.reset(seeds))

    def compare(self, batch: shmenv.Batch, rows: dict[int, Row]) -> None:
        check(batch, rows, self.space)
        self.ended += sum(row.ended for row in rows.values())
        if self.mode == "disabled":
            over = [i for i, row in rows.items() if row.ended]
            if over:
                check(self.pool.reset(env_id=over), self.loop.reset(env_id=over), self.space)

    def step(self, count: int) -> None:
        """In lock-step."""
        for _ in range(count):
            single = [self.action_space.sample() for _ in range(self.pool.num_envs)]
            action = stack(single, self.action_space) if self.rng.random() < 0.7 else single
            self.compare(self.pool.step(action), self.loop.step(dict(enumerate(single))))

    def play(self, count: int) -> None:
        """First-k: to random envs that owe nothing, in any order; takes random numbers of rows."""
        for _ in range(count):
            free = [i for i in range(self.pool.num_envs) if i not in self.owed]
            chosen = self.rng.permutation(free)[: self.rng.integers(0, len(free) + 1)].tolist()
            if chosen:
                single = [self.action_space.sample() for _ in chosen]
                self.owed.update(zip(chosen, single, strict=True))
                self.pool.send(stack(single, self.action_space), env_id=chosen)
            if self.owed:
                self.take(int(self.rng.integers(1, len(self.owed) + 1)))
        while self.owed:
            self.take(len(self.owed))

    def take(self, wanted: int) -> None:
        batch = self.pool.recv(min_envs=wanted)
        assert wanted <= len(batch.env_id) <= len(self.owed)
        self.compare(batch, self.loop.step({i: self.owed.pop(i) for i in batch.env_id.tolist()}))
        assert self.pool.pending == len(self.owed)


def conforms(pool: shmenv.Pool, env: Env, mode: str, space: Any) -> None:
    pair = Pair(pool, env, mode, 11, space)
    pair.step(STEPS)
    pair.play(STEPS)
    pair.step(3)
    assert pair.ended > pool.num_envs
    again = Pair(pool, env, mode, 12, space)
    again.play(STEPS)
    again.step(3)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", [WalkEnv, BufferEnv, BoundEnv, MixedEnv, VectorRewardEnv, cart_pole])
def test_a_pool_equals_the_plain_loop(
    make_pool: Callable[..., shmenv.Pool], env: Env, mode: str, num_workers: int
) -> None:
    """Covers final observations that show the new episode when the env reuses its buffers, autoreset conventions that
    are off by one, and results that come lost, doubled or out of order when envs are stepped in subsets."""
    conforms(make_pool([env] * 6, num_workers=num_workers, autoreset=mode), env, mode, env().observation_space)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_pool_equals_the_plain_loop_under_other_start_methods(
    make_pool: Callable[..., shmenv.Pool], method: str, mode: str, num_workers: int
) -> None:
    """Covers behaviour that changes with the interpreter's default start method."""
    conforms(
        make_pool([MixedEnv] * 5, num_workers=num_workers, autoreset=mode, context=method),
        MixedEnv,
        mode,
        MixedEnv().observation_space,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options", [{"copy": True}, {"slots": 4}, {"debug": True}, {"batch_size": 3}, {"affinity": "spread"}], ids=str
)
def test_options_of_transport_change_no_value(
    make_pool: Callable[..., shmenv.Pool], options: dict[str, Any], mode: str
) -> None:
    conforms(
        make_pool([MixedEnv] * 5, num_workers=2, autoreset=mode, **options),
        MixedEnv,
        mode,
        MixedEnv().observation_space,
    )


@pytest.mark.parametrize("mode", MODES)
def test_observations_that_travel_whole_equal_the_plain_loop(make_pool: Callable[..., shmenv.Pool], mode: str) -> None:
    """Without shared memory each observation comes as the very object the env returned."""
    conforms(make_pool([MixedEnv] * 5, num_workers=2, autoreset=mode, shared_memory=False), MixedEnv, mode, None)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", MODES)
def test_the_newest_k_rows_equal_the_plain_loop(
    make_pool: Callable[..., shmenv.Pool], mode: str, batch_size: int
) -> None:
    """Covers terminal observations lost under autoreset on first-k paths: every mode with every batch size."""
    pool = make_pool([WalkEnv] * 4, num_workers=2, autoreset=mode, batch_size=batch_size)
    loop = Loop([WalkEnv] * 4, mode)
    rng = np.random.default_rng(3)
    check(pool.reset(seed=list(range(4))), loop.reset({i: i for i in range(4)}), loop.envs[0].observation_space)
    owed = {i: int(rng.integers(4)) for i in range(4)}
    pool.send(list(owed.values()))
    for _ in range(STEPS):
        batch = pool.recv()
        assert len(batch.env_id) == batch_size
        ids = batch.env_id.tolist()
        rows = loop.step({i: owed.pop(i) for i in ids})
        check(batch, rows, loop.envs[0].observation_space)
        over = [i for i, row in rows.items() if row.ended]
        if mode == "disabled" and over:
            check(pool.reset(env_id=over), loop.reset(env_id=over), loop.envs[0].observation_space)
        owed.update({i: int(rng.integers(4)) for i in ids})
        pool.send([owed[i] for i in ids], env_id=batch.env_id)


@pytest.mark.parametrize("mode", MODES)
def test_a_partial_reset_equals_the_plain_loop(make_pool: Callable[..., shmenv.Pool], mode: str) -> None:
    pool = make_pool([WalkEnv] * 4, num_workers=2, autoreset=mode)
    loop = Loop([WalkEnv] * 4, mode)
    space = loop.envs[0].observation_space
    rng = np.random.default_rng(4)
    check(pool.reset(seed=0), loop.reset({i: i for i in range(4)}), space)
    for turn in range(STEPS):
        single = rng.integers(0, 4, 4).tolist()
        rows = loop.step(dict(enumerate(single)))
        check(pool.step(single), rows, space)
        ids = {i for i, row in rows.items() if row.ended and (mode == "disabled" or rng.random() < 0.5)}
        ids |= set(np.flatnonzero(rng.random(4) < 0.2).tolist())
        if ids:
            given = {i: 100 * turn + i for i in ids} if turn % 2 else {}
            batch = pool.reset(seed=100 * turn if turn % 2 else None, env_id=rng.permutation(sorted(ids)))
            check(batch, loop.reset(given, env_id=sorted(ids)), space)


@pytest.mark.parametrize("num_workers", [1, 4])
def test_other_envs_conform_while_one_keeps_failing(make_pool: Callable[..., shmenv.Pool], num_workers: int) -> None:
    pool = make_pool([WalkEnv] * 3 + [FailingWalkEnv], num_workers=num_workers)
    loop = Loop([WalkEnv] * 3)
    rng = np.random.default_rng(5)
    pool.reset(seed=0)
    loop.reset({i: i for i in range(3)})
    for _ in range(STEPS):
        single = rng.integers(0, 4, 3).tolist()
        pool.send(single, env_id=[0, 1, 2])
        pool.send([0], env_id=3)
        rows: dict[int, Row] = {}
        failures = 0
        while pool.pending:
            try:
                batch = pool.recv(min_envs=1)
            except shmenv.EnvError as error:
                assert error.env_id == 3
                failures += 1
                continue
            check(batch, loop.step({i: single[i] for i in batch.env_id.tolist()}), loop.envs[0].observation_space)
            rows |= dict.fromkeys(batch.env_id.tolist(), Row(None))
        assert sorted(rows) == [0, 1, 2] and failures == 1
        pool.reset(env_id=[3])


@pytest.mark.parametrize("mode", MODES)
def test_counters_that_wrap_change_no_value(
    make_pool: Callable[..., shmenv.Pool], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Command numbers have 32 bits, so a pool that runs for days passes their end."""
    monkeypatch.setattr("shmenv.exchange.Exchange.first_command", 2**32 - 20)
    pool = make_pool([MixedEnv] * 3, num_workers=2, autoreset=mode)
    conforms(pool, MixedEnv, mode, MixedEnv().observation_space)


@pytest.mark.parametrize("mode", MODES)
def test_other_envs_conform_while_a_worker_is_killed(
    make_pool: Callable[..., shmenv.Pool], gate: Callable[[int], Gate], mode: str
) -> None:
    stuck = partial(GatedWalkEnv, gate(3).path)
    pool = make_pool([WalkEnv, WalkEnv, WalkEnv, stuck], num_workers=2, autoreset=mode)
    loop = Loop([WalkEnv] * 2, mode)
    space = loop.envs[0].observation_space
    rng = np.random.default_rng(6)
    pool.reset(seed=0)
    loop.reset({0: 0, 1: 1})
    pool.send([0], env_id=3)
    held = eventually(gate(3).try_hold)
    deaths = 0
    for turn in range(STEPS):
        single = rng.integers(0, 4, 2).tolist()
        pool.send(single, env_id=[0, 1])
        if turn == 5:
            os.kill(pool.stats()["workers"][1]["pid"], signal.SIGKILL)
        owed, over = dict(enumerate(single)), []
        while owed:
            try:
                batch = pool.recv(min_envs=1)
            except shmenv.WorkerDiedError as error:
                assert error.env_ids == (2, 3)
                deaths += 1
                continue
            rows = loop.step({i: owed.pop(i) for i in batch.env_id.tolist()})
            check(batch, rows, space)
            over += [i for i, row in rows.items() if row.ended and mode == "disabled"]
        if over:
            try:
                batch = pool.reset(env_id=over)
            except shmenv.WorkerDiedError:  # told by the first call that waits
                deaths += 1
                batch = pool.recv(min_envs=len(over))
            check(batch, loop.reset(env_id=over), space)
    os.close(held)
    if not deaths:  # on a busy machine the steps may be over first
        with pytest.raises(shmenv.WorkerDiedError):
            pool.recv(timeout=10)
