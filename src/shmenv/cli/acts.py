"""What the demo shows after the speeds: a worker that is killed amid a game, and a manager's loop."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import shmenv

ROUND = 0.1  # seconds between two looks at the display


def kill_a_worker(make: Callable[[], Any], num_envs: int, seconds: float, show: Callable[[str], None]) -> str:
    """SIGKILL one of four workers amid a game played first come, first served; it is replaced while the others go on.

    Args:
        make: makes one env.
        num_envs: how many are played.
        seconds: how long before the kill, and how long after the replacement.
        show: called with what happens now.

    Returns:
        What was seen, in one line.
    """
    noticed: list[float] = []
    pool = shmenv.Pool(
        [make] * num_envs,
        num_workers=min(4, num_envs),
        on_error="restart",
        on_restart=lambda env_id, reason: noticed.append(time.perf_counter()),
    )
    with pool, _quiet_log():
        batch = pool.reset(seed=0)
        victim = pool.stats()["workers"][-1]
        lost = set(victim["env_ids"])
        others = [env_id for env_id in range(num_envs) if env_id not in lost]
        last, gaps = dict.fromkeys(range(num_envs), time.perf_counter()), {"before": 0.0, "during": 0.0}
        phase, killed, back, shown = "before", 0.0, 0.0, 0.0
        begin = time.perf_counter()
        pool.send(np.zeros(num_envs, np.int64))
        while not back or time.perf_counter() < back + seconds:
            batch = pool.recv(min_envs=1)
            now = time.perf_counter()
            for k, env_id in enumerate(batch.env_id.tolist()):
                if env_id in others and not back:
                    gaps[phase] = max(gaps[phase], now - last[env_id])
                elif env_id in lost and batch.info[k].get("abnormal"):
                    back = now
                last[env_id] = now
            if not killed and now > begin + seconds:
                os.kill(victim["pid"], signal.SIGKILL)
                phase, killed = "during", time.perf_counter()
            if now > shown + ROUND:
                shown = now
                show(
                    "a worker is killed amid Pong" + (f": noticed after {_ms(noticed[0] - killed)}" if noticed else "")
                )
            pool.send(np.zeros(len(batch), np.int64), batch.env_id)
    return (
        f"A worker killed by SIGKILL: noticed after {_ms(noticed[0] - killed)}, its {len(lost)} envs play on in a new"
        f" one after {_ms(back - killed)}. The longest wait for any of the {len(others)} other envs was"
        f" {_ms(gaps['before'])} before and {_ms(gaps['during'])} meanwhile."
    )


def loop_of_a_manager(make: Callable[[], Any], num_envs: int, seconds: float, show: Callable[[str], None]) -> str:
    """Run the loop that env managers are made for: ready observations out, actions by id in.

    Returns:
        How many steps and episodes it played, in one line.
    """
    manager = shmenv.create_env_manager({"type": "subprocess", "num_workers": min(2, num_envs)}, [make] * num_envs)
    try:
        manager.seed(0)
        manager.launch()
        steps, episodes, shown, begin = 0, 0, 0.0, time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            ready = manager.ready_obs
            timesteps = manager.step({env_id: np.int64(obs[2] > 0) for env_id, obs in ready.items()})
            steps += len(timesteps)
            episodes += sum(bool(timestep.done) for timestep in timesteps.values())
            if now > shown + ROUND:
                shown = now
                show(f"a manager's loop: {steps:,} steps, {episodes:,} episodes")
        spent = time.perf_counter() - begin
    finally:
        manager.close()
    return f"A manager's loop over {num_envs} CartPoles: {steps / spent:,.0f} env steps/s, {episodes:,} episodes."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


@contextmanager
def _quiet_log() -> Iterator[None]:
    """The death is wanted here, so it is not logged."""
    logger = logging.getLogger("shmenv")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
