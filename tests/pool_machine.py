"""A pool that is opened, stepped, reset and closed at random: half of the rules by which it is used and abused."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from fated_env import CONSTRUCT, ENDS, PADDING, FatedEnv, Fates
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)
from pool_model import DEADLY, LATE, RAISING, Account, Commands
from reference import MODES
from support import eventually, is_gone

import shmenv

LIMIT = 1.0  # seconds for a step or reset, where it is limited
FOREVER = 30  # seconds: a wait that should have ended
FAILURES = (shmenv.EnvError, shmenv.WorkerError)
MOST = 4  # envs

env_ids = st.sets(st.integers(0, MOST - 1), min_size=1)
one_env = st.integers(0, MOST - 1)
words = st.sampled_from(("ok", "long_info", "terminate", *ENDS, *RAISING, *DEADLY, "leak", *LATE))
construct_faults = st.sampled_from(("raise", "sys_exit", "kill", "exit", "hang"))
configs = st.fixed_dictionaries({
    "n": st.integers(1, MOST),
    "num_workers": st.integers(1, MOST),
    "batch_size": st.integers(1, MOST),
    "autoreset": st.sampled_from(MODES),
    "on_error": st.sampled_from(("raise", "restart")),
    "slots": st.sampled_from((2, 4)),
    "copy": st.booleans(),
    "debug": st.booleans(),
    "shared_memory": st.sampled_from((True, True, False)),
    "affinity": st.sampled_from((None, None, "spread")),
    "max_retry": st.integers(1, 2),
    "retry_type": st.sampled_from(("reset", "renew")),
    "retry_step": st.booleans(),
    "recycle_after": st.sampled_from((None, None, None, 3)),
    "limited": st.sampled_from((False, False, False, True)),  # how often workers are replaced
    "timed": st.booleans(),
    "deferred": st.booleans(),
})  # fmt: skip


def is_open(machine: SteppedPool) -> bool:
    return machine.is_open


def ids_of(error: shmenv.EnvError | shmenv.WorkerError) -> tuple[int, ...]:
    return error.env_ids if isinstance(error, shmenv.WorkerError) else (error.env_id,)


class SteppedPool(RuleBasedStateMachine):
    """Steps and resets; the account judges what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.is_open = False
        self.pools = 0

    def teardown(self) -> None:
        try:
            if self.is_open and sys.exception() is None:  # else the first error is the one to show
                self.drain()
                self.close(0.5)
        finally:
            if self.is_open:
                self.pool.close(0.0)
            shutil.rmtree(self.folder)

    # -- its life

    @initialize(config=configs, fault=st.none(), where=one_env)
    def begin(self, config: dict[str, Any], fault: None, where: int) -> None:
        self.open(config, fault, where)

    @precondition(lambda self: not self.is_open)
    @rule(config=configs, fault=st.none() | construct_faults, where=one_env)
    def open(self, config: dict[str, Any], fault: str | None, where: int) -> None:
        n, timed, limited = (config[key] for key in ("n", "timed", "limited"))
        self.pools += 1
        path = os.path.join(self.folder, str(self.pools))
        self.fates, self.timed, self.shared_memory = Fates(path, n, "w+"), timed, config["shared_memory"]
        if fault is not None and (fault := self.fault(fault)) != "ok":
            self.fates.arm(CONSTRUCT, where % n, fault, 1)
        passed = {key: config[key] for key in config.keys() - {"n", "timed", "limited"}}
        passed |= {"num_workers": min(n, config["num_workers"]), "batch_size": min(n, config["batch_size"])}
        limits: dict[str, Any] = {"step_timeout": LIMIT, "reset_timeout": LIMIT, "start_timeout": 2 * LIMIT}
        self.batch_size = passed["batch_size"]
        self.hooked = [0] * n
        envs = [partial(FatedEnv, path, n, i) for i in range(n)]
        try:
            pool = shmenv.Pool(
                envs, context="fork", retry_waiting_time=0.01, restart_period=60.0 if limited else 0.0,
                max_restarts=2 if limited else 10**6, on_restart=self.hook, **passed, **(limits if timed else {}),
            )  # fmt: skip
            if config["deferred"]:
                assert pool.closed and pool.ask_first("do", "ok", b"three") == 5
                self.refuses(pool)
                pool.start()
        except FAILURES as error:
            assert self.fates.left(CONSTRUCT, where % n) == 0 and fault is not None
            kind = shmenv.EnvError if fault in RAISING else shmenv.WorkerError
            assert isinstance(error, kind) and f"env {where % n}" in str(error)
            return
        assert fault in (None, "ok")
        self.pool, self.is_open = pool, True
        restarts, recycles = config["on_error"] == "restart", bool(config["recycle_after"])
        self.account = Account(pool, self.fates, config["autoreset"], restarts, recycles, limited)

    def hook(self, env_id: int, reason: str) -> None:
        self.hooked[env_id] += 1
        assert "worker" in reason

    @precondition(is_open)
    @rule(timeout=st.sampled_from((None, 0.0, 0.2)))
    def close(self, timeout: float | None) -> None:
        pids = [worker["pid"] for worker in self.pool.stats()["workers"] if worker["pid"]]
        self.pool.close(timeout)
        eventually(lambda: all(map(is_gone, pids)))
        self.account.check_views()
        self.is_open = False

    @precondition(lambda self: not self.is_open and hasattr(self, "pool"))
    @rule()
    def use_after_the_end(self) -> None:
        self.refuses(self.pool)
        self.pool.close()
        assert self.pool.stats()["num_envs"] == self.pool.num_envs

    def refuses(self, pool: shmenv.Pool) -> None:
        """A pool that is closed says so to each call, and owes nothing."""
        n = pool.num_envs
        for use in (
            pool.reset, pool.send_reset, pool.recv, pool.render, lambda: pool.step([0] * n), lambda: pool.send([0] * n),
            lambda: pool.call("do", "ok", b""), lambda: pool.get_attr("label"), lambda: pool.set_attr("label", 1),
        ):  # fmt: skip
            with pytest.raises(shmenv.ClosedError):
                use()
        assert pool.closed and not (pool.pending or pool.pending_ids or pool.needs_reset_ids) and "closed" in repr(pool)

    # -- steps and resets

    def ids(self, chosen: set[int]) -> list[int]:
        return sorted({i % self.pool.num_envs for i in chosen})

    def fault(self, name: str) -> str:
        """This one, or another where that does not fail: nothing is late without a limit, objects have no shape."""
        if name in LATE and not self.timed:
            return "ok"
        return "raise" if name.startswith("bad") and not self.shared_memory else name

    @precondition(is_open)
    @rule(faults=st.dictionaries(one_env, words, max_size=2))
    def step(self, faults: dict[int, str]) -> None:
        self.play(list(range(self.pool.num_envs)), faults, self.pool.step)

    @precondition(is_open)
    @rule(chosen=env_ids, faults=st.dictionaries(one_env, words, max_size=2), reverse=st.booleans(), any_=st.booleans())
    def send(self, chosen: set[int], faults: dict[int, str], reverse: bool, any_: bool) -> None:
        blocked = self.account.owed.keys() | set(self.pool.needs_reset_ids)
        ids = [i for i in self.ids(chosen) if any_ or i not in blocked]
        if ids:
            ids = ids[::-1] if reverse else ids
            whole = len(ids) == self.pool.num_envs and not reverse
            self.play(ids, faults, lambda actions: self.pool.send(actions, env_id=None if whole else ids))

    def play(self, ids: list[int], faults: dict[int, str], ask: Callable[[list[int]], shmenv.Batch | None]) -> None:
        account = self.account
        commands, actions = account.steps({i: self.fault(faults.get(i, "ok")) for i in ids})
        owed, needy = dict(account.owed), set(self.pool.needs_reset_ids)
        told = [i for i in ids if account.envs[i].untold or account.envs[i].lost]
        try:
            batch = ask(actions)
        except shmenv.UsageError as error:
            wrong = [i for i in ids if i in owed or i in needy]
            assert any(f"env {i} " in str(error) for i in wrong) and not told
            return
        except FAILURES as error:
            if (isinstance(error, shmenv.EnvError) and error.env_id not in told) or (not owed and self.pool.pending):
                # it came of what was sent
                account.note_sent(commands)
                account.blame(error)
                return
            # Of before, so nothing was sent. Or of all envs: then none has an answer to come.
            for i, command in commands.items():
                account.sent[i] += 1
                if command.what in DEADLY + LATE:
                    account.endanger(i)
            account.blame(error)
            return
        assert not told and not any(i in owed or i in needy for i in ids)
        account.note_sent(commands)
        if batch is not None:
            assert len(batch) == self.pool.num_envs
            account.check(batch)

    @precondition(is_open)
    @rule(need=st.integers(1, MOST), how=st.sampled_from(("default", "some", "poll", "out")))
    def recv(self, need: int, how: str) -> None:
        account = self.account
        if not account.owed:
            with pytest.raises(shmenv.UsageError, match="no env is pending"):
                self.pool.recv(timeout=0)
            return
        need = min(need, len(account.owed))
        usual = min(self.batch_size, len(account.owed))
        out = None
        if how == "out" and self.shared_memory:
            rows = (need,)
            arrays = np.zeros((need, 2), np.int64), np.zeros(rows), np.zeros(rows, bool), np.zeros(rows, bool)
            none = shmenv.Infos.empty(need)
            out = shmenv.Batch(np.zeros(rows, np.int32), *arrays, none, np.zeros((need, 2), np.int64), none)
        least = None if how == "default" else need
        timeout = 0 if how == "poll" else FOREVER
        batch = self.take(lambda: self.pool.recv(least, timeout=timeout, out=out), how == "poll")
        if batch is not None:
            assert len(batch) == usual if how == "default" else len(batch) >= need
            assert out is None or (batch is out and len(batch) == need)

    def take(self, ask: Callable[[], shmenv.Batch], may_be_late: bool = False) -> shmenv.Batch | None:
        """What comes of something that was asked before."""
        account = self.account
        try:
            batch = ask()
        except shmenv.RecvTimeoutError as error:
            assert may_be_late and "Call again" in str(error)
        except FAILURES as error:
            account.blame(error)
        else:
            account.check(batch)
            return batch
        return None

    @precondition(is_open)
    @rule(faults=st.dictionaries(one_env, words, max_size=1), steps=st.integers(1, 3))
    def go_on(self, faults: dict[int, str], steps: int) -> None:
        """Whatever was before: envs that need it are reset, and those that are not lost are stepped."""
        account = self.account
        for _ in range(steps):
            self.drain()
            needy = {i for i in self.pool.needs_reset_ids if not account.envs[i].lost}
            if needy:
                self.reset_some(needy, 0, steps > 1, True, True)
            self.drain()
            ids = [i for i in range(self.pool.num_envs) if i not in self.pool.needs_reset_ids]
            if len(ids) == self.pool.num_envs:
                self.step(faults)
            elif ids:
                self.play(ids, faults, lambda actions, ids=ids: self.pool.send(actions, env_id=ids))  # type: ignore[misc]
            self.drain()
            faults = {}

    @precondition(is_open)
    @rule(steps=st.integers(1, 3))
    def go_on_well(self, steps: int) -> None:
        self.go_on({}, steps)

    @precondition(is_open)
    @rule()
    def drain(self) -> None:
        while self.account.owed:
            self.take(lambda: self.pool.recv(1, timeout=FOREVER))

    def reset_arguments(
        self, ids: list[int], mark: int, seeded: bool, each: bool, whole: bool
    ) -> tuple[dict[str, Any], Commands]:
        account = self.account
        account.token += 1
        seeds = [account.token * 1000 + i for i in ids] if seeded else [None] * len(ids)
        option = {"mark": mark, "pad": PADDING if mark == 2 else b""}
        arguments: dict[str, Any] = {"seed": (seeds if each else account.token * 1000) if seeded else None}
        arguments["options"] = [option] * len(ids) if each else option if mark else None
        asked = {i: ("", mark, seed) for i, seed in zip(ids, seeds, strict=True)}
        return arguments, account.commands("reset", asked, whole)

    @precondition(is_open)
    @rule(mark=st.integers(0, 2), each=st.booleans())
    def reset(self, mark: int, each: bool) -> None:
        """All, and what is pending is dropped; with seeds, by which is seen whether it was sent."""
        account = self.account
        arguments, commands = self.reset_arguments(list(range(self.pool.num_envs)), mark, True, each, True)
        lost = [i for i, env in enumerate(account.envs) if env.lost]
        account.discarded = account.discarded or bool(account.owed)
        try:
            batch = self.pool.reset(**arguments)
        except FAILURES as error:
            if self.pool.seeds == [command.seed for command in commands.values()]:
                assert not lost
                account.note_sent(commands)
            account.blame(error)
            return
        assert not lost and len(batch) == self.pool.num_envs
        account.note_sent(commands)
        account.check(batch)

    @precondition(is_open)
    @rule(chosen=env_ids, mark=st.integers(0, 2), seeded=st.booleans(), each=st.booleans(), waits=st.booleans())
    def reset_some(self, chosen: set[int], mark: int, seeded: bool, each: bool, waits: bool) -> None:
        account, ids = self.account, self.ids(chosen)
        arguments, commands = self.reset_arguments(ids, mark, seeded, each, False)
        busy = account.owed.keys() & set(ids)
        lost = [i for i in ids if account.envs[i].lost]
        try:
            batch = (self.pool.reset if waits else self.pool.send_reset)(env_id=ids, **arguments)
        except shmenv.UsageError as error:
            assert busy and not lost and any(f"env {i} " in str(error) for i in busy)
        except FAILURES as error:
            left = [i for i in account.owed if i in self.pool.pending_ids or i not in ids_of(error)]
            sent = not busy and not lost and (isinstance(error, shmenv.EnvError) or self.pool.pending > len(left))
            if sent or (seeded and [self.pool.seeds[i] for i in ids] == [each.seed for each in commands.values()]):
                account.note_sent(commands)
            else:  # perhaps
                for i in ids:
                    account.sent[i] += 1
            account.blame(error)
        else:
            assert not busy and not lost
            account.note_sent(commands)
            if batch is not None:
                assert batch.env_id.tolist() == ids and not batch.is_view
                account.check(batch)
