"""What is stepped in the benchmarks of whole pools."""

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np

CRC_BYTES = 3.0e9  # a second, that zlib.crc32 takes in on the machine of docs/performance.md
_WORK = bytes(1 << 22)

Answer = tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]


class Idle(gymnasium.Env[np.ndarray[Any, Any], np.int64]):
    """Does next to nothing: its observation counts its steps in the first byte, and it never ends."""

    def __init__(self, *shape: int) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.obs = np.zeros(shape, np.uint8)
        self.first = self.obs.reshape(-1)
        self.count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        self.count = self.first[0] = 0
        return self.obs, {}

    def step(self, action: np.int64) -> Answer:
        self.count = self.first[0] = (self.count + 1) & 255
        return self.obs, 1.0, False, False, {}


class Busy(Idle):
    """Computes for some seconds a step."""

    def __init__(self, seconds: float) -> None:
        super().__init__(16)
        self.seconds = seconds

    def step(self, action: np.int64) -> Answer:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return super().step(action)


class Computing(Idle):
    """Does a fixed amount of work a step, however long that takes beside others; its frames are Atari's.

    Args:
        seconds: what the work takes about; the same work for all, so nothing is calibrated at run time.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(4, 84, 84)
        self.action_space = gymnasium.spaces.Discrete(6)
        self.work = memoryview(_WORK)[: int(seconds * CRC_BYTES)]

    def step(self, action: np.int64) -> Answer:
        zlib.crc32(self.work)
        return super().step(action)


class Asleep(Busy):
    """Waits for some seconds a step, as for a simulator elsewhere, and uses no core meanwhile."""

    def step(self, action: np.int64) -> Answer:
        time.sleep(self.seconds)
        return Idle.step(self, action)


class Short(Idle):
    """Its episodes last so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__(16)
        self.steps = steps

    def step(self, action: np.int64) -> Answer:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.count == self.steps, False, info


class Renewing(Short):
    """Starts anew as often, by itself, and tells nobody."""

    def step(self, action: np.int64) -> Answer:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated:
            obs, info = self.reset()
        return obs, reward, False, truncated, info


class Talkative(Idle):
    """Tells five numbers at every step."""

    tells = True

    def step(self, action: np.int64) -> Answer:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"x": 0.5, "y": -1.5, "lives": 3, "frame": self.count, "score": 2.0 * self.count}
        return obs, reward, terminated, truncated, info if self.tells else {}


class Silent(Talkative):
    """Makes the same five numbers, and keeps them to itself."""

    tells = False


@dataclass(frozen=True)
class Case:
    """Envs of one kind, but perhaps for env 0, and how many."""

    title: str
    make: Callable[[], Any]
    num_envs: int
    make_first: Callable[[], Any] | None = None

    @property
    def env_fns(self) -> list[Callable[[], Any]]:
        return [self.make_first or self.make] + [self.make] * (self.num_envs - 1)

    def actions(self, count: int = 64) -> list[np.ndarray[Any, Any]]:
        """Random actions of all envs for `count` steps; each env here has two."""
        return list(np.random.default_rng(0).integers(2, size=(count, self.num_envs)))


CASES = {
    "cartpole": Case("64 CartPole-v1", partial(gymnasium.make, "CartPole-v1"), 64),
    "idle-16B": Case("64 do-nothing envs, 16-byte obs", partial(Idle, 16), 64),
    "idle-100kB": Case("64 do-nothing envs, 100-kB obs", partial(Idle, 100_000), 64),
}
