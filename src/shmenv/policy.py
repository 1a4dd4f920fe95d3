"""What the user wants done when an env or a worker fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Policy:
    """What the user wants done. `Pool.set_retries` changes it while the pool runs.

    Attributes:
        restart: answer a failed step by a loss row and a fresh episode; else by an exception.
        max_retry: attempts of a reset in total, of those that raise or take too long. One whose worker ends otherwise
            counts too, unless `restart`: then it is repeated as long as the worker is replaced.
        renew: each further attempt in a new process; else in the same.
        retry_waiting_time: seconds between two attempts.
        on_restart: called with (env_id, reason) for each env of a worker that is replaced.
        recycle_after: episodes after which a worker is replaced.
    """

    restart: bool
    max_retry: int
    renew: bool
    retry_waiting_time: float
    on_restart: Callable[[int, str], object] | None
    recycle_after: int | None
