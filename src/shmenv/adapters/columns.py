"""Observations of some envs among those of all, and infos as Gymnasium's vector envs have them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

import shmenv
from shmenv._info import info_columns
from shmenv.adapters.agent import LAST_OBS
from shmenv.info import Infos

Array = np.ndarray[Any, Any]

_warned_of: set[str] = set()  # keys


def copied(obs: Any) -> Any:
    """Observations in memory of their own."""
    return obs.copy() if type(obs) is np.ndarray else copy.deepcopy(obs)


def row_of(space: spaces.Space[Any], obs: Any, k: int, batched: bool) -> Any:
    """A copy of row k of observations; `batched`: they are nested like the space."""
    if batched and isinstance(space, spaces.Dict):
        return {key: row_of(part, obs[key], k, True) for key, part in space.spaces.items()}
    if batched and isinstance(space, spaces.Tuple):
        return tuple(row_of(part, column, k, True) for part, column in zip(space.spaces, obs, strict=True))
    if batched and isinstance(space, spaces.Box):
        return obs[k, ...].copy()  # an array also where the space has no axes
    return copied(obs[k])


def replaced(space: spaces.Space[Any], old: Any, env_id: Array, new: Any, n: int) -> Any:
    """All envs' observations with the rows of some envs replaced, in place where they are arrays."""
    if isinstance(space, spaces.Dict):
        return {key: replaced(part, old[key], env_id, new[key], n) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        parts = zip(space.spaces, old, new, strict=True)
        return tuple(replaced(part, one, env_id, other, n) for part, one, other in parts)
    if isinstance(old, np.ndarray):
        old[env_id] = new
        return old
    items = [None] * n if old is None else list(old)  # a custom space has nothing to begin with
    for i, item in zip(env_id.tolist(), new, strict=True):
        items[i] = item
    return tuple(items)


def final_columns(
    batch: shmenv.Batch, ended: list[int], places: list[int], n: int, lost: Callable[[shmenv.Batch, int], Any]
) -> dict[str, Any]:
    """What Gymnasium's vector envs tell of episodes that have ended.

    Args:
        batch: the rows of envs that are served by `agent`.
        ended: those in which an episode has ended.
        places: where these go in the arrays.
        n: how long the arrays are.
        lost: the last observation of a row, where the worker was lost, and with it what the env showed.
    """
    final_obs, mask = np.full(n, None, object), np.zeros(n, np.bool_)
    mask[places] = True
    last: dict[int, Any] = {}
    records = batch.final_info.records
    final_info = info_columns([records[k] for k in ended], places, n, LAST_OBS, last)
    if final_info is None:
        infos = [dict(batch.final_info[k]) for k in ended]
        last = {i: info.pop(LAST_OBS) for i, info in zip(places, infos, strict=True) if LAST_OBS in info}
        final_info = columns([(i, info) for i, info in zip(places, infos, strict=True) if info], n)
    for i, k in zip(places, ended, strict=True):
        final_obs[i] = last[i] if i in last else lost(batch, k)
    return {"final_obs": final_obs, "_final_obs": mask, "final_info": final_info, "_final_info": mask.copy()}


def columns_of(info: Infos, places: Sequence[int], n: int) -> dict[str, Any]:
    """The infos of a batch as `columns` makes them.

    Args:
        info: row k's goes to places[k].
        places: each at most once.
        n: how many rows there are.
    """
    if info.is_empty():
        return {}
    told = info_columns(info.records, places, n)
    if told is None:
        told = columns([(i, one) for i, one in zip(places, info, strict=True) if one], n)
    return told


def leave_out(infos: dict[str, Any], *reserved: str) -> dict[str, Any]:
    """Infos of the envs' own without those keys, and their masks, that the vector env tells something else by."""
    for key in reserved:
        told = infos.pop(key, None) is not None
        if infos.pop(f"_{key}", None) is not None or told:
            _warn_of(key)
    return infos


def _warn_of(key: str) -> None:
    if key not in _warned_of:
        _warned_of.add(key)
        text = f"an env's info has the key {key!r}, by which a vector env tells something else: it is left out"
        warnings.warn(text, UserWarning, stacklevel=2)


def columns(found: Sequence[tuple[int, dict[str, Any]]], n: int) -> dict[str, Any]:
    """Infos as Gymnasium's vector envs have them: for each key an array of n, and under "_key" the mask of its rows.

    Numbers take the dtype of their Python or numpy type; where the rows' types differ, one that holds them all, which
    Gymnasium does not care for. Dicts are columns again. Anything else, or a mixture, makes an array of objects.
    A key "_x" of an env's own beside "x" is left out, with one warning.

    Args:
        found: (row, info), each row at most once.
        n: how many rows there are.
    """
    if not found:
        return {}
    keys: dict[str, tuple[list[int], list[Any]]] = {}
    first = found[0][1].keys()
    if all(info.keys() == first for _, info in found):  # mostly so
        everywhere = [i for i, _ in found]
        keys = {key: (everywhere, [info[key] for _, info in found]) for key in first}
    else:
        for i, info in found:
            for key, value in info.items():
                rows, values = keys.setdefault(key, ([], []))
                rows.append(i)
                values.append(value)
    for key in [key for key in keys if type(key) is str and key[:1] == "_" and key[1:] in keys]:
        del keys[key]
        _warn_of(key)
    infos: dict[str, Any] = {}
    for key, (rows, values) in keys.items():
        mask = np.full(n, len(rows) == n)
        if len(rows) < n:
            mask[rows] = True
        kinds = set(map(type, values))
        if all(issubclass(kind, dict) for kind in kinds):
            infos[key] = columns(list(zip(rows, values, strict=True)), n)
        else:
            infos[key] = _column(rows, values, kinds, n)
        infos[f"_{key}"] = mask
    return infos


def _column(rows: list[int], values: list[Any], kinds: set[type], n: int) -> Array:
    if all(kind in (int, float, bool) or issubclass(kind, np.number) for kind in kinds):
        dtype = np.result_type(*(np.dtype(kind) for kind in kinds))
        try:
            if len(rows) == n:
                return np.array(values, dtype)
            column = np.zeros(n, dtype)
            column[rows] = values
            return column
        except OverflowError:  # an int of more than 64 bits
            pass
    elif kinds == {np.ndarray} and len({value.shape for value in values}) == 1:
        dtypes = {value.dtype for value in values}
        if len(dtypes) == 1 or all(dtype.kind in "biufc" for dtype in dtypes):
            column = np.zeros((n, *values[0].shape), dtypes.pop() if len(dtypes) == 1 else np.result_type(*dtypes))
            column[rows] = values
            return column
    column = np.full(n, None, object)
    for i, value in zip(rows, values, strict=True):
        column[i] = value
    return column
