"""The kinds of env that users have, each with the same few members for the worker."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from shmenv.layout import ArrayNode, DictNode, Node, TupleNode, describe_space, describe_value, leaves

FiveTuple = tuple[Any, Any, Any, Any, Any]

AGENT = "_is_shmenv_agent"  # true of a class whose objects stand in front of an env, held as `_shmenv_served`


class GymEnv:
    """An env in Gymnasium's manner, or any object with such a `reset` and `step`.

    Attributes:
        env: the user's object.
        stepper: the object whose `step`, looked up each time, is called with an action; its result goes through
            `five_tuple` unless it is a plain 5-tuple.
        inner: the user's object, where `env` is an agent of shmenv's own in front of it.
        picky: `five_tuple` wants to see 5-tuples too, if their reward is no float or their info not empty.
        takes_any_obs: its observations need not fit the declared space if they are pickled whole.
        obs_space, action_space: the declared spaces, None if the env declares none.
        obs_node, action_node: what they need in memory.
        reward_shape: () for numbers, else of a declared vector reward.
        generation: how often the env's worker has been replaced; set once the env is built.
    """

    picky = False
    takes_any_obs = False
    generation = 0

    def __init__(self, env: Any) -> None:
        self.env = env
        self.inner, self.stepper = _inner(env), _stepper(env)
        self._first: tuple[Any, Any] | None = None
        self.obs_space, self.action_space = self._spaces()
        self.obs_node, self.action_node = self._nodes()
        self.reward_shape = self._reward_shape()

    def _spaces(self) -> tuple[Any, Any]:
        return getattr(self.env, "observation_space", None), getattr(self.env, "action_space", None)

    def _nodes(self) -> tuple[Node, Node]:
        if self.obs_space is None:  # no declared space: the first reset describes it, and counts as that reset
            self._first = self.reset(None, None)
            obs_node = describe_value(self._first[0])
        else:
            obs_node = describe_space(self.obs_space)
        return obs_node, describe_space(self.action_space)

    def _reward_shape(self) -> tuple[int, ...]:
        shape = getattr(getattr(self.env, "reward_space", None), "shape", None)
        return () if shape is None or np.prod(shape) == 1 else tuple(map(int, shape))

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        """Reset the env. Returns observation and info."""
        return self.reset_with(seed, None, {} if options is None else {"options": options})

    def reset_with(
        self, seed: int | None, dynamic_seed: bool | None, arguments: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env with keyword arguments of its own. Returns observation and info.

        Args:
            seed: None leaves it to the env.
            dynamic_seed: only for envs with a `seed` method, whose second argument it is if it is not None.
            arguments: for the env's `reset`.
        """
        if seed is not None:
            arguments = {"seed": seed, **arguments}
        return self._reset(arguments)

    def _reset(self, arguments: dict[str, Any]) -> tuple[Any, Any]:
        first, self._first = self._first, None
        if first is not None and not arguments:
            return first
        return self._obs_and_info(self.env.reset(**arguments))

    def _obs_and_info(self, result: Any) -> tuple[Any, Any]:
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"reset must return (observation, info), not {_shown(result)}")
        return result[0], result[1]

    def five_tuple(self, result: Any) -> FiveTuple:
        """What `step` returned as (obs, reward, terminated, truncated, info), for all that is no plain 5-tuple."""
        if all(hasattr(result, name) for name in ("obs", "reward", "terminated", "truncated", "info")):
            return result.obs, result.reward, result.terminated, result.truncated, result.info
        if all(hasattr(result, name) for name in ("obs", "reward", "done", "info")):  # also of a named tuple of five
            obs, reward, done, info = result.obs, result.reward, result.done, result.info
        elif isinstance(result, tuple) and len(result) == 5 and "done" not in getattr(result, "_fields", ()):
            return result[0], result[1], result[2], result[3], result[4]
        elif type(result) is tuple and len(result) == 4:
            obs, reward, done, info = result
        else:
            raise TypeError(
                f"step must return (obs, reward, terminated, truncated, info) or a timestep with obs, reward, done and "
                f"info, not {_shown(result)}"
            )
        truncated = bool(done) and isinstance(info, dict) and bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def attribute(self, name: str) -> Any:
        """Look an attribute up, through wrappers where the env has Gymnasium's way to do so."""
        find = getattr(self.env, "get_wrapper_attr", None)
        return getattr(self.env, name) if find is None else find(name)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute where it is found, on the outermost object if it is new."""
        put = getattr(self.env, "set_wrapper_attr", None)
        if put is None:
            setattr(self.env, name, value)
        else:
            put(name, value)

    def close(self) -> None:
        """Close the env, if it can be closed."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


class PlainEnv(GymEnv):
    """An env in DI-engine's manner: `reset(**kwargs) -> obs`, `seed(seed)`, `step -> timestep`; old Gym's too."""

    def _spaces(self) -> tuple[Any, Any]:
        obs_space, action_space = super()._spaces()
        if obs_space is None and callable(getattr(self.env, "info", None)):
            info = self.env.info()
            obs_space, action_space = getattr(info, "obs_space", None), getattr(info, "act_space", None)
        return obs_space, action_space

    def _nodes(self) -> tuple[Node, Node]:
        obs_node, action_node = super()._nodes()
        if not hasattr(self.obs_space, "value") or not hasattr(self.obs_space, "shape"):
            return obs_node, action_node
        # DI-engine's old EnvElementInfo: a shape or a dict of them, and one dtype for all
        value = self.obs_space.value
        dtype = np.dtype(value.get("dtype", np.float32) if isinstance(value, dict) else np.float32)
        return _element_node(self.obs_space.shape, dtype), action_node

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        """Seed the env if asked to, then reset it; options become keyword arguments. Returns (obs, info)."""
        return self.reset_with(seed, None, options or {})

    def reset_with(
        self, seed: int | None, dynamic_seed: bool | None, arguments: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """As in `GymEnv`, but a seed goes to the env's `seed` method."""
        if seed is not None:
            if not hasattr(self.env, "seed"):
                raise TypeError(
                    f"a seed was given, but {type(self.env).__name__}.reset takes none and it has no seed()"
                )
            self.env.seed(*((seed,) if dynamic_seed is None else (seed, dynamic_seed)))
            self._first = None
        return self._reset(arguments)

    def _obs_and_info(self, result: Any) -> tuple[Any, Any]:
        if type(result) is tuple and len(result) == 2 and isinstance(result[1], dict):
            node = getattr(self, "obs_node", None)  # not while the first reset describes the space
            is_pair = isinstance(node, TupleNode) and len(node.items) == 2 and isinstance(node.items[1], DictNode)
            if not is_pair or isinstance(result[0], tuple | list):
                return result
        return result, {}


class ParallelEnv(GymEnv):
    """A PettingZoo parallel env: one row holds all its possible agents.

    Observations and actions are dicts by agent; absent agents have zeros. Rewards are a vector in the order of
    `possible_agents`. `info` holds the agents' own infos under "agents", and by agent as bool arrays "present" (the row
    has its observation), "alive" (still playing after this step), "terminated" and "truncated". The env has ended when
    no agent is left.
    """

    def __init__(self, env: Any) -> None:
        self._agents = list(env.possible_agents)
        super().__init__(env)
        self.stepper = self

    def _spaces(self) -> tuple[Any, Any]:
        return (
            {agent: self.env.observation_space(agent) for agent in self._agents},
            {agent: self.env.action_space(agent) for agent in self._agents},
        )

    def _nodes(self) -> tuple[Node, Node]:
        nodes = [
            DictNode(tuple((agent, describe_space(space)) for agent, space in spaces.items()))
            for spaces in (self.obs_space, self.action_space)
        ]
        absent = [(agent, node) for agent, node in nodes[0].items]
        for agent, node in absent:
            if not all(isinstance(leaf, ArrayNode) for _, leaf in leaves(node)):
                raise TypeError(f"the observation space of agent {agent!r} holds what is no array: {node}")
        self._absent = {agent: _zeros(node) for agent, node in absent}
        return nodes[0], nodes[1]

    def _reward_shape(self) -> tuple[int, ...]:
        return (len(self._agents),)

    def _obs_and_info(self, result: Any) -> tuple[Any, Any]:
        obs, infos = super()._obs_and_info(result)
        return self._all(obs), self._info(obs, infos, {}, {})

    def _all(self, obs: dict[Any, Any]) -> dict[Any, Any]:
        return {agent: obs.get(agent, self._absent[agent]) for agent in self._agents}

    def _info(
        self, obs: dict[Any, Any], infos: dict[Any, Any], terminated: dict[Any, bool], truncated: dict[Any, bool]
    ) -> dict[str, Any]:
        alive = set(self.env.agents)
        return {
            "agents": infos,
            "present": np.array([agent in obs for agent in self._agents]),
            "alive": np.array([agent in alive for agent in self._agents]),
            "terminated": np.array([bool(terminated.get(agent, False)) for agent in self._agents]),
            "truncated": np.array([bool(truncated.get(agent, False)) for agent in self._agents]),
        }

    def step(self, actions: dict[Any, Any]) -> FiveTuple:
        """Step the agents that are there; the row's flags are those of any of them in the last step."""
        obs, rewards, terminated, truncated, infos = self.env.step({agent: actions[agent] for agent in self.env.agents})
        over = not self.env.agents
        reward = np.array([float(rewards.get(agent, 0.0)) for agent in self._agents])
        cut = over and any(truncated.values())
        ended = over and (any(terminated.values()) or not cut)
        return self._all(obs), reward, ended, cut, self._info(obs, infos, terminated, truncated)


class DmEnv(PlainEnv):
    """An env in dm_env's manner: specs in place of spaces, time steps.

    The last step of an episode terminates it if its discount is 0, else truncates it. `info` holds each step's
    "discount". Seeds go to a method `seed`, if there is one.
    """

    def _spaces(self) -> tuple[Any, Any]:
        return self.env.observation_spec(), self.env.action_spec()

    def _nodes(self) -> tuple[Node, Node]:
        return _spec_node(self.obs_space), _spec_node(self.action_space)

    def _reward_shape(self) -> tuple[int, ...]:
        reward_spec = getattr(self.env, "reward_spec", None)
        return () if reward_spec is None else tuple(map(int, getattr(reward_spec(), "shape", ())))

    def _obs_and_info(self, result: Any) -> tuple[Any, Any]:
        return result.observation, {}

    def five_tuple(self, result: Any) -> FiveTuple:
        """A time step as (obs, reward, terminated, truncated, info)."""
        over = bool(result.last())
        ended = over and result.discount == 0
        return result.observation, result.reward, ended, over and not ended, {"discount": result.discount}


def recognise(env: Any) -> GymEnv:
    """Find out which kind of env this is."""
    if isinstance(env, GymEnv):  # one that a manager has made of an env
        return env
    for owner, name in ((env, "reset"), (_stepper(env), "step")):
        if not callable(getattr(owner, name, None)):
            raise TypeError(f"an env factory must return an object with reset and step, not {_shown(env)}")
    if hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None)):
        return ParallelEnv(env)
    if _has_base(env, "Env", "gymnasium"):
        return GymEnv(env)
    # Old Gym's wrappers take any arguments and hand them on; the env inside says which.
    parameters = _parameters(env.reset) | _parameters(getattr(getattr(env, "unwrapped", None), "reset", None))
    if _is_dm_env(env, parameters):
        return DmEnv(env)
    if "return_info" in parameters:  # Gym 0.22 to 0.25: seeds as arguments, but observations alone unless asked
        return PlainEnv(env)
    return GymEnv(env) if "seed" in parameters or "options" in parameters else PlainEnv(env)


def _inner(env: Any) -> Any:
    # Not out of its __dict__: who asks for that has CPython make a dict of the object's attributes. They are slower
    # from then on, and with them each step of the env.
    return env._shmenv_served if getattr(type(env), AGENT, False) else env


def _stepper(env: Any) -> Any:
    return env if hasattr(type(env), "step") else _inner(env)


def _has_base(env: Any, name: str, package: str) -> bool:
    return any(cls.__name__ == name and cls.__module__.partition(".")[0] == package for cls in type(env).__mro__)


def _is_dm_env(env: Any, parameters: frozenset[str]) -> bool:
    """Whether its specs are all that it declares: a bridge may hand on those of an env inside beside its own spaces."""
    if not callable(getattr(env, "observation_spec", None)) or not callable(getattr(env, "action_spec", None)):
        return False
    if _has_base(env, "Environment", "dm_env"):
        return True
    return not hasattr(env, "observation_space") and "options" not in parameters


def _parameters(function: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # none, or written in C
        return frozenset()


def _element_node(shape: Any, dtype: np.dtype[Any]) -> Node:
    if isinstance(shape, dict):
        return DictNode(tuple((key, _element_node(item, dtype)) for key, item in shape.items()))
    return ArrayNode(dtype, tuple(map(int, shape)) if np.iterable(shape) else (int(shape),))


def _spec_node(spec: Any) -> Node:
    """What dm_env's specs, and what is nested of them, need in memory."""
    if isinstance(spec, dict):
        return DictNode(tuple((key, _spec_node(item)) for key, item in spec.items()))
    if isinstance(spec, list | tuple):
        return TupleNode(tuple(map(_spec_node, spec)))
    return describe_value(np.zeros(spec.shape, spec.dtype))


def _zeros(node: Node) -> Any:
    if isinstance(node, ArrayNode):
        return np.zeros(node.shape, node.dtype)
    if isinstance(node, DictNode):
        return {key: _zeros(item) for key, item in node.items}
    return tuple(_zeros(item) for item in node.items)  # type: ignore[union-attr]


def _shown(value: Any) -> str:
    text = f"a {type(value).__name__}"
    return f"{text} of {len(value)}" if isinstance(value, tuple | list) else text
