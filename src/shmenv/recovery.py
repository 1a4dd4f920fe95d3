"""What becomes of envs whose step, reset or worker failed: retries, restarts, and rows in place of lost ones."""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

import numpy as np

from shmenv import _port
from shmenv._mail import Mail
from shmenv._port import Port
from shmenv.batch import Array
from shmenv.errors import EnvError, ShmenvError, WorkerError
from shmenv.handle import RECYCLED, Handle
from shmenv.limits import FIRST_DELAY
from shmenv.plan import Plan
from shmenv.policy import Policy
from shmenv.rows import Rows
from shmenv.seeds import Seeds
from shmenv.substitutes import Substitutes
from shmenv.supervisor import Supervisor
from shmenv.whereabouts import Whereabouts
from shmenv.worker import CONSTRUCT
from shmenv.worker import RESET as IN_RESET

logger = logging.getLogger("shmenv")

READY, NEEDS_RESET, LOST, UNPLAYED = 0, 1, 2, 3  # states of an env, see exchange.py


class States(Protocol):
    """What the exchange offers here: the envs' states, and the means to change them."""

    plan: Plan
    buffer: Any
    port: Port
    workers: Supervisor
    inbound: Mail
    final_errors: dict[int, WorkerError]
    seeds: Seeds
    rows: Rows
    whereabouts: Whereabouts

    def state_of(self, env_id: int) -> int:
        """Its state."""
        ...

    def set_state(self, env_id: int, state: int) -> None:
        """Change its state."""
        ...

    def report(self, error: WorkerError, ids: Array) -> None:
        """Owe the caller an error in place of answers."""
        ...


class Recovery:
    """Keeps the promise that each command is answered or reported exactly once, whatever fails.

    Called by: the exchange.
    """

    def __init__(self, exchange: States, policy: Policy) -> None:
        self._x = exchange
        self._policy = policy
        plan, buffer = exchange.plan, exchange.buffer
        self._same_step, self._next_step = plan.autoreset == "same_step", plan.autoreset == "next_step"
        self.substitutes = Substitutes(plan, buffer, exchange.port, policy.restart)
        self.quiet = True  # nothing here needs attention: what the hot path asks
        self.counts = {"restarts": 0, "timeouts": 0, "losses": 0, "recycled": 0}
        self.untold: dict[int, WorkerError | EnvError] = {}  # what the next command to an idle env has to tell
        self.lost_calls: dict[int, WorkerError] = {}  # envs whose worker ended in a call
        self._unplayed: dict[int, str] = {}  # idle envs that were lost, until their next command (policy restart)
        self._stale: dict[int, tuple[WorkerError | None, bool]] = {}  # envs that a worker answered before it ended
        self._lost_resets: dict[int, tuple[WorkerError, Handle]] = {}  # envs whose worker ended as they went on
        self._attempts: dict[int, int] = {}  # of the reset at hand
        self._spent: set[int] = set()  # envs whose reset has failed for good, which the caller has not been told yet
        self._kept: set[int] = set()  # envs whose reset at hand completes a row that is half there
        self._deferred: set[int] = set()  # envs that wait for the next attempt of their reset
        self._retry_at: dict[int, float] = {}
        self._renew_at: dict[int, float] = {}  # workers to be ended for a retry
        self._restart_at: dict[int, float] = {}  # workers to be started
        self._episodes: dict[int, int] = {}  # ended, by worker

    def release(self) -> None:
        """Let go of the exchange, for good."""
        del self._x

    # -- time

    def due_ns(self) -> int:
        """When `tend` has something to do, CLOCK_MONOTONIC nanoseconds."""
        times = [*self._retry_at.values(), *self._renew_at.values(), *self._restart_at.values()]
        return int(min(times) * 1e9) + 1 if times else _port.FOREVER

    def is_due(self) -> bool:
        """Whether `tend` has something to do now."""
        return not self.quiet and self.due_ns() <= time.monotonic_ns()

    def tend(self) -> None:
        """Start the workers and give the resets that are due."""
        now = time.monotonic()
        for worker_id in _take_due(self._renew_at, now):
            self._x.workers.renew(worker_id)
        for worker_id in _take_due(self._restart_at, now):
            try:
                self._x.workers.restart(worker_id)
            except ShmenvError as error:  # no more processes, no more descriptors
                self._start_failed(self._x.workers.handles[worker_id], error)
        for env_id in _take_due(self._retry_at, now):
            self._deferred.discard(env_id)
            self._reset_onto_row(env_id, env_id in self._kept)

    def _start_failed(self, handle: Handle, error: ShmenvError) -> None:
        """A process could not even be started: try again later, as far as the budget goes."""
        logger.warning("worker %d could not be replaced: %s", handle.worker_id, error)
        delay = self._x.workers.restart_delay(handle, started=False)
        if delay is None:
            fate = f"What it runs is lost for good, for no new worker could be started: {error}"
            self._give_up(handle, self._x.workers.coroner.died_error(handle, "before", fate))
        else:
            self._restart_at[handle.worker_id] = time.monotonic() + max(delay, FIRST_DELAY)

    # -- commands of the caller

    def begin_resets(self, ids: Array, payloads: list[bytes] | None) -> tuple[Array, list[bytes] | None]:
        """The caller resets these envs: what was wrong with them is over. Returns the ids to send to, and payloads.

        An env whose worker did not survive the reset by which the env went on, as often as allowed, gets that error.
        """
        chosen = dict(zip(ids.tolist(), payloads or [b""] * len(ids), strict=True))
        for i in ids.tolist():
            self._forget(i)
            self._stale.pop(i, None)
            if i in self._lost_resets:
                error, handle = self._lost_resets.pop(i)
                if self._x.port.goes_on(i) and not self._is_repeated(i, handle, guilty=True):
                    self._needs_reset(i)
                    self._x.report(error, np.array([i], np.uint32))
                    del chosen[i]
                    continue
            if i in self._x.seeds.due:
                self._x.seeds.due.discard(i)
                chosen[i] = self._x.seeds.payload(i, bytes(chosen[i]))
        left = ids if len(chosen) == len(ids) else np.array(list(chosen), np.uint32)
        return left, list(chosen.values()) if any(chosen.values()) else None

    def drop_retries(self) -> Array:
        """Let go of resets that wait for their next attempt. Returns their envs, which owe an answer still."""
        dropped = np.array(sorted(self._deferred), np.uint32)
        self._renew_at.clear()
        self.forget(dropped)
        return dropped

    def forget(self, ids: Array) -> None:
        """The answers that these envs owe will not be asked for."""
        for i in ids.tolist():
            self._forget(i)

    def _forget(self, env_id: int) -> None:
        self.substitutes.forget(env_id)
        for table in (self.untold, self._unplayed, self._attempts, self._retry_at, self.lost_calls):
            table.pop(env_id, None)
        for group in (self._kept, self._deferred, self._spent):
            group.discard(env_id)

    def note_told(self, error: WorkerError | EnvError) -> None:
        """The caller is told of an error: none of the envs that it names has to tell it again."""
        self.untold = {i: other for i, other in self.untold.items() if other is not error}
        self._lost_resets = {i: lost for i, lost in self._lost_resets.items() if lost[0] is not error}
        self.substitutes.note_told(error)
        self._stale = {i: (None if other is error else other, dropped) for i, (other, dropped) in self._stale.items()}

    @property
    def odd(self) -> bool:
        """Whether some env cannot simply be stepped."""
        return bool(self._unplayed or self._x.seeds.due)

    def answer_instead(self, ids: Array) -> Array:
        """Answer those of the caller's steps that no env can play. Returns the ids that are left to be stepped."""
        left = []
        for i in ids.tolist():
            if i in self._unplayed:
                why = self._unplayed.pop(i)
                self._x.port.owe(i)
                self._lose(i, why)
            elif i in self._x.seeds.due and self._next_step:  # its next step would reset it without its seed
                self._x.port.owe(i)
                self._reset_onto_row(i, keep=False, fresh=True)
            else:
                left.append(i)
        return np.array(left, np.uint32)

    # -- failures of an env

    def repair(self, ids: Array) -> bool:
        """Deal with rows that hold errors, where the policy says how. Returns whether an answer is awaited anew."""
        again, port = False, self._x.port
        self.quiet = False
        for i in ids.tolist():
            if not port.flags_of(i) & _port.ROW_ERROR:
                continue
            command, record = self._x.rows.error_of(i)
            is_lost = self._x.state_of(i) == LOST  # then nobody is left to repair it
            if command == "reset":
                if port.has_ended(i):  # the worker's own reset, after a step that stands
                    self._kept.add(i)
                if not is_lost and self._count_attempt(i):
                    wait = time.monotonic() + self._policy.retry_waiting_time
                    port.defer(i)
                    self._deferred.add(i)
                    if self._policy.renew and i not in self._stale:
                        self._renew_at.setdefault(self._x.workers.handle_of(i).worker_id, wait)
                    else:
                        self._retry_at[i] = wait
                    again = True
                elif i in self._kept:
                    error = None if is_lost else self._x.whereabouts.env_error(i, command, record)
                    self.substitutes.end_unreset(i, error)
            elif is_lost:
                continue
            elif self._policy.restart:
                advice = "Its worker lives, and starts it anew."
                self._lose(i, str(self._x.whereabouts.env_error(i, command, record, advice)))
                again = again or self._same_step
        return again

    def _count_attempt(self, env_id: int) -> bool:
        """Whether another attempt of a reset is allowed, after one more has failed. Once it is not, it never is."""
        self._attempts[env_id] = self._attempts.get(env_id, 0) + 1
        if self._attempts[env_id] >= self._policy.max_retry:
            self._spent.add(env_id)
        return env_id not in self._spent

    # -- failures of a worker

    def worker_ended(self, handle: Handle, phase: int, env_id: int | None, doing: str) -> None:
        """Sort out what its envs owe, and have it replaced.

        Args:
            handle: the worker.
            phase: what it was at, as in core/channel.h.
            env_id: the env whose command it was carrying out.
            doing: the same in words.
        """
        x, port, worker_id = self._x, self._x.port, handle.worker_id
        self.quiet = False
        for table in (self._episodes, self._renew_at):
            table.pop(worker_id, None)
        self.counts["timeouts"] += bool(handle.late)
        delay = x.workers.restart_delay(handle, started=phase != CONSTRUCT)
        if delay is None:
            limits = x.workers.limits
            budget = f"max_restarts={limits.max_restarts} within restart_period={limits.restart_period} s"
            fate = f"What it runs is lost for good, for it was replaced as often as it may be ({budget})."
            self._give_up(handle, x.workers.coroner.died_error(handle, doing, fate))
            return
        dropped = self._policy.restart or handle.leave == RECYCLED
        fate = "A new worker starts it anew" if dropped else "It needs a reset, which a new worker carries out"
        fate += "; the envs of other workers go on."
        error = x.workers.coroner.died_error(handle, doing, fate)
        logger.log(logging.INFO if handle.leave else logging.WARNING, "%s", error)
        unanswered = {i for i in handle.ids if port.is_owed(i) and not port.is_answered(i)}
        ended = {i for i in unanswered if self._same_step and port.has_ended(i)}
        self.lost_calls.update((i, error) for i in self._in_call(handle))
        port.reset_worker(worker_id)
        x.seeds.lose_process(handle.ids)
        given_up = [i for i in sorted(unanswered) if not self._answer_for(i, error, handle, i in ended, i == env_id)]
        if given_up:
            x.report(error, np.array(given_up, np.uint32))
        if phase == IN_RESET and env_id is not None and env_id not in unanswered:
            self._lost_resets[env_id] = error, handle
        for i in handle.ids:
            if i not in unanswered and port.is_owed(i):
                self._stale[i] = error, dropped
            elif i not in unanswered:
                self._lost_idle(i, error, dropped)
        self.counts["recycled" if handle.leave == RECYCLED else "restarts"] += 1
        self._restart_at[worker_id] = time.monotonic() + delay
        self._tell_hook(handle, str(error))

    def _in_call(self, handle: Handle) -> list[int]:
        port = self._x.port
        return [i for i in handle.ids if port.code_of(i) == _port.CALL and port.is_unanswered(i)]

    def _give_up(self, handle: Handle, error: WorkerError) -> None:
        """The envs of this worker are lost for good."""
        port = self._x.port
        logger.error("%s", error)
        self._x.final_errors[handle.worker_id] = error
        self.lost_calls.update((i, error) for i in self._in_call(handle))
        unanswered = [i for i in handle.ids if port.is_owed(i) and not port.is_answered(i)]
        for i in unanswered.copy():
            is_genuine = i in self._kept or (self._same_step and port.has_ended(i))
            if is_genuine and i not in self.substitutes.losses:
                unanswered.remove(i)
                port.answer(i)
                self._deferred.discard(i)
                self._retry_at.pop(i, None)
                self.substitutes.end_unreset(i, None)  # its next command tells of the end anyway
        for i in handle.ids:
            self._x.set_state(i, LOST)
            self._x.seeds.due.discard(i)
            self._stale.pop(i, None)
            self._lost_resets.pop(i, None)
            if i in unanswered or not port.is_owed(i):
                calls = self.lost_calls.get(i)
                self._forget(i)
                if calls is not None:
                    self.lost_calls[i] = calls
        if unanswered:
            self._x.report(error, np.array(unanswered, np.uint32))

    def _tell_hook(self, handle: Handle, reason: str) -> None:
        hook = self._policy.on_restart
        if hook is None:
            return
        for i in handle.ids:
            try:
                hook(i, reason)
            except Exception:
                logger.exception("on_restart raised for env %d; its worker is replaced all the same", i)

    def _answer_for(self, env_id: int, error: WorkerError, handle: Handle, ended: bool, guilty: bool) -> bool:
        """Find an answer for a command that its worker did not answer. False: there is none, it is to be reported."""
        if env_id in self._deferred:
            self._deferred.discard(env_id)
            self._retry_at.pop(env_id, None)
        elif self._x.port.code_of(env_id) == _port.RESET or (self._next_step and self.substitutes.was_over(env_id)):
            if not self._is_repeated(env_id, handle, guilty):
                if env_id not in self._kept:
                    return self._needs_reset(env_id)
                self.substitutes.end_unreset(env_id, error)
                return True
        elif ended:
            self._kept.add(env_id)
        elif self._policy.restart or handle.leave == RECYCLED:
            self._lose(env_id, str(error))
            return True
        else:
            return self._needs_reset(env_id)
        self._reset_onto_row(env_id, env_id in self._kept)
        return True

    def _needs_reset(self, env_id: int) -> bool:
        self._x.set_state(env_id, NEEDS_RESET)
        self._forget(env_id)
        return False

    def _is_repeated(self, env_id: int, handle: Handle, guilty: bool) -> bool:
        """Whether a reset that a worker did not get done is given to its successor."""
        if handle.leave or (self._policy.restart and not (guilty and handle.late)):
            return True
        return self._count_attempt(env_id)

    def _lost_idle(self, env_id: int, error: WorkerError | None, dropped: bool) -> None:
        """An env that owes nothing was lost with its worker. `dropped`: that costs a loss row, else an error.

        No error: it was told of before.
        """
        if self._x.state_of(env_id) != READY:
            return
        if self._next_step and self.substitutes.is_over(env_id):
            return  # its next step resets it anyway
        if dropped:
            self._unplayed[env_id] = str(error)
            self._x.set_state(env_id, UNPLAYED)
            return
        self._x.set_state(env_id, NEEDS_RESET)
        if error is not None:
            self.untold[env_id] = error

    # -- rows

    def _lose(self, env_id: int, why: str) -> None:
        """Answer the step that is owed by a loss row."""
        self.substitutes.lose(env_id, why)
        self.counts["losses"] += 1
        if self._same_step:
            self._reset_onto_row(env_id, keep=True, fresh=True)

    def _reset_onto_row(self, env_id: int, keep: bool, fresh: bool = False) -> None:
        """Have the env reset onto the row that is owed; the rest of that row is there already if `keep`.

        A reset that is repeated keeps its seed and options; with `fresh` there was none.
        """
        if keep:
            self._kept.add(env_id)
        has_payload = not fresh and self._x.port.has_payload(env_id)
        if env_id in self._x.seeds.due and not has_payload:
            self._x.inbound.write(env_id, self._x.seeds.payload(env_id))
            has_payload = True
        self._x.seeds.due.discard(env_id)
        self._stale.pop(env_id, None)
        self._x.port.renew(env_id, keep, has_payload)

    # -- delivery

    def is_stale(self, env_id: int) -> bool:
        """Whether an env whose row is handed out now needs a reset after it, its worker having ended since."""
        return env_id in self._stale and not self._stale[env_id][1]

    def after_delivery(self, ids: Array) -> None:
        """What concerned these rows is over; envs whose worker had ended after it answered are found lost now.

        Called with their states up to date.
        """
        for i in ids.tolist():
            error = self.substitutes.not_reset.get(i)
            self._forget(i)
            if error is not None:
                self.untold[i] = error
            if i in self._stale:
                self._lost_idle(i, *self._stale.pop(i))
        tables = (
            self.untold, self.lost_calls, self._unplayed, self._stale, self._lost_resets, self._x.seeds.due,
            self._attempts, self._kept, self._spent, self._deferred, self._retry_at, self._renew_at, self._restart_at,
        )  # fmt: skip
        self.quiet = not (self.substitutes.pending or any(tables))

    def count_episodes(self, ids: Array, ended: Array) -> None:
        """Have workers replaced that have played enough episodes, once none of their envs owes an answer."""
        if self._policy.recycle_after is None:
            return
        for i in ids[ended].tolist():
            if i in self.substitutes.losses:  # the end of the worker before, no episode of this one
                continue
            worker_id = self._x.workers.handle_of(i).worker_id
            self._episodes[worker_id] = self._episodes.get(worker_id, 0) + 1
        for worker_id, count in list(self._episodes.items()):
            handle = self._x.workers.handles[worker_id]
            if count >= self._policy.recycle_after and not any(self._x.port.is_owed(i) for i in handle.ids):
                del self._episodes[worker_id]
                self._x.workers.recycle(worker_id)


def _take_due(table: dict[int, float], now: float) -> list[int]:
    due = sorted(key for key, at in table.items() if at <= now)
    for key in due:
        del table[key]
    return due
