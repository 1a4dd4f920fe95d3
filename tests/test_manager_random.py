"""Random calls and faults: every action is answered once, and every answer is the right one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from managed_envs import StatEnv

import shmenv
from shmenv import AsyncSubprocessEnvManager, EnvState, SyncSubprocessEnvManager

FAILURES = (shmenv.EnvError, shmenv.WorkerError)


def ids_of(error: Any) -> tuple[int, ...]:
    return error.env_ids if isinstance(error, shmenv.WorkerError) else (error.env_id,)


class Player:
    """Plays a manager at random, and knows what each env must answer."""

    def __init__(self, make_manager: Callable[..., Any], seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.on_error = chance.choice(["raise", "restart"])
        self.cfg: dict[str, Any] = {
            "on_error": self.on_error,
            "num_workers": chance.choice([1, 2, 4]),
            "wait_num": chance.choice([1, 2, 4]),
            "reset_inplace": chance.random() < 0.3,
            "copy_on_get": chance.random() < 0.7,
            "max_retry": chance.choice([1, 2]),
            "retry_type": chance.choice(["reset", "renew"]),
            "retry_waiting_time": 0.0,
            "max_restarts": 10**6,
            "restart_period": 0.001,
        }
        self.cfg["auto_reset"] = self.cfg["reset_inplace"] or chance.random() < 0.7
        cls = chance.choice([SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
        self.manager = make_manager([partial(StatEnv, length=chance.choice([1, 2, 5]))] * 4, cls, **self.cfg)
        self.manager.launch()
        self.sent: dict[int, Any] = {}
        self.seen: dict[int, list[float]] = {}  # the newest observation of each env

    def turn(self) -> None:
        kind = self.chance.choices([self.step, self.reset, self.ask, self.kill], [14, 3, 2, 1])[0]
        try:
            kind()
        except FAILURES as error:
            assert self.on_error == "raise" or kind != self.kill
            for i in ids_of(error):
                if self.manager._env_states[i] != EnvState.STEPPING:
                    self.sent.pop(i, None)
        states = self.manager._env_states
        stepping = {i for i in states if states[i] == EnvState.STEPPING}
        untold = {i for error in self.manager._failures for i in ids_of(error)}
        assert stepping <= self.sent.keys() and self.sent.keys() - stepping <= untold
        for i in self.sent.keys() - stepping:
            del self.sent[i]
        pool = self.manager._pool
        assert self.manager._owed >= set(pool.pending_ids) and len(self.manager._owed) <= pool.pending

    def step(self) -> None:
        try:
            obs = self.manager.ready_obs
        except shmenv.UsageError:
            stuck = [
                i for i, state in self.manager._env_states.items() if state in (EnvState.ERROR, EnvState.NEED_RESET)
            ]
            self.reset(dict.fromkeys(stuck))
            return
        self.seen |= {i: each.tolist() for i, each in obs.items()}
        words = [0] * 12 + ["error", "kill", "catched_error", "odd"]
        actions = {i: self.chance.choice(words) for i in obs if self.chance.random() < 0.8}
        assert not actions.keys() & self.sent.keys()
        self.sent |= actions
        try:
            timesteps = self.manager.step(actions)
        except FAILURES:
            for i in actions:
                if self.manager._env_states[i] == EnvState.RUN:  # nothing was sent
                    del self.sent[i]
            raise
        for i, timestep in timesteps.items():
            self.check(i, self.sent.pop(i), timestep)

    def check(self, i: int, action: Any, timestep: Any) -> None:
        episode, t = self.seen[i]
        if "error" in timestep.info:
            assert self.on_error == "restart" and timestep.info["abnormal"] and timestep.reward == 0
        elif action == "catched_error":
            assert timestep.info == {"abnormal": True} and timestep.obs is None
        else:
            obs = timestep.info.get("final_observation", timestep.obs)
            assert action == 0 and obs.tolist() == [episode, t + 1] and timestep.reward == t + 1

    def reset(self, params: dict[int, Any] | None = None) -> None:
        bad: list[Any] = [
            {"stat": "error"},
            {"stat": "error_once"},
            {"stat": "kill" if self.on_error == "raise" else "error"},
        ]
        if params is None:
            chosen = self.chance.sample(range(4), self.chance.randint(1, 4))
            params = {i: self.chance.choice([None] * 6 + bad) for i in chosen}
        for i in params:
            self.sent.pop(i, None)
        try:
            self.manager.reset(params)
        finally:
            self.manager._reset_param.update({i: {} for i in params})

    def ask(self) -> None:
        assert self.manager.name == ["env"] * 4

    def kill(self) -> None:
        worker = self.chance.choice(self.manager._pool.stats()["workers"])
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.kill(worker["pid"], signal.SIGKILL)


@pytest.mark.parametrize("seed", range(16))
def test_whatever_is_called_and_whatever_fails_every_action_is_answered_once(
    make_manager: Callable[..., Any], seed: int
) -> None:
    player = Player(make_manager, seed)
    for _ in range(60):
        player.turn()
