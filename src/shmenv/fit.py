"""Whether a value fits an array of a given dtype and shape: the one rule for observations, actions and buffers.

The shape must be the same, nothing is broadcast. The dtype may differ where numpy's "same_kind" casting allows it, and
between all integer types, as long as each value survives: an integer out of range and a finite number that would become
infinite are refused, where numpy would wrap the one and warn about the other. Floats may be rounded, and integers to
floats: else an observation that counts would be refused by its value alone, in the midst of a run. The managers'
contract has those refused.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

NUMBER_KINDS = frozenset("biufcmM")  # dtype.kind of bools, numbers and times


class MisfitError(ValueError):
    """A value does not fit. The text says what was needed, what came, and why that does not do."""


Strictness: TypeAlias = bool | Literal["integers"]


def fit(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], strict: Strictness = False) -> np.ndarray[Any, Any]:
    """The value as an array of exactly this dtype and shape.

    Args:
        value: an array, a numpy scalar, a Python number, a (nested) list or tuple of them, or a CPU tensor.
        dtype: what is needed.
        shape: what is needed.
        strict: refuse any change of dtype. Python numbers count as what numpy makes of them: int64, float64, bool.
            "integers": refuse only integers that a float would round.

    Returns:
        `value` itself, or a view of it, if it fits as it is; else a converted copy.

    Raises:
        MisfitError: it does not fit.
    """
    try:
        array = value if type(value) is np.ndarray else as_array(value, dtype)
    except MisfitError as error:
        raise MisfitError(f"needs {dtype} {shape}, got {error}") from error.__cause__
    if array.dtype == dtype:
        if array.shape == shape:
            return array
        raise _misfit(value, array, dtype, shape, "the shape differs, and nothing is broadcast or reshaped")
    if array.shape != shape:
        raise _misfit(value, array, dtype, shape, "the shape differs, and nothing is broadcast or reshaped")
    if array.size == 0 and isinstance(value, list | tuple):  # numpy says float64 of what holds nothing
        return np.empty(shape, dtype)
    if strict and strict != "integers":
        raise _misfit(value, array, dtype, shape, "the dtype differs, and strict_dtype allows no conversion")
    why = _refusal(array, dtype, strict == "integers")
    if why is None:
        try:
            with np.errstate(over="raise"):
                return array.astype(dtype)
        except FloatingPointError:
            why = f"{_extreme(array)} is too large for {dtype}"
    raise _misfit(value, array, dtype, shape, why)


def as_array(value: Any, dtype: np.dtype[Any] | None = None) -> np.ndarray[Any, Any]:
    """The value as an array of whatever dtype and shape it has; tensors by their own methods.

    Args:
        value: anything.
        dtype: what is wanted, only looked at if structured: a tuple then is one record.

    Raises:
        MisfitError: it is no array: a ragged list, or a tensor on another device than the CPU.
    """
    try:
        if is_tensor(value):
            device = getattr(value, "device", "cpu")
            if getattr(device, "type", "cpu") != "cpu":
                raise MisfitError(f"the tensor is on {device}: move it by .cpu() first")
            return np.asarray(value.detach().numpy())
        if dtype is not None and dtype.names and isinstance(value, list | tuple):
            return np.array(value, dtype)
        return np.asarray(value)
    except MisfitError:
        raise
    except Exception as error:  # __array__ and numpy() of foreign classes raise what they like
        raise MisfitError(f"{_brief(value)} is no array: {type(error).__name__}: {error}") from error


def is_tensor(value: Any) -> bool:
    """Whether it looks like a torch tensor. No such library is imported to find out."""
    return hasattr(value, "detach") and hasattr(value, "numpy")


def _refusal(array: np.ndarray[Any, Any], dtype: np.dtype[Any], exact: bool) -> str | None:
    """Why the array's values may not become `dtype`; None if they may. Overflow of floats is left to the cast."""
    source, target = array.dtype.kind, dtype.kind
    if source in "iu" and target in "iu":
        if array.size and not np.can_cast(array.dtype, dtype, "safe"):
            limits, low, high = np.iinfo(dtype), int(array.min()), int(array.max())
            if low < limits.min or high > limits.max:
                return f"{low if low < limits.min else high} is out of the range {limits.min} to {limits.max}"
        return None
    if exact and source in "iu" and target == "f" and (wrong := _rounded(array, dtype)) is not None:
        return f"{wrong} is no {dtype}"
    if source in "biufc" and target in "biufc":
        allowed = np.can_cast(array.dtype, dtype, "same_kind")
    elif source != target:
        allowed = False
    elif source in "mM":
        allowed = np.can_cast(array.dtype, dtype, "same_kind")
    elif source in "SU":
        allowed = np.can_cast(array.dtype, dtype, "safe") or bool(np.all(array.astype(dtype) == array))
        return None if allowed else "the text is too long"
    else:  # records: field by field would be numpy's own rule, which wraps integers and goes by position
        allowed = array.dtype.names == dtype.names and np.can_cast(array.dtype, dtype, "safe")
    return None if allowed else f"{array.dtype} does not convert to {dtype}"


def _rounded(integers: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> int | None:
    """An integer that a float dtype does not have; None if it has all."""
    exact = 2 ** (np.finfo(dtype).nmant + 1)  # all up to here
    if not integers.size or (integers.min() >= -exact and integers.max() <= exact):
        return None
    with np.errstate(over="ignore"):
        floats = integers.astype(dtype)
    for integer, value in zip(integers.flat, floats.flat, strict=True):
        if np.isfinite(value) and int(value) != int(integer):  # the cast itself tells what is too large
            return int(integer)
    return None


def _misfit(
    value: Any, array: np.ndarray[Any, Any], dtype: np.dtype[Any], shape: tuple[int, ...], why: str
) -> MisfitError:
    got = f"{array.dtype} {array.shape}"
    if not isinstance(value, np.ndarray):
        got = f"{type(value).__name__} {_brief(value)}" if array.dtype.hasobject else f"{type(value).__name__} as {got}"
    return MisfitError(f"needs {dtype} {shape}, got {got}: {why}")


def _extreme(array: np.ndarray[Any, Any]) -> str:
    size = np.abs(array)
    return str(array.flat[int(np.argmax(np.where(np.isfinite(size), size, 0)))])


def _brief(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
