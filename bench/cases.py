"""What is stepped in the benchmarks of whole pools."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np


class Idle(gymnasium.Env[np.ndarray[Any, Any], np.int64]):
    """Does next to nothing: its observation counts its steps in the first byte, and it never ends."""

    def __init__(self, obs_bytes: int) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (obs_bytes,), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.obs = np.zeros(obs_bytes, np.uint8)
        self.count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        self.count = self.obs[0] = 0
        return self.obs, {}

    def step(self, action: np.int64) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        self.count = self.obs[0] = (self.count + 1) & 255
        return self.obs, 1.0, False, False, {}


@dataclass(frozen=True)
class Case:
    """Envs of one kind, and how many."""

    title: str
    make: Callable[[], Any]
    num_envs: int

    @property
    def env_fns(self) -> list[Callable[[], Any]]:
        return [self.make] * self.num_envs

    def actions(self, count: int = 64) -> list[np.ndarray[Any, Any]]:
        """Random actions of all envs for `count` steps; each env here has two."""
        return list(np.random.default_rng(0).integers(2, size=(count, self.num_envs)))


CASES = {
    "cartpole": Case("64 CartPole-v1", partial(gymnasium.make, "CartPole-v1"), 64),
    "idle-16B": Case("64 do-nothing envs, 16-byte obs", partial(Idle, 16), 64),
    "idle-100kB": Case("64 do-nothing envs, 100-kB obs", partial(Idle, 100_000), 64),
}
