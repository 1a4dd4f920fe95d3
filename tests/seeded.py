"""Environments with randomness of their own, in every style; and such that return what a test gives them."""

from __future__ import annotations

import random
from collections import namedtuple
from copy import deepcopy
from typing import Any, ClassVar

import gymnasium
import numpy as np
from envs import Gate
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

Space = gymnasium.Space[Any]


class _SeededEnv(gymnasium.Env[Any, Any]):
    """Base of the conformance envs: everything random comes from np_random, episodes last 1 to 6 steps."""

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        super().reset(seed=seed)
        self.options = options
        self.t = 0
        self.last = int(self.np_random.integers(1, 7))

    def _end(self) -> tuple[bool, bool]:
        """terminated, truncated: also both at once, now and then."""
        if self.t < self.last:
            return False, False
        kind = int(self.np_random.integers(0, 5))
        return kind != 1, kind in (1, 2)


class WalkEnv(_SeededEnv):
    """A flat observation, a discrete action, an info every third step."""

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._begin(seed, options)
        self.position = self.np_random.normal(size=3).astype(np.float32)
        return self.position.copy(), {"length": self.last, "options": options} if self.last % 2 else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.position += np.float32(action) * self.np_random.normal(size=3).astype(np.float32)
        terminated, truncated = self._end()
        info: dict[str, Any] = {}
        if self.t % 3 == 0 or terminated:
            info = {
                "t": self.t,
                "noise": float(self.np_random.random()),
                "small": np.float32(self.t / 3),
                "where": self.position.copy(),
                "name": f"step {self.t}",
                "nested": {"nothing": None, "list": [1, "two", 3.0]},
            }
        return self.position.copy(), float(self.position.sum()), terminated, truncated, info


class FailingWalkEnv(WalkEnv):
    """Raises in every step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise ValueError("lost its way")


class GatedWalkEnv(WalkEnv):
    """Stands before a gate in every step."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self.gate = Gate(gate)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.gate.wait()
        return super().step(action)


class BufferEnv(_SeededEnv):
    """Writes each observation into the same preallocated array, and returns that."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (4, 5, 3), np.uint8)
        self.action_space = Box(-1, 1, (2,), np.float32)
        self.screen = np.zeros((4, 5, 3), np.uint8)

    def _draw(self) -> np.ndarray:
        self.screen[:] = self.np_random.integers(0, 256, self.screen.shape)
        return self.screen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._begin(seed, options)
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return (self._draw(), float(np.dot(action, [1.0, 2.0])), *self._end(), {"screen": self.screen})


class BoundEnv(BufferEnv):
    """Draws into the row of shared memory that it is given, where it is given one."""

    def bind_observation(self, view: np.ndarray) -> None:
        self.screen = view


class MixedEnv(_SeededEnv):
    """Nested observations and actions of every kind that goes through the slots, and a Text leaf that does not."""

    def __init__(self) -> None:
        self.observation_space = Dict(
            image=Box(0, 255, (2, 3), np.uint8),
            coords=Box(-100, 100, (2,), np.int32),
            inner=Tuple((Discrete(5, start=-2), Dict(bits=MultiBinary(3), half=Box(-1, 1, (), np.float16)))),
            many=MultiDiscrete([3, 4]),
            word=Text(8),
        )
        self.action_space = Dict(
            move=Box(-1, 1, (2,), np.float32), press=MultiBinary(2), pick=Tuple((Discrete(3), MultiDiscrete([2, 5])))
        )

    def _look(self) -> dict[str, Any]:
        rng = self.np_random
        return {
            "image": rng.integers(0, 256, (2, 3)).astype(np.uint8),
            "coords": rng.integers(-100, 101, 2).astype(np.int32),
            "inner": (
                np.int64(rng.integers(-2, 3)),
                {"bits": rng.integers(0, 2, 3).astype(np.int8), "half": np.array(rng.random(), np.float16)},
            ),
            "many": np.array([rng.integers(3), rng.integers(4)], np.int64),
            "word": "".join(rng.choice(list("abc"), int(rng.integers(1, 9)))),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._begin(seed, options)
        return self._look(), {"first": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        reward = float(action["move"].sum()) + 10 * int(action["press"].sum()) + 100 * int(action["pick"][0])
        reward += 1000 * int(action["pick"][1][1])
        return (self._look(), reward, *self._end(), {"t": self.t} if self.t % 2 else {})


class VectorRewardEnv(WalkEnv):
    """A reward of fixed shape (2,)."""

    def __init__(self) -> None:
        super().__init__()
        self.reward_space = Box(-np.inf, np.inf, (2,), np.float64)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, np.array([reward, -2 * reward]), terminated, truncated, info


Timestep = namedtuple("Timestep", "obs reward done info")


class DingEnv:
    """DI-engine style: `reset` returns the observation alone, `step` a timestep with one done flag."""

    def __init__(self, declared: bool = True, length: int | None = None) -> None:
        if declared:
            self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
            self.action_space = Discrete(4)
            self.reward_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.length = length
        self.rng = np.random.default_rng(0)
        self.seeds: list[Any] = []

    def seed(self, seed: int, dynamic_seed: bool | None = None) -> None:
        self.seeds.append(seed)
        self.rng = np.random.default_rng(seed)

    def reset(self, **kwargs: Any) -> np.ndarray:
        self.kwargs = kwargs
        self.t = 0
        self.last = self.length or int(self.rng.integers(1, 7))
        return self.rng.normal(size=3).astype(np.float32)

    def step(self, action: Any) -> Timestep:
        self.t += 1
        obs = self.rng.normal(size=3).astype(np.float32) + np.float32(action)
        done = self.t >= self.last
        info: dict[str, Any] = {}
        if done:
            info = {"final_eval_reward": float(self.t)}
            if self.last % 2:
                info["TimeLimit.truncated"] = True
        return Timestep(obs, np.array([self.t], np.float32), done, info)

    def close(self) -> None:
        pass


class ParallelEnv:
    """PettingZoo's parallel interface, duck-typed: two agents, dictionaries everywhere."""

    metadata: ClassVar[dict[str, Any]] = {"name": "parallel"}

    def __init__(self, length: int = 4) -> None:
        self.possible_agents = ["red", "blue"]
        self.agents: list[str] = []
        self.length = length
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> Space:
        return Box(-np.inf, np.inf, (2 if agent == "red" else 3,), np.float32)

    def action_space(self, agent: str) -> Space:
        return Discrete(4 if agent == "red" else 3)

    def _look(self) -> dict[str, np.ndarray]:
        return {
            agent: self.rng.normal(size=self.observation_space(agent).shape).astype(np.float32) for agent in self.agents
        }

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.t = 0
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, action: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self.t += 1
        obs = self._look()
        rewards = {agent: float(action[agent]) + self.t for agent in self.agents}
        ended = self.t >= self.length
        flags = dict.fromkeys(self.agents, ended)
        infos: dict[str, Any] = {agent: {"t": self.t} for agent in self.agents}
        never = dict.fromkeys(self.agents, False)
        if ended:
            self.agents = []
        return obs, rewards, flags, never, infos

    def close(self) -> None:
        pass


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Observations sampled from any space, from the seed of the reset; remembers the action as it got it."""

    def __init__(self, observation_space: Space, action_space: Space, length: int = 10**9) -> None:
        self.observation_space, self.action_space = deepcopy(observation_space), deepcopy(action_space)
        self.action: Any = None
        self.length, self.t = length, 0
        self.kept: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.action = action
        self.kept.append(action)
        self.t += 1
        return self.observation_space.sample(), 0.0, self.t >= self.length, False, {}

    def actions_kept(self) -> list[Any]:
        return self.kept


class GivesEnv(gymnasium.Env[Any, Any]):
    """Returns from each step what it was given at construction: observations, rewards and infos, in turn."""

    def __init__(
        self,
        space: Space,
        observations: list[Any],
        rewards: list[Any] | None = None,
        infos: list[dict[str, Any]] | None = None,
        reward_space: Space | None = None,
        length: int = 10**9,
    ) -> None:
        self.observation_space, self.action_space = space, Discrete(2)
        if reward_space is not None:
            self.reward_space = reward_space
        self.observations, self.rewards, self.infos = observations, rewards or [0.0], infos or [{}]
        self.length, self.t = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observations[0], {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        return (
            self.observations[self.t % len(self.observations)],
            self.rewards[(self.t - 1) % len(self.rewards)],
            self.t >= self.length,
            False,
            self.infos[(self.t - 1) % len(self.infos)],
        )


class BareEnv:
    """Declares nothing, and returns the same observation for ever, in DI-engine's style."""

    def __init__(self, observation: Any) -> None:
        self.observation = observation

    def reset(self) -> Any:
        return self.observation

    def step(self, action: Any) -> Timestep:
        return Timestep(self.observation, 0.0, False, {})


class GlobalRandomEnv(gymnasium.Env[Any, Any]):
    """Draws from the process's global generators, as careless envs do."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 1, (2,), np.float64)
        self.action_space = Discrete(2)

    def _draw(self) -> np.ndarray:
        return np.array([random.random(), np.random.rand()])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._draw(), 0.0, False, False, {}
