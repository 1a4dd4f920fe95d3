import copy
import os
import pickle
import signal
import threading
import time
import types
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from started import INTERRUPTED, finish, fork, kill, refuses_bad_timeouts, started
from support import Script, eventually

from shmenv import ResourceError, SeqlockBuffer, ShmenvError, UsageError

FIXED_SIZE = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "F", "D", "G"),
    *(">i2", ">u4", ">f8", ">c16", "S1", "S7", "U1", "U5", ">U3", "V3", "M8[s]", "m8[ns]", ">M8[D]"),
    *("u1, >f4", [("a", "i2", (3,)), ("b", [("c", "?"), ("d", "U2")])], ("f4", (2,))),
    np.dtype({"names": ["x", "y"], "formats": ["u1", "f8"], "offsets": [0, 16], "itemsize": 40}),
]


def random_array(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Bytes by chance that are a legal value: text without bad code points, bools of 0 and 1."""
    rng = np.random.default_rng(seed)
    array = np.zeros(shape, dtype)
    if dtype.names:
        for name in dtype.names:
            array[name] = random_array(dtype[name].base, shape + dtype[name].shape, seed + 1)
    elif dtype.kind in "US":
        array[...] = np.array(["", "a", "xyz", "bcd"])[rng.integers(0, 4, shape)]
    elif dtype.kind == "b":
        array[...] = rng.integers(0, 2, shape)
    else:
        array = np.frombuffer(rng.bytes(array.nbytes), dtype).reshape(shape).copy()
    return array


def same(a: Any, b: Any) -> bool:
    """Same dtype, shape and bytes."""
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def checked_value(number: int, words: int) -> np.ndarray[Any, Any]:
    """Words that differ from those of any other number, and a checksum."""
    value = np.arange(number, number + words, dtype=np.uint64)
    value[-1] = zlib.crc32(value[:-1].tobytes())
    return value


def check(value: np.ndarray[Any, Any]) -> int:
    """The number that the value was made from; it must be whole."""
    if value.any():  # all zeros: nothing was written yet
        assert value[-1] == zlib.crc32(value[:-1].tobytes()), "torn"
        assert value[-2] - value[0] == len(value) - 2, "torn"
    return int(value[0])


def write_from(buffer: SeqlockBuffer, first: int, count: int, words: int) -> None:
    values = [checked_value(number, words) for number in range(first, first + min(count, 16))]
    for number in range(count):
        buffer.write(values[number % len(values)])


def write_numbers(buffer: SeqlockBuffer, numbers: range) -> None:
    for number in numbers:
        buffer.write(np.uint64(number))


def answer(asked: SeqlockBuffer, answered: SeqlockBuffer, count: int) -> None:
    seen = 0
    for _ in range(count):
        assert asked.wait_newer(seen, timeout=30)
        number = asked.read()
        seen = asked.version
        answered.write(number * number)


def read_until(buffer: SeqlockBuffer, words: int, stop: SeqlockBuffer) -> None:
    out = np.zeros(words, np.uint64)
    seen = 0
    while not stop.read():
        version = buffer.read_into(out)
        assert version >= seen
        seen = version
        check(out)


@pytest.mark.parametrize("dtype", FIXED_SIZE, ids=str)
def test_every_dtype_of_fixed_size_comes_back_as_it_went(dtype: Any) -> None:
    dtype = np.dtype(dtype)
    for shape in ((), (3,), (2, 0), (2, 3, 4)):
        buffer = SeqlockBuffer(dtype, shape)
        for seed in range(6):  # once round all cells
            array = random_array(dtype.base, shape + dtype.shape, seed)
            buffer.write(array)
            assert same(buffer.read(), array)
            out = np.empty_like(array)
            assert buffer.read_into(out) == buffer.version == seed + 1
            assert same(out, array)


@settings(max_examples=80, deadline=None)
@given(
    array=hnp.arrays(
        hnp.scalar_dtypes() | hnp.array_dtypes(hnp.scalar_dtypes()),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    transposed=st.booleans(),
)
def test_any_array_of_fixed_size_comes_back_as_it_went(array: np.ndarray[Any, Any], transposed: bool) -> None:
    if array.dtype.itemsize == 0:
        return
    array = array.T if transposed else array
    buffer = SeqlockBuffer(array.dtype, array.shape)
    buffer.write(array)
    assert same(buffer.read(), array)


@pytest.mark.parametrize(
    "dtype", ["O", "S", "U", "T", None, "no such", [("a", "O")], [("a", "U3"), ("b", "O")]], ids=str
)
def test_a_dtype_without_fixed_size_is_refused_with_advice(dtype: Any) -> None:
    if dtype == "T" and not hasattr(np.dtypes, "StringDType"):
        pytest.skip("this numpy has no StringDType")
    with pytest.raises(UsageError, match=r"pickled|is no dtype"):
        SeqlockBuffer(dtype, (2,))


@pytest.mark.parametrize("shape", [(-1,), (1.5,), "ab", ("2",), 2.0, {"a": 1}])
def test_a_wrong_shape_is_refused(shape: Any) -> None:
    with pytest.raises(UsageError, match="shape"):
        SeqlockBuffer("f4", shape)


def test_before_the_first_write_it_is_zero() -> None:
    buffer = SeqlockBuffer("f4", (2,))
    assert (buffer.version, buffer.read().tolist()) == (0, [0, 0])


def test_a_value_that_does_not_fit_changes_nothing() -> None:
    buffer = SeqlockBuffer("f4", (4,))
    buffer.write(np.ones(4, "f4"))
    for wrong in (
        np.ones(1, "f4"),
        np.ones((4, 1), "f4"),
        np.ones(4),
        np.ones(4, ">f4"),
        1,
        [1, 2, 3, 4],
        None,
        "abcd",
    ):
        with pytest.raises(UsageError, match="needs float32"):
            buffer.write(wrong)
    assert (buffer.version, buffer.read().tolist()) == (1, [1, 1, 1, 1])


def test_without_strict_dtype_values_that_survive_are_converted() -> None:
    buffer = SeqlockBuffer("u1", (2,), strict_dtype=False)
    buffer.write([1, 255])
    assert buffer.read().tolist() == [1, 255]
    for wrong in ([1, 256], [-1, 0], [0.5, 1]):
        with pytest.raises(UsageError, match="uint8"):
            buffer.write(wrong)
    assert buffer.version == 1


def test_named_arrays_are_published_together() -> None:
    buffer = SeqlockBuffer({"image": ("u1", (5, 3)), "time": (">f8", ()), "name": ("U4", 2), "none": ("i4", (0,))})
    for number in range(6):
        value = {
            "image": np.full((5, 3), number, "u1"),
            "time": np.array(number / 4, ">f8"),
            "name": np.array([str(number), "xy"], "U4"),
            "none": np.zeros(0, "i4"),
        }
        buffer.write(value)
        out = {name: np.empty_like(array) for name, array in value.items()}
        assert buffer.read_into(out) == number + 1
        for got in (buffer.read(), out):
            assert list(got) == list(value)
            assert all(same(got[name], value[name]) for name in value)


def test_wrong_names_change_nothing() -> None:
    buffer = SeqlockBuffer({"a": ("f8", ()), "b": ("f8", ())})
    one = np.float64(1)
    for wrong in ({"a": one}, {"a": one, "b": one, "c": one}, {"a": one, "c": one}, one, None, [one, one]):
        with pytest.raises(UsageError, match=r"must have the keys|must be a dict"):
            buffer.write(wrong)
    with pytest.raises(UsageError, match=r"value\['b'\] needs float64 \(\)"):
        buffer.write({"a": one, "b": np.ones(3)})
    assert buffer.version == 0


@pytest.mark.parametrize("fields", [{"a": "f4"}, {"a": ("f4",)}, {"a": ("f4", (1,), 2)}, {"a": ("O", ())}])
def test_wrong_fields_are_refused(fields: Any) -> None:
    with pytest.raises(UsageError, match="'a'"):
        SeqlockBuffer(fields)
    with pytest.raises(UsageError, match="leave shape out"):
        SeqlockBuffer({"a": ("f4", ())}, (2,))


def test_read_into_needs_a_writable_array_that_fits() -> None:
    buffer = SeqlockBuffer("f4", (2, 3))
    buffer.write(np.arange(6, dtype="f4").reshape(2, 3))
    locked = np.zeros((2, 3), "f4")
    locked.flags.writeable = False
    for wrong in (np.zeros((3, 2), "f4"), np.zeros((2, 3)), locked, [[0.0] * 3] * 2, None):
        with pytest.raises(UsageError, match="out must be a writable array"):
            buffer.read_into(wrong)
    strided = np.zeros((4, 3), "f4")[::2]
    unaligned = np.zeros(25, "u1")[1:].view("f4").reshape(2, 3)
    for out in (strided, unaligned, np.zeros((3, 2), "f4").T):
        assert buffer.read_into(out) == 1
        assert out.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_copy_stays_when_the_value_changes() -> None:
    buffer = SeqlockBuffer("f8", (3,))
    buffer.write(np.ones(3))
    kept = buffer.read()
    for _ in range(5):
        buffer.write(np.zeros(3))
    assert kept.tolist() == [1, 1, 1]


def test_wait_newer_tells_whether_there_is_one() -> None:
    buffer = SeqlockBuffer("f8", ())
    assert not buffer.wait_newer(0, timeout=0)
    start = time.monotonic()
    assert not buffer.wait_newer(0, timeout=0.15)
    assert time.monotonic() - start >= 0.15
    buffer.write(1.0)
    assert buffer.wait_newer(0)
    assert not buffer.wait_newer(1, timeout=0)
    refuses_bad_timeouts(lambda timeout: buffer.wait_newer(0, timeout))
    for version in (-1, 2**64, 0.5, None, True, "1"):
        with pytest.raises(UsageError, match="version"):
            buffer.wait_newer(version, timeout=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [0, 2**32 - 25])
def test_a_reader_is_woken_by_a_write(context: str, start: int) -> None:
    asked, answered = SeqlockBuffer("i8", ()), SeqlockBuffer("i8", (), _start=start)
    with started(context, answer, asked, answered, 100) as process:
        for number in range(100):
            asked.write(number)
            assert answered.wait_newer(start + number, timeout=30)
            assert answered.read() == number * number
        finish(process)


def test_a_thread_that_waits_lets_the_others_run() -> None:
    buffer, found = SeqlockBuffer("f8", ()), []
    waiters = [threading.Thread(target=lambda: found.append(buffer.wait_newer(0, 30))) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    buffer.write(1.0)
    for waiter in waiters:
        waiter.join()
    assert found == [True] * 3


def test_a_half_written_value_is_never_seen_and_the_next_write_repairs_it() -> None:
    buffer = SeqlockBuffer("u8", (4,))
    memory = np.frombuffer(memoryview(buffer._segment.buffer), "u8")
    for number in range(1, 9):
        buffer.write(np.full(4, number, "u8"))
        half = buffer._cells.offset_of(number + 1) // 8
        memory[half : half + 2] = 99  # where a writer of the next version is killed
        assert buffer.read().tolist() == [number] * 4


@pytest.mark.parametrize(
    ("words", "kills", "readers"),
    [(4, 500, 0), (200, 700, 0), (200, 50, 2), (30_000, 50, 1), pytest.param(200, 5000, 1, marks=pytest.mark.stress)],
)
def test_no_reader_sees_a_torn_value_when_writers_are_killed(words: int, kills: int, readers: int) -> None:
    buffer, stop = SeqlockBuffer("u8", (words,)), SeqlockBuffer("?", ())
    others = [fork(read_until, buffer, words, stop) for _ in range(readers)]
    out = np.zeros(words, np.uint64)
    for turn in range(kills):
        seen = buffer.version
        writer = fork(write_from, buffer, turn + 1, 2**30, words)
        assert buffer.wait_newer(seen, timeout=30)
        for _ in range(turn % 7):  # so that kills fall everywhere in a write
            buffer.read_into(out)
            check(out)
        kill(writer)
        last = buffer.read_into(out)
        number = check(out)
        assert turn + 1 <= number < turn + 17
        assert buffer.version == last
    stop.write(True)
    assert [os.waitpid(pid, 0)[1] for pid in others] == [0] * readers


def test_a_reader_never_goes_back_in_time() -> None:
    buffer = SeqlockBuffer("u8", ())
    with started("fork", write_numbers, buffer, range(1, 100_001)) as writer:
        seen = 0
        out = np.zeros((), np.uint64)
        while seen < 100_000:
            version = buffer.read_into(out)
            assert version == out >= seen
            seen = version
        finish(writer)


def test_a_reader_that_is_always_lapped_gives_up() -> None:
    buffer = SeqlockBuffer("f8", (3,))
    buffer._cells = types.SimpleNamespace(read=lambda out: -1)  # type: ignore[assignment]
    for read in (buffer.read, lambda: buffer.read_into(np.zeros(3))):
        with pytest.raises(ShmenvError, match="faster than a reader can copy"):
            read()


def test_too_little_memory_is_an_error_before_anything_is_allocated() -> None:
    with pytest.raises(
        ResourceError, match=r"are needed for a SeqlockBuffer of float64 \(4000, 1000000, 100\), 4 times"
    ):
        SeqlockBuffer("f8", (4000, 1_000_000, 100))


def test_ctrl_c_ends_a_wait(start_script: Callable[..., Script]) -> None:
    script = start_script(INTERRUPTED.format(make="SeqlockBuffer('f8', ())", wait="thing.wait_newer(0)"))
    assert script.line() == "ready"
    script.process.send_signal(signal.SIGINT)
    assert script.finish()[:2] == (0, "interrupted\n")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_travels_only_at_a_process_start(duplicate: Callable[[SeqlockBuffer], Any]) -> None:
    with pytest.raises(TypeError, match="a SeqlockBuffer travels only as an argument of a process start"):
        duplicate(SeqlockBuffer("f8", ()))


def test_a_killed_reader_costs_nothing_but_wake_ups() -> None:
    buffer = SeqlockBuffer("f8", ())
    waiters = np.frombuffer(memoryview(buffer._segment.buffer), "u4")[32:33]  # second line of the block
    reader = fork(buffer.wait_newer, 0)
    eventually(lambda: waiters[0] == 1)
    kill(reader)
    buffer.write(1.0)
    assert buffer.wait_newer(0, timeout=0)
