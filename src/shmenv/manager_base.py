"""What the env managers are besides their loop: life, config, seeds, and everything of an env that goes by name."""

from __future__ import annotations

import copy
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar, NoReturn, Self

from shmenv import manager_config
from shmenv._steps import ready
from shmenv._turn import Turn
from shmenv.arguments import PackedOptions, is_listing, listed_env_fns
from shmenv.errors import ClosedError, EnvError, ShmenvError, UsageError, WorkerError
from shmenv.layout import ObjectNode
from shmenv.managed import DESCRIBE, LOOK, SAVE_REPLAY, Description, ManagedEnv
from shmenv.manager_config import Config
from shmenv.manager_env import EnvProxy, ForwardingError, is_int, wait
from shmenv.pool import Pool
from shmenv.timestep import Odd, TimestepReader
from shmenv.unbroken import Unbroken


class EnvState(IntEnum):
    """What an env of a manager is doing."""

    VOID = 0  # there is no worker
    INIT = 1  # built, never reset
    RUN = 2  # ready for an action
    RESET = 3  # a reset is under way
    DONE = 4  # has played its episodes
    ERROR = 5  # failed, or said that it is abnormal; needs reset({id: ...})
    NEED_RESET = 6  # its episode is over and auto_reset is off; needs reset({id: ...})
    STEPPING = 7  # has an action whose timestep step() has not returned yet


class ManagerBase(ABC):
    """Everything of the managers but `reset`, `ready_obs` and `step`."""

    config: ClassVar[dict[str, Any]] = manager_config.ASYNC

    def __init__(self, env_fn: Iterable[Callable[[], Any]], cfg: Mapping[str, Any] | None = None) -> None:
        self._closed = True
        self._pool: Pool | None = None
        self._ending: Pool | None = None  # the last one that `close` has taken, or is about to end
        self._env_fn = listed_env_fns("env_fn", env_fn)
        self._cfg = manager_config.checked(self.config, cfg)
        self._env_num = n = len(self._env_fn)
        self._env_states = dict.fromkeys(range(n), EnvState.VOID)
        self._env_episode_count = dict.fromkeys(range(n), 0)
        self._ready_obs: dict[int, Any] = {}  # the newest observations; those of envs in RUN are shown
        self._owed: set[int] = set()  # envs with a command whose answer has not come
        self._resets: set[int] = set()  # those of them that are being reset, by `send_reset`
        self._held: dict[int, Any] = {}  # timesteps that have come for step() to return
        self._odd: dict[int, Odd] = {}  # those of them that are
        self._ended: set[int] = set()  # those of them that end an episode
        self._undelivered: dict[
            int, Any
        ] = {}  # taken over from there, but for a Ctrl-C step() would have returned them
        self._in_place: set[int] = set()  # those of them that get the observation of the reset under way
        self._unbroken = Unbroken(partial(_turn_of, weakref.ref(self)))
        self._failures: list[ShmenvError] = []  # errors that have come for the next call to raise
        self._doomed: set[int] = set()  # envs whose worker has ended since it gave the answer that they still owe
        self._reset_param: dict[int, dict[str, Any]] = {i: {} for i in range(n)}
        self._packed: dict[int, tuple[Any, PackedOptions]] = {}  # what resets without arguments are told, by env
        self._going_on: set[int] = set()  # envs whose workers begin the next reset by themselves
        self._env_seed: dict[int, int | None] = dict.fromkeys(range(n))
        self._env_seeding = dict.fromkeys(range(n), 0)
        self._env_dynamic_seed: bool | None = None
        self._generations = dict.fromkeys(range(n), 0)  # of the envs' workers
        self._seeded_at = dict.fromkeys(range(n), 0)  # the generation at the last seed()
        self._env_replay_path: dict[int, str | None] = dict.fromkeys(range(n))
        self._description: Description | None = None
        self._samples_from: Any = None  # the action space of random_action

    @classmethod
    def default_config(cls) -> Config:
        """All keys with their defaults, readable as attributes too; `manager_config.py` explains them."""
        config = copy.deepcopy(Config({**manager_config.ASYNC, **cls.config}))
        config.cfg_type = f"{cls.__name__}Dict"
        return config

    @property
    def cfg(self) -> Config:
        """A copy of the config, whole."""
        return Config(self._cfg)

    def change(self, **keys: Any) -> None:
        """Change the config of a manager that exists.

        What is for the manager itself and how resets are tried again counts at once. What is for the workers (timeouts,
        context, `num_workers` and the like) counts from the next `launch` on.

        Args:
            **keys: keys of `default_config()`.

        Raises:
            UsageError: a key is unknown or a value wrong. Nothing changed.
        """
        cfg = self._cfg = manager_config.checked(self.config, {**self._cfg, **keys})
        if self._pool is not None:
            self._pool.set_retries(max(1, cfg.max_retry), cfg.retry_type, cfg.retry_waiting_time)
        self._keep_going_on([i for i in self._going_on if self._may_go_on(i)])

    # -- what it is

    @property
    def env_num(self) -> int:
        """How many envs there are."""
        return self._env_num

    @property
    def closed(self) -> bool:
        """Whether it waits for `launch`, at first or after `close`."""
        return self._closed

    @property
    def done(self) -> bool:
        """Whether all envs have played their episodes."""
        return all(state == EnvState.DONE for state in self._env_states.values())

    def env_state_done(self, env_id: int) -> bool:
        """Whether this env has played its episodes."""
        return self._env_states[self._known(env_id)] == EnvState.DONE

    @property
    def ready_env(self) -> list[int]:
        """The envs that take an action now, ascending. Does not wait."""
        return list(ready(self._env_states, EnvState.RUN, self._env_states, self._undelivered))

    ready_obs_id = ready_env

    @property
    def active_env(self) -> list[int]:
        """The envs in an episode, ascending: ready, or with a timestep that `step` has not returned yet."""
        return [i for i, state in self._env_states.items() if state in (EnvState.RUN, EnvState.STEPPING)]

    @property
    def observation_space(self) -> Any:
        """Env 0's space of one observation. What is asked before `launch` starts worker 0, which is kept."""
        return self._describe().observation_space

    @property
    def action_space(self) -> Any:
        """Env 0's space of one action."""
        return self._describe().action_space

    @property
    def reward_space(self) -> Any:
        """Env 0's space of one reward; None if it tells none."""
        return self._describe().reward_space

    def env_info(self) -> Any:
        """What env 0's `info()` returns."""
        return self.env_ref.info()

    @property
    def env_ref(self) -> EnvProxy:
        """Env 0, which lives in its worker."""
        return EnvProxy(self._ask_first)

    @property
    def method_name_list(self) -> list[str]:
        """The env's methods that can be called through the manager. A subclass may name more."""
        return [
            "reset", "step", "seed", "close", "enable_save_replay", "render", "reward_shaping", "enable_save_figure",
        ]  # fmt: skip

    def __repr__(self) -> str:
        states = ", ".join(f"{i}: {state.name}" for i, state in self._env_states.items())
        return f"{type(self).__name__}({states})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} holds processes: it can be neither pickled nor copied")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- start and end

    def launch(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Start the workers, and reset all envs.

        Args:
            reset_param: as for `reset`, but for each env.

        Raises:
            UsageError: it is launched already, or reset_param does not name each env.
            EnvError, WorkerDiedError, WorkerTimeoutError, ResourceError: it did not succeed, and is closed again.
        """
        if not self._closed:
            raise UsageError("launch: it is launched already; close() first")
        if reset_param is not None and sorted(self._checked_params(reset_param)) != list(range(self._env_num)):
            raise UsageError(f"launch: reset_param must name each of the {self._env_num} envs")
        try:
            self._started()
            self._closed = False
            self._env_states.update(dict.fromkeys(range(self._env_num), EnvState.INIT))
            self._env_episode_count.update(dict.fromkeys(range(self._env_num), 0))
            self.reset(reset_param)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers. Idempotent, also from another thread; never raises for an env. `launch` works again."""
        pool = self._ending = self._pool or self._ending
        self._pool, self._closed = None, True
        if pool is not None:
            pool.close()  # also where another thread has begun to: it returns when the workers have ended
        self._env_states.update(dict.fromkeys(range(self._env_num), EnvState.VOID))
        for kept in (
            self._owed,
            self._resets,
            self._held,
            self._odd,
            self._ended,
            self._undelivered,
            self._in_place,
            self._failures,
            self._doomed,
            self._ready_obs,
            self._going_on,
        ):
            kept.clear()

    def _started(self) -> Pool:
        """The pool, with all its workers."""
        pool = self._begun(deferred=False)
        if pool.closed:
            pool.start()
        node = self._describe().obs_node if self._cfg.shared_memory else ObjectNode()
        self._reader = TimestepReader(node, copies=self._cfg.copy_on_get)
        return pool

    def _begun(self, deferred: bool) -> Pool:
        """The pool; if it is made now, with worker 0 only if `deferred`."""
        if self._pool is None:
            cfg = self._cfg
            for counts in (self._generations, self._seeded_at):
                counts.update(dict.fromkeys(range(self._env_num), 0))
            limits = [limit for limit in (cfg.reset_timeout, cfg.connect_timeout) if limit is not None]
            self._pool = Pool(
                [partial(ManagedEnv, env_fn) for env_fn in self._env_fn],
                num_workers=min(self._env_num, cfg.num_workers or self._env_num),
                context=cfg.context,
                autoreset="disabled",
                on_error="restart" if cfg.on_error == "restart" else "raise",
                step_timeout=cfg.step_timeout,
                reset_timeout=min(limits, default=None),
                max_retry=max(1, cfg.max_retry),
                retry_type=cfg.retry_type,
                retry_waiting_time=cfg.retry_waiting_time,
                retry_step=cfg.retry_step,
                max_restarts=cfg.max_restarts,
                restart_period=cfg.restart_period,
                recycle_after=cfg.recycle_after,
                on_restart=_counting(self._generations, cfg.on_restart),
                affinity=cfg.affinity,
                shared_memory=cfg.shared_memory,
                strict_dtype=cfg.strict_dtype or "integers",
                worker_init=cfg.worker_init,
                start_timeout=cfg.start_timeout,
                close_timeout=cfg.close_timeout,
                deferred=deferred,
            )
        return self._pool

    def _ask_first(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Ask env 0, of a launched manager or not."""
        pool = self._begun(deferred=True)
        if not self._closed:
            return self._ask(name, *args, env_id=0, **kwargs)[0]
        if not pool.closed:  # amid launch
            return pool.call(name, *args, env_id=0, **kwargs)[0]
        try:
            return pool.ask_first(name, *args, **kwargs)
        except WorkerError:
            self.close()  # so that it can be tried again
            raise

    def _describe(self) -> Description:
        if self._description is None:
            self._description = self._ask_first(DESCRIBE)
        return self._description

    # -- seeds and replays

    def seed(self, seed: Any, dynamic_seed: bool | None = None) -> None:
        """Seed envs at their next reset; later resets go on from there, as far as it is up to the manager.

        Seeds are kept: after `close` and `launch` they are given again, and an env whose process was replaced n times
        gets its seed plus n * env_num. An env without a `seed` method gets it with `reset`. `random_action` starts
        anew, too.

        Args:
            seed: an int gives env i the seed `seed + i`; a sequence or an array gives one each; a dict by env id some.
            dynamic_seed: the second argument of the env's `seed`, if it is not None. By custom, False has each episode
                start from the same seed; that is so for envs without a `seed` method as well.

        Raises:
            UsageError: it is no seed. Nothing changed. An env that cannot be seeded fails at its reset.
        """
        if dynamic_seed is not None and not isinstance(dynamic_seed, bool):
            raise UsageError(f"dynamic_seed must be True, False or None, not {dynamic_seed!r}")
        if is_int(seed):
            seeds = {i: int(seed) + i for i in range(self._env_num)}  # numpy's own addition would wrap
        elif isinstance(seed, Mapping):
            seeds = {self._known(i): each for i, each in seed.items()}
        elif is_listing(seed) and len(seed) == self._env_num:
            seeds = dict(enumerate(seed))
        else:
            raise UsageError(f"seed must be an int, a sequence of {self._env_num}, or a dict by env id, not {seed!r}")
        if not all(is_int(each) and each >= 0 for each in seeds.values()):
            raise UsageError(f"seeds must be ints, 0 or more, not {seed!r}")
        for i, each in seeds.items():
            self._env_seed[i] = int(each)
            self._env_seeding[i] += 1
            self._seeded_at[i] = self._generations[i]
        self._env_dynamic_seed = dynamic_seed
        self._samples_from = None
        self._keep_going_on(())

    def enable_save_replay(self, replay_path: str | Sequence[str]) -> None:
        """Have each env save replays from its next reset on, also after a restart.

        Args:
            replay_path: one for all, or one each. Launched, the envs are told at once; otherwise before their first
                reset.

        Raises:
            UsageError: not one path for each env. EnvError: an env refused.
        """
        if not isinstance(replay_path, str) and not is_listing(replay_path):
            raise UsageError(f"replay_path must be a path, or a sequence of one an env, not {replay_path!r}")
        paths = [replay_path] * self._env_num if isinstance(replay_path, str) else list(replay_path)
        if len(paths) != self._env_num:
            raise UsageError(f"enable_save_replay: {self._env_num} envs, but {len(paths)} paths")
        self._env_replay_path.update(enumerate(paths))
        self._keep_going_on(())
        if not self._closed:
            for i, path in enumerate(paths):
                self._ask(SAVE_REPLAY, path, env_id=i)

    # -- what else envs have

    @property
    def ready_imgs(self) -> dict[int, Any]:
        """What `render()` returns of each ready env, by ascending id. Does not wait for envs to be ready."""
        ready = self.ready_env
        images = self._open().render(env_id=ready) if ready else ()
        return dict(zip(ready, images, strict=True))

    def random_action(self) -> dict[int, Any]:
        """An action from env 0's space for each ready env. Repeatable after `seed`."""
        if self._samples_from is None:
            self._samples_from = copy.deepcopy(self.action_space)
            if self._samples_from is None:
                raise UsageError("random_action: env 0 declares no action space")
            self._samples_from.seed(self._env_seed[0])
        return {i: self._samples_from.sample() for i in self.ready_env}

    def reward_shaping(self, env_id: int, transitions: list[dict[str, Any]]) -> Any:
        """What the env's own `reward_shaping` makes of transitions."""
        return self._ask("reward_shaping", transitions, env_id=self._known(env_id))[0]

    def enable_save_figure(self, env_id: int, figure_path: str) -> None:
        """Have an env save figures, by its own method."""
        self._ask("enable_save_figure", figure_path, env_id=self._known(env_id))

    def __getattr__(self, name: str) -> Any:
        """An attribute of the envs: a list of its values in the order of env ids. Waits for steps under way.

        Raises:
            ForwardingError (an AttributeError): the manager is closed, the envs have no such attribute, or it is a
                method that `method_name_list` does not name.
        """
        if name.startswith("__") or "_pool" not in self.__dict__:  # asked by copy, pickle and the like
            raise AttributeError(name)
        if self._closed:
            raise ForwardingError(f"{name!r} is no attribute of the manager, and a closed one cannot ask its envs")
        if name in self.method_name_list:
            return partial(self._call_all, name)
        try:
            is_method, _ = self._ask(LOOK, name, env_id=0)[0]
            if not is_method:
                return [value for _, value in self._ask(LOOK, name)]
        except EnvError as error:
            if isinstance(error.__cause__, AttributeError):
                raise ForwardingError(f"neither the manager nor env {error.env_id} has {name!r}") from error.__cause__
            raise
        raise ForwardingError(f"{name!r} is a method of the envs that method_name_list does not name")

    def _call_all(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return list(self._ask(name, *args, **kwargs))

    def _ask(self, name: str, *args: Any, env_id: Any = None, **kwargs: Any) -> tuple[Any, ...]:
        try:
            with self._unbroken:
                pool = self._open()
                pool._turn.waits = True
                try:
                    return pool.call(name, *args, env_id=env_id, **kwargs)
                finally:
                    pool._turn.waits = False
        except WorkerError as error:
            self._fail(error)
            self._raise_failure()
            raise

    wait = staticmethod(wait)

    # -- inside

    @abstractmethod
    def reset(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Reset envs and wait for them."""

    @abstractmethod
    def _fail(self, error: ShmenvError) -> None: ...

    @abstractmethod
    def _raise_failure(self, ids: Sequence[int] | None = None) -> None: ...

    def _may_go_on(self, env_id: int) -> bool:
        """Whether an env may be reset as last time as soon as its episode ends.

        Not where the caller may change the arguments until then, nor a view that the reset would write over.
        """
        cfg = self._cfg
        is_last = self._env_episode_count[env_id] + 1 >= cfg["episode_num"]
        return cfg["auto_reset"] and cfg["copy_on_get"] and not is_last and not self._reset_param[env_id]

    def _keep_going_on(self, ids: Collection[int]) -> None:
        """Of the envs that go on by themselves, stop all but these."""
        stopped = self._going_on.difference(ids)
        if stopped and self._pool is not None:
            self._going_on.difference_update(stopped)
            self._pool.go_on(sorted(stopped), False)

    def _open(self) -> Pool:
        pool = self._pool
        if self._closed or pool is None:
            raise ClosedError("the manager is closed; launch() it")
        return pool

    def _known(self, env_id: Any) -> int:
        if not is_int(env_id) or not 0 <= env_id < self._env_num:
            raise UsageError(f"env_id {env_id!r}: this manager has envs 0 to {self._env_num - 1}")
        return int(env_id)


def _turn_of(find: Callable[[], ManagerBase | None]) -> Turn | None:
    """A manager's turn at its pool. Found by a weak reference: a forgotten manager shall be freed at once."""
    manager = find()
    return None if manager is None or manager._pool is None else manager._pool._turn


def _counting(
    generations: dict[int, int], on_restart: Callable[[int, str], object] | None
) -> Callable[[int, str], None]:
    """The hook for Pool. No method: the pool would keep a forgotten manager alive, and that the pool."""

    def count(env_id: int, reason: str) -> None:
        generations[env_id] += 1
        if on_restart is not None:
            on_restart(env_id, reason)

    return count
