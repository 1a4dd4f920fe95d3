"""A manager's envs seen from afar: env 0 by name, and how a wrong name is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import wait as wait_for
from typing import Any

import numpy as np

from shmenv.errors import EnvError, UsageError
from shmenv.managed import LOOK


class ForwardingError(UsageError, AttributeError):
    """There is no such attribute to be had through a manager; so `hasattr` says no."""


class EnvProxy:
    """Env 0 from afar: attributes are read, methods called, in worker 0, which is started if it is not there yet."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        """Make it.

        Args:
            ask: calls a method of the env by its name, in its worker.
        """
        self._ask = ask

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_ask" not in self.__dict__:
            raise AttributeError(name)
        try:
            is_method, value = self._ask(LOOK, name)
        except EnvError as error:
            if isinstance(error.__cause__, AttributeError):
                raise AttributeError(f"env 0 has no {name!r}") from error.__cause__
            raise
        return partial(self._ask, name) if is_method else value


def wait(conns: Sequence[Any], wait_num: int, timeout: float | None = None) -> tuple[list[Any], list[int]]:
    """Wait for some of several connections, or whatever else `multiprocessing.connection.wait` takes.

    Args:
        conns: what to wait for.
        wait_num: how many at least, 1 to all.
        timeout: seconds from now that it lingers for more; None waits for all. It never returns with fewer.

    Returns:
        Those that can be read, and their positions in `conns`, ascending.
    """
    if not is_int(wait_num) or not 1 <= wait_num <= len(conns):
        raise UsageError(f"wait_num must be an int from 1 to {len(conns)}, not {wait_num!r}")
    start, rest, ready = time.monotonic(), dict(enumerate(conns)), set[int]()
    while rest:
        lingers = timeout is not None and len(ready) >= wait_num
        found = wait_for(rest.values(), max(0.0, start + (timeout or 0.0) - time.monotonic()) if lingers else None)
        if not found:
            break
        for position in [position for position, conn in rest.items() if conn in found]:
            ready.add(position)
            del rest[position]
    return [conns[position] for position in sorted(ready)], sorted(ready)


def is_int(value: Any) -> bool:
    """Whether it is an integer, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
