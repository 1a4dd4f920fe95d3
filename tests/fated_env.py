"""An env that fails as told: in a step or a call by what it is asked, else by a fate that outlives its process."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from envs import FAULTS, NAMES
from gymnasium.spaces import Box, Discrete

RESET, CONSTRUCT = range(2)
KINDS = 32  # an action is KINDS * token + what the step does
ENDS = ("terminate", "truncate")
WORDS = [*NAMES, "long_info", *ENDS]
PADDING = b"p" * 40_000  # longer than fits a row


class Fates:
    """What the next resets and constructors of each env do instead, in a file that all processes share."""

    def __init__(self, path: str, num_envs: int, mode: Any = "r+") -> None:
        self.table = np.memmap(path, np.uint8, mode, shape=(2, num_envs, 2))

    def arm(self, where: int, env_id: int, fault: str, times: int) -> None:
        self.table[where, env_id] = NAMES.index(fault), times

    def left(self, where: int, env_id: int) -> int:
        """How many more of them will fail."""
        return int(self.table[where, env_id, 1])

    def meet(self, where: int, env_id: int, env: Any) -> Any:
        """Called by: the env. What the fault returns, if it returns."""
        fault, left = self.table[where, env_id].tolist()
        if left:
            self.table[where, env_id, 1] = left - 1
            return FAULTS[NAMES[fault]](env)
        return None


class FatedEnv(gymnasium.Env[Any, Any]):
    """obs = [the step's token, which step of its episode it is]; [-1 - mark, 0] after a reset."""

    observation_space = Box(-(2**60), 2**60, (2,), np.int64)
    action_space = Discrete(2**60)
    has_raised = False  # for the faults

    def __init__(self, path: str, num_envs: int, env_id: int) -> None:
        self.fates, self.env_id = Fates(path, num_envs), env_id
        self.label: Any = None
        self.count = -1000  # until it is reset
        self.leaked: list[Any] = []
        self.fates.meet(CONSTRUCT, env_id, self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        wrong = self.fates.meet(RESET, self.env_id, self)
        self.count = 0
        mark = (options or {}).get("mark", 0)
        return np.array([-1 - mark, 0]) if wrong is None else wrong, {"seed": seed, "mark": mark}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        token, what = divmod(int(action), KINDS)
        word = WORDS[what]
        wrong = FAULTS[word](self) if word in FAULTS else None  # type: ignore[arg-type]
        self.count += 1
        obs = np.array([token, self.count]) if wrong is None else wrong
        info = {"token": token, "pad": PADDING if word == "long_info" else b""}
        return obs, float(self.count), word == "terminate", word == "truncate", info

    def render(self) -> Any:
        return self.count

    def do(self, fault: str, padding: bytes) -> int:
        FAULTS[fault](self)  # type: ignore[arg-type]
        return len(padding)
