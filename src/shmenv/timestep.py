"""Timesteps as the managers hand them out, and the way back to them from a batch's rows."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from shmenv import codec
from shmenv._steps import plain_timesteps
from shmenv.batch import Batch
from shmenv.info import Infos
from shmenv.layout import DictNode, Node, TupleNode

CLASS = ""  # key of a timestep's pickled class in its record; no field is called so
WHOLE = "timestep"  # key of a timestep that travels in one piece
RESERVED = frozenset((CLASS, WHOLE, "abnormal"))  # keys that tell a record from the info of a plain step


class BaseEnvTimestep(NamedTuple):
    """What a step of a Gymnasium style env comes back as; DI-engine style envs bring classes of their own."""

    obs: Any
    reward: Any
    done: Any
    info: Any


class Odd(NamedTuple):
    """What is odd about an answer to a step.

    Attributes:
        lost: the timestep was made by shmenv, in place of one that was lost with its worker or by an error. Otherwise
            the env's own info says that it is abnormal.
        error: it cannot be read here; then nothing else counts.
    """

    lost: bool = False
    error: ValueError | None = None


class TimestepReader:
    """Takes batches apart into observations and timesteps."""

    def __init__(self, node: Node, copies: bool) -> None:
        """Prepare for observations of one structure.

        Args:
            node: the structure of one observation.
            copies: whether observations get memory of their own, or are views of the batch's.
        """
        self._node, self._copies = node, copies
        self._classes: dict[bytes, Any] = {b"": BaseEnvTimestep}

    def observations(self, obs: Any, n: int) -> list[Any]:
        """The observation in each of a batch's n rows, as the space declares it."""
        return self._rows(self._node, obs, n)

    def _rows(self, node: Node, obs: Any, n: int) -> list[Any]:
        if type(obs) is np.ndarray:
            if self._copies and obs.ndim > 1:
                return list(map(np.ndarray.copy, obs))
            is_record = obs.dtype.kind == "V"  # its scalars are views, too; others are values
            return list(map(np.void.copy, obs)) if self._copies and is_record else list(obs)
        if isinstance(node, DictNode):
            keys = [key for key, _ in node.items]
            columns = [self._rows(item, obs[key], n) for key, item in node.items]
            return [{key: column[row] for key, column in zip(keys, columns, strict=True)} for row in range(n)]
        if isinstance(node, TupleNode):
            columns = [self._rows(item, part, n) for item, part in zip(node.items, obs, strict=True)]
            return [tuple(column[row] for column in columns) for row in range(n)]
        return list(obs)

    def timesteps(self, batch: Batch, observations: list[Any]) -> tuple[list[Any], dict[int, Odd]]:
        """The timestep in each row, as if each were the answer to a step, and by row what is odd about some."""
        rewards, odd = batch.reward.tolist(), dict[int, Odd]()
        terminated, truncated = batch.terminated.tolist(), batch.truncated.tolist()
        if batch.info.is_empty() and True not in truncated:  # almost every batch
            return plain_timesteps(BaseEnvTimestep, observations, rewards, terminated), odd
        rows = zip(observations, rewards, zip(terminated, truncated, strict=True), strict=True)
        return [self._timestep(batch.info, row, *values, odd) for row, values in enumerate(rows)], odd

    def _timestep(
        self, infos: Infos, row: int, obs: Any, reward: float, flags: tuple[bool, bool], odd: dict[int, Odd]
    ) -> Any:
        try:
            record = infos[row]
            if RESERVED.isdisjoint(record):
                return BaseEnvTimestep(obs, reward, *done_and_info(*flags, record))
            if CLASS in record:  # the worker has seen that it is not abnormal
                cls = self._class(record[CLASS])
                return cls._make([obs if name == "obs" else record[name] for name in cls._fields])
        except ValueError as error:  # the record holds a class that this process does not know
            odd[row] = Odd(error=error)
            return None
        if WHOLE in record:
            timestep = record[WHOLE]
            if is_abnormal(timestep.info):
                odd[row] = Odd()
            return timestep
        odd[row] = Odd(lost=True)
        return BaseEnvTimestep(obs, 0.0, True, record)

    def _class(self, data: bytes) -> Any:
        cls = self._classes.get(data)
        if cls is None:
            try:
                cls = codec.load_foreign(data)
            except Exception as error:
                raise ValueError(f"the class of its timesteps is not known here: {error}") from error
            self._classes[data] = cls
        return cls


def done_and_info(terminated: bool, truncated: bool, info: Any) -> tuple[bool, Any]:
    """Gymnasium's two flags as the one of a timestep, and in its info what the one would hide."""
    if truncated and not terminated and isinstance(info, dict):
        return True, {**info, "TimeLimit.truncated": True}
    return terminated or truncated, info


def is_abnormal(info: Any) -> bool:
    """Whether a timestep's info says that it is abnormal: a dict, or one of several."""
    if isinstance(info, Mapping):
        return bool(info.get("abnormal", False))
    return isinstance(info, list | tuple) and any(map(is_abnormal, info))


def with_obs(timestep: Any, obs: Any) -> Any:
    """The timestep with the next episode's first observation; its own goes into the info."""
    info = timestep.info
    if isinstance(info, Mapping):
        info = {**info, "final_observation": timestep.obs}
    if hasattr(timestep, "_replace"):
        return timestep._replace(obs=obs, info=info)
    changed = copy.copy(timestep)
    try:
        changed.obs, changed.info = obs, info
    except AttributeError:  # it cannot be changed
        if dataclasses.is_dataclass(changed):
            return dataclasses.replace(changed, obs=obs, info=info)  # type: ignore[type-var]
        return BaseEnvTimestep(obs, timestep.reward, timestep.done, info)
    return changed
