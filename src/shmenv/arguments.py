"""Checks of what callers pass to a pool: bad input gets a clear error here, before anything is sent."""

from __future__ import annotations

import multiprocessing
import reprlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np

from shmenv import _port, codec
from shmenv._info import pack_object
from shmenv.batch import Array
from shmenv.errors import UsageError

EnvIds = int | np.integer[Any] | Sequence[int] | Array | None


def mp_context(context: str | multiprocessing.context.BaseContext | None) -> multiprocessing.context.BaseContext:
    """The multiprocessing context that was asked for; forkserver by default."""
    if isinstance(context, multiprocessing.context.BaseContext):
        return context
    methods = multiprocessing.get_all_start_methods()
    check_choice("context", "forkserver" if context is None else context, methods)
    return multiprocessing.get_context("forkserver" if context is None else context)


def dumped(what: str, value: Any, dump: Callable[[Any], bytes] = codec.dump) -> bytes:
    """What goes to the workers, pickled. Raises UsageError if that cannot be done."""
    try:
        return dump(value)
    except TypeError as error:
        raise UsageError(f"{what}: {error}") from error


def dumped_env_fns(env_fns: Sequence[Callable[[], Any]], ids: Iterable[int]) -> bytes:
    """The env functions of one worker, pickled. Raises UsageError that names the first that cannot be."""
    listed = {i: env_fns[i] for i in ids}
    try:
        return codec.dump_factory([*listed.values()])
    except TypeError as error:
        for i, env_fn in listed.items():
            dumped(f"env_fns[{i}]", env_fn, codec.dump_factory)
        raise UsageError(f"env_fns: {error}") from error


_short = reprlib.Repr()
_short.maxother = 80  # characters of what an argument is, in refusals


def listed_env_fns(name: str, env_fns: Any) -> list[Callable[[], Any]]:
    """The functions as a list, if they are some."""
    need = f"{name} must be one or more functions that return an env"
    if not isinstance(env_fns, Iterable) or isinstance(env_fns, type):
        raise UsageError(f"{need}, in a list; it is {_short.repr(env_fns)}")
    listed = list(env_fns)
    if not listed:
        raise UsageError(f"{need}; there is none")
    for k, env_fn in enumerate(listed):
        if not callable(env_fn):
            raise UsageError(f"{need}; item {k} is {_short.repr(env_fn)}: put `lambda:` before what makes an env")
    return listed


def is_listing(value: Any) -> bool:
    """Whether it is one value after another, not text, bytes, or an array without an axis."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def check_range(name: str, value: Any, low: int, high: int, why: str = "") -> int:
    """The value as an int, if it is one from low to high; `why` it may be no more."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"{name} must be an int from {low} to {high}{why and f' ({why})'}, not {value!r}")
    return int(value)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_seconds(name: str, value: Any, optional: bool = False) -> None:
    """Refuse what is no length of time."""
    if value is None and optional:
        return
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool) or not value >= 0:
        raise UsageError(f"{name} must be seconds, 0 or more{', or None' if optional else ''}, not {value!r}")


def check_pause(name: str, value: Any) -> None:
    """Refuse what is no length of time that ends."""
    check_seconds(name, value)
    if value > 1e6:
        raise UsageError(f"{name} must be seconds, at most 1e6 (twelve days), not {value!r}")


def deadline_ns(timeout: float | None) -> int:
    """The end of a timeout in CLOCK_MONOTONIC nanoseconds, as the port takes it."""
    if timeout is None or timeout > 1e9:  # thirty years are for ever
        return _port.FOREVER
    return time.monotonic_ns() + int(timeout * 1e9) if timeout > 0 else 0


def env_ids(env_id: EnvIds, all_ids: Array) -> tuple[Array, Array]:
    """Checked ids, uint32: ascending, and in the order of the caller."""
    if env_id is None:
        return all_ids, all_ids
    try:
        array = np.atleast_1d(np.asarray(env_id))
    except Exception as error:  # ragged, or no array at all
        raise UsageError(f"env_id must be an int or a sequence of ints, not {_short.repr(env_id)}: {error}") from None
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise UsageError(f"env_id must be an int or a non-empty sequence of ints, not {env_id!r}")
    if array.min() < 0 or array.max() >= len(all_ids):
        wrong = array[(array < 0) | (array >= len(all_ids))]
        raise UsageError(f"env_id {wrong.tolist()}: this pool has envs 0 to {len(all_ids) - 1}")
    order = array.astype(np.uint32)
    if (order[1:] > order[:-1]).all():
        return order, order
    ids = np.unique(order)
    if len(ids) != len(order):
        raise UsageError(f"env_id names an env twice: {array.tolist()}")
    return ids, order


class PackedOptions(bytes):
    """Options of a reset as they travel, for envs that are reset by the same ones again and again."""

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """Pack the options of one env that gets no seed with them."""
        return cls(dumped("options", {"seed": None, "options": options}, pack_object))


def reset_payloads(seed: Any, options: Any, order: Array) -> tuple[list[int | None], list[bytes] | None]:
    """Seeds and payloads by ascending id, from sequences in the order of the caller."""
    m = len(order)
    seeds: list[int | None] = [None] * m
    if seed is not None:
        if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
            seeds = [int(seed) + i for i in order.tolist()]
        elif is_listing(seed) and len(seed) == m:
            seeds = [None if item is None else check_range("seed", item, 0, 2**64) for item in seed]
        else:
            raise UsageError(f"seed must be an int, or a sequence of one for each of the {m} envs, not {seed!r}")
        if any(item is not None and item < 0 for item in seeds):
            raise UsageError(f"seeds must not be negative: {seed!r}")
    each: Sequence[Any] = [options] * m
    if options is not None and not isinstance(options, dict):
        if not isinstance(options, Sequence) or len(options) != m:
            raise UsageError(f"options must be a dict, or a sequence of one for each of the {m} envs")
        each = options
    if any(item is not None and not isinstance(item, dict | PackedOptions) for item in each):
        raise UsageError("options must be dicts")
    if seed is None and options is None:
        return seeds, None
    ascending = np.argsort(order).tolist()
    return [seeds[k] for k in ascending], [_reset_payload(seeds[k], each[k]) for k in ascending]


def _reset_payload(seed: int | None, options: dict[str, Any] | PackedOptions | None) -> bytes:
    if isinstance(options, PackedOptions):
        return options
    if seed is None and options is None:
        return b""
    return dumped("options", {"seed": seed, "options": options}, pack_object)
