import runpy
import sys
import sysconfig
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "tools/check_machine.py"


@pytest.fixture(autouse=True)
def debian_s_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.delenv("CC", raising=False)


def complaint() -> str:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    return str(ended.value.code)


def test_a_machine_that_built_shmenv_lacks_nothing() -> None:
    runpy.run_path(str(PROGRAM), run_name="__main__")


def test_missing_headers_of_python_are_told_with_their_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    message = complaint()
    assert f"{tmp_path}/Python.h" in message
    assert message.endswith("apt-get install python3-dev")


def test_a_missing_venv_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert complaint().endswith("apt-get install python3-venv")


def test_a_missing_compiler_is_told_with_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    message = complaint()
    assert "a C compiler (no-such-compiler)" in message
    assert message.endswith("apt-get install gcc libc6-dev")


def test_all_that_is_missing_is_told_at_once_for_the_interpreter_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3.12")
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert complaint().endswith("apt-get install python3.12-venv python3.12-dev")


def test_a_python_that_is_too_old_is_told_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 9, "final", 0))
    assert "Python 3.11 or newer" in complaint()


def test_another_system_than_linux_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert complaint() == "shmenv needs Linux (x86-64 or aarch64): it is built on futex, memfd and pidfd."
