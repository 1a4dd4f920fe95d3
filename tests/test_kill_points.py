"""Workers killed at named points of their loop: what the manager sees for each, and that nothing is lost or doubled.

The loop is compiled once more, with `SHM_POINTS` (core/points.h); an env arms a point, and its process ends there.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import random
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from reference import MODES
from test_life_storm import LedgerEnv, N, Storm

import shmenv
import shmenv.worker

MakePool = Callable[..., shmenv.Pool]
SOURCE = Path(__file__).parent.parent / "src" / "shmenv"  # also where the installed modules are a build of it
TAKEN, HALF_WRITTEN, ENDED, WRITTEN, PUBLISHED, POSTED = range(1, 7)  # as in core/points.h
POINTS = {
    "after take": TAKEN, "mid-write": HALF_WRITTEN, "between the commits": ENDED, "after write": WRITTEN,
    "after publish": PUBLISHED, "after post": POSTED,
}  # fmt: skip
IN_STEP = 7
KILLS = int(os.environ.get("SHMENV_STRESS_KILLS", "2000"))


@pytest.fixture(scope="module")
def loop_with_points(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The compiled loop that has the points."""
    library = tmp_path_factory.mktemp("points") / "_loop.so"
    headers = [f"-I{SOURCE / 'core'}", f"-I{sysconfig.get_path('include')}"]
    flags = ["-std=gnu11", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-DSHM_POINTS", *headers]
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, *flags, str(SOURCE / "_loop.c"), "-o", str(library)], check=True, timeout=100)
    return str(library)


@pytest.fixture
def points(loop_with_points: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Workers that are forked run that loop. The path by which their envs arm a point."""
    spec = importlib.util.spec_from_file_location("shmenv._loop", loop_with_points)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(shmenv.worker, "Loop", module.Loop)
    yield loop_with_points


def arm(library: str, point: int) -> None:
    """Called by: an env. Its process ends at this point."""
    if point == IN_STEP:
        os.kill(os.getpid(), 9)
    ctypes.c_int.in_dll(ctypes.CDLL(library), "shm_armed").value = point


class OneStepEnv(gymnasium.Env[Any, Any]):
    """A step arms the point `action % 8`; its episode ends with it if action >= 8. obs = [steps in this process]."""

    def __init__(self, library: str) -> None:
        self.observation_space, self.action_space = Box(0, 1e9, (1,), np.int64), Discrete(16)
        self.library, self.steps = library, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.array([0]), {"first": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        arm(self.library, int(action) % 8)
        return np.array([self.steps]), 7.0, bool(action >= 8), False, {"steps": self.steps}


@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("point", [*POINTS, "in step"])
def test_what_a_kill_at_each_point_costs(
    point: str, policy: str, points: str, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the commit point the step is lost, from there on it is delivered; between the two commits both hold."""
    caplog.set_level(logging.CRITICAL, "shmenv")
    pool = make_pool([partial(OneStepEnv, points)] * 4, num_workers=2, on_error=policy)
    pool.reset()
    armed = POINTS.get(point, IN_STEP)
    late = armed == TAKEN  # it has passed that point when its step arms it, so its next command ends there
    if late:
        pool.step(np.array([0, TAKEN, 0, 0]))
    answered = armed in (PUBLISHED, POSTED)
    pool.send([armed + 8 * (armed == ENDED)] if not late else [0], env_id=[1])
    if armed == ENDED:
        batch = pool.recv()
        assert batch.terminated.tolist() == [True] and batch.reward.tolist() == [7.0]
        assert batch.final_obs.tolist() == [[1]] and batch.final_info[0] == {"steps": 1}
        assert batch.obs.tolist() == [[0]] and batch.info[0] == {"first": True}
    elif answered:
        batch = pool.recv()
        assert batch.obs.tolist() == [[1]] and batch.reward.tolist() == [7.0] and batch.info[0] == {"steps": 1}
    elif policy == "raise":
        with pytest.raises(shmenv.WorkerDiedError) as caught:
            pool.recv()
        assert caught.value.env_ids == (0, 1) and caught.value.exitcode == -9
    else:
        batch = pool.recv()
        assert batch.truncated.tolist() == [True] and batch.reward.tolist() == [0.0] and batch.obs.tolist() == [[0]]
        assert batch.final_obs.tolist() == [[1 if late else 0]] and batch.info[0]["abnormal"]
    # Its worker is replaced, and the envs of the other one have noticed nothing.
    if policy == "raise":
        if armed == ENDED or answered:  # of env 0, which was idle, the next command to it tells
            with pytest.raises(shmenv.WorkerDiedError):
                pool.send([0], env_id=[0])
                pool.recv()
        pool.reset(env_id=[0, 1])
    assert pool.step(np.zeros(4, int)).obs[2:].tolist() == [[1 + late]] * 2
    assert pool.stats()["restarts"] == 1


class KillPointEnv(LedgerEnv):
    """Keeps the ledger, and with some of its steps arms one of the points, or ends in the step."""

    def __init__(self, library: str) -> None:
        super().__init__()
        self.library = library

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        choice, point = divmod(int(action) * 2654435761 % 2**32 >> 8, 7)
        if choice % 20 == 0:
            arm(self.library, point + 1)
        return super().step(action)


def storm_at_points(
    make_pool: MakePool, points: str, mode: str, policy: str, num_workers: int, kills: int, seed: int = 0
) -> Storm:
    rng = random.Random(f"{mode} {policy} {num_workers} {seed}")
    pool = make_pool(
        [partial(KillPointEnv, points)] * N, num_workers=num_workers, autoreset=mode, on_error=policy,
        restart_period=0.0, max_restarts=10**6,
    )  # fmt: skip
    pool.reset()
    run = Storm(pool, mode, rng)
    run.run(lambda: pool.stats()["restarts"] >= kills)
    run.check_losses(policy)
    assert run.answered > kills and run.lost + run.reported > 0
    pool.close()
    return run


@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("mode", MODES)
def test_each_command_is_answered_or_reported_once_and_in_order_whatever_point_a_worker_dies_at(
    mode: str, policy: str, points: str, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "shmenv")
    storm_at_points(make_pool, points, mode, policy, num_workers=3, kills=12)


@pytest.mark.stress
@pytest.mark.parametrize("num_workers", [8, 3, 1])
@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("mode", MODES)
def test_the_same_for_longer(
    mode: str, policy: str, num_workers: int, points: str, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "shmenv")
    kills = KILLS // 18 + 1
    run = storm_at_points(make_pool, points, mode, policy, num_workers, kills, seed=1)
    print(
        f"\n{mode}, {policy}, {num_workers} workers, {kills} kills at named points: {run.answered} answers, "
        f"{run.lost} lost, {run.reported} reported",
        end="",
    )
