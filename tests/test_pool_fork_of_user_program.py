"""A program that forks while it has a pool: the pool stays the parent's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Script

PROGRAM = """
import os
import sys
import multiprocessing
import shmenv
from envs import ScriptedEnv, actions


def use(pool):
    for attempt in (pool.reset, lambda: pool.step(actions(3)), lambda: pool.call("where"), pool.recv):
        try:
            attempt()
        except shmenv.UsageError:
            continue
        raise SystemExit(5)
    if sys.argv[2] == "close":
        pool.close()


def fork(pool):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            use(pool)
            code = 0
        finally:
            if sys.argv[2] == "_exit":
                os._exit(code)
            del pool
            sys.exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def process(pool):
    child = multiprocessing.get_context("fork").Process(target=use, args=(pool,))
    child.start()
    child.join()
    return child.exitcode


if __name__ == "__main__":
    pool = shmenv.Pool([ScriptedEnv] * 3, num_workers=2, context=sys.argv[1])
    batch = pool.reset()
    pool.send(actions(3))
    print("child", {"process": process}.get(sys.argv[2], fork)(pool))
    print(pool.recv().obs.tolist())
    print(pool.step(actions(3)).obs.tolist())
    pool.close()
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("end", ["_exit", "exit", "close", "process"])
def test_a_forked_child_cannot_use_or_harm_its_parents_pool(
    start_script: Callable[..., Script], method: str, end: str
) -> None:
    script = start_script(PROGRAM, method, end)
    code, out, errors = script.finish(30)
    steps = [str([[0.0, float(t)]] * 3) for t in (1, 2)]
    assert (code, out.splitlines(), errors) == (0, ["child 0", *steps], "")


def test_a_child_may_have_a_pool_of_its_own(start_script: Callable[..., Script]) -> None:
    script = start_script(
        """
        import multiprocessing
        import shmenv
        from envs import ScriptedEnv, actions

        def work():
            with shmenv.Pool([ScriptedEnv] * 2, num_workers=2, context="spawn") as pool:
                pool.reset()
                assert pool.step(actions(2)).obs.tolist() == [[0, 1]] * 2

        if __name__ == "__main__":
            with shmenv.Pool([ScriptedEnv] * 2, num_workers=2, context="spawn") as pool:
                pool.reset()
                for method in ("fork", "spawn"):
                    child = multiprocessing.get_context(method).Process(target=work)
                    child.start()
                    child.join()
                    print(child.exitcode)
                print(pool.step(actions(2)).obs.tolist())
        """
    )
    code, out, errors = script.finish(60)
    assert (code, out.split("\n")[:2], errors) == (0, ["0", "0"], "")
