"""Envs whose worker ends while they owe nothing, or after they have answered."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from envs import ScriptedEnv, act, actions
from life import SEED, World, rows_of
from reference import MODES, same
from support import eventually, settled

import shmenv

MakePool = Callable[..., shmenv.Pool]


def kill(pool: shmenv.Pool, worker_id: int) -> None:
    os.kill(pool.stats()["workers"][worker_id]["pid"], signal.SIGKILL)
    eventually(lambda: not pool.stats()["workers"][worker_id]["alive"])


@pytest.mark.parametrize("lock_step", [True, False])
@pytest.mark.parametrize("num_workers", [3, 1])
@pytest.mark.parametrize("mode", MODES)
def test_an_env_lost_while_idle_answers_its_next_step_unplayed(
    mode: str, num_workers: int, lock_step: bool, make_pool: MakePool
) -> None:
    world = World(make_pool, 3, num_workers, mode, lock_step, on_error="restart")
    world.warm_up()
    lost = [0] if num_workers == 3 else [0, 1, 2]
    before = dict(world.last)
    kill(world.pool, 0)
    world.lose(lost)
    actions = world.actions()
    rows, errors = world.play(actions)
    assert not errors and sorted(rows) == [0, 1, 2]
    for i in lost:
        world.check_loss(i, rows[i], before[i], "SIGKILL")
    world.loop.step({i: int(actions[i]) for i in rows if i not in lost})
    if mode == "disabled":
        world.reset_some(i for i, row in rows.items() if row.ended)
    for _ in range(4):
        world.step()
    stats = world.pool.stats()
    assert (stats["restarts"], stats["losses"]) == (1, len(lost))


@pytest.mark.parametrize("num_workers", [3, 1])
@pytest.mark.parametrize("mode", MODES)
def test_an_env_lost_while_idle_is_told_of_once_before_anything_is_sent(
    mode: str, num_workers: int, make_pool: MakePool
) -> None:
    world = World(make_pool, 3, num_workers, mode, True)
    world.warm_up()
    lost = [0] if num_workers == 3 else [0, 1, 2]
    kill(world.pool, 0)
    world.lose(lost)
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        world.pool.step(world.actions())
    assert caught.value.env_ids == tuple(lost) and world.pool.pending == 0
    with pytest.raises(shmenv.UsageError, match="env 0 cannot be stepped: it needs a reset"):
        world.pool.step(world.actions())
    world.reset_some(lost)
    for _ in range(4):
        world.step()


@pytest.mark.parametrize("ask", ["call", "send", "get_attr"])
def test_whatever_is_asked_first_tells_of_an_env_lost_while_idle(ask: str, make_pool: MakePool) -> None:
    world = World(make_pool, 2, 2, "same_step", True)
    world.reset()
    kill(world.pool, 1)
    pool = world.pool
    commands: dict[str, Callable[[], object]] = {
        "call": lambda: pool.call("reset_count", env_id=1),
        "send": lambda: pool.send([0], env_id=[1]),
        "get_attr": lambda: pool.get_attr("t", env_id=[0, 1]),
    }
    pool.send([0], env_id=[0])  # concerns another worker's env alone
    pool.recv()
    with pytest.raises(shmenv.WorkerDiedError, match="SIGKILL"):
        commands[ask]()
    with pytest.raises(shmenv.UsageError, match="needs a reset"):
        pool.send([0], env_id=[1])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_a_reset_is_a_fresh_start_also_for_an_env_lost_while_idle(
    policy: str, whole: bool, make_pool: MakePool
) -> None:
    world = World(make_pool, 2, 2, "same_step", True, on_error=policy)
    world.warm_up()
    kill(world.pool, 0)
    world.lose([0])
    if whole:
        rows = rows_of(world.pool.reset())
        for i in (0, 1):
            assert same(rows[i].obs, world.fresh(i).obs)
    else:
        world.reset_some([0])
    for _ in range(4):
        world.step()
    assert world.pool.stats()["losses"] == 0


@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("mode", MODES)
def test_an_answer_published_before_the_death_is_delivered_and_the_env_lost_after_it(
    mode: str, policy: str, make_pool: MakePool
) -> None:
    world = World(make_pool, 2, 2, mode, False, on_error=policy)
    world.warm_up()
    pool, steps = world.pool, world.pool.stats()["steps"]
    actions = np.zeros(2, int)
    wanted = world.loop.step({0: 0, 1: 0})
    pool.send(actions)
    eventually(lambda: settled(pool, steps + 2))
    kill(pool, 0)
    world.lose([0])
    rows: dict[int, object] = {}
    while pool.pending:
        rows |= (got := rows_of(pool.recv(min_envs=1)))
        for i, row in got.items():
            assert same(row.obs, wanted[i].obs) and row.reward == wanted[i].reward and "abnormal" not in row.info
            world.last[i] = row.obs
    assert sorted(rows) == [0, 1]
    over = wanted[0].ended and mode != "same_step"  # nothing was lost: its next command is a reset anyway
    if policy == "restart" and not over:
        pool.send([0], env_id=[0])
        (row,) = rows_of(pool.recv()).values()
        world.check_loss(0, row, world.last[0], "SIGKILL")
        world.last[0] = row.obs
    elif policy == "raise" and not over:
        with pytest.raises(shmenv.WorkerDiedError):
            pool.send([0], env_id=[0])
        world.reset_some([0])
    if mode == "disabled":
        world.reset_some(i for i in (0, 1) if world.loop.ended[i])
    for _ in range(4):
        world.step()


def test_an_answer_of_a_dead_worker_that_a_reset_discards_costs_nothing(make_pool: MakePool) -> None:
    """Covers an env that is taken for lost after it was reset in its new process."""
    world = World(make_pool, 2, 2, "same_step", True, on_error="restart")
    world.warm_up()
    pool, steps = world.pool, world.pool.stats()["steps"]
    pool.send(np.zeros(2, int))
    eventually(lambda: settled(pool, steps + 2))
    kill(pool, 0)
    with pytest.raises(shmenv.UsageError, match="pending"):
        pool.step(np.zeros(2, int))  # notices the death
    world.loop.reset({i: SEED + i for i in range(2)})
    world.reset()
    for _ in range(4):
        world.step()
    assert pool.stats()["losses"] == 0


def test_an_env_lost_before_its_first_step_starts_by_its_moved_seed(make_pool: MakePool) -> None:
    """Covers the payload of the reset before, still lying there, taken for the new one's."""
    world = World(make_pool, 2, 2, "same_step", True, on_error="restart")
    world.reset()
    kill(world.pool, 1)
    world.lose([1])
    before = dict(world.last)
    actions = world.actions()
    rows, _ = world.play(actions)
    world.loop.step({0: int(actions[0])})
    world.check_loss(1, rows[1], before[1], "SIGKILL")
    for _ in range(4):
        world.step()


@pytest.mark.parametrize("where", ["step", "reset"])
def test_an_error_that_came_before_its_worker_was_lost_for_good_is_told_not_repaired(
    where: str, make_pool: MakePool
) -> None:
    """Covers a wait for a reset that nobody is left to carry out."""
    script = {(0, 0): "raise"} if where == "reset" else {(0, 1): "raise"}
    pool = make_pool(
        [partial(ScriptedEnv, script=script), ScriptedEnv],
        num_workers=2, on_error="restart", max_retry=3, retry_waiting_time=0.0, max_restarts=0,
    )  # fmt: skip
    if where == "reset":
        pool.send_reset()
        eventually(lambda: settled(pool, 0) and pool._exchange.port.is_answered(0))
    else:
        pool.reset()
        pool.send(np.zeros(2, int))
        eventually(lambda: settled(pool, 2) and pool._exchange.port.is_answered(0))
    kill(pool, 0)
    with pytest.raises(shmenv.WorkerDiedError, match="lost for good"):
        pool.get_attr("t", env_id=[0])
    with pytest.raises(shmenv.EnvError, match="missing asset"):
        pool.recv(timeout=30)
    assert pool.recv(timeout=30).env_id.tolist() == [1]
    assert pool.pending == 0
    with pytest.raises(shmenv.WorkerDiedError, match="lost for good"):
        pool.reset(env_id=[0])


def test_an_end_told_of_at_an_idle_env_is_not_told_again_for_the_answers_it_has_cost(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=1)
    pool.reset()
    pool.send([act("kill")], env_id=0)
    eventually(lambda: not pool.stats()["workers"][0]["alive"])
    with pytest.raises(shmenv.WorkerDiedError):
        pool.send([act("ok")], env_id=1)
    assert pool.pending == 0
    pool.reset()
    assert pool.step(actions(2)).reward.tolist() == [1, 1]


def test_a_call_tells_of_the_answer_that_an_end_has_cost_before_it_asks_the_successor(make_pool: MakePool) -> None:
    """Covers two ends of which the later one is told first."""
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    pool.send([act("kill")], env_id=0)
    with pytest.raises(shmenv.WorkerDiedError, match="in step of env 0"):
        pool.call("where", env_id=[0, 1])
    assert pool.pending == 0 and pool.needs_reset_ids == [0]
    assert pool.call("where") == ((-1, 0), (0, 0))


def test_an_end_told_for_the_answers_it_has_cost_is_not_told_again_at_an_idle_env(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=1)
    pool.reset()
    pool.send([act("kill")], env_id=[0])
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        pool.recv()
    assert caught.value.env_ids == (0, 1, 2)
    for i in (1, 2):
        with pytest.raises(shmenv.UsageError, match="needs a reset"):
            pool.send([act("ok")], env_id=[i])
    pool.reset(env_id=[0, 1, 2])
    assert pool.step(actions(3)).reward.tolist() == [1, 1, 1]


def test_an_end_is_not_told_again_at_an_env_whose_answer_was_there_and_came_after_the_error(
    make_pool: MakePool,
) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=1)
    pool.reset()
    pool.send([act("ok"), act("kill")], env_id=[0, 1])
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        pool.recv(min_envs=2)
    assert caught.value.env_ids == (0, 1, 2) and pool.pending_ids == [0]
    batch = pool.recv()
    assert batch.env_id.tolist() == [0] and batch.obs.tolist() == [[0, 1]]
    for i in range(3):
        with pytest.raises(shmenv.UsageError, match="needs a reset"):
            pool.send([act("ok")], env_id=[i])
    pool.reset(env_id=caught.value.env_ids)
    assert pool.step(actions(3)).reward.tolist() == [1, 1, 1]


@pytest.mark.parametrize("slots", [2, 4])
@pytest.mark.parametrize("mode", MODES)
def test_the_last_observation_in_a_loss_row_survives_a_step_that_wrote_where_it_lay(
    mode: str, slots: int, make_pool: MakePool
) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, autoreset=mode, slots=slots, on_error="restart", debug=True)
    pool.reset()
    pool.step(actions(2))
    last = pool.reset(env_id=0).obs[0].tolist()
    for fault in ("raise", "kill"):
        batch = pool.step(actions(2, {0: fault}))
        assert batch.info[0]["abnormal"] and batch.final_obs[0].tolist() == last
        last = pool.reset(env_id=0).obs[0].tolist()
