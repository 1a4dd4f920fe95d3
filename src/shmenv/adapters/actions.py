"""Actions on their way to envs that are to get them as they are."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

import shmenv

Answer = TypeVar("Answer")


class NotActionsError(shmenv.UsageError, TypeError):
    """The caller's fault: not one action for each env, nor anything that could be taken apart into them."""


class _AsItIs:
    """An action that no pool takes for a value of the action space; in the worker it is the action itself."""

    def __init__(self, action: Any) -> None:
        self._action = action

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, ((self._action,), 0)


def given(
    give: Callable[[Any], Answer],
    actions: Any,
    space: spaces.Space[Any],
    single: Callable[[], Iterable[Any]],
    num_envs: int,
) -> Answer:
    """Give a pool actions, also such as its action space does not have: frameworks leave those to the envs.

    Args:
        give: the pool's `step` or `send`.
        actions: what the caller has.
        space: of one action, or of all together.
        single: takes them apart into one an env; may raise.
        num_envs: how many there must be.

    Raises:
        UsageError: the pool refuses, and it is not for the actions' kind. Nothing was sent.
        NotActionsError: they cannot be taken apart. Nothing was sent.
    """
    refusal = None
    if not _would_change(space, actions):
        try:
            return give(actions)
        except shmenv.UsageError as error:
            refusal = error
    try:
        each = [_AsItIs(action) for action in single()]
    except TypeError as error:
        raise NotActionsError(str(refusal or error)) from None
    except Exception as error:
        raise refusal or shmenv.UsageError(f"no actions for {num_envs} envs: {error}") from None
    if len(each) != num_envs:
        raise refusal or shmenv.UsageError(f"{len(each)} actions for {num_envs} envs")
    return give(each)


def _would_change(space: spaces.Space[Any], actions: Any) -> bool:
    """Whether a pool would round the actions to the space's floats. Its integers are as good as anybody's."""
    if isinstance(space, spaces.Dict):
        return isinstance(actions, Mapping) and any(
            _would_change(part, actions[key]) for key, part in space.spaces.items() if key in actions
        )
    if isinstance(space, spaces.Tuple):
        return isinstance(actions, tuple) and any(map(_would_change, space.spaces, actions))
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return False
    if isinstance(actions, list | tuple):
        try:
            actions = np.asarray(actions)
        except ValueError:  # of different shapes
            return True
    return isinstance(actions, np.ndarray) and actions.dtype != space.dtype
