"""An environment that does what its script says, with a vocabulary of faults; and the door a test can stop it at."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class OddError(Exception):
    """An exception whose constructor does not take its own message, so that it pickles but does not unpickle."""

    def __init__(self, first: int, second: str) -> None:
        super().__init__(f"odd {first} {second}")


class HeldError(Exception):
    """An exception that cannot be pickled at all."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Gate:
    """A door between a test and an env in another process, made of a fifo: the env waits in front of it inside a call,
    the test sees that it does, and lets it go. Opens for one visitor at a time; nobody polls a clock.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if not os.path.exists(self.path):
            os.mkfifo(self.path)

    def wait(self) -> None:
        """Called by the env: blocks until the test has let it through."""
        with open(self.path, "rb") as door:
            door.read()

    def try_hold(self) -> int | None:
        """Called by the test: a descriptor that lets the env through once closed, if it stands there; else None."""
        try:
            return os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return None


def _raise(env: ScriptedEnv) -> None:
    raise KeyError("missing asset")


def _raise_once(env: ScriptedEnv) -> None:
    if not env.has_raised:
        env.has_raised = True
        raise ValueError("only this once")


def _raise_odd(env: ScriptedEnv) -> None:
    raise OddError(1, "two")


def _raise_held(env: ScriptedEnv) -> None:
    raise HeldError("holds a lock")


def _slow(env: ScriptedEnv) -> None:
    assert env.gate is not None, "a slow env needs a gate"
    env.gate.wait()


def _hang(env: ScriptedEnv) -> None:
    threading.Event().wait()


def _hang_native(env: ScriptedEnv) -> None:
    lock = ctypes.PyDLL(None).pthread_mutex_lock  # PyDLL keeps the GIL: no Python code runs in this process any more
    mutex = ctypes.create_string_buffer(
        128
    )  # zeros: a plain mutex, whose holder waits for itself, whatever signal comes
    lock(mutex)
    lock(mutex)


def _exit(env: ScriptedEnv) -> None:
    os._exit(3)


def _sys_exit(env: ScriptedEnv) -> None:
    sys.exit(4)


def _kill(env: ScriptedEnv) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault(env: ScriptedEnv) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # no dump of a handler, whoever installed one
    os.kill(os.getpid(), signal.SIGSEGV)


def _leak(env: ScriptedEnv) -> None:
    env.leaked.append(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]))


def _bad_shape(env: ScriptedEnv) -> Any:
    return np.zeros(3, np.float32)


def _bad_scalar(env: ScriptedEnv) -> Any:
    return np.float32(5)


def _bad_dtype(env: ScriptedEnv) -> Any:
    return np.zeros(2, np.complex64)


def _bad_type(env: ScriptedEnv) -> Any:
    return {"position": 1}


def _none(env: ScriptedEnv) -> Any:
    return Ellipsis


def _stop(env: ScriptedEnv) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _interrupt(env: ScriptedEnv) -> None:
    raise KeyboardInterrupt


def _crash(env: ScriptedEnv) -> None:
    ctypes.string_at(0)  # native code reads where nothing is


FAULTS: dict[str, Callable[[ScriptedEnv], Any]] = {
    "ok": lambda env: None,
    "raise": _raise,
    "raise_once": _raise_once,
    "raise_odd": _raise_odd,
    "raise_held": _raise_held,
    "slow": _slow,
    "hang": _hang,
    "hang_native": _hang_native,
    "exit": _exit,
    "sys_exit": _sys_exit,
    "kill": _kill,
    "segfault": _segfault,
    "leak": _leak,
    "bad_shape": _bad_shape,
    "bad_scalar": _bad_scalar,
    "bad_dtype": _bad_dtype,
    "bad_type": _bad_type,
    "bad_none": _none,
    "stop": _stop,
    "interrupt": _interrupt,
    "crash": _crash,
}
NAMES = list(FAULTS)


def act(name: str) -> int:
    """The action that makes a ScriptedEnv do `name`."""
    return NAMES.index(name)


def actions(n: int, faults: Mapping[int, str] | None = None) -> np.ndarray:
    """Actions for n envs: "ok", but for those named."""
    return np.array([act((faults or {}).get(i, "ok")) for i in range(n)])


class ScriptedEnv(gymnasium.Env[Any, Any]):
    """Says where it is, and fails where it is told to: by action, or by `script[episode, t]` (t = 0 is the reset).

    obs float32 (2,) = [episode, t], reward t. Episode numbers count this env's resets from 0.
    """

    def __init__(
        self,
        script: Mapping[tuple[int, int], str] | None = None,
        length: int = 10**9,
        truncates: bool = False,
        gate: str | None = None,
        at_start: str = "ok",
        close_mark: str | None = None,
        fail_close: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = Box(-1e9, 1e9, (2,), np.float32)
        self.action_space = Discrete(len(FAULTS))
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"]}
        self.script = dict(script or {})
        self.length, self.truncates = length, truncates
        self.gate = Gate(gate) if gate else None
        self.close_mark, self.fail_close = close_mark, fail_close
        self.episode, self.t = -1, 0
        self.has_raised = False
        self.leaked: list[subprocess.Popen[bytes]] = []
        self.seen: list[tuple[Any, Any]] = []  # (seed, options) of each reset
        FAULTS[at_start](self)

    def _play(self, name: str) -> Any:
        wrong = FAULTS[name](self)
        if wrong is None:
            return np.array([self.episode, self.t], np.float32)
        return None if wrong is Ellipsis else wrong

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self.seen.append((seed, options))
        return self._play(self.script.get((self.episode, 0), "ok")), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        name = self.script.get((self.episode, self.t), NAMES[int(action)])
        obs = self._play(name)
        ended = self.t >= self.length
        return obs, float(self.t), ended and not self.truncates, ended and self.truncates, {}

    def render(self) -> Any:
        return None if self.render_mode is None else np.full((4, 6, 3), self.t, np.uint8)

    def close(self) -> None:
        if self.close_mark:
            with open(self.close_mark, "x") as mark:
                mark.write(str(os.getpid()))
        if self.fail_close:
            raise RuntimeError("the window is gone")

    def where(self) -> tuple[int, int]:
        return self.episode, self.t

    def add(self, first: float, second: float = 0.0) -> float:
        return self.t + first + second

    def fail(self, name: str = "raise") -> Any:
        return FAULTS[name](self)

    def lock(self) -> Any:
        return threading.Lock()

    def pid(self) -> int:
        return os.getpid()

    def leaked_pids(self) -> list[int]:
        return [process.pid for process in self.leaked]

    def start_child(self) -> None:
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def modules(self) -> list[str]:
        return list(sys.modules)

    def blob(self, size: int) -> bytes:
        return bytes(range(256)) * (size // 256)


class OnlyInWorkersEnv(ScriptedEnv):
    """Refuses to be built in the process that says so."""

    def __init__(self, builder_pid: int, **kwargs: Any) -> None:
        if os.getpid() == builder_pid:
            raise AssertionError("built in the manager's process")
        super().__init__(**kwargs)


class StuckAtStartEnv(ScriptedEnv):
    """Leaves its process id in a folder and never comes to be."""

    def __init__(self, folder: str) -> None:
        open(os.path.join(folder, str(os.getpid())), "x").close()
        super().__init__(at_start="hang_native")
