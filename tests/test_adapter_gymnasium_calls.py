"""ShmVectorEnv's calls out of order, in time and too late, and what happens when envs fail; AsyncVectorEnv's words."""

from __future__ import annotations

import contextlib
import gc
import inspect
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Gate, OddError, OnlyInWorkersEnv, ScriptedEnv, act, actions
from gymnasium import VectorizeMode
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from reference import same
from seeded import GivesEnv, WalkEnv
from support import eventually, is_gone

import shmenv
from shmenv.adapters import require
from shmenv.adapters.gymnasium import ShmVectorEnv

Make = Callable[..., ShmVectorEnv]
Doors = Callable[[int], Gate]


def gated(gate: Doors, n: int = 2, **options: Any) -> list[Callable[[], Any]]:
    """Envs of which the last waits at its gate when its action is "slow"."""
    return [ScriptedEnv] * (n - 1) + [partial(ScriptedEnv, gate=gate(n - 1).path, **options)]


# -- out of order

CALLS: dict[str, Callable[[Any], Any]] = {
    "reset": lambda env: env.reset(),
    "reset_async": lambda env: env.reset_async(),
    "reset_wait": lambda env: env.reset_wait(),
    "step": lambda env: env.step([0, 0]),
    "step_async": lambda env: env.step_async([0, 0]),
    "step_wait": lambda env: env.step_wait(),
    "call": lambda env: env.call("where"),
    "call_async": lambda env: env.call_async("where"),
    "call_wait": lambda env: env.call_wait(),
    "get_attr": lambda env: env.get_attr("t"),
    "set_attr": lambda env: env.set_attr("extra", 1),
    "render": lambda env: env.render(),
}
FIRST_K: list[Callable[[Any], Any]] = [lambda env: env.send([0, 0]), lambda env: env.recv()]
STARTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "reset": (lambda env: env.reset_async(), lambda env: env.reset_wait()),
    "step": (lambda env: env.step_async([0, 0]), lambda env: env.step_wait()),
    "call": (lambda env: env.call_async("where"), lambda env: env.call_wait()),
}


def refusal(env: Any, call: Callable[[Any], Any]) -> tuple[type, str, str]:
    with pytest.raises((AlreadyPendingCallError, NoAsyncCallError)) as caught:
        call(env)
    error: Any = caught.value
    return type(error), str(error), error.name


@pytest.mark.parametrize("started", STARTS)
def test_a_call_out_of_order_is_refused_in_gymnasiums_words_and_loses_nothing(
    make_vector_env: Make, started: str
) -> None:
    start, finish = STARTS[started]
    results, refusals = [], []
    for env in (make_vector_env([ScriptedEnv] * 2), AsyncVectorEnv([ScriptedEnv] * 2, shared_memory=False)):
        env.reset()
        start(env)
        refused = [name for name in CALLS if name != f"{started}_wait"]
        refusals.append([refusal(env, CALLS[name]) for name in refused])
        results.append(finish(env))
        env.close()
    assert refusals[0] == refusals[1]
    assert same(results[0], results[1])


def test_waiting_for_what_was_not_started_is_refused_in_gymnasiums_words(make_vector_env: Make) -> None:
    refusals = []
    for env in (make_vector_env([ScriptedEnv] * 2), AsyncVectorEnv([ScriptedEnv] * 2, shared_memory=False)):
        env.reset()
        refusals.append([refusal(env, CALLS[name]) for name in ("reset_wait", "step_wait", "call_wait")])
        env.close()
    assert refusals[0] == refusals[1]


def test_a_closed_env_says_so_in_gymnasiums_words(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv] * 2)
    env.close()
    env.close()
    for call in [*CALLS.values(), *FIRST_K]:
        with pytest.raises(ClosedEnvironmentError) as caught:
            call(env)
        assert str(caught.value) == "Trying to operate on `ShmVectorEnv`, after a call to `close()`."


def test_first_k_calls_are_refused_amid_a_pending_step(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv] * 2)
    env.reset()
    env.step_async([0, 0])
    for call in FIRST_K:
        with pytest.raises(AlreadyPendingCallError):
            call(env)
    assert env.step_wait()[1].tolist() == [1, 1]


def test_a_wrong_number_of_actions_changes_nothing(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv] * 3)
    env.reset()
    wrong: list[tuple[Any, type]] = [(given, ValueError) for given in ([0, 0], [0] * 4, np.zeros((2, 3), int))]
    for given, kind in [*wrong, (None, TypeError), (7, TypeError)]:
        for step in (env.step, env.step_async):
            with pytest.raises(kind) as caught:
                step(given)
            assert isinstance(caught.value, shmenv.UsageError)
    assert env.get_attr("t") == (0, 0, 0)
    assert env.step([0, 0, 0])[1].tolist() == [1, 1, 1]


def test_without_autoreset_ended_envs_must_be_reset_first(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv, partial(ScriptedEnv, length=2)], autoreset_mode="Disabled")
    env.reset()
    env.step([0, 0])
    assert env.step([0, 0])[2].tolist() == [False, True]
    for step in (env.step, env.step_async):
        with pytest.raises(AssertionError, match=r"envs \[1\] have ended"):
            step([0, 0])
    obs, _ = env.reset(options={"reset_mask": np.array([False, True])})
    assert obs.tolist() == [[0, 2], [1, 0]]
    assert env.step([0, 0])[0].tolist() == [[0, 3], [1, 1]]


# -- in time, and too late


def test_a_step_that_takes_too_long_stays_pending_and_no_later_step_gets_its_results(
    make_vector_env: Make, gate: Doors
) -> None:
    env = make_vector_env(gated(gate))
    env.reset()
    env.step_async([0, act("slow")])
    held = eventually(gate(1).try_hold)
    for _ in range(2):
        with pytest.raises(multiprocessing.TimeoutError) as caught:
            env.step_wait(timeout=0.01)
        assert str(caught.value) == "The call to `step_wait` has timed out after 0.01 second(s)."
    with pytest.raises(AlreadyPendingCallError):
        env.step([0, 0])
    os.close(held)
    assert env.step_wait(timeout=30)[1].tolist() == [1, 1]
    assert env.step([0, 0])[1].tolist() == [2, 2]


def test_a_reset_that_takes_too_long_stays_pending(make_vector_env: Make, gate: Doors) -> None:
    env = make_vector_env(gated(gate, script={(0, 0): "slow"}))
    env.reset_async(seed=3)
    held = eventually(gate(1).try_hold)
    with pytest.raises(
        multiprocessing.TimeoutError, match=r"The call to `reset_wait` has timed out after 0 second\(s\)."
    ):
        env.reset_wait(timeout=0)
    os.close(held)
    assert env.reset_wait()[0].tolist() == [[0, 0], [0, 0]]
    assert env.np_random_seed == (3, 4)


def test_a_call_that_takes_too_long_stays_pending(make_vector_env: Make, gate: Doors) -> None:
    env = make_vector_env(gated(gate))
    env.reset()
    env.set_attr("gate", [Gate(gate(0).path), Gate(gate(1).path)])
    env.call_async("fail", "slow")
    held = [eventually(gate(i).try_hold) for i in range(2)]
    with pytest.raises(
        multiprocessing.TimeoutError, match=r"The call to `call_wait` has timed out after 0.01 second\(s\)."
    ):
        env.call_wait(timeout=0.01)
    for descriptor in held:
        os.close(descriptor)
    assert env.call_wait(timeout=30) == (None, None)
    assert env.step([0, 0])[1].tolist() == [1, 1]


def test_only_masked_envs_are_reset_also_without_waiting(make_vector_env: Make) -> None:
    env = make_vector_env([WalkEnv] * 3)
    first, _ = env.reset(seed=1)
    stepped = env.step([1, 1, 1])[0]
    env.reset_async(seed=[1, 2, 3], options={"reset_mask": np.array([True, False, True])})
    obs, infos = env.reset_wait(timeout=30)
    assert same(obs, np.stack([first[0], stepped[1], first[2]]))
    assert not infos or not infos["_length"][1]


def test_closing_amid_a_pending_call_warns_as_gymnasium_does(make_vector_env: Make, gate: Doors) -> None:
    for started in STARTS:
        env = make_vector_env([ScriptedEnv] * 2)
        if started != "reset":
            env.reset()
        STARTS[started][0](env)
        with pytest.warns(
            UserWarning, match=f"Calling `close` while waiting for a pending call to `{started}` to complete"
        ):
            env.close()


@pytest.mark.parametrize("options", [{"terminate": True}, {"timeout": 0.05}])
def test_an_env_that_is_stuck_is_killed_when_the_vector_env_closes(
    make_vector_env: Make, options: dict[str, Any]
) -> None:
    env = make_vector_env([ScriptedEnv] * 2, close_timeout=1000.0)
    env.reset()
    pids = env.call("pid")
    env.step_async([0, act("hang_native")])
    with pytest.warns(UserWarning, match="Calling `close`"):
        env.close(**options)
    assert all(map(is_gone, pids))


def test_a_call_that_never_ends_is_dropped_when_the_vector_env_closes(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv] * 2)
    env.reset()
    pids = env.call("pid")
    env.call_async("fail", "hang")
    with pytest.warns(UserWarning, match="pending call to `call`"):
        env.close(timeout=0.05)
    assert all(map(is_gone, pids))


def test_a_vector_env_that_is_dropped_ends_its_workers() -> None:
    env = ShmVectorEnv([ScriptedEnv] * 2, context="fork")
    env.reset()
    pids = env.call("pid")
    del env
    gc.collect()
    assert eventually(lambda: all(map(is_gone, pids)))


def test_a_step_that_ctrl_c_interrupts_stays_pending(make_vector_env: Make, gate: Doors) -> None:
    env = make_vector_env(gated(gate))
    env.reset()
    held: list[int] = []

    def interrupt() -> None:
        held.append(eventually(gate(1).try_hold))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        env.step([0, act("slow")])
    thread.join()
    with pytest.raises(AlreadyPendingCallError):
        env.step([0, 0])
    os.close(held[0])
    assert env.step_wait(timeout=30)[1].tolist() == [1, 1]
    assert env.step([0, 0])[1].tolist() == [2, 2]


def test_each_env_is_closed_in_its_worker(make_vector_env: Make, tmp_path: Any) -> None:
    env = make_vector_env([partial(ScriptedEnv, close_mark=str(tmp_path / str(i))) for i in range(3)])
    env.reset()
    pids = env.call("pid")
    env.close()
    assert [int((tmp_path / str(i)).read_text()) for i in range(3)] == list(pids)


def test_no_env_is_built_in_this_process(make_vector_env: Make) -> None:
    env = make_vector_env([partial(OnlyInWorkersEnv, os.getpid())] * 2, observation_mode="different")
    assert env.reset()[0].shape == (2, 2)


# -- envs that fail


@contextlib.contextmanager
def fails(env_id: int) -> Iterator[None]:
    """The error of this env is logged, and no other."""
    with pytest.warns(UserWarning) as warned:
        yield
    assert f"Worker-{env_id} -" in str(warned[0].message) and len(warned) == 3


def failing(
    make_vector_env: Make, call: Callable[[ShmVectorEnv], Any], **options: Any
) -> tuple[ShmVectorEnv, BaseException, list[str]]:
    env = make_vector_env([ScriptedEnv] * 3, **options)
    env.reset(seed=5)
    with pytest.warns(UserWarning) as warned, pytest.raises(Exception) as caught:
        call(env)
    return env, caught.value, [str(each.message) for each in warned]


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [("raise", KeyError, "'missing asset'"), ("raise_odd", OddError, "odd 1 two"), ("bad_shape", ValueError, "")],
)
def test_what_an_env_raises_in_a_step_is_raised_here(make_vector_env: Make, fault: str, kind: Any, text: str) -> None:
    env, error, texts = failing(make_vector_env, lambda env: env.step(actions(3, {1: fault})))
    assert isinstance(error, kind) and text in str(error)
    cause = error.__cause__
    assert isinstance(cause, shmenv.EnvError) and cause.env_id == 1 and cause.command == "step"
    assert "Traceback" in str(cause) and (fault == "bad_shape" or "envs.py" in str(cause))
    assert "Received the following error from Worker-1 - Shutting it down" in texts[0]
    assert "Traceback" in texts[1]
    assert texts[2] == "\x1b[31mERROR: Raising the last exception back to the main process.\x1b[0m"
    with pytest.raises(ValueError, match="env 1 cannot be stepped: it needs a reset"):
        env.step([0, 0, 0])
    assert env.reset(options={"reset_mask": np.array([False, True, False])})[0].tolist()[1] == [1, 0]
    assert env.step([0, 0, 0])[1].tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("fault", "text"), [("sys_exit", "sys.exit(4)"), ("raise_held", "holds a lock"), ("interrupt", "KeyboardInterrupt")]
)
def test_what_cannot_be_raised_here_is_told_as_an_env_error(make_vector_env: Make, fault: str, text: str) -> None:
    _, error, _ = failing(make_vector_env, lambda env: env.step(actions(3, {2: fault})))
    assert isinstance(error, shmenv.EnvError) and error.env_id == 2 and text in str(error)


def test_several_failures_are_all_logged_and_the_last_one_raised(make_vector_env: Make) -> None:
    def step(env: ShmVectorEnv) -> None:
        env.step_async(actions(3, {0: "raise", 2: "raise_odd"}))
        env.step_wait()

    env, error, texts = failing(make_vector_env, step)
    assert isinstance(error, OddError) and len(texts) == 5
    assert "Worker-0" in texts[0] and "Worker-2" in texts[2]
    assert env.reset()[0].tolist() == [[1, 0]] * 3
    assert env.step([0, 0, 0])[1].tolist() == [1, 1, 1]


def test_what_an_env_raises_in_a_reset_is_raised_here(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv, partial(ScriptedEnv, script={(0, 0): "raise"})])
    with fails(1), pytest.raises(KeyError, match="missing asset"):
        env.reset()
    assert env.reset()[0].tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_what_an_env_raises_in_an_autoreset_is_raised_here(make_vector_env: Make, mode: str) -> None:
    env = make_vector_env([partial(ScriptedEnv, script={(1, 0): "raise"}, length=1)], autoreset_mode=mode)
    env.reset()
    with fails(0), pytest.raises(KeyError, match="missing asset"):
        for _ in range(2):
            env.step([0])
    assert env.reset()[0].tolist() == [[2, 0]]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda env: env.call("fail"), KeyError),
        (lambda env: env.call("nope"), AttributeError),
        (lambda env: env.get_attr("nope"), AttributeError),
        (lambda env: env.set_attr("where", (lambda: 1, None, None)) or env.call("where", 1), TypeError),
        (lambda env: env.call_async("fail") or env.call_wait(), KeyError),
        (lambda env: env.call("lock"), TypeError),
    ],
)
def test_what_an_env_raises_in_a_call_is_raised_here_and_all_go_on(
    make_vector_env: Make, call: Any, kind: type
) -> None:
    env, error, _ = failing(make_vector_env, call)
    assert isinstance(error, kind)
    assert env.step([0, 0, 0])[1].tolist() == [1, 1, 1]


def test_what_has_a_method_of_its_own_is_not_called_by_name(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv])
    for name in ("reset", "step", "close"):
        with pytest.raises(ValueError) as caught:
            env.call(name)
        assert str(caught.value) == f"Trying to call function `{name}` with `call`, use `{name}` directly instead."


def test_what_a_constructor_raises_is_raised_here_and_nothing_stays() -> None:
    with pytest.raises(OddError, match="odd 1 two") as caught:
        ShmVectorEnv([ScriptedEnv, partial(ScriptedEnv, at_start="raise_odd")], context="fork")
    cause = caught.value.__cause__
    assert isinstance(cause, shmenv.EnvError) and cause.env_id == 1 and cause.command == "construct"
    with pytest.raises(shmenv.EnvError, match="holds a lock") as held:
        ShmVectorEnv([partial(ScriptedEnv, at_start="raise_held")], context="fork")
    assert held.value.type_name == "envs.HeldError"


def test_a_worker_that_dies_is_told_of_and_replaced(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv] * 3, num_workers=3)
    env.reset()
    with fails(1), pytest.raises(shmenv.WorkerDiedError) as caught:
        env.step(actions(3, {1: "kill"}))
    assert caught.value.exitcode == -signal.SIGKILL
    assert env.reset()[0].tolist() == [[1, 0], [0, 0], [1, 0]]


def test_losses_by_policy_are_rows_with_infos(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv] * 3, num_workers=3, on_error="restart", autoreset_mode="SameStep")
    env.reset()
    obs, rewards, terminated, truncated, infos = env.step(actions(3, {1: "exit"}))
    assert obs.tolist() == [[0, 1], [0, 0], [0, 1]] and rewards.tolist() == [1, 0, 1]
    assert truncated.tolist() == [False, True, False] and not terminated.any()
    assert infos["_final_obs"].tolist() == infos["final_info"]["_abnormal"].tolist() == [False, True, False]
    assert infos["final_obs"][1].tolist() == [0, 0]


def test_wrong_values_for_an_attribute_are_refused_in_gymnasiums_words(make_vector_env: Make) -> None:
    env = make_vector_env([ScriptedEnv] * 3)
    with pytest.raises(ValueError) as caught:
        env.set_attr("x", [1, 2])
    assert str(caught.value) == (
        "Values must be a list or tuple with length equal to the number of environments. "
        "Got `2` values for 3 environments."
    )
    env.set_attr("x", (1, 2, 3))
    env.set_attr("y", "abc")
    assert env.get_attr("x") == (1, 2, 3) and env.get_attr("y") == ("abc",) * 3


# -- first-k


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_first_k_gives_each_env_the_rows_of_lock_step(make_vector_env: Make, mode: AutoresetMode) -> None:
    one = make_vector_env([WalkEnv] * 4, batch_size=2, autoreset_mode=mode)
    two = [make_vector_env([WalkEnv], autoreset_mode=mode) for _ in range(4)]
    one.reset(seed=1)
    for i, env in enumerate(two):
        env.reset(seed=1 + i)
    one.send([0, 1, 2, 3])
    for _ in range(40):
        obs, rewards, terminated, truncated, infos = one.recv()
        ids = infos.pop("env_id")
        assert ids.dtype == np.int32 and len(ids) == 2 and ids[0] < ids[1]
        for k, i in enumerate(ids.tolist()):
            expected = two[i].step([i])
            assert same((obs[k : k + 1], rewards[k : k + 1], terminated[k : k + 1], truncated[k : k + 1]), expected[:4])
            assert {key for key in infos if key[0] == "_" and infos[key][k]} == {
                key for key in expected[4] if key[0] == "_"
            }
            for key in expected[4]:
                if key[0] != "_" and not isinstance(infos[key], dict):
                    assert same(np.array(infos[key][k]), np.array(expected[4][key][0])), key
        ended = terminated | truncated
        if mode == AutoresetMode.DISABLED and ended.any():
            mask = np.isin(np.arange(4), ids[ended])
            shown, _ = one.reset(options={"reset_mask": mask})
            for i in ids[ended].tolist():
                assert same(shown[i : i + 1], two[i].reset()[0])
        one.send(ids, env_id=ids)


def test_a_receive_that_finds_nothing_in_time_loses_nothing(make_vector_env: Make, gate: Doors) -> None:
    env = make_vector_env(gated(gate))
    env.reset()
    env.send([0, act("slow")])
    held = eventually(gate(1).try_hold)
    results = env.recv(min_envs=1, timeout=30)
    assert results[4]["env_id"].tolist() == [0]
    with pytest.raises(multiprocessing.TimeoutError, match="The call to `recv` has timed out"):
        env.recv(timeout=0)
    with pytest.raises(AlreadyPendingCallError, match="`send`"):
        env.reset_async()
    assert env.reset(options={"reset_mask": np.array([True, False])})[0].tolist() == [[1, 0], [0, 0]]
    with pytest.raises(ValueError, match="env 1 cannot be stepped now: its last answer is pending"):
        env.step([0, 0])
    os.close(held)
    results = env.recv(timeout=30)
    assert results[0].tolist() == [[0, 1]] and results[4]["env_id"].tolist() == [1]
    env.send([0, 0])
    assert env.reset()[0].tolist() == [[2, 0], [1, 0]]  # what was pending is void


# -- arguments


@pytest.mark.parametrize("env_fns", [[], [ScriptedEnv()], [ScriptedEnv, None]])
def test_what_builds_no_envs_is_refused_at_once(env_fns: Any) -> None:
    with pytest.raises(shmenv.UsageError, match="env_fns must be one or more functions that return an env"):
        ShmVectorEnv(env_fns)


def test_a_custom_worker_is_refused() -> None:
    with pytest.raises(ValueError, match="takes no custom `worker`"):
        ShmVectorEnv([ScriptedEnv], worker=lambda *args: None)  # type: ignore[arg-type]


@pytest.mark.skipif(
    "max_concurrency" not in inspect.signature(AsyncVectorEnv.__init__).parameters,
    reason="this release of Gymnasium has no max_concurrency",
)
@pytest.mark.parametrize("limit", [0, -1, 2.5, "2"])
def test_a_wrong_max_concurrency_is_refused_in_gymnasiums_words(limit: Any) -> None:
    refusals = []
    for build in (ShmVectorEnv, AsyncVectorEnv):
        with pytest.raises(ValueError) as caught:
            build([ScriptedEnv], max_concurrency=limit)
        refusals.append(str(caught.value))
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize(("options", "workers"), [({}, 2), ({"num_workers": 4}, 2), ({"num_workers": 1}, 1)])
def test_max_concurrency_limits_the_workers(options: dict[str, int], workers: int) -> None:
    env = ShmVectorEnv([ScriptedEnv] * 4, context="fork", max_concurrency=np.int64(2), **options)  # type: ignore[arg-type]
    assert env.pool.num_workers == workers
    env.close()


def test_a_start_method_that_does_not_exist_is_refused_as_by_multiprocessing() -> None:
    with pytest.raises(ValueError, match="cannot find context for 'illegal'"):
        ShmVectorEnv([ScriptedEnv], context="illegal")


def test_arguments_have_async_vector_envs_order(make_vector_env: Make) -> None:
    env = ShmVectorEnv([ScriptedEnv], False, False, "fork", False, None, "same", AutoresetMode.SAME_STEP, 1)
    assert (env.shared_memory, env.copy, env.context, env.daemon, env.worker) == (False, False, "fork", False, None)
    assert (env.observation_mode, env.autoreset_mode, env.max_concurrency) == ("same", AutoresetMode.SAME_STEP, 1)
    env.close()
    with pytest.raises(TypeError, match="num_wrokers"):
        make_vector_env([ScriptedEnv], num_wrokers=1)


# -- make_vec


class Registered(WalkEnv):
    """Registered below, in this process alone."""

    def __init__(self, size: int = 2, render_mode: str | None = None) -> None:
        super().__init__()
        self.size = size


@pytest.fixture
def registered() -> Iterator[str]:
    entry_point: Any = Registered
    gymnasium.register("ShmenvTest-v0", entry_point, max_episode_steps=3, kwargs={"size": 4})
    yield "ShmenvTest-v0"
    del gymnasium.registry["ShmenvTest-v0"]


def doubled(env: Any) -> Any:
    return gymnasium.wrappers.TransformReward(env, lambda reward: 2 * float(reward))


def test_make_vec_makes_what_gymnasium_makes(registered: str, context: str) -> None:
    """Also in processes where nobody has registered the env, and of a spec."""
    name: Any = gymnasium.spec(registered) if context == "fork" else registered
    options: Any = {"wrappers": [doubled, doubled], "size": 3}
    one = shmenv.make_vec(name, 2, vector_kwargs={"context": context, "num_workers": 1}, **options)
    two = gymnasium.make_vec(name, 2, vectorization_mode="sync", **options)
    assert repr(one) == "ShmVectorEnv(ShmenvTest-v0, num_envs=2)"
    assert isinstance(one, ShmVectorEnv) and one.observation_space == two.observation_space
    one.reset(seed=1), two.reset(seed=1)
    for _ in range(6):
        assert same(one.step([0, 1]), two.step([0, 1]))
    assert one.spec is not None and one.spec.kwargs["num_envs"] == 2 and one.spec.kwargs["size"] == 3
    assert gymnasium.spec(registered).kwargs == {"size": 4}
    one.close()
    again = shmenv.make_vec(one.spec)
    assert again.get_attr("size") == (3, 3)
    again.close()


@pytest.mark.parametrize("mode", ["sync", "async", VectorizeMode.SYNC, VectorizeMode.ASYNC, None])
def test_make_vec_takes_the_modes_that_it_replaces(registered: str, mode: Any) -> None:
    env = shmenv.make_vec(registered, vectorization_mode=mode, vector_kwargs={"context": "fork"})
    assert env.num_envs == 1
    env.close()
    with pytest.raises(ValueError, match="no mode 'vector_entry_point'"):
        shmenv.make_vec(registered, vectorization_mode="vector_entry_point")


@pytest.mark.parametrize(
    ("name", "text"), [("Nope-v0", "Nope"), (3, "Invalid id type"), ("nomodule_at_all:X-v0", "nomodule_at_all")]
)
def test_make_vec_tells_in_gymnasiums_words_what_it_cannot_make(name: Any, text: str) -> None:
    with pytest.raises((gymnasium.error.Error, ModuleNotFoundError), match=text):
        shmenv.make_vec(name)


# -- versions


@pytest.mark.parametrize("found", ["1.0.0", "0.29.1", "1.0", "1"])
def test_a_framework_that_is_too_old_is_an_import_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    old = types.ModuleType("oldframework")
    old.__version__ = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "oldframework", old)
    with pytest.raises(ImportError) as caught:
        require("oldframework", "1.1", "gymnasium")
    assert str(caught.value) == (
        f"shmenv's adapter needs oldframework 1.1 or newer, not {found}: pip install 'shmenv[gymnasium]'"
    )
    for good in ("1.1", "1.1.0a2", "1.10", "2.0.dev3"):
        old.__version__ = good  # type: ignore[attr-defined]
        assert require("oldframework", "1.1", "gymnasium") is old


def test_a_missing_framework_is_an_import_error_that_says_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"needs no_such_framework 2.9 or newer .*: pip install 'shmenv\[sb3\]'"):
        require("no_such_framework", "2.9", "sb3")


def test_discrete_actions_arrive_as_gymnasium_sends_them(make_vector_env: Make) -> None:
    env = make_vector_env([partial(GivesEnv, Discrete(3), [0, 1, 2])] * 2)
    env.reset()
    assert env.step(np.array([1, 0]))[0].tolist() == [1, 1]
