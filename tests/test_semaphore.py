import copy
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from started import INTERRUPTED, finish, fork, kill, refuses_bad_timeouts, started
from support import Script, eventually

from shmenv import Semaphore, UsageError


def is_parked(semaphore: Semaphore) -> bool:
    """Whether its waiter sleeps, or is about to: the gate, second line of the block, is up."""
    return memoryview(semaphore._segment.buffer)[128] == 1


def post_each(semaphore: Semaphore, count: int) -> None:
    for _ in range(count):
        semaphore.post()


def answer(asked: Semaphore, answered: Semaphore, count: int) -> None:
    for _ in range(count):
        assert asked.wait(timeout=30)
        answered.post()


def wait_once(semaphore: Semaphore, n: int) -> None:
    semaphore.wait(n)


def test_a_post_before_the_wait_counts() -> None:
    semaphore = Semaphore()
    semaphore.post()
    semaphore.post(2)
    assert semaphore.value == 3
    assert semaphore.wait(3)
    assert semaphore.value == 0


def test_a_wait_takes_all_it_wants_or_nothing() -> None:
    semaphore = Semaphore(2)
    assert not semaphore.wait(3, timeout=0)
    assert not semaphore.wait(3, timeout=0.01)
    assert semaphore.value == 2
    assert semaphore.wait(2, timeout=0)
    assert semaphore.value == 0


def test_a_timeout_is_one_deadline_for_the_whole_wait() -> None:
    start = time.monotonic()
    assert not Semaphore().wait(timeout=0.25)  # more than two heartbeats
    assert time.monotonic() - start >= 0.25


@pytest.mark.parametrize("n", [0, -1, 2**31, 1.0, "1", None])
def test_a_wrong_n_changes_nothing(n: Any) -> None:
    semaphore = Semaphore(5)
    for call in (semaphore.post, semaphore.wait):
        with pytest.raises(UsageError, match="n "):
            call(n)
    assert semaphore.value == 5


@pytest.mark.parametrize("value", [-1, 2**31, 1.0, "1", None, True])
def test_a_wrong_value_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="value"):
        Semaphore(value)


def test_a_wrong_timeout_takes_nothing() -> None:
    semaphore = Semaphore(1)
    refuses_bad_timeouts(lambda timeout: semaphore.wait(timeout=timeout))
    assert semaphore.value == 1


def test_the_value_stays_below_two_to_the_31() -> None:
    semaphore = Semaphore(2**31 - 1)
    with pytest.raises(UsageError, match="2147483647"):
        semaphore.post()
    assert semaphore.wait(2**31 - 1)
    semaphore.post(2**31 - 1)
    assert semaphore.value == 2**31 - 1


def test_posts_of_several_processes_all_arrive(context: str) -> None:
    semaphore = Semaphore()
    with started(context, post_each, semaphore, 5000) as a, started(context, post_each, semaphore, 5000) as b:
        left, choose = 10_000, random.Random(0)
        while left:
            n = min(left, choose.choice([1, 2, 7, 100]))
            assert semaphore.wait(n, timeout=30)
            left -= n
        finish(a)
        finish(b)
    assert semaphore.value == 0


def test_two_processes_wake_each_other(context: str) -> None:
    asked, answered = Semaphore(), Semaphore()
    with started(context, answer, asked, answered, 500) as process:
        for _ in range(500):
            asked.post()
            assert answered.wait(timeout=30)
        finish(process)


@pytest.mark.parametrize("start", [2**32 - 3, 2**31 - 3])
def test_counters_may_wrap(start: int) -> None:
    asked, answered = Semaphore(_start=start), Semaphore(1, _start=start)
    assert answered.wait()
    with started("fork", answer, asked, answered, 20) as process:
        for _ in range(20):
            asked.post()
            assert answered.wait(timeout=30)
        finish(process)
    asked.post(9)
    assert asked.value == 9


def test_a_thread_that_waits_lets_the_others_run() -> None:
    semaphore, took = Semaphore(), []
    waiter = threading.Thread(target=lambda: took.append(semaphore.wait(2, timeout=30)))
    waiter.start()
    eventually(lambda: is_parked(semaphore))
    with pytest.raises(UsageError, match="one waiter"):
        semaphore.wait(timeout=0)
    semaphore.post(2)
    waiter.join()
    assert took == [True]
    assert not semaphore.wait(timeout=0)  # the waiter is gone, so another may wait


def test_a_child_forked_while_a_thread_waits_may_wait_itself() -> None:
    semaphore = Semaphore()
    waiter = threading.Thread(target=semaphore.wait)
    waiter.start()
    eventually(lambda: is_parked(semaphore))
    pid = fork(wait_once, semaphore, 1)
    _, status = os.waitpid(pid, os.WNOHANG)
    assert status == 0  # not refused: it waits
    kill(pid)
    semaphore.post()
    waiter.join()


def test_another_waits_after_a_killed_waiter() -> None:
    semaphore = Semaphore(1)
    for _ in range(50):
        pid = fork(wait_once, semaphore, 2)
        eventually(lambda: is_parked(semaphore))
        kill(pid)
    assert semaphore.value == 1  # none of them took a part of what it waited for
    semaphore.post()
    assert semaphore.wait(2, timeout=30)


def test_a_killed_poster_has_posted_or_not() -> None:
    semaphore = Semaphore()
    for _ in range(100):
        pid = fork(post_each, semaphore, 2**30)
        assert semaphore.wait(3, timeout=30)
        kill(pid)
        rest = semaphore.value
        assert not rest or semaphore.wait(rest, timeout=0)
        assert not semaphore.wait(timeout=0)


def test_ctrl_c_ends_a_wait(start_script: Callable[..., Script]) -> None:
    script = start_script(INTERRUPTED.format(make="Semaphore()", wait="thing.wait()"))
    assert script.line() == "ready"
    script.process.send_signal(signal.SIGINT)
    assert script.finish()[:2] == (0, "interrupted\n")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_travels_only_at_a_process_start(duplicate: Callable[[Semaphore], Any]) -> None:
    with pytest.raises(TypeError, match="a Semaphore travels only as an argument of a process start"):
        duplicate(Semaphore())


def test_its_repr_tells_its_value() -> None:
    assert repr(Semaphore(3)) == "Semaphore(value=3)"
