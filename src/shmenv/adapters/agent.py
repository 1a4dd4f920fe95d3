"""An env as other frameworks' vectorisers ask it, in the worker; without the torch that comes with their packages."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

_served: list[weakref.ref[Any]] = []  # the envs of this process


class Agent:
    """Stands between a worker and its env, off the way of a step; asked as by Stable-Baselines3.

    Called by: the worker; every method but `reset`, `step`, `render` and `close` by its name, through `Pool.call`.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.step, self.render, self.close = env.step, env.render, env.close

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env; options only where there are any."""
        return self.env.reset(seed=seed, **({"options": options} if options else {}))

    def read(self, name: str) -> Any:
        """An attribute, looked up through the wrappers."""
        return self.env.get_wrapper_attr(name)

    def has(self, name: str) -> bool:
        """Whether there is such an attribute; it need not be one that can travel."""
        try:
            self.env.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def write(self, name: str, value: Any) -> None:
        """Set an attribute of the outermost wrapper."""
        setattr(self.env, name, value)

    def do(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method, looked up through the wrappers."""
        return self.env.get_wrapper_attr(name)(*args, **kwargs)

    def is_wrapped(self, wrapper: type) -> bool:
        """Whether such a wrapper is around the env."""
        env = self.env
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, wrapper):
                return True
            env = env.env
        return False


class InsideAgent(Agent):
    """The same, asked as by tianshou: the env may be any object with `reset` and `step`."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.step, self.close = env.step, getattr(env, "close", lambda: None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env; options are all the arguments but the seed."""
        return self.env.reset(**(options or {}), **({} if seed is None else {"seed": seed}))

    def read(self, name: str) -> Any:
        """An attribute, looked up through the wrappers where there are any."""
        return getattr(self.env, "get_wrapper_attr", partial(getattr, self.env))(name)

    def write(self, name: str, value: Any) -> None:
        """Set an attribute of the env inside all wrappers."""
        setattr(getattr(self.env, "unwrapped", self.env), name, value)

    def seed(self, seed: int | None) -> tuple[bool, Any]:
        """Seed an env that has a method for it: whether it has, and what that returned."""
        try:
            method = self.read("seed")
        except AttributeError:
            return False, None
        return True, method(seed)

    def show(self, kwargs: dict[str, Any]) -> Any:
        """Render the env."""
        return self.env.render(**kwargs)


def serve_inside(env_fn: Callable[[], Any]) -> InsideAgent:
    """Build an env in the worker, for tianshou."""
    return InsideAgent(env_fn())


def serve(env_fn: Callable[[], Any]) -> Agent:
    """Build an env in the worker.

    Raises:
        ValueError: the function has returned an env that this worker has already.
    """
    env = env_fn()
    if not isinstance(env, gymnasium.Env):  # one of old Gym, perhaps
        from stable_baselines3.common.vec_env.patch_gym import _patch_env

        env = _patch_env(env)
    if any(other() is env.unwrapped for other in _served):
        raise ValueError(
            "You tried to create multiple environments, but the function to create them returned the same instance "
            "instead of creating different objects: each call of it must make a new env"
        )
    _served.append(weakref.ref(env.unwrapped))
    return Agent(env)
