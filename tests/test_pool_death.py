"""Workers that die, with on_error="raise": one error, and the rest goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import Gate, ScriptedEnv, act, actions
from support import eventually, is_gone, settled

import shmenv

MakePool = Callable[..., shmenv.Pool]
BOUND = 1.0  # seconds: ten times the 100 ms that are promised


def pids(pool: shmenv.Pool) -> list[int]:
    return [worker["pid"] for worker in pool.stats()["workers"]]


def kill(pool: shmenv.Pool, worker_id: int) -> None:
    os.kill(pids(pool)[worker_id], signal.SIGKILL)
    eventually(lambda: not pool.stats()["workers"][worker_id]["alive"])


@pytest.mark.parametrize(
    ("fault", "exitcode", "says"),
    [("kill", -9, "SIGKILL"), ("exit", 3, "3"), ("segfault", -11, "SIGSEGV")],
)
def test_a_worker_that_dies_in_a_step_is_named(
    make_pool: MakePool, context: str, fault: str, exitcode: int, says: str
) -> None:
    """Covers a dead worker that nobody notices, or that shows as an EOFError hours later."""
    pool = make_pool([ScriptedEnv] * 5, num_workers=3, context=context)
    pool.reset()
    dead = pool.stats()["workers"][1]
    victim = dead["env_ids"][0]
    begin = time.monotonic()
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        pool.step(actions(5, {victim: fault}))
    assert time.monotonic() - begin < BOUND
    error = caught.value
    assert (error.worker_id, error.pid, error.exitcode) == (1, dead["pid"], exitcode)
    assert list(error.env_ids) == list(dead["env_ids"])
    for part in ("worker 1", str(dead["pid"]), says, f"{victim}"):
        assert part in str(error)
    left = [i for i in range(5) if i not in error.env_ids]
    batch = pool.recv()
    assert batch.env_id.tolist() == left and batch.obs.tolist() == [[0, 1]] * len(left)
    assert pool.pending == 0


def test_the_envs_of_other_workers_go_on(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=2, max_restarts=0)
    pool.reset()
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        pool.step(actions(4, {0: "kill"}))
    assert caught.value.env_ids == (0, 1)
    assert pool.recv().env_id.tolist() == [2, 3]
    for t in range(2, 10):
        pool.send(actions(2), env_id=[2, 3])
        assert pool.recv().obs.tolist() == [[0, t]] * 2
    assert pool.call("where", env_id=[2, 3]) == ((0, 9), (0, 9))
    assert pool.reset(env_id=[3]).obs.tolist() == [[1, 0]]
    alive = [worker["alive"] for worker in pool.stats()["workers"]]
    assert alive == [False, True]


def test_commands_to_envs_lost_for_good_send_nothing(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 4, num_workers=2, max_restarts=0)
    pool.reset()
    kill(pool, 0)
    with pytest.raises(shmenv.WorkerDiedError):
        pool.get_attr("t", env_id=0)
    for attempt in (
        lambda: pool.step(actions(4)),
        pool.reset,
        lambda: pool.send(actions(2), env_id=[1, 2]),
        lambda: pool.reset(env_id=[0, 3]),
        lambda: pool.call("where"),
        lambda: pool.get_attr("t", env_id=[0]),
        lambda: pool.set_attr("t", 5),
        pool.render,
    ):
        with pytest.raises(shmenv.WorkerDiedError) as caught:
            attempt()
        assert caught.value.worker_id == 0
    assert pool.pending == 0
    assert pool.call("where", env_id=[2, 3]) == ((0, 0), (0, 0))


def test_a_worker_killed_while_idle_is_told_once_then_by_its_envs_alone(make_pool: MakePool) -> None:
    """Covers workers taken by the out-of-memory killer between two steps."""
    pool = make_pool([ScriptedEnv] * 3, num_workers=3)
    pool.reset()
    kill(pool, 1)
    begin = time.monotonic()
    with pytest.raises(shmenv.WorkerDiedError, match="SIGKILL"):
        pool.step(actions(3))
    assert time.monotonic() - begin < BOUND
    if not pool.pending:  # the death was known before the step was sent
        pool.send(actions(2), env_id=[0, 2])
    assert pool.recv().obs.tolist() == [[0, 1]] * 2
    pool.send(actions(2), env_id=[0, 2])
    assert pool.recv().obs.tolist() == [[0, 2]] * 2


def test_a_worker_killed_from_outside_during_a_step_is_noticed(
    make_pool: MakePool, gate: Callable[[int], Gate], context: str
) -> None:
    """Covers a dead sibling whose pipe is held open by the others, so that no end of file ever comes."""
    pool = make_pool([partial(ScriptedEnv, gate=gate(i).path) for i in range(3)], num_workers=3, context=context)
    pool.reset()
    pool.send(actions(3, {1: "slow"}))
    held = eventually(gate(1).try_hold)
    os.kill(pids(pool)[1], signal.SIGKILL)
    begin = time.monotonic()
    failed, rows = 0, []
    while pool.pending:
        try:
            rows += pool.recv(min_envs=1, timeout=10).env_id.tolist()
        except shmenv.WorkerDiedError as error:
            assert error.env_ids == (1,)
            failed += 1
    assert time.monotonic() - begin < BOUND
    os.close(held)
    assert (failed, sorted(rows)) == (1, [0, 2])


def test_a_worker_that_hangs_in_native_code_can_be_killed_too(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    pool.send(actions(2, {0: "hang_native"}))
    assert pool.recv(min_envs=1).env_id.tolist() == [1]
    eventually(lambda: pool.stats()["workers"][1]["steps"] == 1)
    os.kill(pids(pool)[0], signal.SIGKILL)
    with pytest.raises(shmenv.WorkerDiedError):
        pool.recv(timeout=10)
    assert pool.pending == 0


def test_an_answer_published_before_the_death_is_delivered(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    pool.send(actions(1), env_id=[0])
    eventually(lambda: settled(pool, 1))
    kill(pool, 0)
    assert pool.recv().obs.tolist() == [[0, 1]]
    with pytest.raises(shmenv.WorkerDiedError):
        pool.call("where", env_id=0)


def test_a_worker_that_dies_in_a_reset_is_named(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv, partial(ScriptedEnv, script={(0, 0): "kill"}), ScriptedEnv], num_workers=3)
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        pool.reset()
    assert caught.value.env_ids == (1,)
    assert "reset" in str(caught.value)
    assert pool.recv().env_id.tolist() == [0, 2]


def test_a_worker_that_dies_in_a_call_is_named(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    pool.send(actions(1), env_id=[1])
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        pool.call("fail", "kill", env_id=0)
    assert caught.value.env_ids == (0,)
    assert pool.recv().env_id.tolist() == [1]


def test_all_workers_may_die_at_once(make_pool: MakePool) -> None:
    """Covers one error for each worker, and no hang where nothing is left that could answer."""
    pool = make_pool([ScriptedEnv] * 4, num_workers=2)
    pool.reset()
    pool.send(actions(4, {0: "kill", 2: "exit"}))
    seen = []
    while pool.pending:
        with pytest.raises(shmenv.WorkerDiedError) as caught:
            pool.recv(timeout=10)
        seen.append(caught.value.worker_id)
    assert sorted(seen) == [0, 1]
    with pytest.raises(shmenv.UsageError):
        pool.recv()
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 10


def test_a_death_wakes_a_caller_that_waits(make_pool: MakePool, gate: Callable[[int], Gate]) -> None:
    pool = make_pool([partial(ScriptedEnv, gate=gate(0).path)], num_workers=1)
    pool.reset()
    pool.send([act("slow")])
    held = eventually(gate(0).try_hold)
    pid = pids(pool)[0]
    died = []

    def kill_it() -> None:
        eventually(lambda: pool.stats()["parks"] > 0 or pool.stats()["heartbeats"] > 0)
        died.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_it)
    killer.start()
    with pytest.raises(shmenv.WorkerDiedError):
        pool.recv(timeout=30)
    killer.join()
    os.close(held)
    assert time.monotonic() - died[0] < BOUND


def test_children_of_a_dead_worker_are_ended_with_it(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    pool.step(actions(2, {0: "leak"}))
    leaked = pool.call("leaked_pids", env_id=0)[0]
    with pytest.raises(shmenv.WorkerDiedError):
        pool.step(actions(2, {0: "kill"}))
    pool.recv()
    pool.close()
    eventually(lambda: all(map(is_gone, leaked)))


def test_a_stopped_worker_is_only_slow(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    pool.reset()
    os.kill(pids(pool)[0], signal.SIGSTOP)
    pool.send(actions(2))
    assert pool.recv(min_envs=1, timeout=10).env_id.tolist() == [1]
    with pytest.raises(shmenv.RecvTimeoutError):
        pool.recv(timeout=0.05)
    os.kill(pids(pool)[0], signal.SIGCONT)
    assert pool.recv(timeout=10).env_id.tolist() == [0]


class ForkingEnv(ScriptedEnv):
    """`fork` says in which method it forks, and how the child comes back: by itself, or it "raises", or "exits"."""

    def __init__(self, fork: str, log: str) -> None:
        super().__init__()
        self.fork, self.log = fork, log
        self.come_back("constructor")

    def come_back(self, where: str) -> None:
        name, _, how = self.fork.partition(" ")
        if name != where:
            return
        self.fork = ""
        child = os.fork()
        if child:
            os.waitpid(child, 0)  # it is gone before the worker goes on
            return
        with open(self.log, "a") as log:
            log.write(f"{where}\n")
        if how == "raises":
            raise ValueError("the child's own")
        if how == "exits":
            sys.exit(0)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.come_back("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.t == 1:
            self.come_back("step")
        return super().step(action)

    def ask(self) -> int:
        self.come_back("call")
        return self.t

    def close(self) -> None:
        self.come_back("close")
        super().close()


@pytest.mark.parametrize("how", ["", " raises", " exits"])
@pytest.mark.parametrize("where", ["constructor", "reset", "step", "call", "close"])
def test_a_process_that_an_env_forks_never_becomes_a_second_worker(
    make_pool: MakePool, where: str, how: str, tmp_path: Any
) -> None:
    log = tmp_path / "log"
    pool = make_pool(
        [partial(ForkingEnv, where + how, str(log)), ScriptedEnv], num_workers=1, retry_step=True, max_retry=2
    )
    plain = make_pool([ScriptedEnv] * 2, num_workers=1)
    pool.reset()
    plain.reset()
    for _ in range(4):
        got, wanted = pool.step(actions(2)), plain.step(actions(2))
        assert np.array_equal(got.obs, wanted.obs) and np.array_equal(got.reward, wanted.reward)
        assert pool.call("ask", env_id=0) == plain.get_attr("t", env_id=0)
    assert pool.stats()["steps"] == 8 and pool.stats()["restarts"] == 0
    pool.close()
    assert log.read_text() == f"{where}\n"
