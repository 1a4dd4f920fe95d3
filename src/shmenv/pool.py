"""The batch-first public object: many envs in worker processes, stepped through shared memory."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal, NoReturn

import numpy as np

from shmenv import _port, codec, cpu, starting
from shmenv._mail import Mail
from shmenv._turn import Turn
from shmenv.arguments import (
    EnvIds,
    PackedOptions,
    check_choice,
    check_pause,
    check_range,
    check_seconds,
    deadline_ns,
    dumped,
    dumped_env_fns,
    env_ids,
    listed_env_fns,
    mp_context,
    reset_payloads,
)
from shmenv.batch import Array, Batch
from shmenv.errors import ClosedError, UnequalEnvsError, UsageError
from shmenv.exchange import Exchange
from shmenv.failures import raised_error
from shmenv.fit import Strictness
from shmenv.handle import Handle
from shmenv.limits import Limits
from shmenv.plan import AUTORESET_MODES, Plan, split
from shmenv.policy import Policy
from shmenv.segment import ProcessHandle, Segment, Spill, StackLog
from shmenv.supervisor import Supervisor
from shmenv.worker import Question, Report, Setup

logger = logging.getLogger("shmenv")

OWN_METHODS = {"reset": "reset()", "step": "step() or send()", "close": "close()"}


class Pool:
    """Steps n envs in worker processes and hands out what they answer as batches of arrays.

    Lock-step: `reset()`, then `step(action)` for all envs. First-k: `send(action, env_id)` and `recv()`, which returns
    as soon as enough envs are ready. Both can be mixed. Each env is idle, pending (its answer is owed), in need of a
    reset (at first, and after an error), or lost with its worker.

    Args:
        env_fns: n functions that take no argument and return an env: Gymnasium's manner, DI-engine's, or a PettingZoo
            parallel env. They run in the workers only, pickled by cloudpickle.
        num_workers: processes, at least 1; more than n are n. None: the usable cores (affinity and cgroup quota). Envs
            i to j of one worker run one after another and are lost together.
        batch_size: rows of a plain `recv()`, 1 to n. None: n.
        context: start method of the workers, or a multiprocessing context. None: "forkserver".
        autoreset: what happens when an episode ends. "same_step": the env is reset at once, obs and info are the new
            episode's, final_obs and final_info the ended one's. "next_step": the env's next step resets it instead,
            whatever the action. "disabled": the env needs `reset(env_id=...)`.
        on_error: what a failed step gives. "raise": an exception; the env then needs a reset. "restart": a loss row
            (reward 0, truncated, `info["abnormal"]` and `info["error"]`, final_obs the last observation delivered) and
            a fresh episode. A worker that ends is replaced either way.
        step_timeout, reset_timeout: seconds that one step or reset of one env may take, native code included, before
            its worker is killed. None: for ever.
        max_retry: attempts of a reset in total, of those that raise or take too long. One whose worker ends otherwise
            counts too, but with on_error="restart": then it is repeated as long as the worker is replaced.
        retry_type: further attempts in the same process ("reset"), or in a new one ("renew").
        retry_waiting_time: seconds between two attempts.
        retry_step: repeat a step that raised, with the same action, up to max_retry attempts in total. Only for envs
            whose failed step has changed nothing.
        max_restarts: how often one worker is replaced within `restart_period` seconds: the first time at once, then
            after 0.1 s, 0.2 s and so on. After that its envs are lost for good.
        restart_period: see max_restarts.
        on_restart: called with (env_id, reason) in the caller's thread for each env whose worker is replaced. It must
            not use the pool, except to close it. What it raises is logged.
        recycle_after: episodes after which a worker is replaced as soon as none of its envs is pending; episodes that
            it was playing end in a loss row. None: never.
        copy: hand out copies only. Otherwise batches are views where they can be; see `Batch`.
        affinity: None leaves placement to the kernel. "spread" pins each worker to a core of its own, for those
            who own the machine. A list of cores: those are taken in turn.
        slots: rows an env has for its observations, a power of two from 2 on: in lock-step a view is valid for `slots`
            steps, otherwise at least until the second next step of one of its envs.
        shared_memory: False pickles observations whole; batch.obs is then a tuple of n objects. Where a space is
            declared they must fit it as with True, and come as it says.
        strict_dtype: refuse observations whose dtype is not exactly the declared one. Otherwise they are converted
            where no information of kind is lost (numpy's "same_kind"), integers range-checked. "integers" also refuses
            integers that a float would round.
        worker_init: called with the worker's number in each worker, before any env is built.
        start_timeout: seconds for the workers to build all envs, and for a worker that replaces another to build each.
            None waits for ever.
        close_timeout: seconds that `close` gives the workers to close their envs before they are killed.
        debug: overwrite rows with garbage before they are used again, so that the use of an expired view shows.
        reset_first: refuse to step an env that was never reset. False leaves that to the envs.
        deferred: start worker 0 only, for `ask_first`; the pool is closed until `start` has started the others.

    Raises:
        UsageError: an argument is wrong, or the envs' spaces differ in shape or dtype.
        EnvError: a constructor raised. WorkerTimeoutError: one hung. WorkerDiedError: a worker ended.
        ResourceError: too little memory, or no more processes. After any error nothing is left behind.
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Any]],
        num_workers: int | None = None,
        batch_size: int | None = None,
        context: str | multiprocessing.context.BaseContext | None = None,
        autoreset: Literal["same_step", "next_step", "disabled"] = "same_step",
        on_error: Literal["raise", "restart"] = "raise",
        step_timeout: float | None = None,
        reset_timeout: float | None = None,
        max_retry: int = 1,
        retry_type: Literal["reset", "renew"] = "reset",
        retry_waiting_time: float = 0.1,
        retry_step: bool = False,
        max_restarts: int = 10,
        restart_period: float = 60.0,
        on_restart: Callable[[int, str], object] | None = None,
        recycle_after: int | None = None,
        copy: bool = False,
        affinity: Literal["spread"] | Sequence[int] | None = None,
        slots: int = 2,
        shared_memory: bool = True,
        strict_dtype: Strictness = False,
        worker_init: Callable[[int], object] | None = None,
        start_timeout: float | None = 300.0,
        close_timeout: float = 2.0,
        debug: bool = False,
        reset_first: bool = True,
        deferred: bool = False,
    ) -> None:
        turn = self._turn = Turn()  # closed until the pool is open
        starting.refuse_in_starting_process()
        env_fns = listed_env_fns("env_fns", env_fns)
        n = len(env_fns)
        if num_workers is None:
            num_workers = min(n, cpu.usable_cores())
        num_workers = min(n, check_range("num_workers", num_workers, 1, 2**31))
        batch_size = n if batch_size is None else batch_size
        check_range("batch_size", batch_size, 1, n, "as many as envs")
        check_choice("autoreset", autoreset, AUTORESET_MODES)
        check_choice("on_error", on_error, ("raise", "restart"))
        _check_retries(max_retry, retry_type, retry_waiting_time)
        check_range("max_restarts", max_restarts, 0, 2**31)
        if recycle_after is not None:
            check_range("recycle_after", recycle_after, 1, 2**31)
        for name, seconds in (("step_timeout", step_timeout), ("reset_timeout", reset_timeout)):
            check_seconds(name, seconds, optional=True)
            if seconds == 0:
                raise UsageError(f"{name} must be more than 0 seconds")
        check_seconds("restart_period", restart_period)
        if not isinstance(slots, int | np.integer) or slots not in (2, 4, 8, 16, 32, 64, 128):
            raise UsageError(f"slots must be a power of two from 2 to 128, not {slots!r}")
        slots = int(slots)
        check_seconds("start_timeout", start_timeout, optional=True)
        check_pause("close_timeout", close_timeout)
        cores = cpu.pin_plan(affinity, num_workers)
        for name, hook in (("worker_init", worker_init), ("on_restart", on_restart)):
            if hook is not None and not callable(hook):
                raise UsageError(f"{name} must be a function, not {hook!r}")
        for name, flag in (
            ("copy", copy),
            ("debug", debug),
            ("retry_step", retry_step),
            ("shared_memory", shared_memory),
            ("strict_dtype", strict_dtype == "integers" or strict_dtype),
            ("reset_first", reset_first),
            ("deferred", deferred),
        ):
            if not isinstance(flag, bool | np.bool_):
                raise UsageError(f"{name} must be True or False, not {flag!r}")
        start_context = mp_context(context)
        starting.warn_of_threads(start_context.get_start_method())
        starting.check_descriptors(num_workers)

        self._num_envs, self._num_workers, self._batch_size = n, num_workers, batch_size
        self._closing, self._is_closed = threading.RLock(), False
        self._started = time.monotonic()
        ranges = split(n, num_workers)
        waits = cpu.choose_waits(num_workers)

        with_cleanup: list[Any] = []
        try:
            segment, spill, stacks = Segment("pool"), Spill(Plan.regions_for(n, slots)), StackLog()
            manager, factories = ProcessHandle(), Spill(num_workers)
            with_cleanup += [segment, spill, stacks, manager, factories]
            # In a file: what is longer than a pipe holds would make each start wait until the new process reads it.
            lengths = []
            for worker_id, ids in enumerate(ranges):
                record = dumped_env_fns(env_fns, ids)
                factories.write(worker_id, record)
                lengths.append(len(record))
            init = b"" if worker_init is None else dumped("worker_init", worker_init, codec.dump_factory)
            entropy = int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]

            def setup(worker_id: int, generation: int, conn: Connection, plan: Plan | None) -> Setup:
                return Setup(
                    worker_id, ranges[worker_id], generation, factories, lengths[worker_id], init, manager, conn,
                    segment, spill, stacks, entropy, cores[worker_id], shared_memory, strict_dtype,
                    waits, limits.timed, max_retry if retry_step else 1,
                    retry_waiting_time, plan,
                )  # fmt: skip

            limits = Limits(start_timeout, reset_timeout, step_timeout, close_timeout, max_restarts, restart_period)
            workers = self._workers = Supervisor(start_context, ranges, setup, stacks, limits)
            with_cleanup.insert(0, workers)
            policy = self._policy = Policy(
                on_error == "restart", max_retry, retry_type == "renew", retry_waiting_time, on_restart, recycle_after
            )

            def complete() -> tuple[Plan, tuple[bytes, bytes], Exchange]:
                reports = workers.start()
                plan = _plan(reports, ranges, slots, autoreset)
                segment.allocate(plan.layout.size, plan.purpose)
                spreader = cpu.Spreader() if affinity is None and num_workers > 1 else None
                exchange = Exchange(
                    plan, segment, spill, workers, policy, turn,
                    copy=copy, debug=debug, waits=waits, spreader=spreader, reset_first=reset_first,
                )  # fmt: skip
                workers.watch(exchange.port, segment, plan)
                workers.go(plan)
                return plan, (reports[0].obs_space, reports[0].action_space), exchange

            if deferred:
                workers.start(first_only=True)
        except BaseException:
            _undo(with_cleanup)
            raise
        self._complete: Callable[[], tuple[Plan, tuple[bytes, bytes], Exchange]] | None = complete
        self._finalizer = weakref.finalize(self, _undo, with_cleanup)
        self._finalizer.atexit = False  # the supervisor has its own, earlier place at exit
        if not deferred:
            self.start()

    def start(self) -> None:
        """Start the workers that `deferred` has left out, and open the pool. Errors are those of the constructor."""
        complete, self._complete = self._complete, None
        if complete is None:
            raise UsageError("start: the pool was started before")
        try:
            self._plan, self._spaces, self._exchange = complete()
        except BaseException:
            self._finalizer()
            raise
        self._seeds = self._exchange.seeds
        self._turn.closed = False
        _remember(self)

    def ask_first(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """As `call` of env 0, but only before `start` of a deferred pool."""
        if self._complete is None:
            raise UsageError("ask_first: the pool was started; use call(..., env_id=0)")
        return self._workers.ask_first(Question(name, args, kwargs))

    # -- what it is

    @property
    def num_envs(self) -> int:
        """How many envs there are."""
        return self._num_envs

    @property
    def num_workers(self) -> int:
        """How many worker processes run them."""
        return self._num_workers

    @property
    def observation_space(self) -> Any:
        """The space that env 0 declares for one observation; None if it declares none."""
        return self._space(0, "observation")

    @property
    def action_space(self) -> Any:
        """The space that env 0 declares for one action; None if it declares none."""
        return self._space(1, "action")

    def _space(self, k: int, what: str) -> Any:
        try:
            return codec.load_foreign(self._spaces[k])
        except Exception as error:
            where = f"the {what} space of env 0 cannot be unpickled here"
            raise raised_error(self._workers.handles[0], 0, "construct", where, codec.dump_error(error)) from error

    @property
    def pending(self) -> int:
        """How many envs owe an answer that `recv` still gets, be it a row or an error."""
        return 0 if self._turn.closed else self._whole_exchange().pending

    @property
    def pending_ids(self) -> list[int]:
        """The envs whose row `recv` still gets. An env whose answer is lost is not among them."""
        return [] if self._turn.closed else [env_id for env_id, _ in self._whole_exchange().port.owed()]

    @property
    def needs_reset_ids(self) -> list[int]:
        """The envs that take no step until they are reset, as far as is known; or never again, if they are lost.

        What they still owe comes by `recv`.
        """
        return [] if self._turn.closed else self._whole_exchange().needs_reset_ids()

    @property
    def closed(self) -> bool:
        """Whether the pool is closed."""
        return self._turn.closed

    @property
    def seeds(self) -> list[int | None]:
        """The last seed given to each env, by you or as it started anew in a new process; None where none was."""
        return [self._seeds.current(i) for i in range(self._num_envs)]

    @property
    def last_batch(self) -> Batch | None:
        """The newest batch that `reset`, `step` or `recv` has returned; None before, and once the pool is closed.

        It is what you need after a signal handler has raised while a call returned: its rows are no longer owed, though
        you did not get them, if this is another batch than the last one that you have.
        """
        last: Batch | None = self._turn.last
        return last

    def __len__(self) -> int:
        return self._num_envs

    def __repr__(self) -> str:
        state = "closed" if self._turn.closed else f"{self.pending} pending"
        return f"Pool({self._num_envs} envs, {self._num_workers} workers, {state})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Pool holds processes: it can be neither pickled nor copied")

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- reset

    def reset(
        self,
        seed: int | np.integer[Any] | Sequence[int | None] | Array | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
        env_id: EnvIds = None,
    ) -> Batch:
        """Reset envs and wait for their first observations.

        Args:
            seed: an int gives env i the seed `seed + i`, whatever the number of workers; a sequence gives one each to
                the envs that are reset, in the order of env_id; None leaves it to the envs. An env that later
                starts anew in a new process gets its seed plus num_envs, plus 2 num_envs the next time, and so on.
            options: one dict for all, or a sequence of one each, like the seeds. Not kept for later resets.
            env_id: which envs; they must not be pending. None: all, and what is pending is waited for and discarded.

        Returns:
            A batch of the envs that were reset: reward 0, flags False. A view for all envs, a copy for some.

        Raises:
            EnvError: an env's reset raised; it still needs a reset. The other rows come with the next recv().
            WorkerDiedError: an env is lost.
            UsageError, ClosedError: nothing was sent.
        """
        with self._turn:
            exchange = self._own_exchange()
            ids, seeds, payloads = _begin_reset(exchange, seed, options, env_id)
            if env_id is None:
                exchange.discard()
                exchange.seeds.give(ids, seeds)
                exchange.command(None, _port.RESET, payloads, exchange.next_plane(), whole=True)
                return self._turn.returns(exchange.collect_all())
            exchange.check_resettable(ids)
            exchange.seeds.give(ids, seeds)
            exchange.command(ids, _port.RESET, payloads, whole=True)
            return self._turn.returns(exchange.collect_some(ids))

    def send_reset(
        self,
        seed: int | np.integer[Any] | Sequence[int | None] | Array | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | PackedOptions | None] | None = None,
        env_id: EnvIds = None,
    ) -> None:
        """Reset envs without waiting for them; their rows, reward 0 and flags False, come with `recv`.

        Arguments and errors are those of `reset`, but no env may be pending.
        """
        with self._turn:
            exchange = self._own_exchange()
            ids, seeds, payloads = _begin_reset(exchange, seed, options, env_id)
            exchange.check_resettable(ids)
            exchange.seeds.give(ids, seeds)
            exchange.command(ids, _port.RESET, payloads, whole=False)

    def go_on(self, env_id: EnvIds, on: bool) -> None:
        """Have some envs reset by their workers as soon as an episode ends. Only with autoreset "disabled", no debug.

        The step's row comes as ever, before the reset is done. That one may write over the row before the step's: with
        two slots a view is valid until the next step only. The next `send_reset` of the env, or `reset` with its id,
        then sends nothing: it takes up what is under way, unless this was switched off by then. With a seed or options
        it resets the env once more, and so does `reset` of all.

        Args:
            env_id: which envs; from their next step on.
            on: whether they do.

        Raises:
            UsageError: the pool has another mode, or an id is unknown. ClosedError: the pool is closed.
        """
        exchange: Exchange | None = getattr(self, "_exchange", None)
        if exchange is None:
            raise ClosedError("the pool is closed")
        exchange.go_on(env_ids(env_id, exchange.all_ids)[0], on)

    def take_resets(self, env_id: EnvIds) -> tuple[list[int], Any]:
        """Take up, without waiting, what envs have done that `go_on` by themselves and whose last step was received.

        Args:
            env_id: at least one of those envs.

        Returns:
            The envs of them whose reset is done, and their observations as `recv` would give them, in memory of their
            own; None where there is no env. All others, failed resets too, are for `send_reset`.

        Raises:
            UsageError: an id is unknown or repeated, or an answer of the env is pending.
            ClosedError: the pool is closed.
        """
        with self._turn:
            exchange = self._own_exchange()
            ids = env_ids(env_id, exchange.all_ids)[0]
            exchange.check_not_pending(ids, "taken up")
            done, obs = exchange.take_resets(ids)
        return done.tolist(), obs

    def set_retries(
        self, max_retry: int, retry_type: Literal["reset", "renew"] = "reset", retry_waiting_time: float = 0.1
    ) -> None:
        """Change how a reset that failed is tried again, from the next failure on.

        Arguments and errors are those of the constructor. What `retry_step` does stays as it was.
        """
        _check_retries(max_retry, retry_type, retry_waiting_time)
        policy = self._policy
        policy.max_retry, policy.renew, policy.retry_waiting_time = max_retry, retry_type == "renew", retry_waiting_time

    # -- lock-step

    def step(self, action: Any) -> Batch:
        """Step all envs once, and wait for all of them.

        Args:
            action: batched as Gymnasium's `batch_space` does, (n, *shape) arrays nested like the action space, or a
                list of n single actions. Anything that is no value of the space travels pickled in such a list.
                Captured before the envs start; yours to change afterwards.

        Returns:
            A batch of all n envs. A view (unless `copy=True`), valid until the second next step.

        Raises:
            EnvError: an env raised. Its worker lives; reset that env. The other rows come with the next recv().
            WorkerDiedError, WorkerTimeoutError: a worker ended (see on_error and max_restarts for its envs). The other
                rows come with the next recv().
            UsageError: wrong actions, or an env is pending or needs a reset. Nothing was sent.
            ClosedError: the pool is closed.
            KeyboardInterrupt: Ctrl-C; the rows come with the next recv().
        """
        with self._turn:
            exchange = self._own_exchange()
            exchange.check_all_ready()
            payloads = exchange.actions.write(action, None)
            exchange.command(None, _port.STEP, payloads, exchange.next_plane(), whole=True)
            return self._turn.returns(exchange.collect_all())

    # -- first-k

    def send(self, action: Any, env_id: EnvIds = None) -> None:
        """Step some envs without waiting for them; `recv` gets their answers.

        Args:
            action: as for `step`, one for each id, in the order of env_id.
            env_id: the envs, each once. None: all.

        Raises:
            UsageError: an id is unknown, repeated, pending, or its env needs a reset; or the actions are wrong. Nothing
                was sent.
            WorkerDiedError: an env is lost. Nothing was sent. ClosedError: the pool is closed.
        """
        with self._turn:
            exchange = self._own_exchange()
            if env_id is None:  # as in `step`
                exchange.check_all_ready()
                payloads = exchange.actions.write(action, None)
                exchange.command(None, _port.STEP, payloads, exchange.next_plane(), whole=False)
                return
            ids, order = env_ids(env_id, exchange.all_ids)
            exchange.check_ready(ids)
            payloads = exchange.actions.write(action, order)
            if payloads is not None:
                payloads = [payloads[k] for k in np.argsort(order).tolist()]
            exchange.command(ids, _port.STEP, payloads, whole=False)

    def recv(self, min_envs: int | None = None, timeout: float | None = None, out: Batch | None = None) -> Batch:
        """Wait until enough stepped envs are ready, and return their timesteps.

        Envs that are not ready stay pending and come with a later call, so one slow env does not hold up the rest.
        Which of more ready envs come first rotates, so none starves.

        Args:
            min_envs: return all that are ready, at least so many, 1 to the number pending. None: exactly the pool's
                batch size, or all that are pending if they are fewer.
            timeout: seconds for the whole call. None waits for ever, 0 only polls.
            out: a batch that owns its memory, with as many rows as come; it is filled and returned.

        Returns:
            A batch in ascending env_id: obs as the space, (n, *obs_shape); reward float64 (n,); terminated, truncated
            bool (n,). A view of shared memory if the env ids are consecutive and on one plane, else a copy;
            `batch.is_view` says which. A view is valid until the second next step of one of its envs.

        Raises:
            UsageError: nothing is pending, min_envs is out of range, or out does not fit. Nothing changed.
            RecvTimeoutError: time ran out. Every pending env still is; call again.
            EnvError: an env raised. Its worker lives; reset that env. The other rows come with the next recv().
            WorkerDiedError, WorkerTimeoutError: a worker ended (see on_error and max_restarts for its envs). The other
                rows come with the next recv().
            ClosedError: the pool is closed, or was closed by another thread meanwhile.
        """
        with self._turn:
            exchange = self._own_exchange()
            check_seconds("timeout", timeout, optional=True)
            exchange.tell_troubles()
            pending = exchange.port.pending
            if not pending:
                raise UsageError("recv: no env is pending; send() first")
            need = min(self._batch_size, pending)
            if min_envs is not None:
                need = check_range("min_envs", min_envs, 1, pending, "so many envs are pending")
            if out is not None:
                exchange.check_out(out, need)
            most = need if min_envs is None or out is not None else self._num_envs
            return self._turn.returns(exchange.collect_ready(need, most, deadline_ns(timeout), timeout, out))

    # -- everything else of an env

    def call(self, name: str, *args: Any, env_id: EnvIds = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute that is none. It waits for pending steps.

        Args:
            name: looked up through Gymnasium's wrappers.
            *args: positional arguments, pickled to each env.
            env_id: which envs. None: all.
            **kwargs: keyword arguments, likewise.

        Returns:
            One result an env, pickled on its way, in the order of env_id.

        Raises:
            EnvError: it raised in an env (the original, such as AttributeError, is the `__cause__`). The other results
                are dropped; env and worker go on. WorkerDiedError: an env is lost.
        """
        if isinstance(name, str) and name in OWN_METHODS:
            raise UsageError(f"{name!r} is not to be called by name: use {OWN_METHODS[name]}")
        return self._ask("call", name, [(args, kwargs)], env_id)

    def get_attr(self, name: str, env_id: EnvIds = None) -> tuple[Any, ...]:
        """Read an attribute of each env. As `call`, but methods are not called."""
        return self._ask("get", name, [((), {})], env_id)

    def set_attr(self, name: str, values: Any, env_id: EnvIds = None) -> None:
        """Set an attribute of each env, where it is found among its wrappers.

        Args:
            name: the attribute.
            values: a list or tuple of one for each env, or one value for all.
            env_id: which envs. None: all.
        """
        count = len(env_ids(env_id, np.arange(self._num_envs, dtype=np.uint32))[0])
        each = values if isinstance(values, list | tuple) else [values] * count
        if len(each) != count:
            raise UsageError(f"set_attr: {count} envs, but {len(each)} values; one value for all must not be a list")
        self._ask("set", name, [((value,), {}) for value in each], env_id)

    def render(self, env_id: EnvIds = None) -> tuple[Any, ...]:
        """What each env's `render()` returns."""
        return self._ask("call", "render", [((), {})], env_id)

    def _ask(self, kind: str, name: str, arguments: list[tuple[Any, Any]], env_id: EnvIds) -> tuple[Any, ...]:
        with self._turn:
            exchange = self._own_exchange()
            if not isinstance(name, str):
                raise UsageError(f"the name of an attribute must be a str, not {name!r}")
            ids, order = env_ids(env_id, exchange.all_ids)
            payloads = [dumped(f"the arguments of {name!r}", (kind, name, *each)) for each in arguments]
            exchange.check_not_lost(ids)
            exchange.check_told(ids)
            exchange.settle(ids)  # an env answers its step first; that row stays where it is and is received later
            exchange.tell_troubles(ids)
            exchange.inbound.write_all(order, payloads * len(order) if len(payloads) == 1 else payloads)
            exchange.ask(ids)
            answers = {i: _answer(exchange.calls, i) for i in ids.tolist()}
            if exchange.closing:  # by a signal handler just now, perhaps before they were read
                raise ClosedError("the pool was closed while this call waited")
            for i, (record, status) in answers.items():
                if status:
                    raise exchange.whereabouts.env_error(
                        i, "call", record, f"It was asked for {name!r}. Env and worker go on."
                    )
            return tuple(answers[i][0] for i in order.tolist())

    def stats(self) -> dict[str, Any]:
        """Counters since the pool was made. Any thread may call this at any time.

        Returns:
            num_envs, num_workers, steps (of envs), steps_per_second, segment_bytes, copied_bytes (gathered by this
            process into batches that are no views), and of the waits for results spins,
            parks and heartbeats (sleeps that no result ended: all idle, or a lost wake-up); restarts and recycled
            (workers replaced), timeouts (workers killed for one), losses (loss rows). `workers` is a list of dicts:
            worker_id, pid (None until the successor of a dead one is under way), env_ids, alive, steps, busy_seconds,
            wait_seconds, spins, parks.
        """
        exchange = getattr(self, "_exchange", None)  # close() takes it away, perhaps in another thread and just now
        return self._final_stats if exchange is None else self._stats(exchange)

    def _stats(self, exchange: Exchange) -> dict[str, Any]:
        port = exchange.port
        workers: list[dict[str, Any]] = []
        for handle in self._workers.handles:
            _, steps, busy_ns, wait_ns, spins, parks, _ = port.account(handle.worker_id)
            workers.append({
                "worker_id": handle.worker_id,
                "pid": handle.pid,
                "env_ids": list(handle.ids),
                "alive": self._workers.is_alive(handle),
                "steps": steps,
                "busy_seconds": busy_ns * 1e-9,
                "wait_seconds": wait_ns * 1e-9,
                "spins": spins,
                "parks": parks,
            })  # fmt: skip
        steps = sum(each["steps"] for each in workers)
        spins, parks, heartbeats = port.waits
        return {
            "num_envs": self._num_envs,
            "num_workers": self._num_workers,
            "steps": steps,
            "steps_per_second": steps / (time.monotonic() - self._started),
            "segment_bytes": self._plan.layout.size,
            "copied_bytes": port.copied,
            "spins": spins,
            "parks": parks,
            "heartbeats": heartbeats,
            **exchange.counts,
            "workers": workers,
        }

    # -- end

    def close(self, timeout: float | None = None) -> None:
        """End the workers and free the memory. Idempotent, from any state and any thread; never raises for an env.

        When it returns, the workers have ended, whichever thread was the first to close. Only a signal handler that
        runs inside a close, and closes too, cannot wait for that.

        Envs are closed in their workers; what they raise there is logged. Steps at hand are finished if that takes no
        longer than `timeout`; else a warning is logged with the worker's stack, and SIGTERM and then SIGKILL end its
        process group. A call that blocks in another thread raises ClosedError. Arrays of earlier batches stay readable
        as long as you hold them.

        Args:
            timeout: seconds. None: the pool's `close_timeout`.
        """
        if timeout is not None:
            check_pause("timeout", timeout)
        with self._closing:  # another thread waits here; a signal handler inside a close does not
            if self._is_closed:
                return
            self._is_closed = True
            if self._complete is not None:  # deferred, and never started
                self._complete = None
                self._finalizer()
            elif not self._turn.closed:
                self._close(timeout)

    def _close(self, timeout: float | None) -> None:
        exchange, turn = self._exchange, self._turn
        mine = turn.owner == threading.get_ident()  # a signal handler's close inside a call of this pool
        try:
            turn.closed = exchange.closing = True
            exchange.port.alert()
            if not mine:
                turn.wait()
            exchange.calls.clear()
            self._workers.stop(timeout, self._tell_unclosed)
            for i in range(self._num_envs):
                if exchange.calls.status(i):
                    remote = codec.load_error(_answer(exchange.calls, i)[0])
                    text = "env %d raised in close: %s: %s\n%s"
                    logger.warning(text, i, remote.type_name, remote.message, remote.traceback_text)
        finally:  # also when Ctrl-C ends it early
            turn.closed, turn.last = True, None
            self._final_stats = self._stats(exchange)
            self._finalizer()
            exchange.release()
            del self._exchange  # the segment is freed with the last view of it that the caller holds

    # -- inside

    def _tell_unclosed(self, workers: list[Handle]) -> None:
        """These did not end in time; what the first was at is what keeps it."""
        doing = self._exchange.whereabouts.doing(workers[0])[2]
        logger.warning("%s", self._workers.coroner.close_timed_out(workers, doing))

    def _disown(self) -> None:
        """Called by: a child process, right after the fork."""
        if not self._turn.closed:
            self._workers.disown()
        # Closed; the old ones are perhaps held by a thread that the child does not have.
        self._turn, self._closing = Turn(), threading.RLock()

    def _own_exchange(self) -> Exchange:
        """The exchange, for the one call whose turn it is."""
        exchange: Exchange | None = getattr(self, "_exchange", None)
        if exchange is None:  # a signal handler has closed the pool just now
            raise ClosedError("the pool is closed")
        if self._turn.interrupted:
            self._whole_exchange()
        if exchange.unconfirmed is not None:
            exchange.confirm()
        return exchange

    def _whole_exchange(self) -> Exchange:
        """The exchange, whole again if Ctrl-C cut the last call short, and none is under way."""
        exchange, turn = self._exchange, self._turn
        if turn.interrupted and turn.owner in (None, threading.get_ident()):
            exchange.mend()
            turn.interrupted = 0
        return exchange


def _check_retries(max_retry: Any, retry_type: Any, retry_waiting_time: Any) -> None:
    check_range("max_retry", max_retry, 1, 2**31)
    check_choice("retry_type", retry_type, ("reset", "renew"))
    check_pause("retry_waiting_time", retry_waiting_time)


def _begin_reset(
    exchange: Exchange, seed: Any, options: Any, env_id: EnvIds
) -> tuple[Array, list[int | None], list[bytes] | None]:
    ids, order = env_ids(env_id, exchange.all_ids)
    seeds, payloads = reset_payloads(seed, options, order)
    exchange.check_not_lost(ids)
    return ids, seeds, payloads


def _plan(reports: list[Report], ranges: tuple[range, ...], slots: int, autoreset: str) -> Plan:
    """The memory that the envs need, if all need the same."""
    envs = [env for report in reports for env in report.envs]
    first = envs[0]
    for env_id, env in enumerate(envs):
        for what, one, other in (
            ("observations", first.obs_node, env.obs_node),
            ("actions", first.action_node, env.action_node),
            ("rewards", first.reward_shape, env.reward_shape),
        ):
            if one != other:
                text = f"all envs need the same {what}: env 0 has {one}, env {env_id} has {other}"
                raise UnequalEnvsError(text, what=what)
    return Plan(len(envs), ranges, slots, autoreset, first.obs_node, first.action_node, first.reward_shape)


_live: weakref.WeakSet[Pool] = weakref.WeakSet()
_registered = False


def _remember(pool: Pool) -> None:
    """Have a child that the user forks while the pool is open find it closed: the workers are not the child's."""
    global _registered
    _live.add(pool)
    if not _registered:
        os.register_at_fork(after_in_child=_disown_all)
        _registered = True


def _disown_all() -> None:
    for pool in list(_live):
        pool._disown()


def _undo(things: list[Any]) -> None:
    """Stop the workers and close the descriptors of a pool that failed to open, was closed, or was forgotten."""
    for thing in things:
        thing.stop() if isinstance(thing, Supervisor) else thing.close()


def _answer(calls: Mail, env_id: int) -> tuple[Any, int]:
    """What an env answered to a call and 0, or an error record and another number."""
    try:
        record, status = calls.read(env_id), calls.status(env_id)
        return (record, status) if status else (codec.load_foreign(record), 0)
    except Exception as error:  # its class is not known here, or the worker has overwritten it
        return codec.dump_error(error), 1
