"""Rows of envs as arrays: views of the segment, or gathered into memory of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shmenv import _port, codec
from shmenv._port import Port
from shmenv.batch import Array, Batch
from shmenv.errors import DamageError, UsageError
from shmenv.layout import ArrayNode, assemble, leaves
from shmenv.plan import NOTE_BYTES, Plan
from shmenv.segment import Spill

POISON = 0xA5  # what debug mode fills recycled rows with
Arrays = tuple[Any, Array, Array, Array, Any]  # obs, reward, terminated, truncated, final_obs


class Rows:
    """Reads the rows that the workers have written.

    Called by: the exchange, for rows whose answers are in and not taken yet.
    """

    def __init__(self, plan: Plan, buffer: Any, port: Port, spill: Spill) -> None:
        self._plan, self._port, self._spill = plan, port, spill
        self.obs = plan.rows("obs", buffer)
        self.final = plan.rows("final_obs", buffer) if plan.has_final_rows else self.obs
        self.reward = plan.array("reward", buffer)
        self.terminated, self.truncated = plan.array("terminated", buffer), plan.array("truncated", buffer)
        self._flags, self._heads, self._notes = (plan.array(name, buffer) for name in ("flags", "heads", "notes"))
        self._objects = len(leaves(plan.obs_node)) - len(self.obs)  # leaves that are no arrays
        self.has_objects = self._objects > 0

    def check_out(self, out: Batch, rows: int) -> None:
        """Refuse a batch that cannot take `rows` rows of this pool."""
        if not isinstance(out, Batch) or out.is_view:
            raise UsageError("out must be a batch that owns its memory: one that recv() gathered, or batch.copy()")
        if len(out) != rows:
            raise UsageError(f"out has {len(out)} rows, but {rows} come")
        self._check_target("observations", self._arrays_of(out.obs), self.obs, rows)
        if self._plan.has_final_rows and out.final_obs is not out.obs:
            self._check_target("final observations", self._arrays_of(out.final_obs), self.final, rows)
        for name in ("reward", "terminated", "truncated"):
            self._check_target(f"{name}s", [getattr(out, name)], [getattr(self, name)], rows)

    def _check_target(self, what: str, targets: list[Any], fields: list[Array], rows: int) -> None:
        for target, field in zip(targets, fields, strict=True):
            if not isinstance(target, np.ndarray) or target.shape != (rows, *field.shape[2:]):
                raise UsageError(f"out has {what} of another shape than {rows} rows of this pool's")
            if target.dtype != field.dtype or not (target.flags.c_contiguous and target.flags.writeable):
                raise UsageError(f"out has {what} of another dtype than this pool's, or not contiguous and writeable")

    def _arrays_of(self, obs: Any) -> list[Any]:
        found: list[Any] = []
        for path, leaf in leaves(self._plan.obs_node):
            if isinstance(leaf, ArrayNode):
                try:
                    value = obs
                    for key in path:
                        value = value[key]
                    found.append(value)
                except (LookupError, TypeError):
                    found.append(None)
        return found

    def notes(self, ids: Array, final: bool, present: int) -> tuple[list[bytes], list[list[Any] | None]]:
        """Info records of these envs and the object leaves of their observations; `final`: of the ended step.

        Raises:
            DamageError: those of one env cannot be read.
        """
        if not present:
            return [], [None] * len(ids) if self.has_objects else []
        infos, objects = self._port.notes_of(ids, final, self.has_objects, self.read_spilled)
        if not self.has_objects:
            return infos, []
        return infos, [self._load(i, each) if each else None for i, each in zip(ids.tolist(), objects, strict=True)]

    def _load(self, env_id: int, record: bytes) -> list[Any]:
        try:
            values = codec.load_foreign(record)
        except Exception as error:
            what = f"the observation of env {env_id} cannot be unpickled here: {type(error).__name__}: {error}"
            raise DamageError(what, env_id) from error
        if type(values) is not list or len(values) != self._objects:
            raise DamageError(f"the observation of env {env_id} is not what its worker wrote", env_id)
        return values

    def error_of(self, env_id: int) -> tuple[str, bytes]:
        """The command that failed and the error record of a row that holds an error."""
        try:
            notes = self._port.notes_of(np.array([env_id], np.uint32), False, False, self.read_spilled)
        except DamageError as error:
            return "step", codec.dump_error(error)
        return codec.load_failure(notes[0][0])

    def put_error(self, error: DamageError) -> None:
        """Put an error record in place of a row that cannot be read, as the env's worker does for an exception.

        Called by: the manager, which owns the row of an env that has answered.
        """
        i, plane = error.env_id, self._port.plane_of(error.env_id)
        record = codec.dump_short_error(error, NOTE_BYTES, lambda short: codec.dump(("step", short)))
        self._notes[plane, i, : len(record)] = np.frombuffer(record, np.uint8)
        self._heads[plane, i] = len(record), 0
        self._flags[plane, i] = _port.ROW_ERROR | _port.ROW_NOTE | (self._flags[plane, i] & _port.ROW_NEEDS_RESET)

    def read_spilled(self, env_id: int, plane: int, final: bool, length: int) -> bytes:
        """A side area that lies in the spill."""
        return self._spill.read(self._plan.note_region(env_id, plane, final), length)

    def poison(self, ids: Array, plane: int) -> None:
        """Fill the rows that commands on this plane will write with garbage. -1: each env's next plane."""
        for i in ids.tolist():
            target = (self._port.plane_of(i) + 1) % self._plan.planes if plane < 0 else plane
            for rows in {id(rows): rows for rows in (*self.obs, *self.final, self.reward)}.values():
                rows[target, i : i + 1].reshape(-1).view(np.uint8)[...] = POISON

    def view(self, plane: int, start: int, stop: int, objects: Sequence[Any], final_objects: Sequence[Any]) -> Arrays:
        """The rows of the envs from `start` to `stop` on one plane, as views."""
        obs = self._nest([rows[plane, start:stop] for rows in self.obs], objects)
        final_obs = obs
        if self._plan.has_final_rows:
            final_obs = self._nest([rows[plane, start:stop] for rows in self.final], final_objects)
        span = slice(start, stop)
        return obs, self.reward[plane, span], self.terminated[plane, span], self.truncated[plane, span], final_obs

    def gather(self, ids: Array, objects: Sequence[Any], final_objects: Sequence[Any], out: Batch | None) -> Arrays:
        """The rows of these envs, each from its plane, copied into new arrays or those of `out`."""
        terminated = self._gathered("terminated", self.terminated, ids, None if out is None else out.terminated)
        truncated = self._gathered("truncated", self.truncated, ids, None if out is None else out.truncated)
        reward = self._gathered("reward", self.reward, ids, None if out is None else out.reward)
        obs = self._gathered_obs("obs", self.obs, ids, objects, None if out is None else out.obs)
        final_obs = obs
        # Rows where no episode ended mean nothing, so they are not copied for nothing.
        if self._plan.has_final_rows and (terminated | truncated).any():
            target = None if out is None or out.final_obs is out.obs else out.final_obs
            final_obs = self._gathered_obs("final_obs", self.final, ids, final_objects, target)
        return obs, reward, terminated, truncated, final_obs

    def gather_obs(self, ids: Array) -> Any:
        """The observations of these envs, arrays alone, each from its plane, copied into new arrays."""
        return self._gathered_obs("obs", self.obs, ids, (), None)

    def _gathered_obs(self, name: str, fields: list[Array], ids: Array, objects: Sequence[Any], out: Any) -> Any:
        targets = [None] * len(fields) if out is None else self._arrays_of(out)
        arrays = [
            self._gathered(f"{name}/{k}", field, ids, target)
            for k, (field, target) in enumerate(zip(fields, targets, strict=True))
        ]
        return self._nest(arrays, objects)

    def _gathered(self, name: str, field: Array, ids: Array, target: Array | None) -> Array:
        row = field.shape[2:]
        if target is None:
            target = np.empty((len(ids), *row), field.dtype)
        self._port.gather(ids, self._plan.layout.offset(name), target)
        return target

    def _nest(self, arrays: list[Array], objects: Sequence[Any]) -> Any:
        if not self.has_objects:
            return assemble(self._plan.obs_node, arrays)
        array, column = iter(arrays), 0
        values: list[Any] = []
        for _, leaf in leaves(self._plan.obs_node):
            if isinstance(leaf, ArrayNode):
                values.append(next(array))
            else:
                values.append(tuple(None if row is None else row[column] for row in objects))
                column += 1
        return assemble(self._plan.obs_node, values)
