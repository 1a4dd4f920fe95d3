"""Spaces and fields as arithmetic: what arrays a space needs, and where each field stands in a block of memory.

Spaces are recognised by the names of their classes, so that neither Gymnasium nor Gym is ever imported.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

ALIGNMENT = 128  # bytes: two x86-64 cache lines (they are fetched in pairs), one line of some aarch64 machines

Path: TypeAlias = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class ArrayNode:
    """A leaf that is one array of this dtype and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        own = np.dtype(self.dtype.str)
        if own == self.dtype:  # numpy's one object for it, not a copy as pickle makes them: the loop knows it by `is`
            object.__setattr__(self, "dtype", own)

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayNode, (self.dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True, slots=True)
class ObjectNode:
    """A leaf that no array of a fixed size can hold: it travels pickled."""

    def __str__(self) -> str:
        return "any object"


@dataclass(frozen=True, slots=True)
class DictNode:
    """A dict with exactly these keys, in this order."""

    items: tuple[tuple[Hashable, Node], ...]

    def __str__(self) -> str:
        return "dict(" + ", ".join(f"{key!r}: {node}" for key, node in self.items) + ")"


@dataclass(frozen=True, slots=True)
class TupleNode:
    """A tuple of exactly these items."""

    items: tuple[Node, ...]

    def __str__(self) -> str:
        return "tuple(" + ", ".join(map(str, self.items)) + ")"


Node: TypeAlias = ArrayNode | ObjectNode | DictNode | TupleNode


def describe_space(space: Any) -> Node:
    """Tell what arrays the values of a Gymnasium or Gym space need.

    Box, Discrete, MultiDiscrete and MultiBinary become arrays, Dict and Tuple are walked; everything else (Text, Graph,
    Sequence, OneOf, a space class of the user's own, a dtype without fixed size) travels as an object. Bounds play no
    part, so two spaces that differ in nothing else give equal nodes.
    """
    kind = _space_kind(space)
    if kind == "Dict":
        return DictNode(tuple((key, describe_space(item)) for key, item in space.spaces.items()))
    if kind == "Tuple":
        return TupleNode(tuple(describe_space(item) for item in space.spaces))
    if kind and space.dtype is not None and space.shape is not None:
        return _array_or_object(np.dtype(space.dtype), tuple(map(int, space.shape)))
    return ObjectNode()


def describe_value(value: Any) -> Node:
    """Tell what arrays values like this one need: for an env that declares no space, from its first observation.

    Arrays, numpy scalars, Python numbers and (nested) lists of numbers become arrays, dicts and plain tuples are
    walked. Anything else is an object: also text, whose next value may be longer, and an empty list, whose next may
    not be empty.
    """
    if isinstance(value, dict):
        return DictNode(tuple((key, describe_value(item)) for key, item in value.items()))
    if type(value) is tuple:
        return TupleNode(tuple(describe_value(item) for item in value))
    if not isinstance(value, np.ndarray | np.generic | int | float | complex | list):
        return ObjectNode()
    if isinstance(value, list) and not value:
        return ObjectNode()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # a ragged list
        return ObjectNode()
    return ObjectNode() if array.dtype.kind in "SU" else _array_or_object(array.dtype, array.shape)


def leaves(node: Node) -> tuple[tuple[Path, ArrayNode | ObjectNode], ...]:
    """All leaves with their paths of keys and positions, in the space's order."""
    return tuple(_walk(node, ()))


def assemble(node: Node, values: Sequence[Any]) -> Any:
    """Nest one value a leaf, in the order of `leaves`, in fresh dicts and tuples. The inverse of taking leaves."""
    return _assemble(node, iter(values))


def path_text(path: Path, root: str) -> str:
    """A path as Python code, for error messages: `observation['camera'][0]`."""
    return root + "".join(f"[{key!r}]" for key in path)


class Layout:
    """Named arrays one after another in a block of memory, each on its own cache lines.

    Fields are added first; then every process makes its views from the same offsets. It can be pickled.
    """

    def __init__(self) -> None:
        self._fields: dict[str, tuple[int, np.dtype[Any], tuple[int, ...]]] = {}
        self._size = 0

    def add(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int]) -> None:
        """Append a field. Its dtype may be any of fixed size, structured and big-endian ones too.

        Raises:
            ValueError: the name is taken, a length is negative, or the dtype holds Python objects.
        """
        dtype, shape = np.dtype(dtype), tuple(map(int, shape))
        if name in self._fields:
            raise ValueError(f"field {name!r} is there already")
        if dtype.hasobject:
            raise ValueError(f"field {name!r}: dtype {dtype} holds Python objects, which no other process can read")
        if any(length < 0 for length in shape):
            raise ValueError(f"field {name!r}: shape {shape} has a negative length")
        self._fields[name] = (self._size, dtype, shape)
        self._size += -(-self.nbytes(name) // ALIGNMENT) * ALIGNMENT

    @property
    def size(self) -> int:
        """Bytes of the whole block, a multiple of 128."""
        return self._size

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def offset(self, name: str) -> int:
        """Where the field starts: bytes from the start of the block, a multiple of 128."""
        return self._fields[name][0]

    def nbytes(self, name: str) -> int:
        """Bytes of the field itself, without the gap behind it."""
        _, dtype, shape = self._fields[name]
        return dtype.itemsize * prod(shape)

    def view(self, name: str, buffer: Any) -> np.ndarray[Any, Any]:
        """The field in `buffer`, an object with the buffer protocol of at least `size` bytes.

        Returns:
            A C-contiguous view, writable if the buffer is. It keeps the buffer alive.
        """
        offset, dtype, shape = self._fields[name]
        if self.nbytes(name) == 0:  # stands on no byte, perhaps behind the last one
            return np.zeros(shape, dtype)
        return np.ndarray(shape, dtype, buffer, offset)

    def largest(self, k: int) -> list[tuple[str, int]]:
        """The k largest fields as (name, bytes), largest first: what to name when memory is short."""
        return sorted(((name, self.nbytes(name)) for name in self._fields), key=lambda field: -field[1])[:k]


_KINDS = frozenset({"Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"})


def _space_kind(space: Any) -> str | None:
    for cls in type(space).__mro__:
        if cls.__name__ in _KINDS and cls.__module__.partition(".")[0] in ("gymnasium", "gym"):
            return cls.__name__
    return None


def _array_or_object(dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayNode | ObjectNode:
    if dtype.hasobject or dtype.base.itemsize == 0:  # text without a length, for example
        return ObjectNode()
    return ArrayNode(dtype.base, shape + dtype.shape)


def _walk(node: Node, path: Path) -> Iterator[tuple[Path, ArrayNode | ObjectNode]]:
    if isinstance(node, DictNode):
        for key, item in node.items:
            yield from _walk(item, (*path, key))
    elif isinstance(node, TupleNode):
        for index, item in enumerate(node.items):
            yield from _walk(item, (*path, index))
    else:
        yield path, node


def _assemble(node: Node, values: Iterator[Any]) -> Any:
    if isinstance(node, DictNode):
        return {key: _assemble(item, values) for key, item in node.items}
    if isinstance(node, TupleNode):
        return tuple(_assemble(item, values) for item in node.items)
    return next(values)
