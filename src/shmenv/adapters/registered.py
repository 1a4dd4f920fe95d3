"""A vector env of a registered env, made as `gymnasium.make_vec` makes Gymnasium's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import shmenv
from shmenv.adapters.gymnasium import ShmVectorEnv  # first: it says what is missing

# isort: split
import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorizeMode, _find_spec
from gymnasium.error import Error


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    vectorization_mode: str | VectorizeMode | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[Any], gymnasium.Env[Any, Any]]] | None = None,
    **kwargs: Any,
) -> ShmVectorEnv:
    """Make a ShmVectorEnv of a registered env.

    Args:
        id: an env's name, "module:name" included, or its spec. The spec travels to the workers, so they need not know
            the name.
        num_envs: how many.
        vectorization_mode: "sync" and "async", with which the call may come from Gymnasium, mean this class.
        vector_kwargs: for ShmVectorEnv.
        wrappers: put around each env in its worker, the first one innermost.
        **kwargs: for each env, as in `gymnasium.make`.

    Raises:
        gymnasium.error.Error: there is no such env.
    """
    if vectorization_mode not in (None, "sync", "async", VectorizeMode.SYNC, VectorizeMode.ASYNC):
        raise shmenv.UsageError(f"shmenv.make_vec makes a ShmVectorEnv; it has no mode {vectorization_mode!r}")
    if not isinstance(id, str | EnvSpec):
        raise Error(f"Invalid id type: {type(id)}. Expected `str` or `EnvSpec`")
    spec = copy.deepcopy(_find_spec(id) if isinstance(id, str) else id)
    if spec.entry_point is None:
        raise Error(
            f"Cannot create vectorized environment for {spec.id} because it doesn't have an entry point defined."
        )
    kept, spec.kwargs = spec.kwargs, {}
    num_envs = kept.pop("num_envs", num_envs)  # a vector env's spec names them
    vector_kwargs = kept.pop("vector_kwargs", vector_kwargs) or {}
    wrappers = kept.pop("wrappers", wrappers) or ()
    kept.pop("vectorization_mode", None)
    kept.update(kwargs)
    env = ShmVectorEnv([partial(_make, spec, kept, tuple(wrappers))] * num_envs, **vector_kwargs)
    env.spec = copy.deepcopy(spec)
    env.spec.kwargs = {
        **kept,
        **({} if num_envs == 1 else {"num_envs": num_envs}),
        "vectorization_mode": "async",  # what Gymnasium makes of it
        **({"vector_kwargs": vector_kwargs} if vector_kwargs else {}),
        **({"wrappers": wrappers} if wrappers else {}),
    }
    return env


def _make(spec: EnvSpec, kwargs: dict[str, Any], wrappers: tuple[Callable[[Any], Any], ...]) -> Any:
    env = gymnasium.make(spec, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env
