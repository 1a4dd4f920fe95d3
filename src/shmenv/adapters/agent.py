"""An env as other frameworks' vectorisers ask it, in the worker; without the torch that comes with their packages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import gymnasium

LAST_OBS = "shmenv: last observation"  # in the info of an episode's last step

_served: list[weakref.ref[Any]] = []  # the envs of this process


def serving(serve: Callable[..., Any], env_fns: Iterable[Any], *arguments: Any) -> list[Any]:
    """Functions that build the envs in the workers; what is no function stays as it is, for the pool to refuse."""
    return [partial(serve, env_fn, *arguments) if callable(env_fn) else env_fn for env_fn in env_fns]


def keeping_last_obs(result: Any) -> Any:
    """What a step returned; an episode's last info also holds the observation as the env returned it.

    What comes through shared memory has the dtype and the type of the space, but that one is to be as it was.
    """
    if len(result) == 5 and (result[2] or result[3]) and isinstance(result[4], dict):
        return *result[:4], {**result[4], LAST_OBS: result[0]}
    return result


class VectorAgent:
    """Stands between a worker and its env; asked as by Gymnasium's vector envs. The env answers all other questions."""

    _is_shmenv_agent = True

    def __init__(self, env: Any) -> None:
        self._shmenv_served = env  # the worker steps it without us

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shmenv_served, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env, which may count on both arguments."""
        return self._shmenv_served.reset(seed=seed, options=options)


class SameStepAgent(VectorAgent):
    """The same where an episode's last observation comes in an info."""

    def step(self, action: Any) -> Any:
        """Step the env."""
        return keeping_last_obs(self._shmenv_served.step(action))


def serve_vector(env_fn: Callable[[], Any], same_step: bool) -> Any:
    """Build an env in the worker, for Gymnasium's vector env; what is no env of Gymnasium's stays as it is."""
    env = env_fn()
    if not isinstance(env, gymnasium.Env):
        return env
    return SameStepAgent(env) if same_step else VectorAgent(env)


class Agent:
    """Stands between a worker and its env, off the way of a step but for its last; asked as by Stable-Baselines3.

    Called by: the worker; every method but `reset`, `step`, `render` and `close` by its name, through `Pool.call`.
    """

    _is_shmenv_agent = True

    def __init__(self, env: Any) -> None:
        self.env = self._shmenv_served = env  # where it has no `step` of its own, the worker calls the env's
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env; options only where there are any."""
        return self.env.reset(seed=seed, **({"options": options} if options else {}))

    def render(self) -> Any:
        """Render the env."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()

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


class LastObsAgent(Agent):
    """The same where an episode's last observation comes in an info."""

    def step(self, action: Any) -> Any:
        """Step the env."""
        return keeping_last_obs(self.env.step(action))


class InsideAgent(Agent):
    """The same, asked as by tianshou: the env may be any object with `reset` and `step`."""

    def close(self) -> None:
        """Close the env, if it can be closed."""
        getattr(self.env, "close", lambda: None)()

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


def serve(env_fn: Callable[[], Any]) -> LastObsAgent:
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
    return LastObsAgent(env)
