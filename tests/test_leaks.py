"""Long lives leak nothing: rounds of opening and closing, steps with infos, managers killed at random times."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import numpy as np
import psutil
import pytest
from seeded import WalkEnv
from soak import footprint
from support import Script, eventually, is_gone

import shmenv

ROUNDS = int(os.environ.get("SHMENV_STRESS_ROUNDS", "200"))
STEPS = int(os.environ.get("SHMENV_STRESS_STEPS", "1000000"))


def open_and_close(rounds: int, method: str) -> None:
    for k in range(rounds):
        with shmenv.Pool([WalkEnv] * 3, num_workers=2, context=method) as pool:
            pool.reset(seed=k)
            batch = pool.step(np.zeros(3, int))
        assert len(batch) == 3


def assert_no_more(before: dict[str, int], megabytes: int) -> None:
    """Waits until nothing is left but memory that the allocator keeps."""

    def small() -> bool:
        now = footprint()
        return all(now[name] <= before[name] for name in ("file KiB", "fds", "threads", "maps", "children"))

    eventually(small)
    grown = footprint()["rss MiB"] - before["rss MiB"]
    assert grown <= megabytes, f"{grown} MiB more than before"


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_pools_that_are_closed_leave_nothing(method: str) -> None:
    open_and_close(3, method)
    before = footprint()
    open_and_close(7, method)
    assert_no_more(before, 4)


@pytest.mark.stress
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_200_pools_leave_nothing(method: str) -> None:
    open_and_close(10, method)
    before = footprint()
    open_and_close(ROUNDS, method)
    assert_no_more(before, 8)


def play(pool: shmenv.Pool, steps: int) -> None:
    for _ in range(steps // pool.num_envs):
        batch = pool.step(np.zeros(pool.num_envs, int))
        for info in batch.info:
            assert isinstance(info, dict)


@pytest.mark.skipif("ASAN_OPTIONS" in os.environ, reason="AddressSanitizer holds on to what was freed")
@pytest.mark.parametrize("steps", [20_000, pytest.param(STEPS, marks=pytest.mark.stress)])
def test_steps_with_infos_need_no_more_memory_in_the_end_than_in_the_beginning(
    steps: int, make_pool: Callable[..., shmenv.Pool]
) -> None:
    pool = make_pool([WalkEnv] * 8, num_workers=2)
    pool.reset()
    play(pool, max(5000, steps // 20))
    before = footprint()
    sizes = [memory_of(worker["pid"]) for worker in pool.stats()["workers"]]
    play(pool, steps)
    assert_no_more(before, 4)
    grown = [memory_of(worker["pid"]) - size for worker, size in zip(pool.stats()["workers"], sizes, strict=True)]
    assert max(grown) <= 4 << 20, f"workers hold {grown} bytes more"


def memory_of(pid: int) -> int:
    """Bytes of memory of its own."""
    with open(f"/proc/{pid}/statm") as statm:
        fields = statm.read().split()
    return (int(fields[1]) - int(fields[2])) * 4096


BUSY = """
    import sys
    import shmenv
    from envs import ScriptedEnv, actions

    if __name__ == "__main__":
        pool = shmenv.Pool(
            [ScriptedEnv] * 6, num_workers=3, context=sys.argv[1], on_error="restart", restart_period=0.0
        )
        pool.reset()
        print("stepping", flush=True)
        t = 0
        while True:
            t += 1
            if t == 50 and sys.argv[2] == "stuck":
                pool.step(actions(6, {0: "hang_native"}))
            pool.step(actions(6, {3: "kill"} if t % 7 == 0 else {}))
"""


@pytest.mark.stress
@pytest.mark.parametrize("state", ["busy", "stuck"])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_manager_killed_at_a_random_time_leaves_no_process_and_no_memory(
    method: str, state: str, start_script: Callable[..., Script]
) -> None:
    """Prints how long after the kill the last process of its family was gone."""
    rng, delays = random.Random(method + state), []
    for _ in range(15):
        script = start_script(BUSY, method, state)
        script.line()
        time.sleep(rng.uniform(0, 1))
        family = [child.pid for child in psutil.Process(script.process.pid).children(recursive=True)]
        os.kill(script.process.pid, signal.SIGKILL)
        killed = time.monotonic()
        while not all(map(is_gone, family)):
            assert time.monotonic() - killed < 10.0
        delays.append(time.monotonic() - killed)
        # Memory without a name is gone with the last process that has it; of names there must be none.
        assert not [name for name in os.listdir("/dev/shm") if name.startswith("shmenv")]
    median, worst = np.median(delays) * 1e3, max(delays) * 1e3
    print(f"\n{method}, {state}: the last process was gone after {median:.0f} ms, at worst {worst:.0f} ms", end="")
