"""Each kind of fault, under each policy and in each way of stepping: what the user sees, and what the others do not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from life import ENDING, LATE, LIMIT, RAISING, World, assert_same
from reference import MODES

import shmenv

MakePool = Callable[..., shmenv.Pool]
FAULTS = (*RAISING, *ENDING, *LATE)
POLICIES = ("raise", "restart")


def _each_fault_once_a_policy() -> list[tuple[Any, ...]]:
    """(fault, policy, mode, lock-step, workers): the other three vary along, so that all pairs occur."""
    cases = []
    for number, (fault, policy) in enumerate(itertools.product(FAULTS, POLICIES)):
        cases.append((fault, policy, MODES[number // 2 % 3], number % 4 < 2, (4, 2)[(number // 2 + number) % 2]))
    return cases


def _all_ways() -> list[tuple[Any, ...]]:
    return list(itertools.product(("raise_odd", "kill"), POLICIES, MODES, (True, False), (4, 2)))


CASES = sorted(set(_each_fault_once_a_policy()) | set(_all_ways()))


@pytest.mark.parametrize(("fault", "policy", "mode", "lock_step", "num_workers"), CASES)
def test_a_fault_costs_what_the_policy_says_and_the_other_envs_nothing(
    fault: str, policy: str, mode: str, lock_step: bool, num_workers: int, make_pool: MakePool
) -> None:
    limits = {"step_timeout": LIMIT} if fault in LATE else {}
    world = World(make_pool, 4, num_workers, mode, lock_step, on_error=policy, **limits)
    pool = world.pool
    world.warm_up()
    victim, of_worker = 0, range(4 // num_workers)
    worker = pool.stats()["workers"][0]
    before = dict(world.last)
    actions = world.actions({victim: fault})
    begin = time.monotonic()
    rows, errors = world.play(actions)
    assert time.monotonic() - begin < 10 * (LIMIT + 0.25)

    lost = {victim} if fault in RAISING else set(of_worker)
    hit = {
        i for i in lost if i == victim or i not in rows or "abnormal" in rows[i].info
    }  # not an answer before the end
    untouched = {i: int(actions[i]) for i in range(4) if i not in hit}
    for i, wanted in world.loop.step(untouched).items():
        assert_same(rows[i], wanted, f"env {i}")
    if fault not in RAISING:
        world.lose(of_worker)
    if policy == "restart":
        assert not errors and sorted(rows) == [0, 1, 2, 3]
        says = RAISING.get(fault, f"worker 0 (pid {worker['pid']})")
        for i in hit:
            world.check_loss(i, rows[i], before[i], says)
        needs_reset = {i for i in lost if mode == "disabled"} | (lost - hit)
        needs_reset |= {i for i in untouched if mode == "disabled" and rows[i].ended}
    else:
        (error,) = errors
        assert sorted(rows) == sorted(untouched)
        if fault in RAISING:
            assert type(error) is shmenv.EnvError
            assert (error.env_id, error.worker_id, error.command) == (victim, 0, "step")
            assert RAISING[fault] in error.type_name and f"reset(env_id={victim})" in str(error)
            assert "FAULTS[NAMES" in error.traceback_text
        else:
            wanted_type = shmenv.WorkerTimeoutError if fault in LATE else shmenv.WorkerDiedError
            assert type(error) is wanted_type
            assert (error.worker_id, error.pid, error.env_ids) == (0, worker["pid"], tuple(of_worker))
            assert error.exitcode == ENDING.get(fault, -9)
            assert f"step of env {victim}" in str(error)
        with pytest.raises(shmenv.UsageError, match="needs a reset"):
            pool.send([0], env_id=[victim])
        needs_reset = lost | {i for i in untouched if mode == "disabled" and rows[i].ended}
    world.reset_some(needs_reset)
    for _ in range(4):
        world.step()
    stats = pool.stats()
    assert stats["restarts"] == (fault not in RAISING) and stats["timeouts"] == (fault in LATE)
    assert stats["losses"] == (len(hit) if policy == "restart" else 0)
    assert pool.pending == 0 and all(each["alive"] for each in stats["workers"])
