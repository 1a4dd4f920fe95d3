"""The manager's side of a running pool: which env is in what state, commands out, rows in."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import numpy as np

from shmenv import _port
from shmenv._port import Port
from shmenv._turn import Turn
from shmenv.action import ActionWriter
from shmenv.arguments import PackedOptions
from shmenv.batch import Array, Batch
from shmenv.cpu import Spreader, Waits
from shmenv.errors import ClosedError, DamageError, EnvError, RecvTimeoutError, UsageError, WorkerError
from shmenv.info import Infos
from shmenv.plan import NOTE_BYTES, Plan
from shmenv.policy import Policy
from shmenv.recovery import LOST, NEEDS_RESET, READY, Recovery
from shmenv.rows import Rows
from shmenv.seeds import Seeds
from shmenv.segment import Segment, Spill
from shmenv.starting import interrupts_held
from shmenv.supervisor import Supervisor
from shmenv.whereabouts import Whereabouts

CROWDED = 8  # batches in a row with more workers on one core than there need be, until they are moved apart


class Exchange:
    """Commands to the envs of a pool and their answers, each delivered or reported exactly once.

    States of an env: READY to be stepped; NEEDS_RESET at first (with `reset_first`), after an error and after an
    episode without autoreset; UNPLAYED when it was lost while idle: its next step cannot be played; LOST for good with
    its worker. In READY its answer may be owed (pending): then it takes no command but calls.

    Called by: the thread that uses the pool.
    """

    first_command = 0  # number of the commands' start; tests put it near 2**32

    def __init__(
        self,
        plan: Plan,
        segment: Segment,
        spill: Spill,
        workers: Supervisor,
        policy: Policy,
        turn: Turn,
        *,
        copy: bool,
        debug: bool,
        waits: Waits,
        spreader: Spreader | None,
        reset_first: bool,
    ) -> None:
        buffer, n = segment.buffer, plan.num_envs
        self.plan, self.buffer, self.workers, self._turn = plan, buffer, workers, turn
        self.port = Port(
            buffer,
            plan.places(),
            [plan.places(worker_id) for worker_id in range(len(plan.ranges))],
            turn,
            num_envs=n,
            planes=plan.planes,
            note_bytes=NOTE_BYTES,
            first_command=self.first_command,
            waits=waits,
            cores=len(os.sched_getaffinity(0)),
        )
        self.closing = False
        self.inbound, self.calls = plan.mail("inbound", buffer, spill), plan.mail("call", buffer, spill)
        self.actions = ActionWriter(plan.action_node, plan.rows("action", buffer), n)
        self.all_ids = np.arange(n, dtype=np.uint32)
        self._spreader = spreader
        self._copy, self._debug, self._recycles = copy, debug, policy.recycle_after is not None
        self.rows = Rows(plan, buffer, self.port, spill)
        self._state = np.full(n, NEEDS_RESET if reset_first else READY, np.uint8)
        self._blocked = n if reset_first else 0  # envs that are not READY
        self._plane = 0  # of all envs; -1 when they are on several
        self._viewed = np.full(n, -1, np.int16)  # the plane of the env's last row, if that was handed out as a view
        self._unsettled = False  # a command was interrupted before its answers were in
        # The use of the pool that has delivered rows of which more is to be done once the caller has them; their envs,
        # and the object leaves of their observations.
        self.unconfirmed: tuple[int, Array, list[Any]] | None = None
        self._troubles: list[tuple[WorkerError, int]] = []  # not told yet, each with how many answers it has cost
        self.final_errors: dict[int, WorkerError] = {}  # the last end of each worker
        self.seeds = Seeds(n)
        self.whereabouts = Whereabouts(plan, buffer, self.port, workers, self.seeds)
        self.recovery = Recovery(self, policy)
        self.counts = self.recovery.counts  # for stats, also while the pool closes
        self._none = Infos.empty(n)
        env_id = self.all_ids.astype(np.int32)
        env_id.flags.writeable = False
        self._env_id = env_id
        # What a whole batch without infos consists of, made once a plane.
        planes = () if self.rows.has_objects else range(plan.planes)
        self._whole = [self.rows.view(plane, 0, n, (), ()) for plane in planes]

    @property
    def pending(self) -> int:
        """How many answers are owed, lost ones that the caller has not been told of included."""
        return self.port.pending + sum(cost for _, cost in self._troubles)

    def mend(self) -> None:
        """Make whole what an exception from outside, between any two instructions, may have left half done.

        Rows that the interrupted use of the pool did not get to hand out are owed again.
        """
        use = self._turn.interrupted
        self.port.take_back(use)
        if self.unconfirmed is not None and self.unconfirmed[0] >= use:
            self.unconfirmed = None
        self._count_blocked()
        self._plane = self.port.common_plane(self.all_ids)
        self._unsettled, self.recovery.quiet = True, False

    def confirm(self) -> None:
        """The caller has the rows that the last use delivered: what was to be remembered of them is no more."""
        assert self.unconfirmed is not None
        with interrupts_held():
            _, ids, objects = self.unconfirmed
            self.unconfirmed = None
            self.recovery.substitutes.keep_objects(ids, objects)
            if not self.recovery.quiet:
                self.recovery.after_delivery(ids)

    def release(self) -> None:
        """Let go of what refers back here, so that the segment is freed with the last view of it. For good."""
        self.recovery.release()

    # -- before a command

    def check_all_ready(self) -> None:
        """Refuse unless every env can be stepped now. The one check of the hot path."""
        if self.port.pending or self._blocked or self._unsettled or not self.recovery.quiet or self.port.alerted():
            self.check_ready(self.all_ids)

    def check_ready(self, ids: Array) -> None:
        """Refuse, before anything is sent, unless all these envs can be stepped now."""
        self.check_not_lost(ids)
        self.check_told(ids)
        self.tell_troubles(ids)
        self.check_not_pending(ids, "stepped")
        waiting = ids[self._state[ids] == NEEDS_RESET]
        if len(waiting):
            i = waiting[0]
            raise UsageError(f"env {i} cannot be stepped: it needs a reset; call reset(env_id={i}) or reset()")
        self.settle(ids)

    def check_resettable(self, ids: Array) -> None:
        """Refuse, before anything is sent, unless all these envs can be reset by themselves now."""
        self.tell_troubles(ids)
        self.check_not_pending(ids, "reset")
        self.settle(ids)

    def check_not_pending(self, ids: Array, what: str) -> None:
        """Refuse commands to envs whose answer is owed."""
        i = self.port.first_owed(ids)
        if i >= 0:
            raise UsageError(f"env {i} cannot be {what} now: its last answer is pending; recv() it first")

    def check_not_lost(self, ids: Array) -> None:
        """Refuse commands to envs that are lost for good."""
        self._look_for_deaths()
        self._tend()
        lost = ids[self._state[ids] == LOST]
        if len(lost):
            error = self.final_errors[self.workers.handle_of(int(lost[0])).worker_id]
            self._tell(error.with_traceback(None))

    def check_told(self, ids: Array) -> None:
        """Tell of envs that were lost while idle, once, before anything is sent to them."""
        for i in ids.tolist() if self.recovery.untold else ():
            error = self.recovery.untold.get(i)
            if error is not None:
                self._tell(error)

    def tell_troubles(self, ids: Array | None = None) -> None:
        """Tell of answers that will never come, one error a call; ids: only of what concerns one of these envs."""
        for error, _ in self._troubles:
            if ids is None or not set(ids.tolist()).isdisjoint(error.env_ids):
                self._tell(error)

    def _tell(self, error: WorkerError | EnvError) -> NoReturn:
        """Raise an error. It names all its envs, so none of them is told of it again."""
        self._troubles = [trouble for trouble in self._troubles if trouble[0] is not error]
        self.recovery.note_told(error)
        raise error

    def report(self, error: WorkerError, ids: Array) -> None:
        """Owe the caller an error in place of these envs' answers."""
        self.port.settle(ids)
        self._troubles.append((error, len(ids)))

    def _look_for_deaths(self, heartbeat: bool = False) -> None:
        if not (heartbeat or self.port.alerted()):
            return
        with interrupts_held():  # no handler that raises may lose a death that is half sorted out
            self.port.acknowledge()
            for handle in self.workers.newly_dead(look=heartbeat):
                self.recovery.worker_ended(handle, *self.whereabouts.doing(handle))
        self._check_open()  # a hook of the user's may have closed the pool

    def _tend(self) -> None:
        if self.recovery.is_due():
            with interrupts_held():
                self.recovery.tend()
            self._check_open()

    def _check_open(self) -> None:
        if self.closing:
            raise ClosedError("the pool was closed while this call waited")

    def state_of(self, env_id: int) -> int:
        """READY, NEEDS_RESET, LOST or UNPLAYED."""
        return int(self._state[env_id])

    def needs_reset_ids(self) -> list[int]:
        """The envs in NEEDS_RESET or LOST, and those that will be once the caller has the last rows, ascending."""
        ids = set(np.flatnonzero((self._state == NEEDS_RESET) | (self._state == LOST)).tolist())
        if self.unconfirmed is not None:
            ids.update(i for i in self.unconfirmed[1].tolist() if self.recovery.is_stale(i))
        return sorted(ids)

    def set_state(self, env_id: int, state: int) -> None:
        """Change an env's state."""
        self._blocked += int(state != READY) - int(self._state[env_id] != READY)
        self._state[env_id] = state

    def settle(self, ids: Array) -> None:
        """Wait until these envs have answered their last command, whatever it was, for good."""
        if self._unsettled or self.port.pending:
            repaired = True
            while repaired:  # a reset that failed may be tried again
                self._await(ids, len(ids))
                owed = np.array([i for i in ids.tolist() if self.port.is_owed(i)], np.uint32)
                repaired = self._repair(owed)
            if len(ids) == len(self.all_ids):
                self._unsettled = False

    def discard(self) -> None:
        """Wait for everything that is pending, and drop it."""
        self.port.settle(self.recovery.drop_retries())
        self._await(self.all_ids, len(self.all_ids))
        self._unsettled = False
        self.port.settle(None)
        self._troubles.clear()
        self.recovery.forget(self.all_ids)

    def next_plane(self) -> int:
        """The plane for a command to all envs: one whose rows nobody has been shown as the newest.

        -1 if there is none, because views of several planes are out: then each env goes on by itself.
        """
        planes = self.plan.planes
        if self._plane >= 0:
            return (self._plane + 1) % planes
        return next((plane for plane in range(planes) if not np.count_nonzero(self._viewed == plane)), -1)

    def command(
        self, ids: Array | None, code: int, payloads: list[bytes] | None, plane: int = -1, *, whole: bool
    ) -> None:
        """Send a step or a reset whose answers the caller gets. ids None: all envs; whole: it waits for all of them."""
        everything = ids is None
        if not self.recovery.quiet:
            ids, payloads, plane = self._around_troubles(ids, code, payloads, plane)
        if ids is None and plane >= 0:
            if self._plane < 0:
                on_it = np.empty(len(self.all_ids), np.uint32)
                self.recovery.substitutes.keep_rows(plane, on_it[: self.port.on_plane(plane, on_it)])
            self._plane = plane
        else:
            self._part_planes()
        if code == _port.RESET:
            payloads = self._decline(None if everything else ids, payloads)
        if payloads is not None:
            self.inbound.write_all(ids, payloads)
        if self._debug:
            self.rows.poison(self.all_ids if ids is None else ids, plane)
        if ids is None or len(ids):
            self.port.command(ids, code, plane, True, whole, payloads)
            if self.port.crowded >= CROWDED and self._spreader is not None:
                self._spreader.spread(self.workers.pids, self.port.cores_used())

    def _decline(self, ids: Array | None, payloads: list[bytes] | None) -> list[bytes] | None:
        """Let no env that has gone on by itself hand out that reset where the caller has a seed or options for it.

        Nor in a reset of all, which leaves nothing of what was under way. Returns the payloads as they travel.
        """
        if ids is None:
            self.port.decline(self.all_ids)
        elif payloads is not None:
            own = [payload != b"" and type(payload) is not PackedOptions for payload in payloads]
            self.port.decline(ids[own])
        return None if payloads is None else [bytes(payload) for payload in payloads]

    def _around_troubles(
        self, ids: Array | None, code: int, payloads: list[bytes] | None, plane: int
    ) -> tuple[Array | None, list[bytes] | None, int]:
        chosen = self.all_ids if ids is None else ids
        if code == _port.RESET:
            left, payloads = self.recovery.begin_resets(chosen, payloads)
            return (ids, payloads, plane) if left is chosen else (left, payloads, -1)
        if not self.recovery.odd:
            return ids, payloads, plane
        left = self.recovery.answer_instead(chosen)
        if payloads is not None:
            payloads = [
                payload for i, payload in zip(chosen.tolist(), payloads, strict=True) if i in set(left.tolist())
            ]
        return left, payloads, -1

    # -- waiting

    def await_owed(self, need: int, deadline_ns: int, timeout: float | None) -> None:
        """Wait until `need` of the owed answers are in."""
        self._await(None, need, deadline_ns, timeout)

    def ask(self, ids: Array) -> None:
        """Send a call whose payloads lie ready, and wait for its answers."""
        self.recovery.lost_calls.clear()  # those of a call that Ctrl-C interrupted
        self._unsettled = True
        self.port.command(ids, _port.CALL, -1, False, True)
        self._await(ids, len(ids))
        self._unsettled = False
        for i in ids.tolist() if self.recovery.lost_calls else ():
            if i in self.recovery.lost_calls:
                error = self.recovery.lost_calls[i]
                self.recovery.lost_calls.clear()
                self._tell(error)

    def _await(
        self, ids: Array | None, need: int, deadline_ns: int = _port.FOREVER, timeout: float | None = None
    ) -> None:
        while True:
            self._check_open()
            due = _port.FOREVER if self.recovery.quiet else self.recovery.due_ns()
            how = self.port.await_answers(ids, need, min(deadline_ns, due))
            if how == _port.READY:
                return
            if how == _port.TIMEOUT and (deadline_ns == 0 or due > deadline_ns):
                self._look_for_deaths()  # who only polls has restarts and retries that are due carried out, too
                self._tend()
                text = f"no batch within {timeout} s. {self.whereabouts.pending_text()}. Call again"
                raise RecvTimeoutError(text)
            self._look_for_deaths(heartbeat=how == _port.HEARTBEAT)
            if self.port.await_answers(ids, need, 0) != _port.READY:  # what is in does not wait for a worker's start
                self._tend()
            if ids is None:
                self.tell_troubles()
            else:
                self.check_not_lost(ids)

    # -- answers

    def collect_all(self) -> Batch:
        """Wait for all envs' answers to the last command to all, and hand them out."""
        self._await_whole(None, len(self.all_ids))
        batch = self._collect_plane()
        return self._collect_whole(self.all_ids, copy=False) if batch is None else batch

    def _collect_plane(self) -> Batch | None:
        """Hand out a whole plane as it is, where all envs' answers are in; None where that takes more."""
        port, plane = self.port, self._plane
        flags = port.row_flags(None)
        beside = flags & ~_port.ROW_NEEDS_RESET
        plain = not beside or (self.plan.has_final_rows and not flags & ~_port.ROW_NOTES)
        if not plain or not self._whole or plane < 0 or self._blocked or self._special:
            return None
        info = final_info = self._none
        try:
            if flags & _port.ROW_NOTE:
                info = Infos(self.rows.notes(self.all_ids, False, flags)[0])
            if flags & _port.ROW_FINAL_NOTE:
                final_info = Infos(self.rows.notes(self.all_ids, True, flags)[0])
        except DamageError:  # `collect` finds it again
            return None
        if flags & _port.ROW_NEEDS_RESET:
            self._take_states(self.all_ids)
        port.deliver(None)
        obs, reward, terminated, truncated, final_obs = self._whole[plane]
        return Batch(self._env_id, obs, reward, terminated, truncated, info, final_obs, final_info, port, plane)

    @property
    def _special(self) -> bool:
        """Whether a whole batch takes more than handing out one plane."""
        return self._copy or self._recycles or not self.recovery.quiet

    def _await_whole(self, ids: Array | None, need: int) -> None:
        """Wait for answers until none of them is an error that the policy repairs."""
        chosen, repaired = self.all_ids if ids is None else ids, True
        while repaired:
            self._await(ids, need)
            self.tell_troubles(ids)
            repaired = self._repair(chosen)

    def _repair(self, ids: Array) -> bool:
        """Deal with rows that hold errors, where the policy says how. Returns whether an answer is awaited anew."""
        if not self.port.row_flags(ids) & _port.ROW_ERROR:
            return False
        with interrupts_held():  # no handler that raises may leave a row that is half an error, half a loss
            return self.recovery.repair(ids)

    def collect_some(self, ids: Array) -> Batch:
        """Wait for these envs' answers, and hand them out as a copy."""
        self._await_whole(ids, len(ids))
        return self._collect_whole(ids, copy=True)

    def _collect_whole(self, ids: Array, copy: bool) -> Batch:
        while True:
            try:
                return self.collect(ids, copy=copy)
            except DamageError as error:
                self.rows.put_error(error)
            self._await_whole(ids, len(ids))

    def collect_ready(self, need: int, most: int, deadline_ns: int, timeout: float | None, out: Batch | None) -> Batch:
        """Wait until `need` of the owed answers are in, and hand out at most `most`."""
        while True:
            self._await(None, need, deadline_ns, timeout)
            ids = np.empty(most, np.uint32)
            ids = ids[: self.port.ready(ids)]
            if not self._repair(ids):
                batch = self._collect_plane() if out is None and len(ids) == len(self.all_ids) else None
                try:
                    return self.collect(ids, out) if batch is None else batch
                except DamageError as error:
                    self.rows.put_error(error)

    def collect(self, ids: Array, out: Batch | None = None, copy: bool = False) -> Batch:
        """Hand out the rows of these envs, whose answers are in.

        An env that failed is told of by an exception instead; then the rows of the others stay owed. DamageError is for
        the caller to put in place of a row: nothing was handed out.
        """
        port, m = self.port, len(ids)
        flags = port.row_flags(ids)
        if flags & _port.ROW_ERROR:
            self._raise_row_error(ids)
        infos, objects = self.rows.notes(ids, False, flags & _port.ROW_NOTE)
        final_infos, final_objects = self.rows.notes(ids, True, flags & _port.ROW_FINAL_NOTE)
        if self.rows.has_objects:
            self.recovery.substitutes.patch_objects(ids, objects, final_objects)
        plane = -1 if copy or self._copy or out is not None else port.common_plane(ids)
        if plane >= 0:
            start = int(ids[0])
            rows = self.rows.view(plane, start, start + m, objects, final_objects)
        else:
            rows = self.rows.gather(ids, objects, final_objects, out)
        obs, reward, terminated, truncated, final_obs = rows
        if infos and not self.plan.has_final_rows:
            ended = terminated | truncated
            final_infos = [info if over else b"" for info, over in zip(infos, ended.tolist(), strict=False)]
        if not self.recovery.quiet:
            infos, final_infos = self.recovery.substitutes.mark(ids, infos, final_infos)
        if flags & _port.ROW_NEEDS_RESET or self._blocked:
            self._take_states(ids)
        if self._plane < 0:
            self._viewed[ids] = plane
        if not self.recovery.quiet or self.rows.has_objects:
            self.unconfirmed = self._turn.uses, ids, objects
        port.deliver(ids)  # an exception from outside, such as Ctrl-C, before or after this has the rows come later
        if self._recycles:
            self.recovery.count_episodes(ids, terminated | truncated)
        env_id = self._env_id[ids] if plane < 0 else self._env_id[ids[0] : ids[0] + m]
        batch = Batch(
            env_id, obs, reward, terminated, truncated, Infos(infos) if infos else Infos.empty(m), final_obs,
            Infos(final_infos) if any(final_infos) else Infos.empty(m), port if plane >= 0 else None, plane,
        )  # fmt: skip
        return batch if out is None else out.take(batch)

    def go_on(self, ids: Array, on: bool) -> None:
        """Have these envs go on with the reset after an episode by themselves. Any thread may call this."""
        if self.plan.autoreset != "disabled" or self._debug:
            raise UsageError('go_on: needs a pool with autoreset="disabled" and without debug')
        self.port.go_on(ids, on)

    def take_resets(self, ids: Array) -> tuple[Array, Any]:
        """Of these envs, which were told to go on: those whose reset is done, and copies of their observations."""
        done = np.empty(len(ids), np.uint32)
        done = done[: self.port.take_resets(ids, done) if self.recovery.quiet else 0]
        if not len(done):
            return done, None
        self._part_planes()
        self._viewed[done] = -1
        self._state[done] = READY
        self._count_blocked()
        return done, self.rows.gather_obs(done)

    def _take_states(self, ids: Array) -> None:
        self.port.take_states(ids, self._state, READY, NEEDS_RESET, LOST)
        self._count_blocked()

    def _count_blocked(self) -> None:
        self._blocked = int(np.count_nonzero(self._state))  # READY is 0

    def _part_planes(self) -> None:
        """From here on each env is on a plane of its own."""
        if self._plane >= 0:
            self._viewed[...] = -1 if self._copy else self._plane
            self._plane = -1

    def check_out(self, out: Batch, rows: int) -> None:
        """Refuse a batch that cannot take `rows` rows of this pool."""
        self.rows.check_out(out, rows)

    def _raise_row_error(self, ids: Array) -> None:
        i = next((i for i in ids.tolist() if self.port.flags_of(i) & _port.ROW_ERROR), None)
        if i is None:  # a worker that writes where it should not has taken it back
            return
        command, record = self.rows.error_of(i)
        one = np.array([i], np.uint32)
        self.port.deliver(one)
        self.recovery.forget(one)
        if self._state[i] != LOST:
            self.set_state(i, NEEDS_RESET)
        raise self.whereabouts.env_error(i, command, record)
