"""The way of actions: captured by the manager into rows of shared memory, read back by the worker for its env."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from shmenv import codec
from shmenv._info import pack_object, unpack_info
from shmenv.errors import UsageError
from shmenv.fit import NUMBER_KINDS, MisfitError, as_array, fit, is_tensor
from shmenv.layout import ArrayNode, DictNode, Node, ObjectNode, Path, TupleNode, assemble, leaves, path_text

Rows: TypeAlias = np.ndarray[Any, Any]

# A payload is the record of one whole action, whose rows mean nothing, or this byte and the pickled list of its leaves
# that are objects, in the space's order.
LEAVES = b"L"


class ActionWriter:
    """Captures the caller's actions: arrays into their rows, everything else as one payload an env.

    Called by: the manager, for envs that owe no answer, so no worker reads their rows meanwhile.
    """

    def __init__(self, node: Node, rows: Sequence[Rows], num_envs: int) -> None:
        """Prepare for actions of one structure.

        Args:
            node: the structure of one action.
            rows: for each array leaf, in the order of `leaves(node)`, the shared array (num_envs, *shape).
            num_envs: how many envs there are: a space of objects alone has no rows that tell.
        """
        self._node = node
        self._rows = tuple(rows)
        self._num_envs = num_envs
        self._only = self._rows[0] if isinstance(node, ArrayNode) else None
        kinds = [isinstance(leaf, ArrayNode) for _, leaf in leaves(node)]
        self._array_at = [k for k, is_array in enumerate(kinds) if is_array]
        self._object_at = [k for k, is_array in enumerate(kinds) if not is_array]

    def write(self, action: Any, env_ids: np.ndarray[Any, Any] | None) -> list[bytes] | None:
        """Capture one action for each env. Nothing of the caller's is referred to afterwards.

        Args:
            action: batched as Gymnasium's `batch_space` does (an array (n, *shape) for an array; a dict of batches for
                Dict; a tuple of batches for Tuple; a tuple or list of n for an object), or a list of n single actions.
                In a list of n, an action with anything but numbers where the space has an array travels whole, as an
                object. Dtypes convert by the rule of `fit`.
            env_ids: ids (n,) in the order of the actions; None: all envs, ascending.

        Returns:
            None if all is in the rows; else a payload for each of the n envs, b"" where all is in its rows.

        Raises:
            UsageError: count, shape, dtype or keys are wrong, or something cannot be pickled. Nothing was written.
        """
        only = self._only
        if only is not None and type(action) is np.ndarray and action.dtype == only.dtype:
            if env_ids is None:
                if action.shape == only.shape:
                    only[...] = action
                    return None
            elif action.shape == (len(env_ids), *only.shape[1:]):
                only[env_ids] = action
                return None
        n = self._num_envs if env_ids is None else len(env_ids)
        try:
            columns, whole = _read(self._node, action, n)
            payloads = self._payloads(columns, whole, n)
        except (MisfitError, TypeError) as error:
            raise UsageError(f"{error} ({n} envs)") from None  # the text says it all; the way to it is ours
        for rows, k in zip(self._rows, self._array_at, strict=True):
            column = columns[k]
            if isinstance(column, np.ndarray):
                rows[... if env_ids is None else env_ids] = column
                continue
            for index, value in enumerate(column):
                if index not in whole:
                    rows[index if env_ids is None else env_ids[index], ...] = value
        return payloads

    def _payloads(self, columns: list[Any], whole: dict[int, Any], n: int) -> list[bytes] | None:
        if isinstance(self._node, ObjectNode):
            return list(map(pack_object, columns[0]))
        if not self._object_at and not whole:
            return None
        payloads = []
        for index in range(n):
            if index in whole:
                payloads.append(pack_object(whole[index]))
            elif self._object_at:
                payloads.append(LEAVES + codec.dump([columns[k][index] for k in self._object_at]))
            else:
                payloads.append(b"")
        return payloads


class ActionReader:
    """Reads an env's action back.

    Called by: the worker, between a command's arrival and its answer.
    """

    def __init__(self, node: Node, rows: Sequence[Rows]) -> None:
        """Prepare for actions of one structure.

        Args:
            node: the structure of one action.
            rows: for each array leaf, in the order of `leaves(node)`, the shared array (num_envs, *shape).
        """
        self._node = node
        self._is_array = isinstance(node, ArrayNode)
        remaining = iter(rows)
        kinds = [isinstance(leaf, ArrayNode) for _, leaf in leaves(node)]
        self._leaves = [_leaf_reader(next(remaining)) if is_array else None for is_array in kinds]

    def read(self, env_id: int, payload: bytes) -> Any:
        """The action as Gymnasium's SyncVectorEnv would hand it to the env: numpy scalars, arrays, dicts, tuples.

        Args:
            env_id: whose action.
            payload: what the manager captured beside the rows; b"" if nothing.

        Returns:
            The env's own: fresh arrays and scalars, no view of shared memory.
        """
        if payload and payload[:1] != LEAVES:
            return unpack_info(payload)
        if self._is_array:
            return self._leaves[0](env_id)  # type: ignore[misc]  # an array leaf has its reader
        objects = iter(codec.load(memoryview(payload)[1:])) if payload else iter(())
        return assemble(self._node, [next(objects) if leaf is None else leaf(env_id) for leaf in self._leaves])


class _ForeignError(Exception):
    """A single action is no value of the space, but may be what its env wants all the same."""


def _read(node: Node, action: Any, n: int) -> tuple[list[Any], dict[int, Any]]:
    """Take the actions apart, writing nothing.

    Returns:
        For each leaf a column: an array (n, *shape), or a list of n values. And the actions that travel whole, by
        index; their places in the columns hold None.
    """
    if _is_batch(node, action):
        return list(_batches(node, action, n, ())), {}
    singles = _singles(node, action, n)
    if isinstance(node, ObjectNode):
        return [singles], {}
    if isinstance(node, ArrayNode) and node.dtype.kind in NUMBER_KINDS:
        try:
            return [fit(singles, node.dtype, (n, *node.shape))], {}
        except MisfitError:
            pass  # one by one tells which action it is, or that it is an object
    columns: list[list[Any]] = [[] for _ in leaves(node)]
    whole: dict[int, Any] = {}
    for index, single in enumerate(singles):
        try:
            values = list(_values(node, single, (index,)))
        except _ForeignError:
            values = [None] * len(columns)
            whole[index] = single
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return columns, whole


def _is_batch(node: Node, action: Any) -> bool:
    if isinstance(node, ArrayNode):
        return not isinstance(action, list | tuple) and not _holds_objects(action)
    if isinstance(node, DictNode):
        return isinstance(action, Mapping)
    # As in Gymnasium, a tuple holds a batch for each part of the space; single actions come in a list.
    return isinstance(node, TupleNode) and isinstance(action, tuple) and len(action) == len(node.items)


def _batches(node: Node, value: Any, n: int, path: Path) -> Iterator[Any]:
    if isinstance(node, ArrayNode):
        yield _fit(value, node, (n, *node.shape), path)
    elif isinstance(node, DictNode | TupleNode):
        for item, part, item_path in _parts(node, value, path):
            yield from _batches(item, part, n, item_path)
    elif isinstance(value, tuple | list | np.ndarray) and len(value) == n:
        yield list(value)
    else:
        raise MisfitError(f"{path_text(path, 'action')} needs a tuple of {n} objects, got {_what(value)}")


def _singles(node: Node, action: Any, n: int) -> list[Any]:
    if is_tensor(action):
        action = as_array(action)
    if isinstance(action, np.ndarray) and action.shape[:1] == (n,) and not isinstance(node, DictNode | TupleNode):
        return [item.copy() if isinstance(item, np.ndarray) else item for item in action]
    if isinstance(action, list | tuple) or _holds_objects(action):
        if len(action) == n:
            return list(action)
        raise MisfitError(f"needs {n} actions, got {len(action)}, each to be {node}")
    raise MisfitError(f"action needs a batch or a list of {n} actions, each {node}, got {_what(action)}")


def _values(node: Node, value: Any, path: Path) -> Iterator[Any]:
    """The leaves of one single action. Raises _ForeignError if it is of another kind, MisfitError if merely wrong."""
    if isinstance(node, ArrayNode):
        try:
            yield _fit(value, node, node.shape, path)
        except MisfitError:
            if _is_numeric(value):
                raise
            raise _ForeignError from None
    elif isinstance(node, DictNode | TupleNode):
        if not isinstance(value, Mapping if isinstance(node, DictNode) else tuple | list) and not _is_numeric(value):
            raise _ForeignError
        for item, part, item_path in _parts(node, value, path):
            yield from _values(item, part, item_path)
    else:
        yield value


def _parts(node: DictNode | TupleNode, value: Any, path: Path) -> Iterator[tuple[Node, Any, Path]]:
    if isinstance(node, DictNode):
        keys = [key for key, _ in node.items]
        if not isinstance(value, Mapping) or value.keys() != set(keys):
            raise MisfitError(
                f"{path_text(path, 'action')} needs a dict with exactly the keys {keys}, got {_what(value)}"
            )
        for key, item in node.items:
            yield item, value[key], (*path, key)
    else:
        if not isinstance(value, tuple | list) or len(value) != len(node.items):
            raise MisfitError(
                f"{path_text(path, 'action')} needs a tuple of {len(node.items)} items, got {_what(value)}"
            )
        for index, item in enumerate(node.items):
            yield item, value[index], (*path, index)


def _fit(value: Any, node: ArrayNode, shape: tuple[int, ...], path: Path) -> Rows:
    try:
        return fit(value, node.dtype, shape)
    except MisfitError as error:
        raise MisfitError(f"{path_text(path, 'action')} {error}") from error


def _is_numeric(value: Any) -> bool:
    """Whether it holds numbers only, so that a misfit is a mistake and not an action of the env's own kind."""
    if isinstance(value, list | tuple):
        return all(map(_is_numeric, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in NUMBER_KINDS
    return isinstance(value, int | float | complex) or is_tensor(value)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


def _what(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} {value.shape}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _leaf_reader(rows: Rows) -> Callable[[int], Any]:
    if rows.ndim > 1 or rows.dtype.kind == "V":  # a record's scalar is a view of its array, other scalars are values
        return lambda env_id: rows[env_id].copy()
    return rows.__getitem__
