"""Where workers and envs are, in the words of errors."""

from __future__ import annotations

from typing import Any

from shmenv import codec
from shmenv._port import Port
from shmenv.errors import EnvError
from shmenv.failures import env_error
from shmenv.handle import Handle
from shmenv.observation import ObservationError
from shmenv.plan import Plan
from shmenv.seeds import Seeds
from shmenv.supervisor import Supervisor
from shmenv.worker import CLOSE, CONSTRUCT, PHASE_NAMES

MISFIT = f"{ObservationError.__module__}.{ObservationError.__qualname__}"
SHOWN = 8  # envs that a text lists


class Whereabouts:
    """Reads what the workers of a pool publish of themselves.

    Called by: the exchange, and the recovery.
    """

    def __init__(self, plan: Plan, buffer: Any, port: Port, workers: Supervisor, seeds: Seeds) -> None:
        self._port, self._workers, self._seeds = port, workers, seeds
        self._steps = [plan.array(f"episode_step/{worker_id}", buffer) for worker_id in range(len(plan.ranges))]

    def doing(self, handle: Handle) -> tuple[int, int | None, str]:
        """What a worker was at: the phase, the env whose command it was carrying out, and both in words."""
        doing = self._port.account(handle.worker_id)[0]
        env_id, phase = doing >> 4 & 0x0FFFFFFF, doing & 0xF
        if env_id not in handle.ids:
            return 0, None, "while idle"
        if phase in (CONSTRUCT, CLOSE):
            return phase, None, f"in {PHASE_NAMES[phase]} of env {env_id}"
        if phase and self._port.is_busy(env_id, doing >> 32):
            when = self._when(env_id, PHASE_NAMES[phase])
            return phase, env_id, f"in {PHASE_NAMES[phase]} of env {env_id}{when}"
        if any(self._port.is_unanswered(i) for i in handle.ids):
            return 0, None, "before it took up what it was asked"
        return 0, None, "while idle"

    def _when(self, env_id: int, command: str) -> str:
        """How far an env is, and the seed from which all it has done since can be played again."""
        handle, parts = self._workers.handle_of(env_id), list[str]()
        step = self._steps[handle.worker_id][env_id - handle.ids.start]
        if command == "step":
            parts.append(f"step {step} of its episode")
        elif step:
            parts.append(f"after step {step} of its episode")
        seed = self._seeds.current(env_id)
        if seed is not None:
            parts.append(f"last seed {seed}")
        return f" ({', '.join(parts)})" if parts else ""

    def pending_text(self) -> str:
        """Whose answers are owed, with the time since each was asked."""
        owed = self._port.owed()
        shown = ", ".join(f"{i} ({seconds:.3g} s)" for i, seconds in owed[:SHOWN])
        more = f" and {len(owed) - SHOWN} more" if len(owed) > SHOWN else ""
        return f"Pending, with the time since each was asked: env {shown}{more}"

    def env_error(self, env_id: int, command: str, record: bytes, advice: str = "") -> EnvError:
        """What an env raised in its worker, as an exception of this process.

        Args:
            env_id: the env.
            command: what was asked of it.
            record: what it raised.
            advice: what was done, and what to do. Left out: of a step or a reset.
        """
        advice = advice or (
            f"Its worker lives; reset(env_id={env_id}) before you step it again. "
            "What other envs answered comes by recv()."
        )
        remote = codec.load_error(record)
        handle = self._workers.handle_of(env_id)
        when = self._when(env_id, command)
        what = f"raised in {command}{when}: {remote.type_name}: {remote.message}"
        if remote.type_name == MISFIT:
            what = f"returned from {command}{when} what does not fit: {remote.message}"
        text = f"env {env_id} (worker {handle.worker_id}, pid {handle.pid}) {what}\n{advice}"
        return env_error(handle, env_id, command, text, remote)
