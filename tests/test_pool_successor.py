"""A worker that takes a dead one's place: how long it may take to start."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from envs import ScriptedEnv, act

import shmenv

OK, HANG = act("ok"), act("hang")
LIMIT = 0.3  # seconds for a step


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
