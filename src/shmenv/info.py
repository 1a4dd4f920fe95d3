"""The infos of a batch: one dict a row, decoded when somebody looks, or one key of all rows as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import index
from typing import Any, SupportsIndex, overload

import numpy as np

from shmenv._info import find_value, unpack_info

Array = np.ndarray[Any, Any]

_ABSENT = object()
_NUMBERS = (bool, int, float, complex, np.bool_, np.number)


class Infos(Sequence[Any]):
    """Row k's info is `infos[k]`: the dict that the env gave, decoded at the first look; {} if it gave an empty one.

    Non-empty dicts stay the same object from look to look. They belong to this sequence, not to the pool.
    """

    __slots__ = ("_decoded", "_records")

    def __init__(self, records: Sequence[bytes]) -> None:
        """Take over one record a row.

        Args:
            records: as `pack_info` made them; b"" for an empty dict. Kept, not copied.
        """
        self._records = records
        self._decoded: dict[int, Any] = {}

    @staticmethod
    @lru_cache(maxsize=64)
    def empty(n: int) -> Infos:
        """N rows without any info; the same object for the same n, so a batch without infos costs nothing."""
        return Infos((b"",) * n)

    @property
    def records(self) -> Sequence[bytes]:
        """What `pack_info` made of each row's info; b"" for an empty dict."""
        return self._records

    def is_empty(self) -> bool:
        """Whether no row has any info."""
        return not any(self._records)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> Infos: ...
    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        """One row's info, or some rows.

        Raises:
            IndexError: there is no such row.
            ValueError: the record is damaged, or holds a class that is unknown in this process.
        """
        if isinstance(key, slice):
            return Infos(self._records[key])
        record = self._records[index(key)]
        if not record:
            return {}  # a fresh one: what a caller puts into it must not show in other rows or batches
        row = index(key) % len(self._records)
        info = self._decoded.get(row, _ABSENT)
        if info is _ABSENT:
            info = self._decoded[row] = unpack_info(record)
        return info

    def __iter__(self) -> Iterator[Any]:
        decoded = self._decoded
        for row, record in enumerate(self._records):
            if not record:
                yield {}
            elif row in decoded:
                yield decoded[row]
            else:
                decoded[row] = info = unpack_info(record)
                yield info

    def __repr__(self) -> str:
        return f"Infos({len(self)} rows, {sum(map(bool, self._records))} not empty)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Infos, (tuple(self._records),)

    def column(self, name: str) -> tuple[Array, Array]:
        """One key's values in all rows.

        Args:
            name: the key.

        Returns:
            values: (n,), or (n, *shape) if each is an array of that shape. Numbers take the dtype that holds all of
                them by numpy's promotion (int with float: float64), whatever row comes first; anything else, and
                numbers mixed with anything else, makes an object array. A row without the key holds zero, or None in
                an object array; without any row that has it, values are float64 zeros.
            mask: bool (n,), whether the row has the key.
        """
        found = [find_value(record, name, _ABSENT) if record else _ABSENT for record in self._records]
        mask = np.fromiter((value is not _ABSENT for value in found), bool, len(found))
        present = [value for value in found if value is not _ABSENT]
        values = _empty_column(present, len(found))
        for row, value in enumerate(found):
            if value is not _ABSENT:
                values[row] = value
        return values, mask


def _empty_column(present: list[Any], n: int) -> Array:
    """Zeros of a dtype and shape that can hold these values, or None where only objects can."""
    if not present:
        return np.zeros(n)
    if all(isinstance(value, _NUMBERS) or type(value) is np.ndarray for value in present):
        arrays = list(map(np.asarray, present))
        dtypes = {array.dtype for array in arrays}
        if {array.shape for array in arrays} == {arrays[0].shape} and all(dtype.kind in "biufc" for dtype in dtypes):
            return np.zeros((n, *arrays[0].shape), np.result_type(*dtypes))
    return np.full(n, None, object)
