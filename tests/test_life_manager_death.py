"""The manager's process is killed right after it replaced a worker: the successors end with it, too."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from support import Script, eventually, is_gone

BOUND = 10.0  # seconds: ten times the one that is promised

PROGRAM = """
import sys
import threading
import numpy as np
import shmenv
from envs import ScriptedEnv, act, actions

if __name__ == "__main__":
    method, state = sys.argv[1:]
    pool = shmenv.Pool([ScriptedEnv] * 4, num_workers=4, context=method, on_error="restart")
    pool.reset()
    before = {worker["pid"] for worker in pool.stats()["workers"]}
    pool.send(np.array([act("kill")] * 4))
    if state == "starting":
        stats = pool.stats()
        while stats["restarts"] < 4 or None in {worker["pid"] for worker in stats["workers"]}:
            try:
                pool.recv(timeout=0.001)
            except shmenv.RecvTimeoutError:
                pass
            stats = pool.stats()
    else:
        while pool.pending:
            pool.recv()
        pool.send(np.array([act("hang_native"), 0, act("hang"), 0]))
        assert pool.recv(min_envs=2).env_id.tolist() == [1, 3]
    pids = {worker["pid"] for worker in pool.stats()["workers"]}
    assert state == "starting" or not pids & before
    print(*pids, flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("state", ["starting", "stuck"])
def test_successors_end_with_their_manager(start_script: Callable[..., Script], method: str, state: str) -> None:
    script = start_script(PROGRAM, method, state)
    pids = [int(pid) for pid in script.line().split()]
    os.kill(script.process.pid, signal.SIGKILL)
    script.process.wait()
    begin = time.monotonic()
    eventually(lambda: all(map(is_gone, pids)), BOUND)
    assert time.monotonic() - begin < BOUND
