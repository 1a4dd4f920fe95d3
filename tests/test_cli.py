import subprocess
import sys

import pytest

import shmenv
from shmenv.cli import main


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
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert [row[:2] for row in rows] == [
        ["64 CartPole-v1", "shmenv.Pool"],
        ["", "SyncVectorEnv"],
        ["", "AsyncVectorEnv"],
        ["8 Atari ALE/Pong-v5", "shmenv.Pool"],
        ["", "SyncVectorEnv"],
        ["", "AsyncVectorEnv"],
    ]
    assert all(float(cell.replace(",", "")) > 0 for row in rows for cell in row[2:])
    assert [row[3] for row in rows if row[1] == "AsyncVectorEnv"] == ["1.00", "1.00"]


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


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_measurement_of_no_length_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--seconds", seconds])
    assert "--seconds" in capsys.readouterr().err


def test_no_command_is_refused_with_the_commands_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "demo" in capsys.readouterr().err
