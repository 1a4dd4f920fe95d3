"""What does one step of a whole pool cost beside Gymnasium's vector envs, and handing out scattered rows beside numpy?

Contenders of a group run one after the other; `bench/limit.py` takes turns, for ratios to quote.
"""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import shmenv
from cases import CASES, Case, Idle
from shmenv.cli.demo import GymnasiumPlayer, Player, PoolPlayer

PLAYERS: dict[str, Callable[[list[Callable[[], Any]]], Player]] = {
    "shmenv.Pool": PoolPlayer,
    "AsyncVectorEnv": partial(GymnasiumPlayer, partial(AsyncVectorEnv, shared_memory=True)),
    "SyncVectorEnv": partial(GymnasiumPlayer, SyncVectorEnv),
}


@pytest.mark.parametrize("name", PLAYERS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_step(case: Case, name: str, benchmark: Any) -> None:
    benchmark.group = f"one step of {case.title}"
    actions = case.actions()
    count = 0

    def step() -> Any:
        nonlocal count
        values = player.step(actions[count % len(actions)])
        count += 1
        return values

    with closing(PLAYERS[name](case.env_fns)) as player:
        player.reset(seed=0)
        obs, reward, _, _ = benchmark(step)
        np.testing.assert_array_equal(reward, np.ones(case.num_envs))
        if case.make is not CASES["cartpole"].make:  # these count their steps
            np.testing.assert_array_equal(obs[:, 0], np.full(case.num_envs, count & 255))


@pytest.fixture(params=[16, 28_224, 100_000], ids=lambda size: f"{size}B")
def obs_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


SCATTERED = np.arange(0, 64, 2, dtype=np.int32)


def test_gather_by_recv(obs_bytes: int, benchmark: Any) -> None:
    """32 scattered rows of 64, all ready, into a batch of their own: observation, reward, flags, infos."""
    benchmark.group = f"32 scattered rows of 64, {obs_bytes} B each"
    action = np.zeros(len(SCATTERED), np.int64)
    with shmenv.Pool([partial(Idle, obs_bytes)] * 64) as pool:
        pool.reset(seed=0)
        rounds = 100

        def send() -> None:
            pool.send(action, SCATTERED)
            time.sleep(0.005)  # until all have answered, which recv must not wait for

        batch = benchmark.pedantic(partial(pool.recv, min_envs=len(SCATTERED)), setup=send, rounds=rounds)
        np.testing.assert_array_equal(batch.env_id, SCATTERED)
        np.testing.assert_array_equal(batch.obs[:, 0], np.full(len(SCATTERED), rounds))


def test_gather_by_numpy(obs_bytes: int, benchmark: Any) -> None:
    """The same rows by fancy indexing."""
    benchmark.group = f"32 scattered rows of 64, {obs_bytes} B each"
    obs, reward, flags = np.ones((64, obs_bytes), np.uint8), np.ones(64), np.zeros(64, bool)

    def gather() -> tuple[Any, ...]:
        return obs[SCATTERED], reward[SCATTERED], flags[SCATTERED], flags[SCATTERED]

    rows, *_ = benchmark.pedantic(gather, setup=partial(time.sleep, 0.005), rounds=100)
    np.testing.assert_array_equal(rows, np.ones((len(SCATTERED), obs_bytes), np.uint8))
