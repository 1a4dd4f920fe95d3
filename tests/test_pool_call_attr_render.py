"""Calls past the step path: methods, attributes, frames."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import Gate, ScriptedEnv, act, actions
from gymnasium.spaces import Discrete, Sequence
from gymnasium.wrappers import TimeLimit
from support import eventually

import shmenv

MakePool = Callable[..., shmenv.Pool]


def wrapped() -> Any:
    return TimeLimit(ScriptedEnv(length=5), max_episode_steps=100)


class SlottedEnv(ScriptedEnv):
    """Has an attribute that refuses values."""

    @property
    def level(self) -> int:
        return 7

    @level.setter
    def level(self, value: int) -> None:
        raise ValueError(f"no level {value}")


class BigFrameEnv(ScriptedEnv):
    """Renders a frame of full size."""

    def render(self) -> Any:
        return np.full((1080, 1920, 3), self.t, np.uint8)


class FrameListEnv(ScriptedEnv):
    """Renders all frames since the last time."""

    def render(self) -> Any:
        return [np.full((2, 2, 3), t, np.uint8) for t in range(self.t)]


def test_a_call_reaches_each_env(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=2)
    pool.reset()
    pool.step(actions(3))
    assert pool.call("add", 10, second=0.5) == (11.5, 11.5, 11.5)
    assert pool.call("where") == ((0, 1),) * 3


def test_a_call_may_reach_some_envs(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=2)
    pool.reset()
    pool.send(actions(1), env_id=[2])
    pool.recv()
    assert pool.call("where", env_id=[0, 2]) == ((0, 0), (0, 1))
    assert pool.get_attr("t", env_id=2) == (1,)
    assert pool.get_attr("t", env_id=np.array([1, 2])) == (0, 1)
    wrongs: list[Any] = [[3], [0, 0], -1, "t"]
    for wrong in wrongs:
        with pytest.raises(shmenv.UsageError):
            pool.call("where", env_id=wrong)


def test_calling_a_plain_attribute_returns_it(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    assert pool.call("episode") == (-1, -1)


def test_calls_need_no_reset_before(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    assert pool.call("add", 1) == (1, 1)
    pool.set_attr("length", 1)
    pool.reset()
    assert pool.step(actions(2)).terminated.all()


def test_set_attr_takes_one_value_for_all_or_one_each(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.set_attr("note", "same")
    assert pool.get_attr("note") == ("same",) * 3
    pool.set_attr("note", [1, 2, 3])
    assert pool.get_attr("note") == (1, 2, 3)
    pool.set_attr("note", [8, 9], env_id=[2, 0])
    assert pool.get_attr("note") == (9, 2, 8)
    pool.set_attr("note", 5, env_id=1)
    assert pool.get_attr("note") == (9, 5, 8)
    with pytest.raises(shmenv.UsageError):
        pool.set_attr("note", [1, 2])
    assert pool.get_attr("note") == (9, 5, 8)


def test_an_attribute_is_set_where_it_is_found(make_pool: MakePool) -> None:
    """Covers set_attr that changes only the outermost wrapper, where nobody reads it."""
    pool = make_pool([wrapped] * 2)
    pool.set_attr("length", [1, 3])
    assert pool.get_attr("length") == (1, 3)
    pool.reset()
    assert pool.step(actions(2)).terminated.tolist() == [True, False]
    assert pool.call("where") == ((1, 0), (0, 1))


def test_a_missing_name_is_an_attribute_error_and_harms_nothing(make_pool: MakePool) -> None:
    """Covers a harmless probe that kills every worker, and a missing attribute that is answered with None."""
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    for attempt in (partial(pool.call, "nope"), partial(pool.get_attr, "nope"), partial(pool.call, "nope", 1)):
        with pytest.raises(shmenv.EnvError, match="nope") as caught:
            attempt()
        assert isinstance(caught.value.__cause__, AttributeError)
        assert caught.value.command == "call" and caught.value.env_id == 0
    assert pool.step(actions(2)).obs.tolist() == [[0, 1]] * 2


def test_a_failing_call_leaves_worker_and_env_alive(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=2)
    pool.reset()
    pids = pool.call("pid")
    for name, cause in (("raise", KeyError), ("sys_exit", None), ("raise_odd", None)):
        with pytest.raises(shmenv.EnvError) as caught:
            pool.call("fail", name, env_id=[1, 2])
        assert caught.value.env_id == 1
        assert "in fail" in caught.value.traceback_text
        if cause:
            assert isinstance(caught.value.__cause__, cause)
    assert pool.pending == 0
    assert pool.step(actions(3)).obs.tolist() == [[0, 1]] * 3
    assert pool.call("pid") == pids


def test_a_failing_set_attr_is_reported(make_pool: MakePool) -> None:
    """Covers attributes that are set without an answer, so that a failure reaches nobody."""
    pool = make_pool([SlottedEnv] * 2)
    with pytest.raises(shmenv.EnvError, match="no level 3"):
        pool.set_attr("level", 3)
    assert pool.get_attr("level") == (7, 7)


def test_calls_while_steps_are_pending_take_nothing_from_them(make_pool: MakePool, gate: Callable[[int], Gate]) -> None:
    """Covers get_attr during a step that eats the step's answer."""
    pool = make_pool([partial(ScriptedEnv, gate=gate(i).path) for i in range(3)], num_workers=3)
    pool.reset()
    pool.send([act("slow"), act("ok")], env_id=[0, 1])
    assert pool.get_attr("t", env_id=2) == (0,)
    held = eventually(gate(0).try_hold)
    os.close(held)
    assert pool.get_attr("t") == (1, 1, 0)
    assert pool.call("add", 1, env_id=[0, 1]) == (2, 2)
    pool.set_attr("note", "x")
    assert pool.pending == 2
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == [0, 1] and batch.obs.tolist() == [[0, 1]] * 2


def test_large_arguments_and_results_travel_whole(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3, num_workers=2)
    for size in (256, 4096, 65536, 5_000_192):
        assert pool.call("blob", size) == (bytes(range(256)) * (size // 256),) * 3
    big = np.arange(500_000)
    pool.set_attr("note", big)
    for value in pool.get_attr("note"):
        assert np.array_equal(value, big)


def test_a_result_is_the_callers_own(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    pool.set_attr("note", np.zeros(3))
    first = pool.get_attr("note")
    pool.set_attr("note", np.ones(3))
    pool.get_attr("note")
    assert [value.tolist() for value in first] == [[0, 0, 0]] * 2


def test_arguments_that_cannot_travel_are_a_usage_error(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    for attempt in (partial(pool.call, "add", threading.Lock()), partial(pool.set_attr, "note", threading.Lock())):
        with pytest.raises(shmenv.UsageError):
            attempt()
    assert pool.call("add", 1) == (1, 1)


def test_a_result_that_cannot_travel_is_an_env_error(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset()
    with pytest.raises(shmenv.EnvError, match="pickle") as caught:
        pool.call("lock")
    assert (caught.value.env_id, caught.value.command) == (0, "call")
    assert pool.step(actions(2)).obs.tolist() == [[0, 1]] * 2


def test_frames_come_from_each_env(make_pool: MakePool) -> None:
    """Covers rendering from workers: one array each, or nothing, and no dead worker where there is no render mode."""
    pool = make_pool([partial(ScriptedEnv, render_mode="rgb_array")] * 2 + [ScriptedEnv])
    pool.reset()
    pool.step(actions(3))
    frames = pool.render()
    assert isinstance(frames, tuple) and frames[2] is None
    for frame in frames[:2]:
        assert frame.shape == (4, 6, 3) and frame.dtype == np.uint8 and (frame == 1).all()
    assert [frame.shape for frame in pool.render(env_id=[1])] == [(4, 6, 3)]
    assert pool.step(actions(3)).obs.tolist() == [[0, 2]] * 3


def test_frames_may_be_big_or_come_as_lists(make_pool: MakePool) -> None:
    """Covers rendering from workers: big frames, and lists of frames."""
    pool = make_pool([BigFrameEnv, FrameListEnv, BigFrameEnv], num_workers=2)
    pool.reset()
    for _ in range(3):
        pool.step(actions(3))
    first, frames, last = pool.render()
    assert first.shape == last.shape == (1080, 1920, 3) and (first == 3).all() and (last == 3).all()
    assert [int(frame.max()) for frame in frames] == [0, 1, 2]


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_the_pools_own_methods_are_not_called_by_name(make_pool: MakePool, name: str) -> None:
    """An env that was reset behind the pool's back would play another episode than the pool believes."""
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset()
    with pytest.raises(shmenv.UsageError, match=name):
        pool.call(name)
    assert pool.step(actions(2)).obs.tolist() == [[0, 1]] * 2


class Raises:
    """Raises an exception when it is unpickled."""

    def __init__(self, exception: type[BaseException]) -> None:
        self.exception = exception

    def __reduce__(self) -> Any:
        return _raise, (self.exception,)


def _raise(exception: type[BaseException]) -> None:
    raise exception(3)


class RaisingEnv(ScriptedEnv):
    """All it returns, but for its first observation, raises when it is unpickled."""

    def __init__(self, exception: type[BaseException]) -> None:
        super().__init__()
        self.observation_space = Sequence(Discrete(3))
        self.value = Raises(exception)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return (), {}

    def get(self) -> Any:
        return [self.value]

    def render(self) -> Any:
        return self.value

    def step(self, action: Any) -> Any:
        obs, info = ((self.value,), {}) if action else ((), {"x": self.value})
        return obs, 0.0, False, False, info


@pytest.mark.parametrize("exception", [SystemExit, KeyboardInterrupt, GeneratorExit, ValueError])
def test_what_cannot_be_unpickled_is_an_error_of_the_env_whatever_it_raises(
    make_pool: MakePool, exception: type[BaseException]
) -> None:
    pool = make_pool([partial(RaisingEnv, exception)] * 2, num_workers=1)
    pool.reset()
    asks: list[Callable[[], Any]] = [lambda: pool.call("get"), lambda: pool.get_attr("value", env_id=0), pool.render]
    for ask in asks:
        with pytest.raises(shmenv.EnvError, match=r"env 0 .*raised in call.*ValueError: .*3"):
            ask()
    with pytest.raises(shmenv.EnvError, match=r"env 0 .*cannot be unpickled here"):
        pool.step([1, 0])
    with pytest.raises(ValueError, match=f"{exception.__name__}: 3"):
        pool.recv().info[0]
    pool.reset(env_id=0)
    assert pool.step([0, 0]).reward.tolist() == [0, 0]
    if exception is not ValueError:
        deferred = shmenv.Pool([partial(RaisingEnv, exception)], context="fork", deferred=True)
        with pytest.raises(shmenv.EnvError, match="'value' cannot be unpickled here"):
            deferred.ask_first("value")
        deferred.close()


class CrampedEnv(ScriptedEnv):
    """Its worker can write no file longer than a megabyte."""

    def cramp(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    def big(self) -> bytes:
        return b"x" * 5_000_000

    def fail_at_length(self) -> None:
        raise ValueError("y" * 100_000)

    def render(self) -> Any:
        return self.big()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if options == "long":
            raise ValueError("y" * 100_000)
        return super().reset(seed=seed)


def test_an_answer_for_which_there_is_no_room_is_an_error_of_the_env_and_its_worker_lives(make_pool: MakePool) -> None:
    pool = make_pool([CrampedEnv] * 2, num_workers=1)
    pool.reset()
    pool.call("cramp", env_id=0)
    pid = pool.stats()["workers"][0]["pid"]
    asks: list[Callable[[], Any]] = [
        lambda: pool.call("big"),
        lambda: pool.call("fail_at_length", env_id=1),
        pool.render,
    ]
    for ask in asks:
        with pytest.raises(shmenv.EnvError, match=r"raised in call.*ResourceError"):
            ask()
    assert pool.needs_reset_ids == [] and pool.stats()["workers"][0]["pid"] == pid
    assert pool.step(actions(2)).reward.tolist() == [1, 1]
