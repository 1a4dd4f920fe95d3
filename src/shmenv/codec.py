"""What fits no array, as bytes: any object, env factories, and exceptions that must reach the other process whole."""

from __future__ import annotations

import contextlib
import io
import pickle
import traceback
import types
from collections import ChainMap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import cloudpickle

PROTOCOL = 5
DAMAGED = "unknown exception"  # name of one whose record is no record
SHORT = (200, 40)  # characters of each text of an error record that must fit a side area; four bytes at most each
ERROR_LIMIT = 1 << 16  # characters of each text of an error, and bytes of its pickled exception


def dump(obj: Any) -> bytes:
    """Pickle an object; by value what the other process might not find under its name.

    These are lambdas, local classes and whatever `__main__` defines. cloudpickle knows a class again that has been here
    before, so objects and env factories of the main program share their classes, in the workers and back here.

    Raises:
        TypeError: it cannot be pickled. The text says why.
    """
    data = b""
    try:
        data = pickle.dumps(obj, PROTOCOL)
        if b"__main__" not in data:
            return data
    except Exception:  # __reduce__ and __getstate__ raise what they like
        pass
    try:
        return _dump_by_value(obj)
    except Exception as error:
        if data:
            return data
        raise TypeError(
            f"cannot send a {type(obj).__qualname__} to another process: {type(error).__name__}: {error}{_blame(obj)}"
        ) from error


def dump_factory(factory: Any) -> bytes:
    """Pickle a function, or a list of them, as cloudpickle does: what stands in `__main__` travels by value.

    Raises:
        TypeError: it cannot be pickled. The text says why.
    """
    try:
        return _dump_by_value(factory)
    except Exception as error:
        raise TypeError(
            f"cannot send {factory!r} to another process: {type(error).__name__}: {error}{_blame(factory)}"
        ) from error


DEPTH = 8  # of the way to what cannot be pickled; it may lead round in a circle


def _blame(obj: Any) -> str:
    """Which of an object's variables, attributes and items cannot be pickled, in words."""
    way: list[str] = []
    for _ in range(DEPTH):
        found = next(((name, part) for name, part in _parts(obj) if not _can_travel(part)), None)
        if found is None:
            break
        way.append(found[0])
        obj = found[1]
    return f". It holds a {type(obj).__qualname__}: {' -> '.join(way)}" if way else ""


def _can_travel(part: Any) -> bool:
    try:
        _dump_by_value(part)
    except Exception:
        return False
    return True


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """What is pickled of an object besides itself, each with what it is called."""
    if isinstance(obj, types.MethodType):
        yield "self", obj.__self__
    elif isinstance(obj, types.FunctionType):
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # it is empty
                yield f"variable {name!r}", cell.cell_contents
        for name in _global_names(obj.__code__):
            if name in obj.__globals__:
                yield f"global variable {name!r}", obj.__globals__[name]
        yield "a default", obj.__defaults__
        yield "a default", obj.__kwdefaults__
    elif isinstance(obj, partial):
        yield "function", obj.func
        yield "arguments", obj.args
        yield "arguments", obj.keywords
    elif isinstance(obj, dict):
        for key, item in obj.items():
            yield f"[{key!r}]", item
    elif isinstance(obj, list | tuple | set | frozenset):
        for k, item in enumerate(obj):
            yield f"[{k}]", item
    elif not isinstance(obj, types.ModuleType) and not _says_how(type(obj)):
        for name, value in [*getattr(obj, "__dict__", {}).items()]:
            yield f"attribute {name!r}", value
        if not isinstance(obj, type):
            yield f"class {type(obj).__qualname__}", type(obj)


def _says_how(cls: type) -> bool:
    """Whether a class has a way of its own to be pickled, which may leave attributes out."""
    names = ("__reduce__", "__reduce_ex__", "__getstate__")
    return any(getattr(cls, name, None) is not getattr(object, name, None) for name in names)


def _global_names(code: types.CodeType) -> Iterator[str]:
    """What a function and those in it look up outside of themselves."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _reduce_code(code: types.CodeType) -> Any:
    """As cloudpickle does, but with the file's name: else the env's own lines are missing in a worker's traceback."""
    make, parts = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )


def _dump_by_value(obj: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file, PROTOCOL).dump(obj)
        return file.getvalue()


def load(data: bytes | bytearray | memoryview) -> Any:
    """The object that `dump` or `dump_factory` of one of this pool's own processes has written.

    Raises:
        Exception: whatever the object's class or its import raises.
    """
    return pickle.loads(data)


def load_foreign(data: bytes | bytearray | memoryview) -> Any:
    """What an env has given, for processes that it shall not end.

    Raises:
        ValueError: its unpickling raised what is no Exception, such as SystemExit.
        Exception: whatever else it raised. KeyboardInterrupt is Ctrl-C alone.
    """
    try:
        return load(data)
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not _interrupts(data):
            raise
        raise ValueError(f"unpickling raised {type(error).__name__}: {error}") from error


def _interrupts(data: bytes | bytearray | memoryview) -> bool:
    """Whether it is the data that raises KeyboardInterrupt: then it does so again."""
    try:
        load(data)
    except KeyboardInterrupt:
        return True
    except BaseException:
        return False
    return False


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception of another process.

    Attributes:
        type_name: qualified name of its class, `builtins.` left out.
        message: its text; for the exits one sentence that says what the env did.
        traceback_text: the whole chain of causes as Python prints it.
        exception: the exception itself, attributes included; None if it did not survive the journey.
    """

    type_name: str
    message: str
    traceback_text: str
    exception: BaseException | None


def dump_error(exc: BaseException, limit: int = ERROR_LIMIT) -> bytes:
    """Describe an exception so that `load_error` can always read it. Never raises.

    The exception itself goes along if it comes out of a round trip here as it went in. If its class has a constructor
    that pickle cannot call, it is rebuilt without the constructor.

    Args:
        exc: the exception, with its traceback and causes.
        limit: characters of the message and of the traceback (its middle is left out), bytes of the exception.
    """
    parts = (
        _quietly(lambda: _type_name(type(exc)), DAMAGED),
        _quietly(lambda: _cut(_message(exc), limit), "(the exception's text cannot be shown)"),
        _quietly(lambda: _cut("".join(traceback.format_exception(exc)), limit), "(the traceback cannot be shown)\n"),
        _quietly(lambda: _dump_exception(exc, limit), b""),
    )
    return pickle.dumps(parts, PROTOCOL)


def dump_short_error(exc: BaseException, room: int, wrap: Callable[[bytes], bytes] = lambda record: record) -> bytes:
    """As `dump_error`, but of at most `room` bytes, wrapped, of which there are a thousand."""
    for limit in SHORT:
        record = wrap(dump_error(exc, limit))
        if len(record) <= room:
            break
    return record


def load_error(data: bytes | bytearray | memoryview) -> RemoteError:
    """What `dump_error` has written. Never raises: what its process has overwritten since is told as such.

    An exception whose class is not known in this process is left out.
    """
    try:
        type_name, message, traceback_text, pickled = load_foreign(data)
        if [type(part) for part in (type_name, message, traceback_text, pickled)] != [str, str, str, bytes]:
            raise TypeError("it holds something else")
    except Exception as error:
        return RemoteError(DAMAGED, f"its worker has overwritten what it told of it ({error})", "", None)
    exception = _quietly(lambda: pickle.loads(pickled), None) if pickled else None
    return RemoteError(type_name, message, traceback_text, exception)


def load_failure(data: bytes | bytearray | memoryview) -> tuple[str, bytes]:
    """The command that failed in a worker and its error record, for `load_error`. Never raises, as that."""
    try:
        command, record = load_foreign(data)
        if command in ("step", "reset") and type(record) is bytes:
            return command, record
    except Exception:  # the record below says so
        pass
    return "step", b""


def rebuild_exception(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An exception from its parts, without its class's constructor. Named in pickles; not for other use."""
    exc = cls.__new__(cls, *args)
    exc.args = args
    exc.__dict__.update(state)
    return exc


class _Rebuilt:
    """Pickles as the exception it holds."""

    def __init__(self, exc: BaseException) -> None:
        self.exc = exc

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild_exception, (type(self.exc), self.exc.args, dict(self.exc.__dict__))


def _dump_exception(exc: BaseException, limit: int) -> bytes:
    for candidate in (exc, _Rebuilt(exc)):
        data: bytes = _quietly(partial(_dump_survivor, candidate, exc), b"")
        if 0 < len(data) <= limit:
            return data
    return b""


def _dump_survivor(candidate: object, exc: BaseException) -> bytes:
    data = dump(candidate)
    return data if _same(load(data), exc) else b""


def _same(one: BaseException, two: BaseException) -> bool:
    # A class that came by value is another object of the same name. Texts differ if the constructor, called with what
    # it had passed on to Exception, has built a text around a text.
    return (
        _type_name(type(one)) == _type_name(type(two))
        and str(one) == str(two)
        and len(one.args) == len(two.args)
        and one.__dict__.keys() == two.__dict__.keys()
    )


def _type_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _message(exc: BaseException) -> str:
    if isinstance(exc, SystemExit):
        return f"the env called sys.exit({'' if exc.code is None else repr(exc.code)})"
    if isinstance(exc, KeyboardInterrupt):
        return f"the env raised KeyboardInterrupt({', '.join(map(repr, exc.args))})"
    return str(exc)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[len(text) - half :]}"


def _quietly(make: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return make()
    except BaseException:  # the user's __str__, __reduce__ or constructor may even call sys.exit
        return otherwise
