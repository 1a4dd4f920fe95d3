"""The child process: start, build the envs, the rare commands, errors, end. The steps themselves are in `_loop`."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing.forkserver
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np

from shmenv import _memory, _port, codec
from shmenv._info import unpack_info
from shmenv._loop import Loop
from shmenv._mail import Mail
from shmenv.action import ActionReader
from shmenv.cpu import Waits, limit_threads
from shmenv.errors import ResourceError, UsageError
from shmenv.fit import Strictness, as_array
from shmenv.kinds import GymEnv, recognise
from shmenv.layout import ArrayNode, Node, ObjectNode
from shmenv.observation import ObservationWriter, WholeWriter
from shmenv.plan import AUTORESET_MODES, NOTE_BYTES, Plan
from shmenv.segment import ProcessHandle, Segment, Spill, StackLog

STACK_SIGNAL = signal.SIGRTMIN + 7  # prints all stacks to the log; a real-time signal, since envs may use SIGUSR1 and 2
CONSTRUCT, RESET, STEP, CALL, CLOSE = 1, 2, 3, 4, 5  # phases, as in core/channel.h
MPI_VARIABLES = ("OMPI_", "PMI_", "PMIX_")  # prefixes of what mpirun tells its own processes
PHASE_NAMES = ("idle", "construct", "reset", "step", "call", "close")


@dataclass
class Setup:
    """What a worker is given at its start. Everything in it travels as an argument of the process start."""

    worker_id: int
    ids: range
    generation: int
    factories: Spill  # a region a worker
    factory_bytes: int
    worker_init: bytes
    manager: ProcessHandle
    conn: Connection
    segment: Segment
    spill: Spill
    stacks: StackLog
    entropy: int
    cores: set[int] | None
    shared_memory: bool
    strict_dtype: Strictness
    waits: Waits
    timed: bool  # publish when each call into an env began
    step_attempts: int
    retry_waiting_time: float
    plan: Plan | None = None  # for a successor: the pool runs already


@dataclass(frozen=True)
class EnvReport:
    """What a worker tells about one env it has built."""

    obs_node: Node
    action_node: Node
    reward_shape: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """What a worker tells when all its envs are built; the spaces are those of its first env, pickled."""

    envs: tuple[EnvReport, ...]
    obs_space: bytes
    action_space: bytes


@dataclass(frozen=True)
class Building:
    """Sent before an env is built, so that a constructor that hangs can be named."""

    env_id: int


@dataclass(frozen=True)
class Question:
    """Asked of the first env before there is a plan; answered by bytes and a status, as a call is."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """Sent when the worker cannot start; `env_id` None if the reason lies outside an env's constructor."""

    env_id: int | None
    record: bytes


def main(setup: Setup) -> None:
    """Called by: the worker process, which ends with it. Crash: the manager sees the process end, at any point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the manager decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the supervisor held it back during the start
    with contextlib.suppress(OSError):  # already the leader of its session
        os.setpgid(0, 0)
    _let_go_of_fork_server()
    _memory.end_with(setup.manager.fileno())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable(file=setup.stacks.fileno(), all_threads=True)
    faulthandler.register(STACK_SIGNAL, file=setup.stacks.fileno(), all_threads=True)
    limit_threads()
    for name in [name for name in os.environ if name.startswith(MPI_VARIABLES)]:
        del os.environ[name]  # an env that imports MPI would take itself for the rank that started the pool
    if setup.cores is not None:
        os.sched_setaffinity(0, setup.cores)
    worker = Worker(setup)
    conn = setup.conn
    try:
        if setup.plan is not None:
            worker.attach(setup.plan)
            worker.rebuild(setup.plan)
        else:
            conn.send(worker.build(lambda env_id: conn.send(Building(env_id))))
            plan = _receive_plan(conn, worker)
            if plan is None:  # the pool gave up: another worker failed
                return
            worker.attach(plan)
        conn.close()
        worker.serve()
    except BuildError as error:
        conn.send(Failed(error.env_id, error.record))
    finally:
        worker.close()


def _let_go_of_fork_server() -> None:
    """Close the end of a pipe that keeps the fork server alive.

    It must end with the manager: only then the kernel finds the groups of stopped workers orphaned, and ends them.
    """
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def _receive_plan(conn: Connection, worker: Worker) -> Plan | None:
    try:
        while isinstance(message := conn.recv(), Question):
            conn.send(worker.answer(worker.first, "call", message.name, message.args, message.kwargs))
    except (EOFError, OSError):
        return None
    plan: Plan | None = message
    return plan


def _binder(env: Any, views: list[Any]) -> Callable[[int], None]:
    def binder(plane: int) -> None:
        env.bind_observation(views[plane])

    return binder


def _unwrapped(env: GymEnv) -> Any:
    inside = getattr(env.inner, "unwrapped", None)
    return inside if hasattr(inside, "step") else env.inner  # an env may answer anything to a name it does not know


class SameEnvError(UsageError):
    """The caller's fault: two env functions return one and the same env."""


class BuildError(Exception):
    """An env of this worker could not be built."""

    def __init__(self, env_id: int | None, record: bytes) -> None:
        super().__init__(env_id)
        self.env_id = env_id
        self.record = record


class Worker:
    """One worker's envs, and everything about them that `_loop.Loop` leaves to Python."""

    loop: Loop | None = None
    calls: Mail | None = None
    number = 0  # of the command at hand

    def __init__(self, setup: Setup) -> None:
        self._setup, self._pid = setup, os.getpid()
        self.first = setup.ids.start
        self.envs: list[GymEnv] = []

    # -- start

    def build(self, tell: Callable[[int], None]) -> Report:
        """Build all envs. `tell` is called with each env's id before."""
        setup, env_id = self._setup, None
        try:
            self._seed_globals()
            if setup.worker_init:
                codec.load(setup.worker_init)(setup.worker_id)
                self.leave_if_forked()
            for env_id, factory in zip(
                setup.ids, codec.load(setup.factories.read(setup.worker_id, setup.factory_bytes)), strict=True
            ):
                tell(env_id)
                env = recognise(factory())
                self.leave_if_forked()
                self.envs.append(self._new_env(env_id, env))
                self.envs[-1].generation = setup.generation
            first = self.envs[0]
            return Report(
                tuple(EnvReport(self._obs_node(env), env.action_node, env.reward_shape) for env in self.envs),
                codec.dump(first.obs_space),
                codec.dump(first.action_space),
            )
        except BaseException as error:  # SystemExit of an env's constructor too
            self.leave_if_forked(error)
            raise BuildError(env_id, codec.dump_error(error)) from error

    def _new_env(self, env_id: int, env: GymEnv) -> GymEnv:
        """The env, if none of this worker's is the same object, wrapped or not: several rows would share its state."""
        innermost = _unwrapped(env)
        for other_id, other in enumerate(self.envs, self.first):
            if innermost is _unwrapped(other):
                raise SameEnvError(
                    f"the functions of env {other_id} and env {env_id} returned the same object: each call must make a "
                    "new env, as `lambda: make_env()` does and `lambda: env` does not"
                )
        return env

    def rebuild(self, plan: Plan) -> None:
        """Build all envs in place of a dead worker's; they must need what those needed."""
        assert self.loop is not None
        loop, unlike = self.loop, None
        report = self.build(lambda env_id: loop.doing(0, env_id, CONSTRUCT))
        expected = EnvReport(plan.obs_node, plan.action_node, plan.reward_shape)
        for env_id, env in zip(self._setup.ids, report.envs, strict=True):
            if env != expected:
                unlike = TypeError(f"a new env must be like the old: {expected} expected, got {env}")
                raise BuildError(env_id, codec.dump_error(unlike)) from unlike
            loop.set_over(env_id, True)  # in next_step mode its next step resets it

    def _obs_node(self, env: GymEnv) -> Node:
        return env.obs_node if self._setup.shared_memory else ObjectNode()

    def _seed_globals(self) -> None:
        """Give each worker random numbers of its own: under fork all would draw the same."""
        sequence = np.random.SeedSequence(self._setup.entropy, spawn_key=(self.first, self._setup.generation))
        words = sequence.generate_state(8)
        random.seed(words.tobytes())
        np.random.seed(words)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(int(words[0]))

    # -- service

    def attach(self, plan: Plan) -> None:
        """Map the segment."""
        setup = self._setup
        setup.segment.attach()
        buffer = setup.segment.buffer
        self._plan, self._spill = plan, setup.spill
        self.payload = plan.mail("inbound", buffer, setup.spill).read  # what came with a command beside the arrays
        self.calls = plan.mail("call", buffer, setup.spill)
        obs_rows, action_rows = plan.rows("obs", buffer), plan.rows("action", buffer)
        self.actions = ActionReader(plan.action_node, action_rows)
        final_rows = plan.rows("final_obs", buffer) if plan.has_final_rows else []
        self.observations = self._observation_writer(plan.obs_node, obs_rows)
        final = self._observation_writer(plan.obs_node, final_rows) if plan.has_final_rows else None
        self.final_observations = None if final is None else final.write
        self.single_action = action_rows[0] if isinstance(plan.action_node, ArrayNode) else None
        self.single_observation = obs_rows[0] if isinstance(plan.obs_node, ArrayNode) else None
        self.single_final_observation = final_rows[0] if final_rows and self.single_observation is not None else None
        self.reward_shape = plan.reward_shape
        self._reward = plan.array("reward", buffer)
        self.loop = Loop(
            self,
            buffer,
            plan.places(setup.worker_id),
            num_envs=plan.num_envs,
            planes=plan.planes,
            autoreset=AUTORESET_MODES.index(plan.autoreset),
            note_bytes=NOTE_BYTES,
            waits=setup.waits,
            timed=setup.timed,
            retries=setup.step_attempts > 1,
        )

    def _observation_writer(self, node: Node, rows: list[Any]) -> ObservationWriter | WholeWriter:
        if self._setup.shared_memory:
            return ObservationWriter(node, rows, self._setup.strict_dtype)
        return WholeWriter(self._declared_node, self._setup.strict_dtype)

    def _declared_node(self, env_id: int) -> Node:
        env = self.envs[env_id - self.first]
        return ObjectNode() if env.obs_space is None or env.takes_any_obs else env.obs_node

    def serve(self) -> None:
        """Answer commands until the manager orders to quit."""
        assert self.loop is not None
        self.binders = self._find_binders()
        self.loop.run()

    def _find_binders(self) -> list[Callable[[int], None] | None] | None:
        """For envs with `bind_observation`, what hands them the row of the command at hand; None if no env has it."""
        if self.single_observation is None:
            return None
        binders: list[Callable[[int], None] | None] = []
        for env_id, env in zip(self._setup.ids, self.envs, strict=True):
            views = [self.single_observation[plane, env_id, ...] for plane in range(self._plan.planes)]
            binds = getattr(env.env, "bind_observation", None) is not None
            binders.append(_binder(env.env, views) if binds else None)
        return binders if any(binders) else None

    # -- what the loop calls

    def spill_note(self, env_id: int, plane: int, final: bool, record: bytes) -> None:
        """Put a side area that is too long for its row into the spill."""
        self._spill.write(self._plan.note_region(env_id, plane, final), record)

    def write_reward(self, plane: int, env_id: int, reward: Any) -> None:
        """Write a reward that is no float: any number or array of size 1, or a vector of the declared shape."""
        array = as_array(reward)
        if array.dtype.kind not in "biufO" or any(item is None for item in array.flat):  # numpy would read None as NaN
            raise TypeError(f"a reward must be a number, not {reward!r}")
        array = array.astype(np.float64)
        if self.reward_shape == () and array.size == 1:
            self._reward[plane, env_id] = array.reshape(())
        elif array.shape == self.reward_shape:
            self._reward[plane, env_id] = array
        else:
            hint = "" if self.reward_shape else "; an env with vector rewards declares their shape by `reward_space`"
            raise TypeError(f"reward of shape {self.reward_shape} expected, got shape {array.shape}{hint}")

    def step_with_retries(self, k: int, number: int, action: Any) -> Any:
        """Step the worker's k-th env, with the same action again if it raises and `retry_step` asks for that."""
        assert self.loop is not None
        for attempt in range(1, self._setup.step_attempts + 1):
            self.loop.doing(number, self.first + k, STEP)  # each attempt has its own time
            try:
                return self.envs[k].stepper.step(action)
            except Exception as error:
                self.leave_if_forked(error)
                if attempt == self._setup.step_attempts:
                    raise
                time.sleep(self._setup.retry_waiting_time)
        raise AssertionError

    def autoreset(self, env_id: int, plane: int, number: int) -> tuple[Any, Any]:
        """Reset an env whose episode has just ended."""
        return self._reset(env_id, plane, number, None, None)

    def command(self, env_id: int, number: int, code: int, plane: int, has_payload: bool, keep: bool) -> None:
        """Carry out everything but a plain step: resets, also those that a step in next_step mode turns into, calls."""
        assert self.loop is not None
        self.number = number
        if code == _port.CALL:
            self._call(env_id, number)
            return
        try:
            seed = options = None
            if code == _port.RESET and has_payload:
                asked = unpack_info(self.payload(env_id))
                seed, options = asked["seed"], asked["options"]
            obs, info = self._reset(env_id, plane, number, seed, options)
            if not keep:
                self._reward[plane, env_id] = 0
            self.loop.write_row(env_id, plane, obs, info, keep)
            self.loop.set_over(env_id, False)
        except BaseException as error:
            self.failed(env_id, plane, error, "reset", keep)

    def _reset(
        self, env_id: int, plane: int, number: int, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, Any]:
        assert self.loop is not None
        self.loop.doing(number, env_id, RESET)
        if self.binders is not None:
            bind = self.binders[env_id - self.first]
            if bind is not None:
                bind(plane)
        answer = self.envs[env_id - self.first].reset(seed, options)
        self.leave_if_forked()
        return answer

    def failed(self, env_id: int, plane: int, error: BaseException, command: str, keep: bool) -> None:
        """Publish an exception in place of a row; with `keep`, beside the row of the step that ended the episode."""
        assert self.loop is not None
        self.leave_if_forked(error)
        self.loop.set_over(env_id, True)
        try:
            self.loop.write_error(env_id, plane, codec.dump((command, codec.dump_error(error))), keep)
        except ResourceError:  # for longer records, too
            record = codec.dump_short_error(error, NOTE_BYTES, lambda short: codec.dump((command, short)))
            self.loop.write_error(env_id, plane, record, keep)

    def _call(self, env_id: int, number: int) -> None:
        assert self.loop is not None and self.calls is not None
        self.loop.doing(number, env_id, CALL)
        try:
            kind, name, args, kwargs = codec.load(self.payload(env_id))
            record, status = self.answer(env_id, kind, name, args, kwargs)
        except BaseException as error:
            record, status = codec.dump_error(error), 1
        self._write_answer(env_id, record, status)

    def _write_answer(self, env_id: int, record: bytes, status: int) -> None:
        assert self.calls is not None
        try:
            self.calls.write(env_id, record, status)
        except ResourceError as error:  # the env's own error may be what is too long
            if status:
                remote = codec.load_error(record)
                error = ResourceError(error.errno, f"{remote.type_name}: {remote.message[:40]} ({error.strerror})")
            self.calls.write(env_id, codec.dump_short_error(error, NOTE_BYTES), 1)

    def answer(self, env_id: int, kind: str, name: str, args: Any, kwargs: Any) -> tuple[bytes, int]:
        """Carry out a call: the pickled result and 0, or an error record and 1."""
        try:
            env, result = self.envs[env_id - self.first], None
            if kind == "set":
                env.set_attribute(name, args[0])
            else:
                result = env.attribute(name)
                if kind == "call" and callable(result):
                    result = result(*args, **kwargs)
                elif kind == "call" and (args or kwargs):
                    raise TypeError(f"{name!r} is no method, so it takes no arguments")
            self.leave_if_forked()
            return codec.dump(result), 0
        except BaseException as error:
            self.leave_if_forked(error)
            return codec.dump_error(error), 1

    # -- a process that an env forked

    def leave_if_forked(self, error: BaseException | None = None) -> None:
        """End a process that an env forked and that has come back here: it must not serve beside this worker."""
        if os.getpid() != self._pid:
            self.leave(error)

    def leave(self, error: BaseException | None = None) -> NoReturn:
        """End such a process, with what it raised on stderr, as it would have by itself."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        if isinstance(error, SystemExit) and isinstance(error.code, int | None):  # it has not come back, but ended
            os._exit((error.code or 0) & 0xFF)
        with contextlib.suppress(Exception):
            if error is not None:
                traceback.print_exception(error)
            name = f"process {os.getpid()}, which an env of worker {self._setup.worker_id} forked"
            print(f"shmenv: {name}, came back from the env's code, and is ended", file=sys.stderr, flush=True)
        os._exit(1)

    # -- end

    def close(self) -> None:
        """Close every env. What an env raises there is left in its call area, where the manager finds it."""
        for env_id, env in zip(self._setup.ids, self.envs, strict=False):
            if self.loop is not None:
                self.loop.doing(self.number, env_id, CLOSE)
            try:
                env.close()
                self.leave_if_forked()
            except BaseException as error:
                self.leave_if_forked(error)
                if self.calls is not None:
                    self._write_answer(env_id, codec.dump_error(error), 1)
