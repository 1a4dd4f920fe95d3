"""What an error's text says at three in the morning: whose fault, which env and worker, what was done, what to do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import OddError, ScriptedEnv, act, actions
from reference import MODES

import shmenv

MakePool = Callable[..., shmenv.Pool]


class ChainEnv(ScriptedEnv):
    """Raises one exception from another."""

    def step(self, action: Any) -> Any:
        try:
            super().step(action)
        except KeyError as error:
            raise RuntimeError("the level could not be loaded") from error


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_a_chain_of_exceptions_is_told_whole(policy: str, make_pool: MakePool) -> None:
    pool = make_pool([ChainEnv] * 3, num_workers=2, on_error=policy)
    pool.reset(seed=40)
    if policy == "raise":
        with pytest.raises(shmenv.EnvError) as caught:
            pool.step(np.array([act("raise")] * 3))
        text = str(caught.value)
        assert isinstance(caught.value.__cause__, RuntimeError)
        for part in (
            "env 0",
            "worker 0",
            "in step",
            "last seed 40",
            "reset(env_id=0)",
            "recv()",
        ):
            assert part in text
    else:
        text = pool.step(np.array([act("raise")] * 3)).info[2]["error"]
    for part in ("RuntimeError: the level could not be loaded", "KeyError: 'missing asset'", "direct cause", "envs.py"):
        assert part in text


def test_the_original_exception_is_the_cause_where_it_can_travel(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv])
    pool.reset()
    for fault, cause in (("raise", KeyError), ("raise_odd", OddError), ("raise_held", None), ("sys_exit", SystemExit)):
        with pytest.raises(shmenv.EnvError) as caught:
            pool.step([act(fault)])
        found = caught.value.__cause__
        assert found is None if cause is None else type(found) is cause
        pool.reset()


def test_a_crash_in_native_code_brings_its_own_stack_and_no_other(make_pool: MakePool) -> None:
    class FirstEnv(ScriptedEnv):
        def first_place(self) -> None:
            self.fail("crash")

    class SecondEnv(ScriptedEnv):
        def second_place(self) -> None:
            self.fail("crash")

    pool = make_pool([FirstEnv, SecondEnv], num_workers=2)
    pool.reset()
    with pytest.raises(shmenv.WorkerDiedError) as first:
        pool.call("first_place", env_id=0)
    with pytest.raises(shmenv.WorkerDiedError) as second:
        pool.call("second_place", env_id=1)
    for error, own, other in ((first, "first_place", "second_place"), (second, "second_place", "first_place")):
        text = str(error.value)
        assert "SIGSEGV in call of env" in text and "Segmentation fault" in text
        assert f"in {own}" in text and f"in {other}" not in text


def test_a_kill_from_outside_shows_no_stack_of_somebody_else(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, on_error="restart")
    pool.reset()
    assert "Segmentation fault" in pool.step(actions(2, {0: "crash"})).info[0]["error"]
    text = pool.step(actions(2, {1: "kill"})).info[1]["error"]
    assert "SIGKILL" in text and "Segmentation" not in text and "printed" not in text


@pytest.mark.parametrize(
    ("policy", "fate"),
    [("raise", "needs a reset, which a new worker carries out"), ("restart", "A new worker starts it anew")],
)
def test_the_end_of_a_worker_is_told_with_its_envs_their_fate_and_their_seeds(
    policy: str, fate: str, make_pool: MakePool
) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=2, on_error=policy)
    pool.reset(seed=60)
    worker = pool.stats()["workers"][1]
    if policy == "raise":
        with pytest.raises(shmenv.WorkerDiedError) as caught:
            pool.step(actions(4, {2: "exit"}))
        text = str(caught.value)
    else:
        text = pool.step(actions(4, {2: "exit"})).info[2]["error"]
    for part in ("worker 1", f"pid {worker['pid']}", "exit code 3", "step of env 2", "last seed 62", "envs 2-3", fate):
        assert part in text, text
    assert "the envs of other workers go on" in text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("fault", ["raise", "bad_shape", "exit", "hang"])
def test_an_error_says_which_step_of_which_episode_has_failed(
    fault: str, policy: str, mode: str, make_pool: MakePool
) -> None:
    """The step is counted from the last reset, whoever gave it: the pool, the caller, or a retry in a new process."""
    pool = make_pool([partial(ScriptedEnv, length=4)] * 2, num_workers=2, autoreset=mode, on_error=policy,
                     step_timeout=0.3 if fault == "hang" else None)  # fmt: skip
    pool.reset(seed=60)

    def text_of_failure() -> str:
        if policy == "restart":
            return str(pool.step(actions(2, {1: fault})).info[1]["error"])
        with pytest.raises((shmenv.EnvError, shmenv.WorkerError)) as caught:
            pool.step(actions(2, {1: fault}))
        assert pool.recv().env_id.tolist() == [0]
        return str(caught.value)

    def begin_anew() -> None:
        if mode == "next_step" and policy == "restart":
            pool.step(actions(2))
        elif mode == "disabled" or policy == "raise":
            pool.reset(env_id=[1])

    for _ in range(2):
        pool.step(actions(2))
    first = text_of_failure()
    begin_anew()
    pool.reset(env_id=[0])
    for _ in range(4):  # a whole episode
        pool.step(actions(2))
    if mode == "disabled":
        pool.reset(env_id=[0, 1])
    elif mode == "next_step":
        pool.step(actions(2))
    pool.step(actions(2))
    second = text_of_failure()
    seeds = (61, 61) if fault in ("raise", "bad_shape") else (61, 63)  # a new process begins with another
    for text, step, seed in ((first, 3, seeds[0]), (second, 2, seeds[1])):
        assert f"step {step} of its episode, last seed {seed})" in text, text
        for part in ("worker 1", "pid ", "env 1", "in step" if fault != "bad_shape" else "from step"):
            assert part in text, text


def test_an_error_of_a_reset_or_a_call_says_after_which_step_it_came(make_pool: MakePool) -> None:
    pool = make_pool([partial(ScriptedEnv, script={(1, 0): "raise"}, length=9)])
    pool.reset()
    for _ in range(5):
        pool.step(actions(1))
    with pytest.raises(shmenv.EnvError, match=r"raised in call \(after step 5 of its episode\): "):
        pool.call("fail", "raise")
    with pytest.raises(shmenv.EnvError, match=r"raised in reset \(after step 5 of its episode\): "):
        pool.reset()


def test_a_worker_killed_while_idle_is_said_to_have_been_idle(make_pool: MakePool) -> None:
    pool = make_pool([partial(ScriptedEnv)] * 2, num_workers=2)
    pool.reset()
    os.kill(pool.stats()["workers"][1]["pid"], signal.SIGKILL)
    with pytest.raises(shmenv.WorkerDiedError, match=r"SIGKILL .* (while idle|before it took up)"):
        while True:
            pool.call("where")
