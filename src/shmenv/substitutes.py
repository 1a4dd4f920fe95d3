"""What the manager writes into a row in place of what an env did not answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmenv import _port
from shmenv._info import pack_info, unpack_info
from shmenv._port import Port
from shmenv.batch import Array
from shmenv.errors import EnvError, WorkerError
from shmenv.plan import Plan


class Substitutes:
    """Rows that are owed, completed without their env.

    Loss row: reward 0, truncated, `info["abnormal"]`, `info["error"]`, final_obs = the last observation delivered. With
    same_step autoreset its obs is the first of a new episode, and the row is ready when that is; otherwise its obs is
    the last delivered one, and the env is reset next.

    Row without a reset: its episode has ended, or it is a loss row, and the reset that should follow it failed for
    good: obs is the last observation.

    All this is written of envs that have answered, or whose worker is dead and whose channel is reset.

    Called by: the exchange, and the recovery.

    Args:
        plan: the pool's.
        buffer: its memory.
        port: which rows are owed.
        with_losses: whether loss rows may be wanted.
    """

    def __init__(self, plan: Plan, buffer: Any, port: Port, with_losses: bool) -> None:
        self._port, self._with_losses = port, with_losses
        self._disabled, self._next_step = plan.autoreset == "disabled", plan.autoreset == "next_step"
        self._has_final_rows = plan.has_final_rows
        self._flags, self._reward = plan.array("flags", buffer), plan.array("reward", buffer)
        self._terminated, self._truncated = plan.array("terminated", buffer), plan.array("truncated", buffer)
        self._obs = plan.rows("obs", buffer)
        self._lost_to = plan.rows("final_obs" if plan.autoreset == "same_step" else "obs", buffer)
        self.losses: dict[int, str] = {}  # envs whose owed row is a loss row, and why
        self.not_reset: dict[int, WorkerError | EnvError | None] = {}  # envs whose owed row no reset follows, and why
        self._last_objects: dict[int, Any] = {}  # object leaves of the last observation delivered
        self._before: dict[int, tuple[bool, list[Array]]] = {}  # see keep_rows

    def keep_rows(self, plane: int, ids: Array) -> None:
        """A command puts envs onto the plane of their last row: keep of that row what a loss may need of it."""
        if not (self._with_losses or self._next_step):
            return
        over, observations = self._terminated[plane, ids] | self._truncated[plane, ids], list[Array]()
        if self._with_losses:
            observations = [rows[plane, ids] for rows in self._obs]
        self._before = {i: (bool(over[k]), [rows[k] for rows in observations]) for k, i in enumerate(ids.tolist())}

    def keep_objects(self, ids: Array, objects: list[Any]) -> None:
        """These are the object leaves of the observations that these envs delivered last."""
        self._last_objects.update(zip(ids.tolist(), objects, strict=False))

    def was_over(self, env_id: int) -> bool:
        """Whether the episode had ended before the command whose answer is owed."""
        previous = self._port.previous_plane(env_id)
        if previous == self._port.plane_of(env_id):
            return self._before[env_id][0]
        return self._is_over(previous, env_id)

    def is_over(self, env_id: int) -> bool:
        """Whether the newest row of an env ends its episode."""
        return self._is_over(self._port.plane_of(env_id), env_id)

    def _is_over(self, plane: int, env_id: int) -> bool:
        return bool(self._terminated[plane, env_id] or self._truncated[plane, env_id])

    def lose(self, env_id: int, why: str) -> None:
        """Write the loss row in place of the one that is owed, but for the reset that may belong to it."""
        plane, previous = self._port.plane_of(env_id), self._port.previous_plane(env_id)
        self._port.note_gone_on(env_id)
        self._reward[plane, env_id] = 0
        self._terminated[plane, env_id], self._truncated[plane, env_id] = False, True
        self._flags[plane, env_id] = _port.ROW_NEEDS_RESET if self._disabled else 0
        last = [rows[previous, env_id] for rows in self._obs]
        if previous == plane:
            last = self._before[env_id][1]
        for source, target in zip(last, self._lost_to, strict=True):
            target[plane, env_id] = source
        self.losses[env_id] = why

    def end_unreset(self, env_id: int, error: WorkerError | EnvError | None) -> None:
        """Complete a row that no reset follows. The error that prevented the reset is told after the row."""
        plane = self._port.plane_of(env_id)
        for last, rows in zip(self._lost_to, self._obs, strict=True):
            rows[plane, env_id] = last[plane, env_id]
        self._flags[plane, env_id] &= ~np.uint32(_port.ROW_ERROR | _port.ROW_NOTE)
        self._flags[plane, env_id] |= _port.ROW_NEEDS_RESET
        self.not_reset[env_id] = error

    @property
    def pending(self) -> bool:
        """Whether such a row is owed."""
        return bool(self.losses or self.not_reset)

    def forget(self, env_id: int) -> None:
        """The row that this env owed was handed out, or will not be asked for."""
        self.losses.pop(env_id, None)
        self.not_reset.pop(env_id, None)

    def note_told(self, error: WorkerError | EnvError) -> None:
        """The caller is told of an error already: the rows are not followed by it."""
        self.not_reset = {i: None if other is error else other for i, other in self.not_reset.items()}

    def mark(self, ids: Array, infos: list[bytes], final_infos: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Mark the loss rows among the rows that are handed out now."""
        if self.losses.keys() & set(ids.tolist()):
            infos, final_infos = infos or [b""] * len(ids), final_infos or [b""] * len(ids)
            for k, i in enumerate(ids.tolist()):
                if i in self.losses:
                    abnormal = {"abnormal": True, "error": self.losses[i]}
                    info = _readable(infos[k])
                    infos[k] = pack_info({**(info if isinstance(info, dict) else {"info": info}), **abnormal})
                    final_infos[k] = pack_info(abnormal)
        return infos, final_infos

    def patch_objects(self, ids: Array, objects: list[Any], final_objects: list[Any]) -> None:
        """Give the rows that are handed out now the object leaves of the last observation delivered."""
        target = final_objects if self._has_final_rows else objects
        for k, i in enumerate(ids.tolist()):
            if i in self.losses:
                target[k] = self._last_objects.get(i)
            if i in self.not_reset:
                objects[k] = final_objects[k]


def _readable(record: bytes) -> Any:
    """An info, or an empty one if its worker has overwritten it."""
    try:
        return unpack_info(record)
    except ValueError:
        return {}
