"""Semaphore, Ring: the parts of the core that carry no arrays, each with shared memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shmenv import _ring
from shmenv.errors import UsageError
from shmenv.segment import Segment, only_at_process_start


def _attach(kind: type[Semaphore] | type[Ring], segment: Segment, *arguments: Any) -> Semaphore | Ring:
    """Called by: the started process, while it unpickles its arguments."""
    segment.attach()
    primitive: Any = kind.__new__(kind)
    primitive._join(segment, *arguments)
    return primitive  # type: ignore[no-any-return]


def _integer(name: str, value: Any) -> int:
    """The value as an int, also one of numpy's."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UsageError(f"{name} must be an integer, not {value!r}")
    return int(value)


class Semaphore(_ring.SemaphoreCore):
    """A counting semaphore between processes: any number of posters, one waiter at a time.

    A wait for n units makes one wake-up, by the post that completes the n. A killed poster has either posted or not; a
    killed waiter has taken all it waited for or nothing, and another may wait after it.
    Travels only as an argument of a process start, under fork, spawn and forkserver.

    Args:
        value: units that are free at the start, 0 to 2**31 - 1.

    Raises:
        UsageError: value is out of range.
        ResourceError: no memory.
    """

    def __init__(self, value: int = 0, *, _start: int = 0) -> None:
        value = _integer("value", value)
        self._segment = Segment("semaphore")
        self._segment.allocate(_ring.SEMAPHORE_BYTES, "a semaphore")
        super().__init__(self._segment.buffer, value, _start)

    def _join(self, segment: Segment) -> None:
        self._segment = segment
        super().__init__(segment.buffer, None)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        only_at_process_start(self)
        return _attach, (type(self), self._segment)

    def __repr__(self) -> str:
        return f"Semaphore(value={self.value})"


class Ring(_ring.RingCore):
    """A bounded queue between two processes: one producer, one consumer, items in the order they were pushed.

    A producer or consumer that is killed has pushed or popped an item or not, and a successor goes on where it stopped.
    Travels only as an argument of a process start, under fork, spawn and forkserver.

    Args:
        capacity: items that fit, 1 to 2**31.
        itemsize: bytes an item. 8: items are integers in 0..2**64 - 1. Else they are bytes of exactly this length.

    Raises:
        UsageError: capacity or itemsize is out of range.
        ResourceError: not enough memory.
    """

    def __init__(self, capacity: int, itemsize: int = 8, *, _start: int = 0) -> None:
        capacity, itemsize = _integer("capacity", capacity), _integer("itemsize", itemsize)
        size = _ring.ring_bytes(capacity, itemsize)
        self._segment = Segment("ring")
        self._segment.allocate(size, f"a ring of {capacity} items of {itemsize} bytes")
        super().__init__(self._segment.buffer, capacity, itemsize, _start)

    def _join(self, segment: Segment, capacity: int, itemsize: int) -> None:
        self._segment = segment
        super().__init__(segment.buffer, capacity, itemsize, None)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        only_at_process_start(self)
        return _attach, (type(self), self._segment, self.capacity, self.itemsize)

    def __repr__(self) -> str:
        return f"Ring(capacity={self.capacity}, itemsize={self.itemsize}), {len(self)} items"
