"""The spaces of a vector env, from those of its envs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

import shmenv

Space = spaces.Space[Any]


def check_mode(mode: Any) -> None:
    """Refuse what is no observation_mode."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, spaces.Space) for space in mode):
            raise TypeError(
                f"Expected both elements of observation_mode to be Spaces, got {type(mode[0])} and {type(mode[1])}"
            )
    elif mode not in ("same", "different"):
        raise ValueError(
            f"Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )


def observation_spaces(each: Sequence[Space], mode: Any, name: str) -> tuple[Space, Space]:
    """The space of one observation and that of all.

    Args:
        each: the envs'.
        mode: the observation_mode.
        name: of the vector env's class.

    Raises:
        RuntimeError: the envs' spaces do not belong together.
    """
    if isinstance(mode, tuple):
        batched, single = mode
    else:
        single = each[0]
        batched = batch_space(single, len(each)) if mode == "same" else batch_differing_spaces(each)
    for i, space in enumerate(each):
        if not (space == single if mode == "same" else is_space_dtype_shape_equiv(space, single)):
            raise RuntimeError(_unequal_observations(f"{single} expected, env {i} has {space}", mode, name))
    return single, batched


def action_spaces(each: Sequence[Space]) -> tuple[Space, Space]:
    """The space of one action and that of all.

    Raises:
        RuntimeError: the envs' spaces differ.
    """
    for i, space in enumerate(each):
        if space != each[0]:
            raise RuntimeError(_unequal_actions(f"env {i} has {space}", each[0]))
    return each[0], batch_space(each[0], len(each))


def unequal(error: shmenv.UnequalEnvsError, mode: Any, name: str) -> str:
    """What Gymnasium says of envs that a pool has refused."""
    return _unequal_actions(str(error)) if error.what == "actions" else _unequal_observations(str(error), mode, name)


def _unequal_actions(detail: str, first: Any = "env 0's") -> str:
    return (
        f"Some environments have an action space different from `{first}`. In order to batch actions, the action "
        f"spaces from all environments must be equal. ({detail})"
    )


def _unequal_observations(detail: str, mode: Any, name: str) -> str:
    if mode == "same":
        return (
            f"{name}(..., observation_mode='same') however some of the sub-environments observation spaces are not "
            f"equivalent. If this is intentional, use `observation_mode='different'` instead. ({detail})"
        )
    return (
        f"{name}(..., observation_mode='different' or custom space) however the sub-environment's observation "
        f"spaces do not share a common shape and dtype. ({detail})"
    )
