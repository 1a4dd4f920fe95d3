"""Envs that raise, or return what does not fit; the pool lives on."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import ScriptedEnv, act, actions
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from seeded import GivesEnv

import shmenv

MakePool = Callable[..., shmenv.Pool]


def test_an_env_that_raises_is_named_with_its_traceback(make_pool: MakePool, context: str) -> None:
    """Covers exceptions that reach the caller as a bare EOFError, or without the line of the env that raised."""
    pool = make_pool([ScriptedEnv] * 3, num_workers=2, context=context)
    pool.reset()
    with pytest.raises(shmenv.EnvError) as caught:
        pool.step(actions(3, {2: "raise"}))
    error = caught.value
    assert (error.env_id, error.worker_id, error.command) == (2, 1, "step")
    assert isinstance(error.__cause__, KeyError) and error.__cause__.args == ("missing asset",)
    assert "KeyError" in error.type_name
    assert re.search(r'envs\.py", line \d+, in _raise', error.traceback_text)
    assert "missing asset" in error.traceback_text
    for part in ("env 2", "worker 1", "step", "envs.py", "missing asset", "reset"):
        assert part in str(error)


def test_the_other_rows_of_a_failed_step_are_kept(make_pool: MakePool) -> None:
    """Covers a failed result that is unpacked before it is checked, and the loss of all others with it."""
    pool = make_pool([ScriptedEnv] * 8, num_workers=3)
    pool.reset()
    with pytest.raises(shmenv.EnvError) as caught:
        pool.step(actions(8, {3: "raise"}))
    assert caught.value.env_id == 3
    assert pool.pending == 7 and pool.needs_reset_ids == [3]
    for attempt in (lambda: pool.step(actions(8)), lambda: pool.send(actions(1), env_id=[0])):
        with pytest.raises(shmenv.UsageError):
            attempt()
    batch = pool.recv()
    assert batch.env_id.tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert batch.obs.tolist() == [[0, 1]] * 7
    with pytest.raises(shmenv.UsageError, match="3"):
        pool.send(actions(1), env_id=[3])
    with pytest.raises(shmenv.UsageError, match="3"):
        pool.step(actions(8))
    pool.send(actions(7), env_id=batch.env_id)
    assert pool.recv().obs.tolist() == [[0, 2]] * 7
    assert pool.reset(env_id=[3]).obs.tolist() == [[1, 0]] and not pool.needs_reset_ids
    assert pool.step(actions(8)).obs.tolist() == [[0, 3]] * 3 + [[1, 1]] + [[0, 3]] * 4


def test_a_whole_reset_after_a_failure_discards_what_is_kept(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    with pytest.raises(shmenv.EnvError):
        pool.step(actions(3, {1: "raise"}))
    assert pool.reset().obs.tolist() == [[1, 0]] * 3
    assert pool.pending == 0
    assert pool.step(actions(3)).obs.tolist() == [[1, 1]] * 3


def test_several_failures_are_told_one_a_call_in_ascending_order(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 5, num_workers=3)
    pool.reset()
    with pytest.raises(shmenv.EnvError) as caught:
        pool.step(actions(5, {4: "raise", 1: "raise_once", 2: "raise"}))
    assert caught.value.env_id == 1
    told = []
    for _ in range(2):
        with pytest.raises(shmenv.EnvError) as caught:
            pool.recv()
        told.append(caught.value.env_id)
    assert told == [2, 4]
    assert pool.recv().env_id.tolist() == [0, 3]
    pool.reset(env_id=[1, 2, 4])
    assert pool.step(actions(5)).obs[:, 1].tolist() == [2, 1, 1, 2, 1]


def test_an_env_that_raises_once_goes_on_after_its_reset(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset()
    with pytest.raises(shmenv.EnvError, match="only this once"):
        pool.step(actions(2, {0: "raise_once"}))
    pool.recv()
    pool.reset(env_id=0)
    assert pool.step(actions(2, {0: "raise_once"})).obs.tolist() == [[1, 1], [0, 2]]


@pytest.mark.parametrize(
    ("fault", "type_name", "text"),
    [("raise_odd", "OddError", "odd 1 two"), ("raise_held", "HeldError", "holds a lock")],
)
def test_an_exception_that_cannot_travel_keeps_its_text(
    make_pool: MakePool, fault: str, type_name: str, text: str
) -> None:
    """Covers an exception class with a constructor of its own that turns into a TypeError on its way."""
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset()
    with pytest.raises(shmenv.EnvError, match=text) as caught:
        pool.step(actions(2, {1: fault}))
    assert caught.value.type_name.endswith(type_name)
    assert caught.value.env_id == 1
    assert pool.recv().env_id.tolist() == [0]


def test_an_env_that_calls_sys_exit_is_an_error_like_any_other(make_pool: MakePool) -> None:
    """Covers sys.exit inside an env, which ends the worker and reaches the caller as an EOFError."""
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset()
    pids = pool.call("pid")
    with pytest.raises(shmenv.EnvError, match=r"SystemExit|sys\.exit") as caught:
        pool.step(actions(2, {0: "sys_exit"}))
    assert "4" in str(caught.value)
    pool.recv()
    pool.reset(env_id=0)
    assert pool.call("pid") == pids


def test_a_reset_that_raises_is_told_with_its_env(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv, partial(ScriptedEnv, script={(0, 0): "raise"}), ScriptedEnv], num_workers=2)
    with pytest.raises(shmenv.EnvError) as caught:
        pool.reset()
    assert (caught.value.env_id, caught.value.command) == (1, "reset")
    assert isinstance(caught.value.__cause__, KeyError)
    assert pool.recv().env_id.tolist() == [0, 2]
    with pytest.raises(shmenv.UsageError):
        pool.step(actions(3))
    assert pool.reset(env_id=[1]).obs.tolist() == [[1, 0]]
    assert pool.step(actions(3)).obs.tolist() == [[0, 1], [1, 1], [0, 1]]


def test_a_partial_reset_that_raises_is_told_with_its_env(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv, partial(ScriptedEnv, script={(1, 0): "raise"}), ScriptedEnv], num_workers=2)
    pool.reset()
    with pytest.raises(shmenv.EnvError) as caught:
        pool.reset(env_id=[1, 2])
    assert (caught.value.env_id, caught.value.command) == (1, "reset")
    assert pool.recv().env_id.tolist() == [2]
    pool.reset(env_id=1)
    assert pool.step(actions(3)).obs.tolist() == [[0, 1], [2, 1], [1, 1]]


@pytest.mark.parametrize("fault", ["bad_shape", "bad_scalar", "bad_dtype", "bad_type", "bad_none"])
@pytest.mark.parametrize("at_reset", [False, True])
def test_an_observation_that_does_not_fit_is_an_env_error(make_pool: MakePool, fault: str, at_reset: bool) -> None:
    """Covers observations that are wrapped, cut, broadcast or re-shaped into the buffer without a word."""
    pool = make_pool([ScriptedEnv, partial(ScriptedEnv, script={(1, 0): fault} if at_reset else {})])
    pool.reset()
    with pytest.raises(shmenv.EnvError) as caught:
        if at_reset:
            pool.reset(env_id=[1])
        else:
            pool.step(actions(2, {1: fault}))
    assert (caught.value.env_id, caught.value.command) == (1, "reset" if at_reset else "step")
    assert "(2,)" in str(caught.value) or "float32" in str(caught.value)
    if not at_reset:
        assert pool.recv().env_id.tolist() == [0]
    pool.reset()
    assert pool.step(actions(2)).reward.tolist() == [1, 1]


BYTES = Box(0, 255, (2,), np.uint8)
MATRIX = Box(-99, 99, (2, 3), np.float32)
FLOATS = Box(-99, 99, (2,), np.float32)
NAMED = Dict(a=Box(-99, 99, (2,), np.float32), b=Discrete(3))


@pytest.mark.parametrize(
    ("space", "good", "bad", "says"),
    [
        (BYTES, np.array([1, 2], np.uint8), np.array([0.7, 300.0]), ["uint8", "float64"]),
        (BYTES, np.array([1, 2], np.uint8), np.array([1, 300]), ["uint8", "300"]),
        (BYTES, [3, 4], [3, -4], ["uint8", "-4"]),
        (BYTES, (3, 4), [3], ["(2,)", "(1,)"]),
        (MATRIX, np.zeros((2, 3), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2), ["(2, 3)", "(3, 2)"]),
        (MATRIX, np.zeros((2, 3), np.float64), np.zeros((1, 3), np.float32), ["(2, 3)", "(1, 3)"]),
        (MATRIX, [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5]], ["(2, 3)"]),
        (FLOATS, np.zeros(2, np.float16), np.float32(5), ["(2,)", "()"]),
        (FLOATS, np.zeros(2, np.int64), np.array(["1", "2"]), ["float32"]),
        (FLOATS, [1.5, 2], [None, 2], ["float32"]),
        (NAMED, {"a": np.zeros(2), "b": 1}, {"a": np.zeros(2)}, ["b"]),
        (NAMED, {"b": 1, "a": [0, 0]}, {"a": np.zeros(2), "b": 1, "c": 2}, ["c"]),
        (NAMED, {"a": np.zeros(2), "b": np.int64(2)}, {"a": np.zeros(3), "b": 1}, ["a", "(3,)"]),
        (NAMED, {"a": np.zeros(2), "b": np.array(1)}, {"a": np.zeros(2), "b": 1.5}, ["b"]),
        (Discrete(5), 3, np.array([3, 3]), ["(2,)"]),
        (Discrete(5), np.int32(2), 2**70, []),
        (MultiDiscrete([3, 3]), [1, 2], [1.5, 2.0], ["int64"]),
    ],
    ids=lambda value: re.sub(r"\s+", "", repr(value))[:40],
)
def test_only_the_exact_shape_and_a_safe_cast_fit(
    make_pool: MakePool, space: Any, good: Any, bad: Any, says: list[str]
) -> None:
    """Covers uint8 spaces that turn 300 into 44, transposed observations read row by row, and broadcast scalars."""
    pool = make_pool([partial(GivesEnv, space, [good, bad])])
    pool.reset()
    with pytest.raises(shmenv.EnvError) as caught:
        pool.step(actions(1))
    for part in ["env 0", *says]:
        assert part in str(caught.value)
    assert pool.reset().env_id.tolist() == [0]


def test_the_dtype_of_the_space_is_what_arrives(make_pool: MakePool) -> None:
    """Covers a dtype seen by the trainer that depends on what the env happened to return."""
    pool = make_pool([partial(GivesEnv, FLOATS, [np.array([0.1, 0.2], np.float64), [3, 4], np.ones(2, np.float16)])])
    pool.reset()
    for expected in ([3, 4], [1, 1], [np.float32(0.1), np.float32(0.2)]):
        obs = pool.step(actions(1)).obs
        assert obs.dtype == np.float32 and obs[0].tolist() == expected


def test_strict_dtypes_refuse_every_cast(make_pool: MakePool) -> None:
    pool = make_pool([partial(GivesEnv, FLOATS, [np.zeros(2, np.float32), np.zeros(2)])], strict_dtype=True)
    pool.reset()
    with pytest.raises(shmenv.EnvError, match="float64"):
        pool.step(actions(1))


class OddStepEnv(ScriptedEnv):
    """Answers each step with something else that is no answer."""

    answers: tuple[Any, ...] = (None, (), (1, 2, 3), "row", 7, (np.zeros(2, np.float32), 0.0, False, False, {}, 6))

    def step(self, action: Any) -> Any:
        return self.answers[int(action)]


@pytest.mark.parametrize("which", range(6))
def test_a_step_that_answers_no_row_is_an_env_error(make_pool: MakePool, which: int) -> None:
    pool = make_pool([OddStepEnv, OddStepEnv])
    pool.reset()
    pool.send([which], env_id=[1])
    with pytest.raises(shmenv.EnvError) as caught:
        pool.recv()
    assert (caught.value.env_id, caught.value.command) == (1, "step")
    pool.reset()


def test_failures_in_first_k_come_by_recv(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=2, batch_size=1)
    pool.reset()
    pool.send(actions(4, {0: "raise", 3: "raise_odd"}))
    failed, rows = [], []
    while pool.pending:
        try:
            rows += pool.recv().env_id.tolist()
        except shmenv.EnvError as error:
            failed.append(error.env_id)
    assert (sorted(failed), sorted(rows)) == ([0, 3], [1, 2])
    pool.reset(env_id=failed)
    pool.send([act("ok")] * 4)
    assert sorted(i for _ in range(4) for i in pool.recv().env_id.tolist()) == [0, 1, 2, 3]


untyped: Any = shmenv
RAGGED = [[0], [1, 0]]
WRONG: dict[str, Callable[[Any], Any]] = {
    **{
        f"{name} ragged": partial(lambda name, pool: getattr(pool, name)(*GIVEN.get(name, ()), env_id=RAGGED), name)
        for name in ("reset", "send_reset", "send", "call", "get_attr", "set_attr", "render", "take_resets")
    },
    "go_on": lambda pool: pool.go_on(RAGGED, True),
    "seed without an axis": lambda pool: pool.reset(seed=np.array(5)),
    "seed of bytes": lambda pool: pool.reset(seed=b"ab"),
    "seed of text": lambda pool: pool.reset(seed="ab"),
    "seeds that nest": lambda pool: pool.reset(seed=np.zeros((2, 2), int)),
    "options of bytes": lambda pool: pool.reset(options=b"ab"),
    "a list for a name": lambda pool: pool.call(["a"]),
    "no text for a name": lambda pool: pool.set_attr(5, 1),
    "a complex timeout": lambda pool: pool.recv(timeout=np.complex64(1)),
    "a timeout of text": lambda pool: pool.close("soon"),
    "slots of an array": lambda pool: untyped.Pool([ScriptedEnv], slots=np.array([2, 4])),
    "modes": lambda pool: untyped.Pool([ScriptedEnv], autoreset=["same_step"]),
    "a mode of an array": lambda pool: untyped.Pool([ScriptedEnv], on_error=np.array(["raise", "restart"])),
    "post(True)": lambda pool: untyped.Semaphore().post(True),
    "wait(True)": lambda pool: untyped.Semaphore().wait(True, 0),
    "push(True)": lambda pool: untyped.Ring(2).try_push(True),
    "manager's seed without an axis": lambda pool: untyped.SyncSubprocessEnvManager([ScriptedEnv] * 2).seed(
        np.array(1)
    ),
    "manager's seed of bytes": lambda pool: untyped.SyncSubprocessEnvManager([ScriptedEnv] * 2).seed(b"ab"),
    "manager's path": lambda pool: untyped.SyncSubprocessEnvManager([ScriptedEnv] * 2).enable_save_replay(5),
    "retry_wrapper": lambda pool: untyped.retry_wrapper(len, 1, "soon"),
}
GIVEN: dict[str, tuple[Any, ...]] = {
    "send": ([0, 0],), "call": ("where",), "get_attr": ("t",), "set_attr": ("q", 1)
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_a_usage_error_whatever_it_is(make_pool: MakePool, name: str) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=1, autoreset="disabled")
    pool.reset()
    with pytest.raises(shmenv.UsageError):
        WRONG[name](pool)
    assert pool.step(actions(2)).reward.tolist() == [1, 1]


def test_integers_of_numpy_are_integers(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=np.int8(1), slots=np.int64(4), batch_size=np.uint8(1))
    assert pool.reset(seed=np.uint8(3), env_id=np.int16(1)).env_id.tolist() == [1] and pool.seeds == [None, 4]
    assert untyped.Semaphore(np.int64(2)).value == 2 and untyped.Ring(np.int32(4), np.uint8(8)).capacity == 4


def test_a_batch_that_is_unpacked_says_how_it_is_read(make_pool: MakePool) -> None:
    pool: Any = make_pool([ScriptedEnv] * 5)
    with pytest.raises(TypeError, match=r"a Batch is not unpacked but read: batch\.obs, batch\.reward"):
        _, _, _, _, _ = pool.reset()
