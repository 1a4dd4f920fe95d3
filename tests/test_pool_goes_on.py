"""Envs of a pool that go on after an episode by a reset that nobody gives: no command is lost or mixed up by it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envs import Gate
from gymnasium.spaces import Box, Discrete
from support import eventually

import shmenv
from shmenv import _port
from shmenv.arguments import PackedOptions
from shmenv.exchange import Exchange

MakePool = Callable[..., shmenv.Pool]
PLAY, END, RAISE = 0, 1, 2


class CountingEnv:
    """obs = [resets before, steps since]. Action END ends the episode, RAISE raises; later resets wait at the gate."""

    observation_space = Box(-1e9, 1e9, (2,), np.float32)
    action_space = Discrete(3)

    def __init__(self, gate: str | None = None) -> None:
        self.gate = Gate(gate) if gate else None
        self.episode, self.t = -1, 0
        self.options: list[Any] = []

    @property
    def pid(self) -> int:
        return os.getpid()

    def count(self) -> tuple[int, int]:
        return self.episode, self.t

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.gate is not None and self.episode >= 0:
            self.gate.wait()
        self.episode, self.t = self.episode + 1, 0
        self.options.append(options)
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == RAISE:
            raise RuntimeError("asked for")
        self.t += 1
        return np.array([self.episode, self.t], np.float32), 1.0, bool(action == END), False, {}


def make_going(make_pool: MakePool, count: int = 1, gate: Gate | None = None, **options: Any) -> shmenv.Pool:
    """A pool of so many such envs in one worker, reset, all of which go on."""
    env_fns = [partial(CountingEnv, gate.path if gate and not i else None) for i in range(count)]
    pool = make_pool(env_fns, num_workers=1, autoreset="disabled", **options)
    pool.reset()
    pool.go_on(None, True)
    return pool


def reset(pool: shmenv.Pool, ids: Sequence[int] = (0,), **options: Any) -> list[Any]:
    """Observations of a reset of these envs."""
    pool.send_reset(env_id=list(ids), **options)
    observations: list[Any] = pool.recv(min_envs=len(ids), timeout=10).obs.tolist()
    return observations


def end(pool: shmenv.Pool) -> None:
    """End the episodes of all envs."""
    assert pool.step(np.full(pool.num_envs, END)).terminated.all()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where the later resets of env 0 wait."""
    return Gate(tmp_path / "gate")


def release(gate: Gate) -> None:
    """Let the env that stands before the gate through, once it does."""
    os.close(eventually(gate.try_hold))


def test_each_reset_after_an_episode_is_carried_out_once_also_across_the_wrap_of_the_numbers(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Exchange, "first_command", 2**32 - 9)
    pool = make_going(make_pool, 2)
    for episode in range(1, 12):
        assert pool.step(np.full(2, PLAY)).obs.tolist() == [[episode - 1, 1]] * 2
        end(pool)
        if episode % 3 == 1:
            assert pool.call("count") == ((episode, 0),) * 2
        assert reset(pool, (0, 1)) == [[episode, 0]] * 2


def test_resets_are_taken_up_only_once_they_are_done(make_pool: MakePool, gate: Gate) -> None:
    pool = make_going(make_pool, 2, gate)
    end(pool)
    assert pool.take_resets([0, 1]) == ([], None)
    release(gate)
    pool.call("count")
    done, obs = pool.take_resets([0, 1])
    assert done == [0, 1] and obs.tolist() == [[1, 0]] * 2
    assert pool.take_resets([0, 1]) == ([], None)
    assert pool.step(np.full(2, PLAY)).obs.tolist() == [[1, 1]] * 2


def test_switched_off_before_the_answer_an_env_is_reset_anew_and_goes_on_no_more(
    make_pool: MakePool, gate: Gate
) -> None:
    pool = make_going(make_pool, 1, gate)
    end(pool)
    pool.go_on(None, False)
    assert pool.take_resets([0]) == ([], None)
    release(gate)
    assert pool.call("count") == ((1, 0),)
    pool.send_reset(env_id=0, options={"level": 5})
    release(gate)
    assert pool.recv(timeout=10).obs.tolist() == [[2, 0]]
    assert pool.get_attr("options")[0][1:] == [None, {"level": 5}]
    end(pool)
    assert pool.call("count") == ((2, 1),)


def test_the_steps_of_a_workers_envs_are_answered_before_any_reset_that_follows_them(
    make_pool: MakePool, gate: Gate
) -> None:
    pool = make_going(make_pool, 2, gate)
    end(pool)
    release(gate)
    assert reset(pool, (0, 1)) == [[1, 0]] * 2


def test_a_whole_reset_comes_after_the_one_that_nobody_gave(make_pool: MakePool, gate: Gate) -> None:
    pool = make_going(make_pool, 2, gate)
    end(pool)
    release(gate)
    pool.call("count")
    pool.set_attr("gate", [None, None])
    assert pool.reset().obs.tolist() == [[2, 0]] * 2
    assert pool.step(np.full(2, PLAY)).obs.tolist() == [[2, 1]] * 2


class SeededEnv(CountingEnv):
    """obs = [the seed of the last reset, the level in its options]; -1 for none."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return np.array([-1 if seed is None else seed, (options or {}).get("level", -1)], np.float32), {}


@pytest.mark.parametrize("holds_views", [True, False])
@pytest.mark.parametrize(
    "ask",
    [
        lambda pool, **given: pool.reset(**given),
        lambda pool, **given: pool.reset(env_id=[0, 1], **given),
        lambda pool, **given: (pool.send_reset(env_id=[0, 1], **given), pool.recv(2, timeout=10))[1],
        lambda pool, **given: (pool.send_reset(**given), pool.recv(2, timeout=10))[1],
    ],
    ids=["whole", "some", "sent", "all sent"],
)
def test_a_seed_and_options_are_never_lost_to_a_reset_that_an_env_has_begun_by_itself(
    ask: Callable[..., shmenv.Batch], holds_views: bool, make_pool: MakePool
) -> None:
    pool = make_pool([SeededEnv] * 2, num_workers=2, autoreset="disabled")
    pool.go_on(None, True)

    def end_episode_of_env_1() -> list[shmenv.Batch]:
        views = []
        for action, env_id in ((PLAY, 0), (END, 1), (PLAY, 0)) if holds_views else ((END, 1),):
            pool.send(np.array([action]), env_id=[env_id])
            views.append(pool.recv(timeout=10))
        eventually(lambda: len(pool.get_attr("options", env_id=1)[0]) % 2 == 0)  # the reset by itself is done
        return views

    pool.reset(seed=100)
    views = end_episode_of_env_1()
    assert ask(pool, seed=500).obs.tolist() == [[500, -1], [501, -1]]
    assert pool.seeds == [500, 501]
    views = end_episode_of_env_1()
    assert ask(pool, options={"level": 7}).obs.tolist() == [[-1, 7]] * 2
    views = end_episode_of_env_1()
    assert ask(pool, seed=[None, 9], options=[{"level": 3}, None]).obs.tolist() == [[-1, 3], [9, -1]]
    del views


def test_options_of_a_reset_under_way_are_for_the_worker_that_takes_its_place(make_pool: MakePool, gate: Gate) -> None:
    pool = make_going(make_pool, 1, gate, max_retry=2)
    pid = pool.get_attr("pid")[0]
    end(pool)
    pool.send_reset(env_id=0, options=[PackedOptions.of({"level": 5})])
    os.kill(pid, signal.SIGKILL)
    assert pool.recv(timeout=10).obs.tolist() == [[0, 0]]
    assert pool.get_attr("options") == ([{"level": 5}],)


def test_a_worker_that_dies_between_its_two_answers_costs_no_row_and_no_command(
    make_pool: MakePool, gate: Gate
) -> None:
    pool = make_going(make_pool, 2, gate)
    pid = pool.get_attr("pid")[0]
    pool.send(np.full(2, END))
    held = eventually(gate.try_hold)  # it stands in the reset of env 0, and both steps are answered
    os.kill(pid, signal.SIGKILL)
    os.close(held)
    batch = pool.recv(min_envs=2, timeout=10)
    assert batch.obs.tolist() == [[0, 1]] * 2 and batch.terminated.all()
    with pytest.raises(shmenv.WorkerDiedError, match="in reset of env 0"):
        reset(pool)
    assert reset(pool, (0, 1)) == [[0, 0]] * 2


def test_a_pool_closes_while_an_env_goes_on(make_pool: MakePool, gate: Gate) -> None:
    pool = make_going(make_pool, 1, gate)
    pid = pool.get_attr("pid")[0]
    end(pool)
    held = eventually(gate.try_hold)
    os.close(held)
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("damage", ["sets", "clears"])
def test_a_row_that_lies_about_the_end_of_an_episode_makes_nobody_wait_for_ever(
    make_pool: MakePool, damage: str
) -> None:
    pool = make_going(make_pool, 1)
    exchange: Any = pool._exchange
    flags = exchange.plan.array("flags", exchange.buffer)
    pool.send(np.array([END if damage == "clears" else PLAY]))
    eventually(lambda: exchange.port.is_answered(0))
    flags[:, 0] = _port.ROW_NEEDS_RESET if damage == "sets" else 0
    pool.recv(timeout=10)
    assert reset(pool)[0][1] == 0
    assert pool.step(np.array([PLAY])).obs[0, 1] == 1


def test_a_view_that_the_reset_may_write_over_is_not_valid(make_pool: MakePool) -> None:
    pool = make_going(make_pool, 1)
    before = pool.step(np.array([PLAY]))
    assert before.valid()
    pool.step(np.array([END]))
    assert not before.valid()


def test_a_loss_row_is_followed_by_no_reset_by_itself(make_pool: MakePool) -> None:
    pool = make_going(make_pool, 2, on_error="restart")
    assert pool.step(np.array([RAISE, PLAY])).truncated.tolist() == [True, False]
    assert pool.take_resets([0]) == ([], None)
    assert pool.call("count") == ((0, 0), (0, 1))
    assert reset(pool) == [[1, 0]] and pool.call("count") == ((1, 0), (0, 1))


class DyingEnv(CountingEnv):
    """Its process ends in each reset but the first."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.episode >= 0:
            os._exit(3)
        return super().reset(seed=seed, options=options)


def test_the_end_of_a_worker_in_such_a_reset_is_told_once(make_pool: MakePool) -> None:
    pool = make_pool([DyingEnv, CountingEnv], num_workers=1, autoreset="disabled", max_retry=1)
    pool.reset()
    pool.go_on(None, True)
    pool.step(np.array([END, PLAY]))
    eventually(lambda: not pool.stats()["workers"][0]["alive"])
    with pytest.raises(shmenv.WorkerDiedError) as told:
        pool.send(np.array([PLAY]), env_id=[1])
    assert told.value.env_ids == (0, 1) and pool.needs_reset_ids == [0, 1]
    assert reset(pool) == [[0, 0]] and reset(pool, [1]) == [[0, 0]]


@pytest.mark.parametrize("wrong", [[2], [-1], [0, 0], [], 1.5])
def test_resets_of_unknown_envs_are_refused(make_pool: MakePool, wrong: Any) -> None:
    pool = make_going(make_pool, 2)
    end(pool)
    with pytest.raises(shmenv.UsageError, match="env_id"):
        pool.take_resets(wrong)
    assert reset(pool, (0, 1)) == [[1, 0]] * 2


def test_resets_of_envs_whose_step_is_owed_are_refused(make_pool: MakePool) -> None:
    pool = make_going(make_pool, 2)
    pool.send(np.full(2, END))
    with pytest.raises(shmenv.UsageError, match="env 0 cannot be taken up now: its last answer is pending"):
        pool.take_resets([0, 1])
    assert pool.recv(timeout=10).terminated.all()
    assert reset(pool, (0, 1)) == [[1, 0]] * 2
