"""The manager's side of a running pool: which env is in what state, commands out, rows in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from shmenv import _port, codec
from shmenv._port import Port
from shmenv.action import ActionWriter
from shmenv.batch import Array, Batch
from shmenv.errors import ClosedError, EnvError, RecvTimeoutError, UsageError
from shmenv.info import Infos
from shmenv.layout import ArrayNode, assemble, leaves
from shmenv.plan import NOTE_BYTES, Mail, Plan
from shmenv.segment import Segment, Spill
from shmenv.supervisor import Handle, Supervisor
from shmenv.worker import PHASE_NAMES

HEARTBEAT_NS = 100_000_000  # longest single sleep of any wait
READY, NEEDS_RESET, LOST = 0, 1, 2  # an env's state; whether its answer is owed as well, the port knows
POISON = 0xA5  # what debug mode fills recycled rows with

Rows = tuple[Any, Array, Array, Array, Any]  # obs, reward, terminated, truncated, final_obs


class Exchange:
    """Commands to the envs of a pool and their answers, each delivered or reported exactly once.

    States of an env: READY to be stepped; NEEDS_RESET at first, after an error and after an episode without autoreset;
    LOST with its worker. In READY its answer may be owed (pending): then it takes no command but calls.

    Called by: the thread that uses the pool.
    """

    first_command = 0  # number of the commands' start; tests put it near 2**32

    def __init__(
        self, plan: Plan, segment: Segment, spill: Spill, workers: Supervisor, *, copy: bool, debug: bool, spin_ns: int
    ) -> None:
        buffer, n = segment.buffer, plan.num_envs
        self.plan, self.spill, self.workers = plan, spill, workers
        self.port = Port(
            buffer,
            plan.places(),
            [plan.places(worker_id) for worker_id in range(len(plan.ranges))],
            num_envs=n,
            planes=plan.planes,
            note_bytes=NOTE_BYTES,
            first_command=self.first_command,
            spin_ns=spin_ns,
            heartbeat_ns=HEARTBEAT_NS,
        )
        self.closing = False
        self.inbound, self.calls = Mail(plan, "inbound", buffer, spill), Mail(plan, "call", buffer, spill)
        self.actions = ActionWriter(plan.action_node, plan.rows("action", buffer), n)
        self.all_ids = np.arange(n, dtype=np.uint32)
        self._copy, self._debug = copy, debug
        self._obs = plan.rows("obs", buffer)
        self._final = plan.rows("final_obs", buffer) if plan.has_final_rows else self._obs
        self._reward = plan.array("reward", buffer)
        self._terminated, self._truncated = plan.array("terminated", buffer), plan.array("truncated", buffer)
        self._has_objects = len(self._obs) < len(leaves(plan.obs_node))
        self._state = np.full(n, NEEDS_RESET, np.uint8)
        self._blocked = n  # envs that are not READY
        self._plane = 0  # of all envs; -1 when they are on several
        self._viewed = np.full(n, -1, np.int16)  # the plane of the env's last row, if that was handed out as a view
        self._unsettled = False  # a command was interrupted before its answers were in
        self._deaths: dict[int, int] = {}  # workers whose end is noticed but not told: how many answers were lost
        self._none = Infos.empty(n)
        env_id = self.all_ids.astype(np.int32)
        env_id.flags.writeable = False
        self._env_id = env_id
        # What a whole batch without infos consists of, made once a plane.
        self._whole = None if self._has_objects else [self._view(p, 0, n, (), ()) for p in range(plan.planes)]

    @property
    def pending(self) -> int:
        """How many answers are owed, lost ones that the caller has not been told of included."""
        return self.port.pending + sum(self._deaths.values())

    # -- before a command

    def check_all_ready(self) -> None:
        """Refuse unless every env can be stepped now. The one check of the hot path."""
        if self.port.pending or self._blocked or self._unsettled or self.port.alerted():
            self.check_ready(self.all_ids)

    def check_ready(self, ids: Array) -> None:
        """Refuse, before anything is sent, unless all these envs can be stepped now."""
        self._look_for_deaths()
        self.check_not_lost(ids)
        for i in ids.tolist():
            if self.port.is_owed(i):
                raise UsageError(f"env {i} cannot be stepped: its last answer is pending; recv() it first")
            if self._state[i] == NEEDS_RESET:
                raise UsageError(f"env {i} cannot be stepped: it needs a reset; call reset(env_id={i}) or reset()")
        self.settle(ids)

    def check_not_lost(self, ids: Array) -> None:
        """Refuse commands to envs whose worker has ended, and tell of its end."""
        self._look_for_deaths()
        lost = ids[self._state[ids] == LOST]
        if len(lost):
            handle = next(handle for handle in self.workers.handles if int(lost[0]) in handle.ids)
            self._deaths.pop(handle.worker_id, None)
            raise self.workers.died_error(handle, self._doing(handle))

    def tell_death(self) -> None:
        """Tell of a worker that ended while answers of its envs were owed, once."""
        if self._deaths:
            handle = self.workers.handles[min(self._deaths)]
            del self._deaths[handle.worker_id]
            raise self.workers.died_error(handle, self._doing(handle))

    def _look_for_deaths(self, heartbeat: bool = False) -> None:
        if not heartbeat and not self.port.alerted():
            return
        self.port.acknowledge()
        for handle in self.workers.newly_dead(look=heartbeat):
            for i in handle.ids:
                self._set_state(i, LOST)
            # Answers that were published are delivered all the same; the others will never come.
            lost = np.array([i for i in handle.ids if self.port.is_owed(i) and not self.port.is_answered(i)], np.uint32)
            if len(lost):
                self._deaths[handle.worker_id] = len(lost)
                self.port.settle(lost)

    def _doing(self, handle: Handle) -> str:
        doing = self.port.account(handle.worker_id)[0]
        env_id, phase = doing >> 4 & 0x0FFFFFFF, doing & 0xF
        if phase and env_id in handle.ids and self.port.is_busy(env_id, doing >> 32):
            return f"in {PHASE_NAMES[phase]} of env {env_id}"
        return "while idle"

    def _set_state(self, env_id: int, state: int) -> None:
        self._blocked += int(state != READY) - int(self._state[env_id] != READY)
        self._state[env_id] = state

    def settle(self, ids: Array) -> None:
        """Wait until these envs have answered their last command, whatever it was."""
        if self._unsettled or self.port.pending:
            self._await(ids, len(ids))
            if len(ids) == len(self.all_ids):
                self._unsettled = False

    def discard(self) -> None:
        """Wait for everything that is pending, and drop it."""
        self.settle(self.all_ids)
        self.port.settle(None)

    def next_plane(self) -> int:
        """The plane for a command to all envs: one whose rows nobody has been shown as the newest.

        -1 if there is none, because views of several planes are out: then each env goes on by itself.
        """
        planes = self.plan.planes
        if self._plane >= 0:
            return (self._plane + 1) % planes
        free = [plane for plane in range(planes) if not (self._viewed == plane).any()]
        return free[0] if free else -1

    def put_payloads(self, ids: Array, payloads: Sequence[bytes] | None) -> None:
        """Lay down what does not fit the arrays, before the command that hands it over."""
        for i, payload in zip(ids.tolist(), payloads or (), strict=False):
            if payload:
                self.inbound.write(i, payload)

    def command(self, ids: Array | None, code: int, payloads: Sequence[bytes] | None, plane: int = -1) -> None:
        """Send a step or a reset whose answers the caller gets. ids None: all envs."""
        if ids is None and plane >= 0:
            self._plane = plane
        elif self._plane >= 0:
            self._viewed[...] = -1 if self._copy else self._plane
            self._plane = -1
        if payloads is not None:
            self.put_payloads(self.all_ids if ids is None else ids, payloads)
        if self._debug:
            self._poison(self.all_ids if ids is None else ids, plane)
        self.port.command(ids, code, plane, True, payloads)

    def _poison(self, ids: Array, plane: int) -> None:
        for i in ids.tolist():
            target = (self.port.plane_of(i) + 1) % self.plan.planes if plane < 0 else plane
            for rows in (*self._obs, *(self._final if self._final is not self._obs else ()), self._reward):
                rows[target, i : i + 1].reshape(-1).view(np.uint8)[...] = POISON

    # -- waiting

    def await_owed(self, need: int, deadline_ns: int, timeout: float | None) -> None:
        """Wait until `need` of the owed answers are in."""
        self._await(None, need, deadline_ns, timeout)

    def ask(self, ids: Array) -> None:
        """Send a call whose payloads lie ready, and wait for its answers."""
        self._unsettled = True
        self.port.command(ids, _port.CALL, -1, False, None)
        self._await(ids, len(ids))
        self._unsettled = False

    def _await(
        self, ids: Array | None, need: int, deadline_ns: int = _port.FOREVER, timeout: float | None = None
    ) -> None:
        while True:
            how = self.port.await_answers(ids, need, deadline_ns)
            if how == _port.READY:
                return
            if self.closing:
                raise ClosedError("the pool was closed while this call waited")
            if how == _port.TIMEOUT:
                raise RecvTimeoutError(self._timeout_text(timeout))
            self._look_for_deaths(heartbeat=how == _port.HEARTBEAT)
            if ids is None:
                self.tell_death()
            else:
                self.check_not_lost(ids)

    def _timeout_text(self, timeout: float | None) -> str:
        owed = self.port.owed()
        shown = ", ".join(f"{i} ({seconds:.3g} s)" for i, seconds in owed[:8])
        more = f" and {len(owed) - 8} more" if len(owed) > 8 else ""
        return (
            f"no batch within {timeout} s. Pending, with the time since each was asked: env {shown}{more}. Call again"
        )

    # -- answers

    def collect_all(self) -> Batch:
        """Wait for all envs' answers to the last command to all, and hand them out."""
        n, port, plane = len(self.all_ids), self.port, self._plane
        self._await(None, n)
        if self._whole is None or plane < 0 or self._blocked or self._copy or port.row_flags(None):
            return self.collect(self.all_ids)
        port.settle(None)
        obs, reward, terminated, truncated, final_obs = self._whole[plane]
        return Batch(self._env_id, obs, reward, terminated, truncated, self._none, final_obs, self._none, port, plane)

    def collect_some(self, ids: Array) -> Batch:
        """Wait for these envs' answers, and hand them out as a copy."""
        self._await(ids, len(ids))
        return self.collect(ids, copy=True)

    def collect(self, ids: Array, out: Batch | None = None, copy: bool = False) -> Batch:
        """Hand out the rows of these envs, whose answers are in.

        An env that failed is told of by an exception instead; then the rows of the others stay owed.
        """
        port, m = self.port, len(ids)
        flags = port.row_flags(ids)
        if flags & _port.ROW_ERROR:
            self._raise_row_error(ids)
        infos, objects = self._notes(ids, False, flags & _port.ROW_NOTE)
        final_infos, final_objects = self._notes(ids, True, flags & _port.ROW_FINAL_NOTE)
        plane = -1 if copy or self._copy or out is not None else port.common_plane(ids)
        if plane >= 0:
            start = int(ids[0])
            rows = self._view(plane, start, start + m, objects, final_objects)
        else:
            rows = self._gather(ids, objects, final_objects, out)
        obs, reward, terminated, truncated, final_obs = rows
        if not self.plan.has_final_rows:
            ended = terminated | truncated
            final_infos = [info if over else b"" for info, over in zip(infos, ended.tolist(), strict=False)]
        port.settle(ids)
        if self._plane < 0:
            self._viewed[ids] = plane
        for i in ids.tolist() if flags & _port.ROW_NEEDS_RESET or self._blocked else ():
            if self._state[i] != LOST:
                self._set_state(i, NEEDS_RESET if port.flags_of(i) & _port.ROW_NEEDS_RESET else READY)
        env_id = self._env_id[ids] if plane < 0 else self._env_id[ids[0] : ids[0] + m]
        batch = Batch(
            env_id, obs, reward, terminated, truncated, Infos(infos) if infos else Infos.empty(m), final_obs,
            Infos(final_infos) if any(final_infos) else Infos.empty(m), port if plane >= 0 else None, plane,
        )  # fmt: skip
        return batch if out is None else out.take(batch)

    def check_out(self, out: Batch, rows: int) -> None:
        """Refuse a batch that cannot take `rows` rows of this pool."""
        if not isinstance(out, Batch) or out.is_view:
            raise UsageError("out must be a batch that owns its memory: one that recv() gathered, or batch.copy()")
        if len(out) != rows:
            raise UsageError(f"out has {len(out)} rows, but {rows} come")
        for target, source in zip(self._arrays_of(out.obs), self._obs, strict=True):
            if target is None or target.shape[1:] != source.shape[2:] or target.dtype != source.dtype:
                raise UsageError("out has observations of another shape or dtype than this pool's")
        if out.reward.shape[1:] != self._reward.shape[2:]:
            raise UsageError("out has rewards of another shape than this pool's")

    def _arrays_of(self, obs: Any) -> list[Any]:
        found: list[Any] = []
        for path, leaf in leaves(self.plan.obs_node):
            if isinstance(leaf, ArrayNode):
                try:
                    value = obs
                    for key in path:
                        value = value[key]
                    found.append(value)
                except (LookupError, TypeError):
                    found.append(None)
        return found

    def _notes(self, ids: Array, final: bool, present: int) -> tuple[list[bytes], list[list[Any] | None]]:
        if not present:
            return [], [None] * len(ids) if self._has_objects else []
        infos, objects = self.port.notes_of(ids, final, self._read_spilled)
        return infos, [codec.load(each) if each else None for each in objects] if self._has_objects else []

    def _read_spilled(self, env_id: int, plane: int, final: bool, length: int) -> bytes:
        return self.spill.read(self.plan.note_region(env_id, plane, final), length)

    def _view(self, plane: int, start: int, stop: int, objects: Sequence[Any], final_objects: Sequence[Any]) -> Rows:
        obs = self._nest([rows[plane, start:stop] for rows in self._obs], objects)
        final_obs = obs
        if self.plan.has_final_rows:
            final_obs = self._nest([rows[plane, start:stop] for rows in self._final], final_objects)
        span = slice(start, stop)
        return obs, self._reward[plane, span], self._terminated[plane, span], self._truncated[plane, span], final_obs

    def _gather(self, ids: Array, objects: Sequence[Any], final_objects: Sequence[Any], out: Batch | None) -> Rows:
        terminated = self._gathered("terminated", self._terminated, ids, None if out is None else out.terminated)
        truncated = self._gathered("truncated", self._truncated, ids, None if out is None else out.truncated)
        reward = self._gathered("reward", self._reward, ids, None if out is None else out.reward)
        obs = self._gathered_obs("obs", self._obs, ids, objects, None if out is None else out.obs)
        final_obs = obs
        # Rows where no episode ended mean nothing, so they are not copied for nothing.
        if self.plan.has_final_rows and (terminated | truncated).any():
            target = None if out is None or out.final_obs is out.obs else out.final_obs
            final_obs = self._gathered_obs("final_obs", self._final, ids, final_objects, target)
        return obs, reward, terminated, truncated, final_obs

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
        if target.nbytes:
            self.port.gather(ids, self.plan.layout.offset(name), target.nbytes // len(ids), target.ctypes.data)
        return target

    def _nest(self, arrays: list[Array], objects: Sequence[Any]) -> Any:
        if not self._has_objects:
            return assemble(self.plan.obs_node, arrays)
        array, column = iter(arrays), 0
        values: list[Any] = []
        for _, leaf in leaves(self.plan.obs_node):
            if isinstance(leaf, ArrayNode):
                values.append(next(array))
            else:
                values.append(tuple(None if row is None else row[column] for row in objects))
                column += 1
        return assemble(self.plan.obs_node, values)

    def _raise_row_error(self, ids: Array) -> NoReturn:
        i = next(i for i in ids.tolist() if self.port.flags_of(i) & _port.ROW_ERROR)
        one = np.array([i], np.uint32)
        command, record = codec.load(self.port.notes_of(one, False, self._read_spilled)[0][0])
        self.port.settle(one)
        if self._state[i] != LOST:
            self._set_state(i, NEEDS_RESET)
        raise self.env_error(
            i,
            command,
            record,
            f"Its worker lives; reset(env_id={i}) before you step it again. The other envs' rows come with recv().",
        )

    def env_error(self, env_id: int, command: str, record: bytes, advice: str) -> EnvError:
        """What an env raised in its worker, as an exception of this process."""
        remote = codec.load_error(record)
        handle = next(handle for handle in self.workers.handles if env_id in handle.ids)
        error = EnvError(
            f"env {env_id} (worker {handle.worker_id}) raised in {command}: {remote.type_name}: {remote.message}\n"
            f"{advice}\n\n{remote.traceback_text}",
            env_id=env_id,
            worker_id=handle.worker_id,
            command=command,
            type_name=remote.type_name,
            traceback_text=remote.traceback_text,
        )
        error.__cause__ = remote.exception
        return error
