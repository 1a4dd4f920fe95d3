"""What Gymnasium's vector envs refuse, and their words for it and for what envs raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

import shmenv
from shmenv.adapters.actions import Answer


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


def check_concurrency(limit: Any) -> None:
    """Refuse what is no max_concurrency."""
    if not isinstance(limit, int | np.integer):
        raise ValueError(f"`max_concurrency` must be an integer or None, got {type(limit)}.")
    if limit < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {limit}.")


def checked_mask(mask: Any, n: int) -> np.ndarray[Any, Any]:
    """The mask of a partial reset, if it is one for n envs."""
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (n,):
        raise ValueError(f"`options['reset_mask']` must have shape `({n},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not np.any(mask):
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return mask


def unequal_actions(detail: str, first: Any = "env 0's") -> str:
    """What is said of envs whose action spaces differ."""
    return (
        f"Some environments have an action space different from `{first}`. In order to batch actions, the action "
        f"spaces from all environments must be equal. ({detail})"
    )


def unequal_observations(name: str, same: bool, detail: str) -> str:
    """What is said of envs whose observation spaces differ."""
    if same:
        return (
            f"{name}(..., observation_mode='same') however some of the sub-environments observation spaces are not "
            f"equivalent. If this is intentional, use `observation_mode='different'` instead. ({detail})"
        )
    return (
        f"{name}(..., observation_mode='different' or custom space) however the sub-environment's observation "
        f"spaces do not share a common shape and dtype. ({detail})"
    )


def report(errors: Sequence[shmenv.EnvError | shmenv.WorkerError]) -> NoReturn:
    """Log the envs' errors in AsyncVectorEnv's words, and raise the last one."""
    log = gymnasium.logger.error
    for error in errors:
        ids = (error.env_id,) if isinstance(error, shmenv.EnvError) else error.env_ids
        text = error.traceback_text if isinstance(error, shmenv.EnvError) else str(error)
        log("Received the following error from Worker-%s - Shutting it down", ", ".join(map(str, ids)))
        log("%s", text)
    log("Raising the last exception back to the main process.")
    raise_original(errors[-1])


def reporting(ask: Callable[[], Answer]) -> Answer:
    """What the pool answers, or what an env raised."""
    try:
        return ask()
    except (shmenv.EnvError, shmenv.WorkerError) as error:
        report([error])


def raise_original(error: shmenv.ShmenvError) -> NoReturn:
    """Raise what the env raised, as Gymnasium does; what the pool says of it is its cause."""
    original = error.__cause__
    if isinstance(error, shmenv.EnvError) and isinstance(original, Exception):  # no SystemExit, which would end us
        error.__cause__ = None
        raise original from error
    raise error
