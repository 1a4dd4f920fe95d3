"""What compare.py asks of each contestant."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from workloads import Workload


class Values(NamedTuple):
    """What one step gave env 0."""

    obs: Any
    reward: float
    done: bool


def row_of_env_0(ids: np.ndarray[Any, Any], obs: Any, reward: Any, done: Any) -> Values | None:
    """Its values in a batch; None if it isn't in there."""
    rows = np.flatnonzero(ids == 0)
    return Values(obs[rows[0]], reward[rows[0]], done[rows[0]]) if len(rows) else None


class Player(Protocol):
    """Envs that are stepped in batches, each library in its own way.

    Attributes:
        comparable: whether its envs are the workload's, and not some of its own.
    """

    comparable: bool

    def reset(self) -> Any:
        """Reset env i with seed i; the observation of env 0."""

    def step(self, actions: np.ndarray[Any, Any]) -> int:
        """Step the envs that wait for an action by theirs, and take what is ready; how many steps came back."""

    def values(self) -> Values | None:
        """Of env 0, where the last step brought any."""

    def close(self) -> None:
        """End it."""


class Contestant(Protocol):
    """A module of this package. One with a true `SLOW_START` tries its settings in fewer workloads."""

    def settings(self, workload: Workload) -> list[dict[str, Any]]:
        """What is worth trying for `start`; the fastest is measured. Empty: it can't do this workload."""

    def start(self, workload: Workload, **settings: Any) -> Player:
        """Start it."""
