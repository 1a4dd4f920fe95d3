"""The worker's check of an observation, and its way into the env's row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np

from shmenv import codec
from shmenv.fit import MisfitError, Strictness, fit
from shmenv.layout import ArrayNode, DictNode, Node, ObjectNode, Path, TupleNode, assemble, leaves, path_text

Rows: TypeAlias = np.ndarray[Any, Any]
_Write: TypeAlias = Callable[[Any, int, int, list[Any]], None]


class ObservationError(ValueError):
    """An observation does not fit the declared space. The text names the key path and both sides."""


class ObservationWriter:
    """Writes observations of one structure into rows of shared memory.

    Called by: the worker, which owns the rows of its envs until it publishes them.
    """

    def __init__(self, node: Node, rows: Sequence[Rows], strict_dtype: Strictness) -> None:
        """Prepare for observations of one structure.

        Args:
            node: the structure that all envs declared.
            rows: for each array leaf, in the order of `leaves(node)`, the shared array (planes, num_envs, *shape).
            strict_dtype: as for `fit`.
        """
        remaining = iter(rows)
        self._write = _writer(node, (), remaining, strict_dtype)
        self._object_paths = [path for path, leaf in leaves(node) if isinstance(leaf, ObjectNode)]

    def write(self, obs: Any, plane: int, env_id: int) -> bytes:
        """Write all array leaves of an observation into its row.

        An array that is the row itself (an env with `bind_observation` may return it) is left where it is.

        Args:
            obs: what the env returned.
            plane: the plane that the command at hand names.
            env_id: the env.

        Returns:
            The pickled list of the object leaves in the space's order; b"" if the space has none.

        Raises:
            ObservationError: it does not fit. The row may be partly written; it counts only once it is published.
        """
        objects: list[Any] = []
        self._write(obs, plane, env_id, objects)
        if not objects:
            return b""
        try:
            return codec.dump(objects)
        except TypeError as error:
            for path, value in zip(self._object_paths, objects, strict=True):
                _check_picklable(path, value)
            raise ObservationError(f"observation {error}") from error  # fails as a whole only: nested too deep


class WholeWriter:
    """Pickles observations whole, as the env gave them; but what would not fit a row is refused or converted here, too.

    Called by: the worker.
    """

    def __init__(self, node_of: Callable[[int], Node], strict_dtype: Strictness) -> None:
        """Prepare for observations of some envs.

        Args:
            node_of: the structure that an env has declared; any object, if it has not.
            strict_dtype: as for `fit`.
        """
        self._node_of, self._strict = node_of, strict_dtype
        self._fits: dict[int, Callable[[Any], Any]] = {}

    def write(self, obs: Any, plane: int, env_id: int) -> bytes:
        """The pickled list of the observation alone. Raises ObservationError if it does not fit."""
        fits = self._fits.get(env_id)
        if fits is None:
            fits = self._fits[env_id] = _fitting(self._node_of(env_id), self._strict)
        try:
            return codec.dump([fits(obs)])
        except TypeError as error:
            raise ObservationError(f"observation {error}") from error


def _fitting(node: Node, strict: Strictness) -> Callable[[Any], Any]:
    """The function that checks an observation, and gives it back: its leaves as they are where that fits."""
    write = _writer(node, (), repeat(None), strict)

    def fits(obs: Any) -> Any:
        values: list[Any] = []
        write(obs, 0, 0, values)
        return assemble(node, values)

    return fits


def _writer(node: Node, path: Path, rows: Any, strict: Strictness) -> _Write:
    """The function that writes a part of an observation. Takes its rows from the iterator; None: for objects."""
    if isinstance(node, DictNode):
        return _dict_writer(node, path, rows, strict)
    if isinstance(node, TupleNode):
        return _tuple_writer(node, path, rows, strict)
    if isinstance(node, ArrayNode):
        return _array_writer(node, path, next(rows), strict)
    return lambda value, plane, env_id, objects: objects.append(value)


def _array_writer(node: ArrayNode, path: Path, rows: Rows | None, strict: Strictness) -> _Write:
    dtype, shape = node.dtype, node.shape

    def write(value: Any, plane: int, env_id: int, objects: list[Any]) -> None:
        if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
            try:
                value = fit(value, dtype, shape, strict)
            except MisfitError as error:
                raise ObservationError(f"{path_text(path, 'observation')} {error}") from error
            if rows is None and not shape:
                value = value[()]
        if rows is None:
            objects.append(value)
            return
        if value.base is not None and shape and _is_same(value, rows[plane, env_id]):
            return
        rows[plane, env_id, ...] = value

    return write


def _dict_writer(node: DictNode, path: Path, rows: Any, strict: Strictness) -> _Write:
    items = [(key, _writer(item, (*path, key), rows, strict)) for key, item in node.items]
    keys = {key for key, _ in items}

    def write(value: Any, plane: int, env_id: int, objects: list[Any]) -> None:
        if not isinstance(value, dict | Mapping) or value.keys() != keys:
            got = f"the keys {list(value)}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
            wanted = [key for key, _ in items]
            raise ObservationError(
                f"{path_text(path, 'observation')} needs a dict with exactly the keys {wanted}, got {got}"
            )
        for key, write_item in items:
            write_item(value[key], plane, env_id, objects)

    return write


def _tuple_writer(node: TupleNode, path: Path, rows: Any, strict: Strictness) -> _Write:
    items = [_writer(item, (*path, index), rows, strict) for index, item in enumerate(node.items)]

    def write(value: Any, plane: int, env_id: int, objects: list[Any]) -> None:
        if not isinstance(value, tuple | list) or len(value) != len(items):
            got = f"{len(value)} items" if isinstance(value, tuple | list) else f"a {type(value).__name__}"
            raise ObservationError(f"{path_text(path, 'observation')} needs a tuple of {len(items)} items, got {got}")
        for write_item, item in zip(items, value, strict=True):
            write_item(item, plane, env_id, objects)

    return write


def _check_picklable(path: Path, value: Any) -> None:
    try:
        codec.dump(value)
    except TypeError as error:
        raise ObservationError(f"{path_text(path, 'observation')} {error}") from error


def _is_same(one: Rows, two: Rows) -> bool:
    """Whether two arrays of one dtype and shape are the same bytes in the same order."""
    return one.ctypes.data == two.ctypes.data and one.strides == two.strides
