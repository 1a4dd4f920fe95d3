"""Systems that lack something: each is either fine, or a clear error before any env is stepped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import Script, eventually

PROGRAM = """
    import sys
    from poor import ALREADY_IMPORTED, POOR

    if __name__ == "__main__":
        POOR.get(sys.argv[1], int)(*sys.argv[3:])  # before anything has started a thread

    import logging
    import os
    import shmenv
    from envs import ScriptedEnv, actions

    class WatchedEnv(ScriptedEnv):
        def step(self, action):
            print("stepped", flush=True)
            return super().step(action)

    if __name__ == "__main__":
        ALREADY_IMPORTED.get(sys.argv[1], int)()
        logging.getLogger("shmenv").setLevel(logging.CRITICAL)
        try:
            with shmenv.Pool([WatchedEnv] * 4, num_workers=2, context=sys.argv[2]) as pool:
                pool.reset()
                assert pool.step(actions(4)).obs.tolist() == [[0, 1]] * 4
                try:
                    pool.step(actions(4, {3: "kill"}))
                except shmenv.WorkerDiedError as error:
                    assert error.env_ids == (2, 3)
                assert pool.recv().obs[:2].tolist() == [[0, 2]] * 2
                assert pool.reset(env_id=[2, 3]).obs.tolist() == [[0, 0]] * 2
            print("fine")
        except shmenv.ShmenvError as error:
            print(type(error).__name__, error)
"""
LARGE_ENV = """
    class LargeEnv:
        def reset(self):
            import numpy
            return numpy.zeros(10 << 20, numpy.uint8)

        def step(self, action):
            raise SystemExit

"""


def has_namespaces() -> bool:
    """Whether this system lets its users have mounts of their own."""
    return (
        bool(shutil.which("unshare"))
        and not subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode
    )


SANITIZED = "ASAN_OPTIONS" in os.environ  # AddressSanitizer itself needs /proc, and much memory
needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="this system gives no user and mount namespaces")


def assert_fine(script: Script) -> None:
    code, out, errors = script.finish(60)
    assert (code, out.split()[-1], errors) == (0, "fine", "")


@needs_namespaces
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("small /dev/shm", "fork"),
        ("full /dev/shm", "forkserver"),
        ("no /dev/shm", "fork"),
        ("read-only /tmp", "forkserver"),
        pytest.param("no /proc", "forkserver", marks=pytest.mark.skipif(SANITIZED, reason="AddressSanitizer needs it")),
    ],
)
def test_a_system_without_it_is_fine(start_script: Callable[..., Script], name: str, method: str) -> None:
    assert_fine(start_script(PROGRAM, name, method))


@pytest.mark.parametrize(
    ("name", "method"),
    [("no memfd_create", "fork"), ("no memfd_create", "forkserver"), ("64 descriptors", "forkserver")],
)
def test_a_process_without_it_is_fine(start_script: Callable[..., Script], name: str, method: str) -> None:
    assert_fine(start_script(PROGRAM, name, method))


@pytest.mark.parametrize(
    ("name", "method", "says"),
    [
        ("no pidfd_open", "fork", r"this process cannot be watched: Function not implemented"),
        ("no more processes", "fork", r"worker 0 cannot be started: .*temporarily unavailable"),
        ("no more processes", "forkserver", r"no workers can be started: .*temporarily unavailable"),
        pytest.param(
            "no shared memory at all",
            "fork",
            "no shared memory to be had: Read-only file system",
            marks=needs_namespaces,
        ),
    ],
)
def test_a_system_without_it_is_a_clear_error_before_any_step(
    start_script: Callable[..., Script], name: str, method: str, says: str
) -> None:
    code, out, errors = start_script(PROGRAM, name, method).finish(60)
    assert (code, errors) == (0, "")
    assert re.fullmatch(rf"ResourceError .*{says}\n", out)


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A memory cgroup of 96 MiB, empty; skips where none can be made."""
    root, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if not root.is_dir():  # version 2
        root, limit = root.parent, "memory.max"
    folder = root / f"shmenv-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if not (folder / limit).exists():
            pytest.skip("cgroups that are made here limit no memory")
        (folder / limit).write_text(str(96 << 20))
        yield folder
        eventually(lambda: not (folder / "cgroup.procs").read_text())
    finally:
        folder.rmdir()


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer needs more than the group has")
def test_a_pool_too_large_for_its_memory_cgroup_is_refused_not_killed(
    start_script: Callable[..., Script], memory_cgroup: Path
) -> None:
    large = PROGRAM.replace("[WatchedEnv] * 4", "[LargeEnv] * 4").replace(
        "    class WatchedEnv", LARGE_ENV + "    class WatchedEnv"
    )
    code, out, errors = start_script(large, "memory cgroup", "fork", str(memory_cgroup)).finish(60)
    assert (code, errors) == (0, "")
    assert re.match(r"ResourceError .*shared memory: 160.* MiB are needed for 4 envs .* MiB are available", out)
    assert_fine(start_script(PROGRAM, "memory cgroup", "fork", str(memory_cgroup)))
