"""A pool used and abused at random, beside a model that knows what each env owes, and all that a row may be.

A state machine over all that a pool can be asked, in any order, and all that can go wrong meanwhile.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fated_env import CONSTRUCT, PADDING, RESET
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pool_machine import MOST, SteppedPool, construct_faults, env_ids, is_open, one_env
from pool_model import DEADLY, LATE, RAISING, Known
from support import eventually, is_gone

import shmenv

EXAMPLES = int(os.environ.get("SHMENV_STRESS_EXAMPLES", "40"))
reset_faults = st.sampled_from(("raise", "raise", "sys_exit", "bad_shape", "kill", "exit", "segfault", *LATE))


class PoolMachine(SteppedPool):
    """Asks a pool for anything, and has anything go wrong."""

    # -- calls

    def ask(self, ids: list[int], ask: Callable[[], Any], raises: bool = False) -> Any:
        """The answers, None if an error came instead."""
        account = self.account
        known = [account.envs[i] for i in ids]
        try:
            answers = ask()
        except shmenv.EnvError as error:
            if error.command == "call":
                assert raises and error.env_id == ids[0] and not any(env.untold or env.lost for env in known)
            else:
                account.blame(error)
            return None
        except shmenv.WorkerError as error:
            account.blame(error, in_call=True)
            return None
        assert not any(env.untold or env.lost for env in known) and not raises
        return answers

    @precondition(is_open)
    @rule(chosen=env_ids, padded=st.booleans())
    def call(self, chosen: set[int], padded: bool) -> None:
        ids, padding = self.ids(chosen), PADDING if padded else b""
        answers = self.ask(ids, lambda: self.pool.call("do", "ok", padding, env_id=ids))
        assert answers in (None, (len(padding),) * len(ids))

    @precondition(is_open)
    @rule(where=one_env, fault=st.sampled_from(("raise", "raise_odd", "raise_held", "sys_exit", *DEADLY)))
    def call_that_fails(self, where: int, fault: str) -> None:
        i = where % self.pool.num_envs
        if fault in DEADLY:
            self.account.endanger(i)
        answers = self.ask([i], lambda: self.pool.call("do", fault, b"", env_id=i), raises=fault not in DEADLY)
        assert answers is None

    @precondition(is_open)
    @rule(chosen=env_ids, each=st.booleans())
    def set_attr(self, chosen: set[int], each: bool) -> None:
        account, ids = self.account, self.ids(chosen)
        account.token += 1
        values = [account.token * 10 + i for i in ids] if each else [account.token] * len(ids)
        for i, value in zip(ids, values, strict=True):
            account.envs[i].labels.append(value)

        def ask() -> bool:
            self.pool.set_attr("label", values if each else values[0], env_id=ids)
            return True

        for i, value in zip(ids, values, strict=True) if self.ask(ids, ask) else ():
            account.envs[i].labels = [value, None] if account.envs[i].danger else [value]

    @precondition(is_open)
    @rule(chosen=env_ids)
    def get_attr(self, chosen: set[int]) -> None:
        account, ids = self.account, self.ids(chosen)
        answers = self.ask(ids, lambda: self.pool.get_attr("label", env_id=ids))
        for i, label in zip(ids, answers or (), strict=False):
            assert label in account.envs[i].labels or account.recycles

    @precondition(is_open)
    @rule(chosen=env_ids)
    def render(self, chosen: set[int]) -> None:
        account, ids = self.account, self.ids(chosen)

        def is_sure(i: int, env: Known) -> bool:
            uncertain = i in account.owed or env.over or env.danger or env.needs_reset or account.recycles
            return env.last is not None and not uncertain

        answers = self.ask(ids, lambda: self.pool.render(env_id=ids))
        for i, count in zip(ids, answers or (), strict=False):
            assert not is_sure(i, account.envs[i]) or count == account.envs[i].last[1]  # type: ignore[index]

    @precondition(is_open)
    @rule(max_retry=st.integers(1, 3), retry_type=st.sampled_from(("reset", "renew")))
    def set_retries(self, max_retry: int, retry_type: Any) -> None:
        self.pool.set_retries(max_retry, retry_type, 0.0)

    @precondition(is_open)
    @rule(which=st.integers(0, 13))
    def mistake(self, which: int) -> None:
        """The caller's; refused, and nothing changes."""
        pool, n = self.pool, self.pool.num_envs
        mistakes: Sequence[Callable[[], object]] = (
            lambda: pool.send([0], env_id=[n]), lambda: pool.send([0, 0], env_id=[0, 0]),
            lambda: pool.send_reset(env_id=[-1]), lambda: pool.reset(env_id=[]), lambda: pool.reset(seed=[1] * (n + 1)),
            lambda: pool.reset(options=[{}] * (n + 1)), lambda: pool.call("reset"), lambda: pool.render(env_id=n),
            lambda: pool.set_attr("label", [1] * (n + 1)), lambda: pool.set_retries(0), lambda: pool.recv(timeout=-1),
            pool.start, lambda: pool.ask_first("do"), lambda: pool.close(-1.0),
        )  # fmt: skip
        with pytest.raises(shmenv.UsageError):
            mistakes[which]()
        for travel in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                travel(pool)

    # -- what goes wrong

    @precondition(is_open)
    @rule(where=one_env, fault=reset_faults, times=st.integers(1, 3))
    def fail_resets(self, where: int, fault: str, times: int) -> None:
        i = where % self.pool.num_envs
        fault = self.fault(fault)
        self.account.arm(RESET, i, fault, times if fault in RAISING else 1)

    @precondition(is_open)
    @rule(where=one_env, fault=construct_faults)
    def fail_next_constructor(self, where: int, fault: str) -> None:
        i = where % self.pool.num_envs
        self.account.arm(CONSTRUCT, i, self.fault(fault), 1)

    @precondition(is_open)
    @rule(where=one_env)
    def kill(self, where: int) -> None:
        i = where % self.pool.num_envs
        pid = self.pool.stats()["workers"][self.account.worker_of[i]]["pid"]
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: is_gone(pid))
            self.account.endanger(i)

    @precondition(is_open)
    @rule(where=one_env)
    def stop_for_a_while(self, where: int) -> None:
        """A worker is stopped while the pool is used, and goes on: it was only slow."""
        pid = self.pool.stats()["workers"][self.account.worker_of[where % self.pool.num_envs]]["pid"]
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            if self.account.owed:
                self.recv(MOST, "poll")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # -- always

    moves = 0  # of all examples

    @invariant()
    def state_is_told(self) -> None:
        PoolMachine.moves += 1
        if self.is_open:
            self.account.check_state()
            self.account.check_stats()
            self.account.check_views()
            workers = [[self.hooked[i] for i in w["env_ids"]] for w in self.pool.stats()["workers"]]
            assert all(len(set(counts)) == 1 for counts in workers)


QUICK = settings(max_examples=30, stateful_step_count=50, derandomize=True, database=None)
LONG = settings(max_examples=EXAMPLES, stateful_step_count=100, print_blob=True)


@pytest.mark.parametrize(
    "runs", [QUICK, *[pytest.param(LONG, marks=pytest.mark.stress, id=f"long {part}") for part in range(6)]]
)
def test_whatever_is_asked_of_a_pool_and_whatever_fails_each_command_is_answered_or_reported_once(
    runs: settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "shmenv")
    always = settings(runs, deadline=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
    moves = PoolMachine.moves
    run_state_machine_as_test(PoolMachine, settings=always)
    moves = PoolMachine.moves - moves
    print(f"\n{moves} moves", end="")
    assert moves > runs.max_examples * runs.stateful_step_count / 2  # 10 000 and more in all the long parts
