"""Actions that the action space does not have, on their way to envs that may want them all the same."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import shmenv

Answer = TypeVar("Answer")


class _AsItIs:
    """An action that no pool takes for a value of the action space; in the worker it is the action itself."""

    def __init__(self, action: Any) -> None:
        self._action = action

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, ((self._action,), 0)


def given(give: Callable[[Any], Answer], actions: Any, single: Callable[[], Iterable[Any]], num_envs: int) -> Answer:
    """Give a pool actions, also such as its action space does not have: frameworks leave those to the envs.

    Args:
        give: the pool's `step` or `send`.
        actions: what the caller has.
        single: takes them apart into one an env; may raise.
        num_envs: how many there must be.

    Raises:
        UsageError: the pool refuses, and it is not for the actions' kind. Nothing was sent.
    """
    try:
        return give(actions)
    except shmenv.UsageError as error:
        try:
            each = [_AsItIs(action) for action in single()]
        except Exception:
            raise error from None
        if len(each) != num_envs:
            raise
        return give(each)
