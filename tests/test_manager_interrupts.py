"""Ctrl-C at every line of a manager's code: each action is answered exactly once all the same.

But for the line that returns the timesteps: what any call returns is lost if Ctrl-C comes with the return.
"""

from __future__ import annotations

import linecache
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest

import shmenv
from shmenv import AsyncSubprocessEnvManager, EnvState, SyncSubprocessEnvManager

FILES = ("manager.py", "manager_base.py", "timestep.py", "unbroken.py")
LENGTH = 3  # of an episode


class EchoEnv(gymnasium.Env[Any, Any]):
    """Says which action it was given."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps % LENGTH == 0, False, {"action": action}


class Interrupter:
    """Sends this process a SIGINT at the k-th line that it executes in the managers' files."""

    def __init__(self, k: int) -> None:
        self.left, self.sent = k, False

    def __enter__(self) -> Interrupter:
        sys.settrace(self._call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.rpartition("/")[2] in FILES else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        is_return = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() == "return timesteps"
        self.left -= event == "line" and not is_return
        if not self.left and not self.sent:
            self.sent = True
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return self._line


class Player:
    """Gives each env an action of its own, and remembers what was answered."""

    def __init__(self, manager: Any) -> None:
        self.manager, self.number = manager, 0
        self.answers: dict[int, list[int]] = {i: [] for i in range(manager.env_num)}

    def turn(self) -> None:
        self.number += 1
        for i, timestep in self.manager.step(dict.fromkeys(self.manager.ready_obs, self.number)).items():
            self.answers[i].append(timestep.info["action"])

    def settle(self) -> None:
        """Go on until no env owes a timestep; a signal that was held back may come in the first calls."""
        for _ in range(50):
            with suppress(KeyboardInterrupt):
                states = self.manager._env_states.values()
                if EnvState.STEPPING not in states and not self.manager._undelivered:
                    return
                for i, timestep in self.manager.step({}).items():
                    self.answers[i].append(timestep.info["action"])
        raise AssertionError(f"never settled: {self.manager!r}")


@pytest.mark.parametrize("cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
@pytest.mark.parametrize("reset_inplace", [False, True])
def test_ctrl_c_at_any_line_loses_and_doubles_nothing(
    make_manager: Callable[..., Any], cls: type[shmenv.AsyncSubprocessEnvManager], reset_inplace: bool
) -> None:
    manager = make_manager(
        [partial(EchoEnv)] * 2, cls, num_workers=1, reset_inplace=reset_inplace, step_wait_timeout=None
    )
    manager.launch()
    player = Player(manager)
    k, raised, over = 0, 0, 0
    while over < LENGTH:  # until a turn of each kind has fewer than k lines
        k += 1
        try:
            with Interrupter(k) as interrupter:
                player.turn()
        except KeyboardInterrupt:
            raised += 1
        over = 0 if interrupter.sent else over + 1
        player.settle()
        with suppress(KeyboardInterrupt):  # one that came at the very end
            player.turn()
        player.settle()
    assert k > 100 and raised > k // 2
    played = manager.steps
    manager.close()
    for i, answers in player.answers.items():
        assert len(answers) == len(set(answers)) == played[i]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
