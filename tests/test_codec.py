"""Objects and exceptions on their way to another process."""

from __future__ import annotations

import pickle
import sys
import threading
from typing import Any, NoReturn

import numpy as np
import pytest

from shmenv import codec
from shmenv.codec import RemoteError, dump, dump_error, dump_factory, load, load_error


@pytest.fixture(autouse=True)
def _leak_guard() -> None:
    """No guard: these tests open nothing and start nothing, and it would be nearly all they cost."""


@pytest.mark.parametrize("obj", [None, 3, "text", {"a": [1, (2, b"x")]}, ValueError("no"), dict], ids=repr)
def test_an_object_comes_back(obj: Any) -> None:
    assert repr(load(dump(obj))) == repr(obj)
    assert repr(load(memoryview(dump(obj)))) == repr(obj)


def test_an_array_comes_back_as_its_own_and_writable() -> None:
    array = np.arange(6.0).reshape(2, 3).T
    back = load(dump({"x": array}))["x"]
    back += 1
    assert np.array_equal(back, array + 1)


@pytest.mark.parametrize("put", [dump, dump_factory])
def test_what_has_no_name_travels_by_value(put: Any) -> None:
    captured = 5
    assert load(put(lambda x: x + captured))(2) == 7

    class Local:
        value = captured

    assert load(put(Local))().value == 5


def test_a_factory_of_the_main_program_travels_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_answer, "__module__", "__main__")
    data = dump_factory(make_answer)
    assert not hasattr(sys.modules["__main__"], "make_answer") and load(data)() == 42


def test_a_class_of_the_main_program_is_known_again() -> None:
    main = sys.modules["__main__"]
    exec("class Jump:\n    height = 3", vars(main))
    jump = main.Jump()
    try:
        data = dump([jump, "the word __main__"])
    finally:
        del main.Jump
    assert type(load(data)[0]) is type(jump) and load(data)[1] == "the word __main__"
    assert type(load(dump(load(data)))[0]) is type(jump)


def make_answer() -> int:
    return 42


class Stubborn:
    """Cannot be pickled."""

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("not me")


@pytest.mark.parametrize("put", [dump, dump_factory])
@pytest.mark.parametrize(("obj", "words"), [(Stubborn(), "Stubborn.*RuntimeError: not me"), (threading.Lock(), "lock")])
def test_what_cannot_travel_is_a_type_error_that_says_why(put: Any, obj: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        put(obj)


def raised(exc: BaseException, cause: BaseException | None = None) -> BaseException:
    """The exception with a traceback, as a worker has it in hand."""
    try:
        raise exc from cause
    except BaseException as caught:
        return caught


def through(exc: BaseException, limit: int = codec.ERROR_LIMIT) -> RemoteError:
    return load_error(dump_error(raised(exc), limit))


class CodeError(Exception):
    """Has a constructor of its own, unlike the one that pickle calls."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code = code
        self.where = where


class WrappingError(Exception):
    """Builds its text around what it gets, so that a second construction would build it twice."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"failed: {reason}")


class StubbornError(Exception):
    def __reduce__(self) -> NoReturn:
        raise RuntimeError("not me")


class ExitingError(Exception):
    def __reduce__(self) -> NoReturn:
        sys.exit(3)


class MuteError(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no words")


class WrongWordsError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class ExitingWordsError(Exception):
    def __str__(self) -> NoReturn:
        sys.exit(5)


class BombError(Exception):
    """Pickles well, and raises when unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class HeldError(Exception):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("no"),
        KeyError("key"),
        OSError(2, "No such file", "there"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        StopIteration(3),
        AssertionError(),
        ExceptionGroup("both", [ValueError("one"), TypeError("two")]),
        CodeError(7, where="here"),
        WrappingError("rain"),
        SystemExit(4),
        KeyboardInterrupt(),
        ValueError({"rich": [1, 2]}, "args"),
        ValueError("half \ud800 a pair"),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_an_exception_comes_out_as_it_went_in(exc: BaseException) -> None:
    exc.step = 12  # type: ignore[attr-defined]
    exc.add_note("seen on Monday")
    back = through(exc)
    assert type(back.exception) is type(exc) and repr(back.exception) == repr(exc)
    assert vars(back.exception) == vars(exc) and str(back.exception) == str(exc)
    assert "test_codec.py" in back.traceback_text and "seen on Monday" in back.traceback_text


@pytest.mark.parametrize(
    "exc", [StubbornError("x"), ExitingError("x"), BombError("x")], ids=lambda exc: type(exc).__name__
)
def test_an_exception_whose_own_pickling_fails_is_rebuilt_without_it(exc: BaseException) -> None:
    back = through(exc)
    assert type(back.exception) is type(exc) and back.exception.args == ("x",)
    assert back.message == "x" and f"test_codec.{type(exc).__name__}: x" in back.traceback_text


def test_an_exception_that_holds_what_cannot_travel_leaves_its_text() -> None:
    back = through(HeldError())
    assert back.exception is None and back.message == "held" and back.type_name == "test_codec.HeldError"
    assert "test_codec.HeldError: held" in back.traceback_text


@pytest.mark.parametrize("exc", [MuteError(), WrongWordsError(), ExitingWordsError()], ids=lambda e: type(e).__name__)
def test_an_exception_without_words_is_reported_all_the_same(exc: BaseException) -> None:
    back = through(exc)
    assert back.type_name == f"test_codec.{type(exc).__name__}"
    assert "cannot be shown" in back.message and back.traceback_text


def test_the_text_of_an_exit_says_what_the_env_did() -> None:
    assert through(SystemExit(4)).message == "the env called sys.exit(4)"
    assert through(SystemExit()).message == "the env called sys.exit()"
    assert through(SystemExit("bye")).message == "the env called sys.exit('bye')"
    assert through(KeyboardInterrupt()).message == "the env raised KeyboardInterrupt()"


def test_names_are_qualified_but_for_those_that_everybody_knows() -> None:
    assert through(ValueError("x")).type_name == "ValueError"
    assert through(pickle.PicklingError("x")).type_name == "_pickle.PicklingError"


def test_the_traceback_tells_the_whole_chain() -> None:
    cause = raised(CodeError(1, where="first"), raised(OSError("root")))
    text = load_error(dump_error(raised(ValueError("last"), cause))).traceback_text
    assert "direct cause" in text and text.index("root") < text.index("code 1 at first") < text.index(
        "ValueError: last"
    )
    assert 'test_codec.py", line' in text


def test_a_chain_that_bites_its_tail_ends() -> None:
    one, two = raised(ValueError("one")), raised(ValueError("two"))
    one.__cause__, two.__cause__ = two, one
    assert "two" in load_error(dump_error(one)).traceback_text


def test_long_texts_are_cut_in_the_middle() -> None:
    back = through(ValueError("a" * 10_000 + "z" * 10_000), limit=1000)
    assert len(back.message) < 1100 and back.message.startswith("aaa") and back.message.endswith("zzz")
    assert "19000 characters left out" in back.message
    assert len(back.traceback_text) < 1100 and back.traceback_text.startswith("Traceback")
    assert back.exception is None


def test_endless_recursion_is_reported_in_few_lines() -> None:
    def deeper() -> None:
        deeper()

    try:
        deeper()
    except RecursionError as error:
        back = load_error(dump_error(error))
    assert back.type_name == "RecursionError" and len(back.traceback_text) < codec.ERROR_LIMIT + 100


def test_a_class_that_only_the_worker_knows_is_left_out() -> None:
    module = type(sys)("only_there")
    exec("class LocalError(Exception): pass", vars(module))
    sys.modules["only_there"] = module
    try:
        data = dump_error(raised(module.LocalError("far away")))
    finally:
        del sys.modules["only_there"]
    back = load_error(data)
    assert back.exception is None and back.type_name == "only_there.LocalError" and back.message == "far away"


def test_a_local_class_comes_by_value() -> None:
    class LocalError(Exception):
        pass

    back = through(LocalError("here"))
    assert type(back.exception).__name__ == "LocalError" and str(back.exception) == "here"


@pytest.mark.parametrize(
    "record",
    [b"", b"garbage", codec.dump_error(KeyError(1))[:-1], codec.dump(None), codec.dump((1, "a", "b", b""))],
    ids=["empty", "garbage", "cut", "something else", "wrong types"],
)
def test_an_error_record_that_was_overwritten_is_told_as_such(record: bytes) -> None:
    remote = codec.load_error(record)
    assert remote.exception is None and "overwritten" in remote.message
    assert codec.load_failure(record) == ("step", b"")


def test_the_failed_command_comes_with_its_error() -> None:
    record = codec.dump_error(KeyError(1))
    assert codec.load_failure(codec.dump(("reset", record))) == ("reset", record)
