import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from support import eventually

import shmenv
from shmenv.cli import cores, demo, main
from shmenv.cpu import usable_cores


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "shmenv", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)


def test_the_demo_steps_real_games_without_a_terminal_and_ends_with_a_table() -> None:
    done = run("demo", "--seconds", "0.05")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert sum("200 steps by the same seeds and actions give the same values" in line for line in lines) == 2
    assert sum("round 3 of 3" in line for line in lines) == 6
    assert sum(line.startswith("Two free processes do ") for line in lines) == 1
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert [row[:2] for row in rows] == [
        ["64 CartPole-v1", "shmenv.Pool"],
        ["", "SyncVectorEnv"],
        ["", "AsyncVectorEnv"],
        ["8 ALE/Pong-v5", "shmenv.Pool"],
        ["", "SyncVectorEnv"],
        ["", "AsyncVectorEnv"],
    ]
    assert max(len(line) for line in lines if "│" in line) <= 80
    assert all(float(cell.replace(",", "")) > 0 for row in rows for cell in (row[2], *row[4:]))
    assert all(re.fullmatch(r"[\d.]+[kM]?-[\d.]+[kM]?", row[3]) for row in rows)
    assert [row[4] for row in rows if row[1] == "AsyncVectorEnv"] == ["1.00", "1.00"]
    killed = next(line for line in lines if line.startswith("A worker killed by SIGKILL"))
    noticed, back, *_ = (float(number) for number in re.findall(r"([\d.]+) ms", killed))
    assert 0 < noticed < 1000 and noticed < back  # 100 ms are promised
    assert any(re.match(r"A manager's loop over 64 CartPoles: [1-9][\d,]* env steps/s, ", line) for line in lines)


def test_the_demo_says_who_has_how_many_processes_and_whether_others_use_the_machine() -> None:
    games = [demo.Game("many", object, 1000), demo.Game("one", object, 1)]
    cores, machine = usable_cores(), os.cpu_count() or 1
    where, workers = demo.header(games, 0.4 * machine)
    assert f"{cores} usable cores, load average {0.4 * machine:.1f}" in where
    assert f"shmenv.Pool {cores} and 1 (one a usable core), AsyncVectorEnv 1000 and 1 (one an env)" in workers
    *same, busy = demo.header(games, 0.6 * machine)
    assert same[1] == workers and "shares of a busy machine" in busy


@pytest.mark.parametrize(("quotient", "counts"), [(1.99, True), (1.8, True), (1.79, False), (1.0, False)])
def test_the_demo_says_that_figures_do_not_count_where_two_processes_have_less_than_two_cores(
    quotient: float, counts: bool
) -> None:
    told = cores.words(quotient)
    assert told.startswith(f"Two free processes do {quotient:.2f} times the work of one: ")
    assert ("do not count" in told) == (not counts)
    assert ("a core each" in told) == counts


@pytest.mark.parametrize(
    ("number", "text"), [(7, "7"), (1234, "1.23k"), (61_240, "61.2k"), (412_345, "412k"), (1_234_567, "1.23M")]
)
def test_a_speed_is_shown_by_three_digits(number: float, text: str) -> None:
    assert demo.short(number) == text


def of_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


@pytest.mark.parametrize("interrupted", ["shmenv.Pool", "SyncVectorEnv", "AsyncVectorEnv"])
def test_ctrl_c_ends_the_demo_with_one_line(interrupted: str) -> None:
    before = {"shmenv.Pool": "same values", "SyncVectorEnv": "shmenv.Pool:", "AsyncVectorEnv": "SyncVectorEnv:"}
    command = [sys.executable, "-m", "shmenv", "demo", "--seconds", "1"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert any(before[interrupted] in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to all processes
        assert process.wait(60) == 130
        assert process.stderr.read() == "interrupted\n"
    eventually(lambda: not any(of_group(other, process.pid) for other in psutil.pids()))


@pytest.mark.parametrize("missing", ["rich", "gymnasium", "ale_py"])
def test_a_missing_extra_is_one_sentence_that_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    assert ended.value.code == f"The demo needs {missing}, not installed here: pip install 'shmenv[demo]'"


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"shmenv {shmenv.__version__}\n"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon", ""])
def test_a_measurement_of_no_length_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--seconds", seconds])
    assert f"argument --seconds: {seconds!r} is no positive number of seconds\n" in capsys.readouterr().err


def test_no_command_is_refused_with_the_commands_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "demo" in capsys.readouterr().err
