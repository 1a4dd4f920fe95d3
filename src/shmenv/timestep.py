"""Timesteps as the managers hand them out, and the way back to them from a batch's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from shmenv import codec
from shmenv.batch import Batch
from shmenv.layout import DictNode, Node, TupleNode

CLASS = ""  # key of a timestep's pickled class in its record; no field is called so
WHOLE = "timestep"  # key of a timestep that travels in one piece


class BaseEnvTimestep(NamedTuple):
    """What a step of a Gymnasium style env comes back as; DI-engine style envs bring classes of their own."""

    obs: Any
    reward: Any
    done: Any
    info: Any


class Answer(NamedTuple):
    """What an env has answered.

    Attributes:
        obs: its observation, as the space declares it.
        timestep: what its `step` returned; None for a reset.
        abnormal: the timestep's info says so.
        lost: the timestep was made by shmenv, in place of one that was lost with its worker or by an error.
        error: the answer cannot be read here; then nothing else counts.
    """

    obs: Any
    timestep: Any = None
    abnormal: bool = False
    lost: bool = False
    error: ValueError | None = None


class AnswerReader:
    """Takes batches apart into one answer an env."""

    def __init__(self, node: Node, copies: bool) -> None:
        """Prepare for observations of one structure.

        Args:
            node: the structure of one observation.
            copies: whether observations get memory of their own, or are views of the batch's.
        """
        self._node, self._copies = node, copies
        self._classes: dict[bytes, Any] = {b"": BaseEnvTimestep}

    def read(self, batch: Batch) -> Iterator[tuple[int, Answer]]:
        """The answers of a batch by env id, ascending."""
        for row, env_id in enumerate(batch.env_id.tolist()):
            try:
                yield env_id, self._answer(batch.info[row], self._take(self._node, batch.obs, row))
            except ValueError as error:  # the record holds a class that this process does not know
                yield env_id, Answer(None, error=error)

    def _answer(self, record: dict[str, Any], obs: Any) -> Answer:
        if not record:
            return Answer(obs)
        if CLASS in record:  # the worker has seen that it is not abnormal
            cls = self._class(record[CLASS])
            return Answer(obs, cls._make([obs if name == "obs" else record[name] for name in cls._fields]))
        if WHOLE in record:
            timestep = record[WHOLE]
            return Answer(obs, timestep, abnormal=is_abnormal(timestep.info))
        return Answer(obs, BaseEnvTimestep(obs, 0.0, True, record), abnormal=True, lost=True)

    def _take(self, node: Node, obs: Any, row: int) -> Any:
        if type(obs) is np.ndarray:
            value = obs[row]
            is_view = obs.ndim > 1 or obs.dtype.kind == "V"  # a record's scalar is a view, too; others are values
            return value.copy() if self._copies and is_view else value
        if isinstance(node, DictNode):
            return {key: self._take(item, obs[key], row) for key, item in node.items}
        if isinstance(node, TupleNode):
            return tuple(self._take(item, part, row) for item, part in zip(node.items, obs, strict=True))
        return obs[row]

    def _class(self, data: bytes) -> Any:
        cls = self._classes.get(data)
        if cls is None:
            try:
                cls = codec.load(data)
            except Exception as error:
                raise ValueError(f"the class of its timesteps is not known here: {error}") from error
            self._classes[data] = cls
        return cls


def is_abnormal(info: Any) -> bool:
    """Whether a timestep's info says that it is abnormal: a dict, or one of several."""
    if isinstance(info, Mapping):
        return bool(info.get("abnormal", False))
    return isinstance(info, list | tuple) and any(map(is_abnormal, info))
