"""Types of the compiled module; what the record looks like stands in _info.pyx."""

from collections.abc import Sequence
from typing import Any

def pack_info(info: Any) -> bytes:
    """Pack an info into a record.

    Called by: the worker.

    Args:
        info: what the env returned. Dicts with text keys become typed entries, other dicts a pickle.

    Returns:
        The record; b"" for an empty dict.

    Raises:
        TypeError: a value cannot be pickled. The text names its key.
    """

def pack_object(value: Any) -> bytes:
    """Pack an object of any kind: numbers, texts and arrays typed, anything else a pickle. Begins with b"V" or b"P".

    Raises:
        TypeError: it cannot be pickled.
    """

def unpack_info(record: bytes) -> Any:
    """Unpack a record: the same values of the same types, arrays fresh, writable and in C order.

    Called by: the manager, with its own copy of what a worker wrote; the worker, with a copy of an action.

    Raises:
        ValueError: the record is damaged, or a class in it is unknown in this process.
    """

def find_value(record: bytes, name: str, absent: Any = None) -> Any:
    """The value under one key, without unpacking the others; `absent` if there is none.

    Raises:
        ValueError: as `unpack_info`.
    """

def info_columns(
    records: Sequence[bytes],
    places: Sequence[int],
    n: int,
    apart: str | None = None,
    parts: dict[int, Any] | None = None,
) -> dict[str, Any] | None:
    """Infos as Gymnasium's vector envs have them: for each key an array of n, and under "_key" the mask of its rows.

    Args:
        records: as `pack_info` made them; b"" for an empty dict.
        places: the row of each, at most once.
        n: how many rows there are.
        apart: a key that is to make no column; its values, of any kind, go into `parts`.
        parts: a dict for these values, by row.

    Returns:
        None where a record holds anything but numbers and dicts, or where the types of a key's values differ.

    Raises:
        ValueError: a record is damaged.
    """
