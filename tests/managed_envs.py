"""Environments for the managers' tests, in DI-engine's style: told what to do by reset parameters and actions."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from envs import Gate, HeldError, OddError
from gymnasium.spaces import Box, Dict, Discrete, Tuple

Timestep = namedtuple("Timestep", "obs reward done info")


class AttrError(Exception):
    """Carries what a message cannot."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} in {where}")
        self.code, self.where = code, where


def _hang_native() -> None:
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(128)  # PyDLL keeps the GIL
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)  # no signal ends the second wait


def _catch_everything() -> None:
    while True:
        try:
            threading.Event().wait()
        except BaseException:
            pass


def _raise(error: BaseException) -> None:
    raise error


def _kill(number: int) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), number)


FAULTS: dict[str, Callable[[], Any]] = {
    "error": lambda: _raise(RuntimeError("the env's own error")),
    "odd": lambda: _raise(OddError(1, "two")),
    "held": lambda: _raise(HeldError("holds a lock")),
    "attr": lambda: _raise(AttrError(7, where="here")),
    "interrupt": lambda: _raise(KeyboardInterrupt("from the env")),
    "sys_exit": lambda: sys.exit(4),
    "exit": lambda: os._exit(3),
    "kill": lambda: _kill(signal.SIGKILL),
    "segfault": lambda: _kill(signal.SIGSEGV),
    "stop": lambda: _kill(signal.SIGSTOP),
    "block": lambda: threading.Event().wait(),
    "block_native": _hang_native,
    "block_catching": _catch_everything,
}


class StatEnv:
    """obs float32 (width,) = [episode, t, 0...], reward float32 (1,) = [t]; an episode has `length` steps.

    Actions and the reset parameter `stat` are words: one of FAULTS; "error_once" fails every second time it is asked
    for; "error_unmarked" fails unless the mark is there, and leaves it; "wait" stands before the env's gate;
    "catched_error" is an abnormal timestep; anything else is played. `later` is the `stat` of each reset after an
    episode that is given none.
    """

    def __init__(
        self,
        name: str = "env",
        length: int = 3,
        gate: str | None = None,
        mark: str | None = None,
        width: int = 2,
        later: str | None = None,
    ) -> None:
        self.later = later
        self.observation_space = Box(-1e9, 1e9, (width,), np.float32)
        self.width = width
        self.action_space = Discrete(2)
        self.reward_space = Box(-1e9, 1e9, (1,), np.float32)
        self._name, self.length = name, length
        self.gate = Gate(gate) if gate else None
        self.time_id = (os.getpid(), time.monotonic_ns())
        self.episode, self.t = -1, 0
        self.steps = 0  # that were asked for, whatever became of them
        self._stat: Any = None
        self._seed: Any = None
        self.seedings: list[tuple[Any, ...]] = []
        self.resets: list[dict[str, Any]] = []
        self.actions: list[Any] = []
        self.replays: list[str] = []
        self.once = 0
        self._close_mark = mark

    @property
    def name(self) -> str:
        return self._name

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def modules(self) -> list[str]:
        return sorted(sys.modules)

    @property
    def limits(self) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}

    @property
    def an_error(self) -> Exception:
        return ValueError("only a value")

    @property
    def no_luck(self) -> Any:
        raise ZeroDivisionError("a property that fails")

    @property
    def alarm(self) -> Any:
        return signal.getsignal(signal.SIGALRM) is signal.SIG_DFL, signal.getitimer(signal.ITIMER_REAL)

    def _play(self, word: Any) -> None:
        if not isinstance(word, str):
            return
        if word == "wait":
            assert self.gate is not None
            self.gate.wait()
        elif word == "error_once":
            self.once += 1
            if self.once % 2:
                raise RuntimeError("only this once")
        elif word == "error_unmarked":
            assert self._close_mark is not None
            if not os.path.exists(self._close_mark):
                open(self._close_mark, "x").close()
                raise RuntimeError("no mark yet")
        elif word in FAULTS:
            FAULTS[word]()

    def seed(self, seed: int, dynamic_seed: bool | None = None) -> None:
        self._seed = seed
        self.seedings.append((seed,) if dynamic_seed is None else (seed, dynamic_seed))

    def reset(self, **kwargs: Any) -> np.ndarray:
        self.resets.append(kwargs)
        self._stat = kwargs.get("stat", self.later if self.t >= self.length else None)
        self._play(self._stat)
        self.episode, self.t = self.episode + 1, 0
        return self._obs()

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.actions.append(action)
        self._play(action)
        if isinstance(action, str) and action == "catched_error":
            return Timestep(None, None, True, {"abnormal": True})
        self.t += 1
        done = self.t >= self.length
        info = {"name": self._name, "t": self.t} | ({"eval_episode_return": float(self.t)} if done else {})
        return Timestep(self._obs(), np.array([self.t], np.float32), done, info)

    def _obs(self) -> np.ndarray:
        return np.array([self.episode, self.t, 0][: self.width], np.float32)

    def enable_save_replay(self, path: str) -> None:
        if path == "refused":
            raise OSError("no such folder")
        self.replays.append(path)

    def render(self) -> Any:
        return np.full((2, 2, 3), self.t, np.uint8)

    def reward_shaping(self, transitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**each, "shaped": True} for each in transitions]

    def enable_save_figure(self, path: str) -> None:
        self.replays.append(f"figure {path}")

    def start_process(self) -> None:
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()

    def close(self) -> None:
        if self._close_mark:
            with open(self._close_mark, "a") as mark:
                mark.write("closed\n")


class BadSeedEnv(StatEnv):
    """Its `seed` takes no second argument, and refuses 13."""

    def seed(self, seed: int) -> None:  # type: ignore[override]
        if seed == 13:
            raise ValueError("an unlucky seed")
        super().seed(seed)


class GivesEnv(StatEnv):
    """Returns from each step what it is given as the action: a whole timestep, or only an observation."""

    def __init__(self, space: Any, first: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space, self.first = space, first

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return self.first

    def step(self, action: Any) -> Any:
        return action if hasattr(action, "done") else Timestep(action, 0.0, False, {})


class ElementInfo(NamedTuple):
    """DI-engine's old description of one space."""

    shape: Any
    value: dict[str, Any] | None


class EnvInfo(NamedTuple):
    """DI-engine's old `info()`."""

    agent_num: int
    obs_space: ElementInfo
    act_space: ElementInfo
    rew_space: ElementInfo


class OldEnv:
    """Declares its spaces by `info()`, as DI-engine's first versions did."""

    def __init__(self, shape: Any = (3,), dtype: Any = np.float32) -> None:
        self.shape, self.dtype = shape, dtype

    def info(self) -> EnvInfo:
        value = None if self.dtype is None else {"min": 0, "max": 9, "dtype": self.dtype}
        return EnvInfo(1, ElementInfo(self.shape, value), ElementInfo((1,), None), ElementInfo((1,), None))

    def _obs(self, shape: Any) -> Any:
        if isinstance(shape, dict):
            return {key: self._obs(item) for key, item in shape.items()}
        return np.full(shape, self.t, self.dtype or np.float32)

    def seed(self, seed: int) -> None:
        self._seed = seed

    def reset(self) -> Any:
        self.t = 0
        return self._obs(self.shape)

    def step(self, action: Any) -> Any:
        self.t += 1
        return Timestep(self._obs(self.shape), float(action), self.t >= 2, {})

    def close(self) -> None:
        pass


class NestedEnv:
    """A nested observation with a dtype a key, from random numbers of its own."""

    SPACE = Dict(
        image=Box(0, 255, (4, 3), np.uint8),
        half=Box(-1, 1, (2,), np.float16),
        inner=Dict(pair=Tuple((Discrete(5), Box(-9, 9, (), np.int16))), flags=Box(0, 1, (3,), np.bool_)),
    )

    def __init__(self) -> None:
        self.observation_space, self.action_space = self.SPACE, Discrete(3)
        self.rng = np.random.default_rng(0)

    def seed(self, seed: int, dynamic_seed: bool | None = None) -> None:
        self.rng = np.random.default_rng(seed)

    def _obs(self) -> Any:
        rng = self.rng
        return {
            "image": rng.integers(0, 256, (4, 3)).astype(np.uint8),
            "half": rng.random(2).astype(np.float16),
            "inner": {"pair": (np.int64(rng.integers(5)), np.array(rng.integers(-9, 9), np.int16)),
                      "flags": rng.random(3) < 0.5},
        }  # fmt: skip

    def reset(self, **kwargs: Any) -> Any:
        self.t, self.last = 0, int(self.rng.integers(1, 6))
        return self._obs()

    def step(self, action: Any) -> Any:
        self.t += 1
        reward = {"a": int(action), "b": self.rng.random(2)}
        return Timestep(self._obs(), reward, self.t >= self.last, {"t": self.t, "noise": self.rng.random()})

    def close(self) -> None:
        pass


WideTimestep = namedtuple("WideTimestep", "obs act_mask reward done info team")


class WideEnv(NestedEnv):
    """Its timesteps have fields of their own."""

    def step(self, action: Any) -> Any:
        obs, reward, done, info = super().step(action)
        return WideTimestep(obs, [1, 0, 1], reward["b"], np.bool_(done), info, {"red": (1, None)})


class UnseededEnv(StatEnv):
    """Draws from the global generators."""

    def reset(self, **kwargs: Any) -> np.ndarray:
        super().reset(**kwargs)
        return np.array([random.random(), np.random.random()], np.float32)


class NoPickle(np.ndarray):
    """An observation that must not be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("an observation was pickled")


class UnpickledObsEnv(StatEnv):
    """Its observations refuse to be pickled, so only shared memory can carry them."""

    def reset(self, **kwargs: Any) -> np.ndarray:
        return super().reset(**kwargs).view(NoPickle)

    def step(self, action: Any) -> Any:
        timestep = super().step(action)
        return timestep._replace(obs=timestep.obs.view(NoPickle))


class AlarmEnv(StatEnv):
    """Uses SIGALRM itself."""

    def reset(self, **kwargs: Any) -> np.ndarray:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 1000)
        return super().reset(**kwargs)


class BuiltHereEnv(StatEnv):
    """Leaves a mark for each time it is built: the process that did it."""

    def __init__(self, folder: str, name: str) -> None:
        super().__init__(name)
        with open(os.path.join(folder, name), "a") as mark:
            mark.write(f"{os.getpid()}\n")
