"""However a program with an open pool ends, it does so once and quietly: exit code, stderr, and no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import SOURCE, TESTS, Script, eventually, is_gone

PROGRAM = """
    import os, signal, sys, threading
    import shmenv
    from envs import ScriptedEnv, actions

    if __name__ == "__main__":
        pool = shmenv.Pool([ScriptedEnv] * 4, num_workers=2, context=sys.argv[1], close_timeout=0.3)
        pool.reset()
        pool.send(actions(4, {0: "hang"} if sys.argv[2] == "stuck" else {}))
        print(*[worker["pid"] for worker in pool.stats()["workers"]], flush=True)
        END
"""
ENDS = {
    "sys.exit": ("sys.exit(7)", 7, ""),
    "os._exit": ("os._exit(8)", 8, ""),
    "an uncaught exception": ("raise LookupError('mine')", 1, "LookupError: mine"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait()", -signal.SIGTERM, ""),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    "SIGTERM with a handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); os.kill(os.getpid(), signal.SIGTERM); pool.recv()",
        9,
        "",
    ),
    "a cycle of garbage": ("pool.itself = threading.current_thread().pool = [pool]", 0, ""),
    "a thread that goes on": ("threading.Thread(target=threading.Event().wait, daemon=True).start()", 0, ""),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_as_it_would_without_a_pool(start_script: Callable[..., Script], end: str) -> None:
    method, state = ("fork", "stuck") if list(ENDS).index(end) % 2 else ("forkserver", "idle")
    statement, wanted, last_line = ENDS[end]
    script = start_script(PROGRAM.replace("END", statement), method, state)
    pids = [int(pid) for pid in script.line().split()]
    code, out, errors = script.finish(30)
    assert (code, out) == (wanted, "")
    assert ([*errors.strip().splitlines(), ""][-1 if not errors.strip() else -2]) == last_line, errors
    assert errors.count("Traceback") == bool(last_line)
    eventually(lambda: all(map(is_gone, pids)), 10.0)


NOTEBOOK = """
import shmenv
from envs import ScriptedEnv, actions
class CellEnv(ScriptedEnv):
    pass

pool = shmenv.Pool([CellEnv, lambda: CellEnv()], num_workers=2)
print(pool.reset().obs.tolist(), pool.step(actions(2)).obs.tolist())
"""


def run(arguments: list[str], source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(SOURCE), str(TESTS)]))
    return subprocess.run(
        [sys.executable, *arguments],
        input=source,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env=environment,
    )


@pytest.mark.parametrize("how", ["-c", "interactive"])
def test_code_that_is_in_no_file_needs_no_guard(tmp_path: Path, how: str) -> None:
    """As in a notebook: nothing can import the main program, so nothing does; its classes travel by value."""
    ended = run(["-c", NOTEBOOK], "", tmp_path) if how == "-c" else run(["-i", "-q"], NOTEBOOK, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "[[0.0, 0.0], [0.0, 0.0]] [[0.0, 1.0], [0.0, 1.0]]\n"
    assert ended.stderr.replace(">>> ", "").replace("... ", "").strip() == ""


def test_a_program_that_comes_by_a_pipe_is_told_to_be_a_file(tmp_path: Path) -> None:
    """Python says of such a program that it is a file named <stdin>, which workers then look for."""
    ended = run(["-"], NOTEBOOK, tmp_path)
    assert ended.returncode == 1 and ended.stdout == ""
    assert "imports the main script, which must be a file" in ended.stderr.strip().splitlines()[-1]
