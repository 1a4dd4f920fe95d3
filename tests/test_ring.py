import copy
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from started import INTERRUPTED, finish, fork, kill, refuses_bad_timeouts, started
from support import Script

from shmenv import Ring, UsageError


def push_from(ring: Ring, first: int, count: int) -> None:
    for number in range(first, first + count):
        ring.push(number if ring.itemsize == 8 else number.to_bytes(ring.itemsize, "little"), timeout=60)


def pop_and_report(ring: Ring, reports: Ring, count: int) -> None:
    for _ in range(count):
        reports.push(ring.pop(timeout=60), timeout=60)


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 9),
    itemsize=st.sampled_from([1, 3, 8, 200]),
    start=st.sampled_from([0, 2**31 - 4, 2**32 - 4]),
    pushes=st.lists(st.booleans(), max_size=60),
)
def test_it_is_a_bounded_queue(capacity: int, itemsize: int, start: int, pushes: list[bool]) -> None:
    ring, reference = Ring(capacity, itemsize, _start=start), deque[int | bytes]()
    for number, push in enumerate(pushes):
        item = number if itemsize == 8 else bytes([number]) * itemsize
        if push:
            assert ring.try_push(item) == (len(reference) < capacity)
            if len(reference) < capacity:
                reference.append(item)
        else:
            assert ring.try_pop() == (reference.popleft() if reference else None)
        assert len(ring) == len(reference)


@pytest.mark.parametrize("number", [0, 1, 2**63, 2**64 - 1])
def test_eight_byte_items_are_unsigned_integers(number: int) -> None:
    ring = Ring(2)
    ring.push(number)
    assert ring.pop() == number


@pytest.mark.parametrize("item", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_other_items_are_bytes(item: Any) -> None:
    ring = Ring(2, itemsize=3)
    ring.push(item)
    assert ring.pop() == b"abc"


@pytest.mark.parametrize(
    ("itemsize", "item"),
    [
        *((8, x) for x in (-1, 2**64, 1.0, "1", None, b"12345678")),
        *((4, x) for x in (1, "abcd", b"abc", b"abcde", None)),
    ],
)
def test_a_wrong_item_changes_nothing(itemsize: int, item: Any) -> None:
    ring = Ring(2, itemsize)
    for push in (ring.push, ring.try_push):
        with pytest.raises(UsageError, match="an item of this ring"):
            push(item)
    assert len(ring) == 0


@pytest.mark.parametrize(
    ("capacity", "itemsize"), [(0, 8), (-1, 8), (2**31 + 1, 8), (1.0, 8), (True, 8), (1, 0), (1, 2**32), (1, "8")]
)
def test_a_wrong_capacity_or_itemsize_is_refused(capacity: Any, itemsize: Any) -> None:
    with pytest.raises(UsageError, match=r"capacity|itemsize"):
        Ring(capacity, itemsize)


def test_a_timeout_changes_nothing() -> None:
    ring = Ring(1)
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match="empty"):
            ring.pop(timeout)
    ring.push(7, timeout=0)
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match="full"):
            ring.push(8, timeout)
    assert (len(ring), ring.pop(timeout=0), ring.try_pop()) == (1, 7, None)


def test_a_wrong_timeout_changes_nothing() -> None:
    ring = Ring(2)
    ring.push(1)
    refuses_bad_timeouts(lambda timeout: ring.push(2, timeout))
    refuses_bad_timeouts(ring.pop)
    assert len(ring) == 1


@pytest.mark.parametrize(("capacity", "itemsize"), [(1, 8), (3, 8), (5, 13)])
def test_items_arrive_in_order(context: str, capacity: int, itemsize: int) -> None:
    there, back = Ring(capacity, itemsize), Ring(capacity, itemsize)
    with started(context, push_from, there, 0, 2000) as a, started(context, pop_and_report, there, back, 2000) as b:
        for number in range(2000):
            expected = number if itemsize == 8 else number.to_bytes(itemsize, "little")
            assert back.pop(timeout=60) == expected
        finish(a)
        finish(b)


def test_counters_may_wrap_while_both_sides_wait() -> None:
    ring = Ring(3, _start=2**32 - 50)
    with started("fork", push_from, ring, 0, 200) as process:
        assert [ring.pop(timeout=60) for _ in range(200)] == list(range(200))
        finish(process)


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_a_thread_that_waits_lets_the_others_run(side: str) -> None:
    ring = Ring(1)
    if side == "producer":
        ring.push(0)
        waiter = threading.Thread(target=ring.push, args=(1, 30))
    else:
        waiter = threading.Thread(target=ring.pop, args=(30,))
    waiter.start()
    assert (ring.pop(30) == 0) if side == "producer" else ring.try_push(1)
    waiter.join()
    assert len(ring) == (side == "producer")


def test_a_successor_of_a_killed_producer_goes_on() -> None:
    ring, popped = Ring(4), 0
    for _ in range(300):
        pid = fork(push_from, ring, popped, 10**9)
        for _ in range(popped % 23 + 1):
            assert ring.pop(timeout=30) == popped
            popped += 1
        kill(pid)
        while (item := ring.try_pop()) is not None:
            assert item == popped
            popped += 1


def test_a_successor_of_a_killed_consumer_goes_on() -> None:
    ring, reports, pushed, seen, lost = Ring(4), Ring(1000), 0, -1, 0
    for _ in range(300):
        pid = fork(pop_and_report, ring, reports, 10**9)
        for _ in range(pushed % 23 + 1):
            ring.push(pushed, timeout=30)
            pushed += 1
        kill(pid)
        while (item := reports.try_pop()) is not None:
            assert isinstance(item, int)
            assert item in (seen + 1, seen + 2)  # one that was popped, but not reported before the kill
            lost += item - seen - 1
            seen = item
    rest = [ring.try_pop() for _ in range(len(ring))]
    assert rest == list(range(pushed - len(rest), pushed))
    assert lost <= 300


def test_the_consumer_may_change_and_change_back() -> None:
    ring, reports = Ring(8), Ring(8)
    for number in range(5):
        ring.push(number)
    assert [ring.pop() for _ in range(2)] == [0, 1]
    with started("fork", pop_and_report, ring, reports, 3) as process:
        finish(process)
    assert ring.try_pop() is None  # this process last saw five items, of which others took the rest
    ring.push(5)
    assert ring.try_pop() == 5


@pytest.mark.parametrize("wait", ["thing.pop()", "thing.push(1); thing.push(2)"])
def test_ctrl_c_ends_a_wait(start_script: Callable[..., Script], wait: str) -> None:
    script = start_script(INTERRUPTED.format(make="Ring(1)", wait=wait))
    assert script.line() == "ready"
    script.process.send_signal(signal.SIGINT)
    assert script.finish()[:2] == (0, "interrupted\n")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_travels_only_at_a_process_start(duplicate: Callable[[Ring], Any]) -> None:
    with pytest.raises(TypeError, match="a Ring travels only as an argument of a process start"):
        duplicate(Ring(1))


def test_its_repr_tells_what_it_holds() -> None:
    ring = Ring(3, 16)
    ring.push(bytes(16))
    assert repr(ring) == "Ring(capacity=3, itemsize=16), 1 items"
