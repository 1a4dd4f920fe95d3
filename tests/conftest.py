"""Fixtures of all tests: the leak guard, start methods, pools that are closed, scripts in a process of their own."""

from __future__ import annotations

import contextlib
import gc
import glob
import inspect
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from envs import Gate
from support import Script, eventually, is_gone

import shmenv


def _helpers() -> tuple[set[int], set[int]]:
    """Processes and descriptors that multiprocessing keeps for the life of this process, once it has started them."""
    server: Any = multiprocessing.forkserver._forkserver
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    pids = {server._forkserver_pid, tracker._pid}
    fds = {server._forkserver_alive_fd, tracker._fd}
    return {pid for pid in pids if pid is not None}, {fd for fd in fds if fd is not None}


def _children(helpers: set[int], parent: int | None = None) -> set[int]:
    """All descendants, by the kernel's own lists: a look through all processes would cost each test 20 ms."""
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it ended meanwhile
        for task in os.listdir(f"/proc/{parent or os.getpid()}/task"):
            with open(f"/proc/{parent or os.getpid()}/task/{task}/children") as children:
                found |= {int(pid) for pid in children.read().split()}
    for pid in found.copy():
        found |= _children(helpers, pid)
    return {pid for pid in found if pid not in helpers and not is_gone(pid)}


def _descriptors(helpers: set[int]) -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one that listed the folder
    return {fd: target for fd, target in found.items() if fd not in helpers}


def _mappings() -> list[str]:
    with open("/proc/self/maps") as maps:
        return [line.strip() for line in maps if "shmenv" in line.rpartition(" ")[2] and ".so" not in line]


def _footprint() -> dict[str, Any]:
    pids, fds = _helpers()
    return {
        "child processes": _children(pids),
        "descriptors": set(_descriptors(fds).items()),
        "threads": set(os.listdir("/proc/self/task")),
        "shared memory": set(glob.glob("/dev/shm/shmenv*")) | set(_mappings()),
        "temporary files": {name for name in os.listdir(tempfile.gettempdir()) if not name.startswith("pymp-")},
    }


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary files of these tests land in a folder of their own, so that what is left over can be seen."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("temporary"))
    yield
    tempfile.tempdir = before


@pytest.fixture(scope="session", autouse=True)
def _cheap_collections() -> Iterator[None]:
    """What was imported until now is not looked through by each test's garbage collections, 50 ms a time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _leak_guard(_own_temporary_folder: None) -> Iterator[None]:
    """After each test: no process, descriptor, thread, shared memory or temporary file more than before."""
    gc.collect()
    before = _footprint()
    yield
    leaks: dict[str, Any] = {}

    def nothing_left() -> bool:
        gc.collect()
        after = _footprint()
        leaks.clear()
        leaks.update({kind: after[kind] - before[kind] for kind in after if len(after[kind]) > len(before[kind])})
        return not leaks

    try:
        eventually(nothing_left, timeout=3.0)
    except AssertionError:
        for pid in leaks.get("child processes", ()):
            os.kill(pid, signal.SIGKILL)  # so that one test's leak is not every later test's
        pytest.fail(f"left behind: {leaks}")


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def context(request: pytest.FixtureRequest) -> str:
    """Each start method."""
    return str(request.param)


@pytest.fixture
def make_pool() -> Iterator[Callable[..., shmenv.Pool]]:
    """Pool, but under fork if not said otherwise (it starts fastest), and closed after the test."""
    pools: list[shmenv.Pool] = []

    def make(env_fns: Any, **options: Any) -> shmenv.Pool:
        options.setdefault("context", "fork")
        pools.append(shmenv.Pool(env_fns, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def make_vector_env() -> Iterator[Callable[..., Any]]:
    """`make_vector_env(env_fns, *args, cls, **options)`: a framework's vector env, Gymnasium's if not said otherwise.

    In two workers and under fork if not said otherwise, and closed after the test.
    """
    made: list[Any] = []

    def make(env_fns: Any, *args: Any, cls: Any = None, **options: Any) -> Any:
        if cls is None:
            from shmenv.adapters.gymnasium import ShmVectorEnv as cls
        start = "start_method" if "start_method" in inspect.signature(cls).parameters else "context"
        made.append(cls(env_fns, *args, **{start: "fork", "num_workers": min(2, len(env_fns)), **options}))
        return made[-1]

    yield make
    for env in made:
        env.pool.close()


@pytest.fixture
def make_manager() -> Iterator[Callable[..., Any]]:
    """`make_manager(env_fns, cls, **cfg)`: a manager, under fork if not said otherwise, and closed after the test."""
    managers: list[Any] = []

    def make(env_fns: Any, cls: Any = shmenv.SyncSubprocessEnvManager, **cfg: Any) -> Any:
        managers.append(cls(env_fns, {"context": "fork", **cfg}))
        return managers[-1]

    yield make
    for manager in managers:
        manager.close()


@pytest.fixture
def gate(tmp_path: Path) -> Callable[[int], Gate]:
    """`gate(i)`: the door of env i."""
    return lambda i: Gate(tmp_path / f"gate{i}")


@pytest.fixture
def start_script(tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """Starts a program; its whole process group is ended after the test."""
    scripts: list[Script] = []

    def start(source: str, *arguments: str) -> Script:
        scripts.append(Script(source, tmp_path, *arguments))
        return scripts[-1]

    yield start
    for script in scripts:
        script.kill()
