"""Types of the compiled module; what the record looks like stands in _info.pyx."""

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
