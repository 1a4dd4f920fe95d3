"""The manager's process is killed: no worker, and nothing a worker started, outlives it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Script, eventually, is_gone

BOUND = 10.0  # seconds: ten times the one that is promised

PROGRAM = """
import sys
import threading
import shmenv
from envs import ScriptedEnv, actions

if __name__ == "__main__":
    method, state = sys.argv[1:]
    pool = shmenv.Pool([ScriptedEnv] * 4, num_workers=2, context=method)
    pool.reset()
    pids = {worker["pid"] for worker in pool.stats()["workers"]}
    if state == "leak":
        pool.step(actions(4, {0: "leak", 3: "leak"}))
        pids |= {pid for found in pool.call("leaked_pids") for pid in found}
    elif state not in ("idle", "stepping"):
        pool.send(actions(4, {1: state, 3: state}))
        assert pool.recv(min_envs=2).env_id.tolist() == [0, 2]  # a worker's envs step in turn: these came first
    print(*pids, flush=True)
    while state == "stepping":
        pool.step(actions(4))
    threading.Event().wait()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("state", ["idle", "stepping", "hang", "hang_native", "stop", "leak"])
def test_workers_end_with_their_manager(start_script: Callable[..., Script], method: str, state: str) -> None:
    """Covers workers that go on stepping, spinning or hanging when the driver is killed, and their own children."""
    script = start_script(PROGRAM, method, state)
    pids = [int(pid) for pid in script.line().split()]
    assert len(pids) >= 2 and not any(map(is_gone, pids))
    os.kill(script.process.pid, signal.SIGKILL)
    script.process.wait()
    begin = time.monotonic()
    eventually(lambda: all(map(is_gone, pids)), BOUND)
    assert time.monotonic() - begin < BOUND


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_manager_killed_during_the_start_leaves_no_worker(
    start_script: Callable[..., Script], tmp_path: Path, method: str
) -> None:
    script = start_script(
        """
        import sys
        from functools import partial
        import shmenv
        from envs import StuckAtStartEnv

        if __name__ == "__main__":
            shmenv.Pool([partial(StuckAtStartEnv, sys.argv[2])] * 2, num_workers=2, context=sys.argv[1])
        """,
        method,
        str(tmp_path),
    )

    def started() -> list[int]:
        return [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]

    eventually(lambda: len(started()) == 2, 30)
    pids = started()
    os.kill(script.process.pid, signal.SIGKILL)
    script.process.wait()
    eventually(lambda: all(map(is_gone, pids)), BOUND)


def test_the_shared_memory_is_freed_with_its_manager(start_script: Callable[..., Script]) -> None:
    script = start_script(PROGRAM, "forkserver", "hang_native")
    pids = [int(pid) for pid in script.line().split()]
    os.kill(script.process.pid, signal.SIGKILL)
    script.process.wait()
    eventually(lambda: all(map(is_gone, pids)), BOUND)
    assert not [name for name in os.listdir("/dev/shm") if "shmenv" in name]
