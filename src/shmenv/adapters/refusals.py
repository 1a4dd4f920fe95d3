"""What Gymnasium's vector envs say of wrong arguments, and of what envs raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np

import shmenv
from shmenv.adapters.actions import Answer

Seeds = int | np.integer[Any] | Sequence[int | None] | None


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


def checked_seeds(seed: Seeds, n: int) -> Sequence[int | None] | None:
    """A seed for each of n envs."""
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(n)]
    if seed is not None and len(seed) != n:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={n} but got length={len(seed)}."
        )
    return seed


def dropped(pool: shmenv.Pool) -> Iterator[shmenv.EnvError | shmenv.WorkerError]:
    """Wait for all that a pool owes, and drop it but for the errors."""
    while pool.pending:
        try:
            pool.recv(pool.pending)
        except (shmenv.EnvError, shmenv.WorkerError) as error:
            yield error


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
