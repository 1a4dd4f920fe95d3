"""What does each primitive cost beside what the standard library offers for the same job?

A round trip goes to another process and back; an echo process answers. A stream sends many items one way. The newest
value is written and read in one process, where only the copying counts.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import shmenv

CONTEXT = multiprocessing.get_context("fork")
STREAM = 10_000
STOP = 2**64 - 1


@contextmanager
def other_process(target: Callable[..., Any], *arguments: Any) -> Iterator[None]:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()
        process.close()


def echo_semaphore(asked: Any, answered: Any, wait: str, post: str) -> None:
    wait_asked, post_answered = getattr(asked, wait), getattr(answered, post)
    while True:
        wait_asked()
        post_answered()


@pytest.mark.parametrize(
    ("make", "wait", "post"),
    [(shmenv.Semaphore, "wait", "post"), (lambda: CONTEXT.Semaphore(0), "acquire", "release")],
    ids=["shmenv.Semaphore", "multiprocessing.Semaphore"],
)
def test_semaphore_round_trip(make: Callable[[], Any], wait: str, post: str, benchmark: Any) -> None:
    benchmark.group = "semaphore: round trip between two processes"
    asked, answered = make(), make()
    post_asked, wait_answered = getattr(asked, post), getattr(answered, wait)

    def round_trip() -> Any:
        post_asked()
        return wait_answered()

    with other_process(echo_semaphore, asked, answered, wait, post):
        assert benchmark(round_trip) is True


@pytest.mark.parametrize(
    ("make", "wait", "post"),
    [(shmenv.Semaphore, "wait", "post"), (lambda: CONTEXT.Semaphore(0), "acquire", "release")],
    ids=["shmenv.Semaphore", "multiprocessing.Semaphore"],
)
def test_semaphore_post_and_wait_alone(make: Callable[[], Any], wait: str, post: str, benchmark: Any) -> None:
    benchmark.group = "semaphore: post and wait, nobody else there"
    semaphore = make()
    post_one, wait_one = getattr(semaphore, post), getattr(semaphore, wait)

    def post_and_wait() -> Any:
        post_one()
        return wait_one()

    assert benchmark(post_and_wait) is True


def echo_ring(there: shmenv.Ring, back: shmenv.Ring) -> None:
    while True:
        back.push(there.pop())


def echo_pipe(connection: Any) -> None:
    while True:
        connection.send_bytes(connection.recv_bytes())


def test_ring_round_trip(benchmark: Any) -> None:
    benchmark.group = "8 byte message: round trip between two processes"
    there, back = shmenv.Ring(16), shmenv.Ring(16)
    count = 0

    def round_trip() -> None:
        nonlocal count
        count += 1
        there.push(count)
        assert back.pop() == count

    with other_process(echo_ring, there, back):
        benchmark(round_trip)


def test_pipe_round_trip(benchmark: Any) -> None:
    benchmark.group = "8 byte message: round trip between two processes"
    mine, other = CONTEXT.Pipe()
    count = 0

    def round_trip() -> None:
        nonlocal count
        count += 1
        mine.send_bytes(count.to_bytes(8, "little"))
        assert int.from_bytes(mine.recv_bytes(), "little") == count

    with mine, other, other_process(echo_pipe, other):
        benchmark(round_trip)


def sum_ring(items: shmenv.Ring, sums: shmenv.Ring) -> None:
    total = 0
    while True:
        item = items.pop()
        if item == STOP:
            sums.push(total)
            total = 0
        else:
            total += item  # type: ignore[operator]


def sum_pipe(items: Any) -> None:
    total = 0
    while True:
        item = int.from_bytes(items.recv_bytes(), "little")
        if item == STOP:
            items.send_bytes(total.to_bytes(8, "little"))
            total = 0
        else:
            total += item


def test_ring_stream(benchmark: Any) -> None:
    benchmark.group = f"{STREAM} messages of 8 bytes, one way"
    items, sums = shmenv.Ring(1024), shmenv.Ring(1)

    def stream() -> Any:
        push = items.push
        for number in range(STREAM):
            push(number)
        push(STOP)
        return sums.pop()

    with other_process(sum_ring, items, sums):
        assert benchmark(stream) == sum(range(STREAM))


def test_pipe_stream(benchmark: Any) -> None:
    benchmark.group = f"{STREAM} messages of 8 bytes, one way"
    mine, other = CONTEXT.Pipe()

    def stream() -> int:
        send = mine.send_bytes
        for number in range(STREAM):
            send(number.to_bytes(8, "little"))
        send(STOP.to_bytes(8, "little"))
        return int.from_bytes(mine.recv_bytes(), "little")

    with mine, other, other_process(sum_pipe, other):
        assert benchmark(stream) == sum(range(STREAM))


class LockedArray:
    """The plain alternative to SeqlockBuffer: an array under a lock."""

    def __init__(self, dtype: str, shape: int) -> None:
        self.shared = CONTEXT.Array("B", np.dtype(dtype).itemsize * shape)
        self.array: np.ndarray[Any, Any] = np.frombuffer(memoryview(self.shared.get_obj()), dtype)

    def write(self, x: np.ndarray[Any, Any]) -> None:
        with self.shared.get_lock():
            self.array[:] = x

    def read_into(self, out: np.ndarray[Any, Any]) -> None:
        with self.shared.get_lock():
            out[:] = self.array


BUFFERS = {"shmenv.SeqlockBuffer": shmenv.SeqlockBuffer, "Lock+Array": LockedArray}


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("size", [16, 28_224, 100_000], ids=lambda size: f"{size}B")
def test_write(size: int, name: str, benchmark: Any) -> None:
    benchmark.group = f"newest value of {size} bytes: write"
    buffer = BUFFERS[name]("u1", size)
    value, out = np.random.default_rng(0).integers(0, 256, size, "u1"), np.zeros(size, "u1")
    benchmark(buffer.write, value)
    buffer.read_into(out)
    np.testing.assert_array_equal(out, value)


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("size", [16, 28_224, 100_000], ids=lambda size: f"{size}B")
def test_read(size: int, name: str, benchmark: Any) -> None:
    benchmark.group = f"newest value of {size} bytes: read"
    buffer = BUFFERS[name]("u1", size)
    value, out = np.random.default_rng(0).integers(0, 256, size, "u1"), np.zeros(size, "u1")
    buffer.write(value)
    benchmark(buffer.read_into, out)
    np.testing.assert_array_equal(out, value)


def write_for_ever(buffer: Any, size: int) -> None:
    values = [np.full(size, number, "u1") for number in range(256)]
    while True:
        for value in values:
            buffer.write(value)


@pytest.mark.parametrize("name", BUFFERS)
def test_read_beside_a_busy_writer(name: str, benchmark: Any) -> None:
    """Where a lock makes the two wait for each other."""
    size = 28_224
    benchmark.group = f"newest value of {size} bytes: read while another process writes without a pause"
    buffer, out = BUFFERS[name]("u1", size), np.zeros(size, "u1")

    def read() -> None:
        buffer.read_into(out)
        assert (out == out[0]).all()

    with other_process(write_for_ever, buffer, size):
        benchmark(read)
