"""An env as a manager's worker runs it: timesteps come back as the env made them, resets carry what a manager keeps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shmenv import codec
from shmenv.kinds import FiveTuple, GymEnv, recognise
from shmenv.layout import Node, ObjectNode
from shmenv.timestep import CLASS, RESERVED, WHOLE, BaseEnvTimestep, done_and_info, is_abnormal

DESCRIBE, LOOK, SAVE_REPLAY = "shmenv.describe", "shmenv.look", "shmenv.save_replay"  # no attribute has a dot


def orders(
    arguments: dict[str, Any],
    seed: int | None,
    dynamic_seed: bool | None,
    seeding: int,
    generation: int,
    stride: int,
    replay: str | None,
) -> dict[str, Any]:
    """What a reset has to do: its options. Sent with each, since the env may be another by then, in a new worker.

    Args:
        arguments: for the env's `reset`.
        seed: None leaves it to the env.
        dynamic_seed: the second argument of the env's `seed`, if not None.
        seeding: the number of the manager's `seed()` call: an env is seeded once a call.
        generation: of the env's worker at that call.
        stride: what is added to the seed for each later generation.
        replay: where to save replays; None: nowhere.
    """
    return {
        "arguments": arguments, "seed": seed, "dynamic_seed": dynamic_seed, "seeding": seeding,
        "generation": generation, "stride": stride, "replay": replay,
    }  # fmt: skip


@dataclass(frozen=True)
class Description:
    """What a manager must know of an env."""

    obs_node: Node
    observation_space: Any
    action_space: Any
    reward_space: Any


class ManagedEnv(GymEnv):
    """Makes an env of any kind one whose rows carry whole timesteps.

    A plain step, of five values with a float for its reward and a dict for its info, travels as it is; from it the
    manager makes a `BaseEnvTimestep`. Any other becomes (obs, 0.0, done, False, record), and the record holds all
    fields of the timestep but its obs, each as the env gave it. An abnormal timestep travels whole, its obs included,
    which need not fit the space.

    Called by: the worker, in place of the env's own kind.
    """

    picky = True
    takes_any_obs = True  # by the managers' contract

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        """Build the env.

        Args:
            env_fn: the user's function.
        """
        self._kind = kind = recognise(env_fn())
        self.env = kind.env
        self.stepper, self.inner = kind.stepper, kind.inner
        self.obs_space, self.action_space = kind.obs_space, kind.action_space
        self.obs_node = kind.obs_node
        self.action_node = ObjectNode()  # any object can be an action, and arrives as what it was
        self.reward_shape = ()
        self._orders: dict[str, Any] = {}
        self._seeding = 0
        self._replay: str | None = None
        self._some_obs: Any = None  # for the row of an abnormal timestep, whose own need not fit
        self._class_records: dict[type, bytes] = {BaseEnvTimestep: b""}

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Do what the manager orders: replay, seed, reset. The env's own info of a reset is dropped."""
        if options is not None:
            self._orders = options
        ordered = self._orders  # a reset that nobody had to give: as the last one
        seeding, replay = ordered["seeding"], ordered["replay"]
        if replay != self._replay and replay is not None:
            self.save_replay(replay)
        # An env without a seed() cannot be told that every reset shall start from the same seed, so it is given anew.
        again = ordered["dynamic_seed"] is False and not hasattr(self.env, "seed")
        if ordered["seed"] is not None and (seeding != self._seeding or again):
            seed = ordered["seed"] + (self.generation - ordered["generation"]) * ordered["stride"]
        self._some_obs, _ = self._kind.reset_with(seed, ordered["dynamic_seed"], ordered["arguments"])
        self._seeding = seeding  # not before: a reset that failed is seeded again
        return self._some_obs, {}

    def five_tuple(self, result: Any) -> FiveTuple:
        """What `step` returned as a row: a plain step as it is, anything else with a record for its info."""
        if type(result) is tuple and len(result) == 5 and type(result[1]) is float:
            info = result[4]
            if type(info) is dict and RESERVED.isdisjoint(info):
                return result
        timestep = self._timestep(result)
        if is_abnormal(timestep.info):
            return self._some_obs, 0.0, False, False, {WHOLE: timestep}
        obs = timestep.obs
        names = getattr(timestep, "_fields", None)
        if names is None:
            return obs, 0.0, bool(timestep.done), False, {WHOLE: timestep}
        record = {CLASS: self._class_record(type(timestep))}
        for name, value in zip(names, timestep, strict=True):
            if name != "obs":
                record[name] = value
        return obs, 0.0, bool(timestep.done), False, record

    def _timestep(self, result: Any) -> Any:
        if type(result) is tuple and len(result) == 5:
            obs, reward, terminated, truncated, info = result
            return BaseEnvTimestep(obs, reward, *done_and_info(bool(terminated), bool(truncated), info))
        if all(hasattr(result, name) for name in BaseEnvTimestep._fields):
            return result
        if type(result) is tuple and len(result) == 4:
            return BaseEnvTimestep(*result)
        return self._timestep(self._kind.five_tuple(result))  # which tells what is wrong

    def _class_record(self, cls: type) -> bytes:
        record = self._class_records.get(cls)
        if record is None:
            record = self._class_records[cls] = codec.dump(cls)
        return record

    def attribute(self, name: str) -> Any:
        """An attribute of the env, or one of the manager's own questions."""
        if name == DESCRIBE:
            return self.describe
        if name == LOOK:
            return self.look
        if name == SAVE_REPLAY:
            return self.save_replay
        return self._kind.attribute(name)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute of the env."""
        self._kind.set_attribute(name, value)

    def describe(self) -> Description:
        """The spaces, of whichever way the env tells them."""
        reward_space = getattr(self.env, "reward_space", None)
        if reward_space is None and callable(getattr(self.env, "info", None)):
            reward_space = getattr(self.env.info(), "rew_space", None)
        return Description(self.obs_node, self.obs_space, self.action_space, reward_space)

    def look(self, name: str) -> tuple[bool, Any]:
        """Whether the attribute is a method, and its value if it is none."""
        value = self._kind.attribute(name)
        return (True, None) if inspect.isroutine(value) else (False, value)

    def save_replay(self, path: str) -> None:
        """Have the env save replays from its next reset on."""
        self.env.enable_save_replay(path)
        self._replay = path

    def close(self) -> None:
        """Close the env, if it can be closed."""
        self._kind.close()
