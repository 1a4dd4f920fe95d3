"""Arrays in shared memory with one writer and many readers: always a whole value, whoever is killed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shmenv import _ring
from shmenv.errors import ShmenvError, UsageError
from shmenv.fit import MisfitError, Strictness, fit
from shmenv.layout import ArrayNode, DictNode, Layout, Node, assemble, leaves, path_text
from shmenv.segment import Segment, only_at_process_start

CELLS = 4  # a reader keeps its value while the writer publishes up to two more; a view lives one longer


class _VersionedValue:
    """An array or nested dict of arrays, published as a whole under a version. The parts of the public classes."""

    def __init__(self, node: Node, strict_dtype: bool, start: int = 0) -> None:
        self._segment = Segment(type(self).__name__.lower())
        self._describe(node, strict_dtype)
        size = _ring.cells_bytes(self._size, CELLS)
        self._segment.allocate(size, lambda: f"a {type(self).__name__} of {node}, {CELLS} times")
        self._cells = _ring.Cells(self._segment.buffer, self._size, CELLS, start)

    def _join(self, segment: Segment, node: Node, strict_dtype: bool) -> None:
        """Called by: a process to which this object travelled."""
        self._segment = segment
        self._describe(node, strict_dtype)
        segment.attach()
        self._cells = _ring.Cells(segment.buffer, self._size, CELLS, None)

    def _describe(self, node: Node, strict_dtype: bool) -> None:
        self._node = node
        self._strict: Strictness = strict_dtype or "integers"
        self._leaves = [(path, leaf) for path, leaf in leaves(node) if isinstance(leaf, ArrayNode)]
        self._layout = Layout()
        self._size = 0
        for index, (_, leaf) in enumerate(self._leaves):
            self._layout.add(str(index), leaf.dtype, leaf.shape)
            self._size = self._layout.offset(str(index)) + self._layout.nbytes(str(index))
        self._staged: tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]] | None = None

    def _views(self, cell: Any) -> list[np.ndarray[Any, Any]]:
        return [self._layout.view(str(index), cell) for index in range(len(self._leaves))]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        only_at_process_start(self)
        return _arrive, (type(self), self._segment, self._node, self._strict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._node}), version {self.version}"

    @property
    def version(self) -> int:
        """How many values were published so far; the newest one's number. 0: none, and what is read is all zeros."""
        return self._cells.version

    def _write(self, value: Any) -> None:
        if isinstance(self._node, ArrayNode):
            array = self._fit((), self._node, value)
            self._cells.write(_as_buffer(array if array.flags.c_contiguous else array.copy()))
            return
        arrays = [
            self._fit(path, leaf, part)
            for (path, leaf), part in zip(self._leaves, _take(self._node, value, ()), strict=True)
        ]
        if self._staged is None:
            cell = np.zeros(self._size, np.uint8)
            self._staged = cell, self._views(cell)
        cell, targets = self._staged
        for target, array in zip(targets, arrays, strict=True):
            target[...] = array
        self._cells.write(cell)

    def _fit(self, path: tuple[Hashable, ...], leaf: ArrayNode, part: Any) -> np.ndarray[Any, Any]:
        try:
            return fit(part, leaf.dtype, leaf.shape, self._strict)
        except MisfitError as error:
            raise UsageError(f"{path_text(path, 'value')} {error}") from None

    def _read_cell(self, out: Any) -> int:
        version = self._cells.read(out)
        if version < 0:
            raise ShmenvError(
                f"the writer of this {type(self).__name__} publishes faster than a reader can copy: write less often"
            )
        return version

    def _read(self) -> Any:
        if isinstance(self._node, ArrayNode):
            array = np.empty(self._node.shape, self._node.dtype)
            self._read_cell(_as_buffer(array))
            return array
        cell = np.empty(self._size, np.uint8)
        self._read_cell(cell)
        return assemble(self._node, self._views(cell))

    def _read_into(self, out: Any) -> int:
        node = self._node
        if (
            isinstance(node, ArrayNode)
            and isinstance(out, np.ndarray)
            and (out.dtype, out.shape) == (node.dtype, node.shape)
            and out.flags.carray
        ):
            return self._read_cell(_as_buffer(out))
        targets = _take(self._node, out, ())
        for (path, leaf), target in zip(self._leaves, targets, strict=True):
            if (
                not isinstance(target, np.ndarray)
                or target.dtype != leaf.dtype
                or target.shape != leaf.shape
                or not target.flags.writeable
            ):
                got = f"{target.dtype} {target.shape}" if isinstance(target, np.ndarray) else type(target).__name__
                raise UsageError(f"{path_text(path, 'out')} must be a writable array of {leaf}, not {got}")
        cell = np.empty(self._size, np.uint8)
        version = self._read_cell(cell)
        for target, array in zip(targets, self._views(cell), strict=True):
            target[...] = array
        return version

    def _view(self) -> Any:
        # By way of an array: one made from a memoryview directly has the writable memory below it as its base.
        memory = np.asarray(memoryview(self._segment.buffer).toreadonly())
        start = self._cells.offset_of(self._cells.version)
        return assemble(self._node, self._views(memory[start : start + self._size]))


def _arrive(kind: type[_VersionedValue], *arguments: Any) -> _VersionedValue:
    """Called by: the started process, while it unpickles its arguments."""
    value = kind.__new__(kind)
    value._join(*arguments)
    return value


def _as_buffer(array: np.ndarray[Any, Any]) -> Any:
    """The contiguous array as a buffer, which numpy makes only of plain numbers and text, not of times or records."""
    if array.dtype.kind in "biufcSU":
        return array
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)


def _take(node: Node, value: Any, path: tuple[Hashable, ...]) -> list[Any]:
    """One part of the value a leaf, in the order of the leaves; the keys must be exactly the node's."""
    if not isinstance(node, DictNode):
        return [value]
    if not isinstance(value, Mapping):
        raise UsageError(f"{path_text(path, 'value')} must be a dict, not a {type(value).__name__}")
    wanted = [key for key, _ in node.items]
    if set(value) != set(wanted):
        missing, extra = [k for k in wanted if k not in value], [k for k in value if k not in wanted]
        raise UsageError(f"{path_text(path, 'value')} must have the keys {wanted}: missing {missing}, unknown {extra}")
    return [part for key, item in node.items for part in _take(item, value[key], (*path, key))]


def _array_node(dtype: Any, shape: Any, path: tuple[Hashable, ...] = ()) -> ArrayNode:
    where = f" for {path_text(path, 'value')}" if path else ""
    try:
        asked = np.dtype(dtype)
    except TypeError as error:
        raise UsageError(f"{dtype!r} is no dtype{where}: {error}") from None
    if dtype is None or asked.hasobject or asked.base.itemsize == 0:
        raise UsageError(
            f"dtype {dtype!r}{where} has no fixed size: Python objects and text of any length cannot stand in shared "
            "memory. Give a number, a text length (for example 'U20') or a structured dtype, or send it pickled"
        )
    try:
        lengths = tuple(int(n) for n in ([shape] if isinstance(shape, int | np.integer) else shape))
        if any(n < 0 for n in lengths) or [*lengths] != [*([shape] if isinstance(shape, int | np.integer) else shape)]:
            raise ValueError
    except (TypeError, ValueError):
        raise UsageError(f"shape{where} must be a tuple of lengths of at least 0, not {shape!r}") from None
    return ArrayNode(asked.base, lengths + asked.shape)


def _tree_node(dtype: Any, shape: Any, path: tuple[Hashable, ...] = ()) -> Node:
    """Nested dicts of shapes, with one dtype for all below it or a dict with the same keys."""
    if not isinstance(shape, Mapping):
        return _array_node(dtype, shape, path)
    if isinstance(dtype, Mapping) and set(dtype) != set(shape):
        raise UsageError(f"dtype and shape differ in their keys: {list(dtype)} and {list(shape)}")
    return DictNode(
        tuple(
            (key, _tree_node(dtype[key] if isinstance(dtype, Mapping) else dtype, item, (*path, key)))
            for key, item in shape.items()
        )
    )


class SeqlockBuffer(_VersionedValue):
    """The newest value of something: one writer, any number of readers, no lock, always a whole value.

    The writer never waits. A writer killed half way leaves the value before readable, and a successor goes on with it.
    Travels only as an argument of a process start, under fork, spawn and forkserver.

    Args:
        dtype: any numpy dtype of fixed size, structured and big-endian ones too; or a dict of name: (dtype, shape), and
            values are dicts of arrays then, published together.
        shape: of the array; () for a single number. Left out if dtype is a dict.
        strict_dtype: True refuses a value of any other dtype. False converts it as long as it survives: `same_kind`
            casts, integers of any type if in range and not rounded.

    Raises:
        UsageError: no such dtype or shape.
        ResourceError: not enough memory for four values.
    """

    def __init__(
        self,
        dtype: npt.DTypeLike | Mapping[str, tuple[npt.DTypeLike, Sequence[int] | int]],
        shape: Sequence[int] | int | None = None,
        *,
        strict_dtype: bool = True,
        _start: int = 0,
    ) -> None:
        if isinstance(dtype, Mapping):
            if shape is not None:
                raise UsageError("a dict of name: (dtype, shape) brings its shapes: leave shape out")
            fields = []
            for name, pair in dtype.items():
                if not isinstance(pair, tuple | list) or len(pair) != 2:
                    raise UsageError(f"field {name!r} must be a pair (dtype, shape), not {pair!r}")
                fields.append((name, _array_node(pair[0], pair[1], (name,))))
            super().__init__(DictNode(tuple(fields)), strict_dtype, _start)
        else:
            super().__init__(_array_node(dtype, () if shape is None else shape), strict_dtype, _start)

    def write(self, x: Any) -> None:
        """Publish a value.

        Called by: one process at a time, one thread of it. Blocks: no. Crash: published or not, never half.

        Args:
            x: an array, or what numpy makes one, of exactly the dtype and shape; or a dict of them with just the names.

        Raises:
            UsageError: x does not fit. Nothing changed.
        """
        self._write(x)

    def read(self) -> Any:
        """Return a copy of the newest value: an array, or a dict of arrays; all zeros before the first write.

        Blocks: no, but tries again when the writer published three values during one copy.

        Raises:
            ShmenvError: that happened a thousand times on end.
        """
        return self._read()

    def read_into(self, out: Any) -> int:
        """Copy the newest value into `out`, and return its version.

        Args:
            out: a writable array of exactly the dtype and shape, or a dict of them.

        Raises:
            UsageError: out does not fit. Nothing changed.
            ShmenvError: as read(); out is undefined.
        """
        return self._read_into(out)

    def wait_newer(self, version: int, timeout: float | None = None) -> bool:
        """Wait until there is a value newer than `version`.

        Blocks: without the GIL; Ctrl-C ends it.

        Args:
            version: the version last seen, 0 or more.
            timeout: seconds for the whole call. None waits for ever, 0 only looks.

        Returns:
            True: there is one. False: time ran out.

        Raises:
            UsageError: version or timeout is not what it must be.
        """
        if isinstance(version, bool) or not isinstance(version, int | np.integer) or not 0 <= version < 2**64:
            raise UsageError(f"version must be an integer of at least 0, not {version!r}")
        return self._cells.wait_newer(int(version), timeout)


class ShmBuffer(_VersionedValue):
    """One array in shared memory: one writer fills it, any number of readers get it, never a torn one.

    Travels only as an argument of a process start, under fork, spawn and forkserver.

    Args:
        dtype: any numpy dtype of fixed size.
        shape: of the array.
        strict_dtype: as for SeqlockBuffer.

    Raises:
        UsageError: no such dtype or shape.
        ResourceError: not enough memory for four arrays.
    """

    def __init__(self, dtype: npt.DTypeLike, shape: Sequence[int] | int, *, strict_dtype: bool = True) -> None:
        super().__init__(_array_node(dtype, shape), strict_dtype)

    def fill(self, x: Any) -> None:
        """Publish an array of exactly the dtype and shape. Called by: one process at a time, one thread of it.

        Raises:
            UsageError: x does not fit. Nothing changed.
        """
        self._write(x)

    def get(self, copy: bool = True) -> Any:
        """Return the newest array; all zeros before the first fill.

        Args:
            copy: False returns a read-only view instead, at no cost. It keeps its value until the writer begins the
                fourth fill after the one it shows: for readers that are done by then, or that check. If `version` grew
                by at most 2 from before the view was taken to after it was used, the view was whole.

        Raises:
            ShmenvError: the writer published three values during each of a thousand copies.
        """
        return self._read() if copy else self._view()


class ShmBufferContainer(_VersionedValue):
    """A nested dict of arrays in shared memory, filled and read as a whole, as ShmBuffer.

    Args:
        dtype: one for all, or a dict with the keys of `shape`, as deep as wanted.
        shape: a shape, or a dict of shapes and such dicts.
        strict_dtype: as for SeqlockBuffer.

    Raises:
        UsageError: no such dtype or shape, or their keys differ.
        ResourceError: not enough memory for four values.
    """

    def __init__(self, dtype: Any, shape: Any, *, strict_dtype: bool = True) -> None:
        super().__init__(_tree_node(dtype, shape), strict_dtype)

    def fill(self, x: Any) -> None:
        """Publish a dict of arrays with exactly the keys, dtypes and shapes; or one array, if so made.

        Called by: one process at a time, one thread of it.

        Raises:
            UsageError: x does not fit. Nothing changed.
        """
        self._write(x)

    def get(self, copy: bool = True) -> Any:
        """Return the newest value, all arrays of one fill; copy as for ShmBuffer.get."""
        return self._read() if copy else self._view()
