import os
import signal
from collections.abc import Callable

import numpy as np
import pytest
from started import fork, kill
from support import Script, eventually, is_gone

from shmenv import Semaphore, UsageError, _memory


def wait_for_ever() -> None:
    while True:
        signal.pause()


def alerts(bell: Semaphore) -> int:
    """How often it was told of news: the third word of its second line."""
    return int(np.frombuffer(memoryview(bell._segment.buffer), np.uint32)[34])


def make_watcher(slots: int) -> tuple[_memory.Watcher, Semaphore]:
    bell = Semaphore()
    return _memory.Watcher(bell._segment.buffer.address, bell._segment.buffer, slots), bell


def test_a_death_is_an_alert() -> None:
    watcher, bell = make_watcher(70)
    pids = {slot: fork(wait_for_ever) for slot in (0, 5, 69)}
    pidfds = {slot: _memory.pidfd_open(pid) for slot, pid in pids.items()}
    for slot, pidfd in pidfds.items():
        watcher.watch(slot, pidfd)
    assert (watcher.dead(), alerts(bell)) == ([], 0)
    for number, slot in enumerate((5, 69, 0), 1):
        os.kill(pids[slot], signal.SIGKILL)
        eventually(lambda: alerts(bell) == number)  # noqa: B023
        assert watcher.is_dead(slot)
    assert watcher.dead() == [0, 5, 69]
    for slot, pid in pids.items():
        watcher.unwatch(slot)
        os.close(pidfds[slot])
        os.waitpid(pid, 0)
    assert watcher.dead() == [0, 5, 69]
    watcher.close()


def test_a_slot_may_be_watched_again() -> None:
    watcher, bell = make_watcher(1)
    for turn in range(1, 101):
        pid = fork(wait_for_ever)
        pidfd = _memory.pidfd_open(pid)
        watcher.watch(0, pidfd)
        assert not watcher.is_dead(0)
        kill(pid)
        eventually(lambda: alerts(bell) == turn)  # noqa: B023
        assert watcher.is_dead(0)
        watcher.unwatch(0)
        os.close(pidfd)
    watcher.close()


def test_after_unwatch_the_descriptor_may_mean_something_else() -> None:
    watcher, bell = make_watcher(2)
    pid, other = fork(wait_for_ever), fork(wait_for_ever)
    pidfd, other_pidfd = _memory.pidfd_open(pid), _memory.pidfd_open(other)
    watcher.watch(0, pidfd)
    watcher.watch(1, other_pidfd)
    watcher.unwatch(0)
    readable, writing = os.pipe()
    os.write(writing, b"x")
    os.dup2(readable, pidfd)  # readable at once, were it still polled
    kill(other)
    eventually(lambda: alerts(bell) == 1)
    assert watcher.dead() == [1]
    watcher.close()
    kill(pid)
    for fd in (readable, writing, pidfd, other_pidfd):
        os.close(fd)


def test_a_death_before_the_watch_is_noticed_too() -> None:
    watcher, _ = make_watcher(1)
    pid = fork(wait_for_ever)
    pidfd = _memory.pidfd_open(pid)
    kill(pid)
    watcher.watch(0, pidfd)
    eventually(lambda: watcher.is_dead(0))
    watcher.close()
    os.close(pidfd)


def test_a_waiter_is_woken_by_a_death() -> None:
    watcher, bell = make_watcher(1)
    pid = fork(wait_for_ever)
    pidfd = _memory.pidfd_open(pid)
    watcher.watch(0, pidfd)
    kill(pid)
    assert not bell.wait(timeout=0.05)  # an alert is no unit
    assert watcher.is_dead(0)
    watcher.close()
    os.close(pidfd)


def test_a_closed_watcher_stays_closed() -> None:
    watcher, _ = make_watcher(1)
    watcher.close()
    watcher.close()
    assert watcher.dead() == []
    watcher.unwatch(0)


def test_a_watcher_that_is_forgotten_leaves_no_thread() -> None:
    threads = len(os.listdir("/proc/self/task"))
    watcher, _ = make_watcher(1)
    assert len(os.listdir("/proc/self/task")) == threads + 1
    del watcher
    eventually(lambda: len(os.listdir("/proc/self/task")) == threads)


def test_a_forked_child_can_close_what_it_inherited() -> None:
    watcher, bell = make_watcher(1)

    def close_and_go_on() -> None:
        watcher.watch(0, bell._segment.fileno())
        watcher.unwatch(0)
        watcher.close()

    pid = fork(close_and_go_on)
    eventually(lambda: is_gone(pid))
    assert os.waitpid(pid, 0)[1] == 0
    watcher.close()


@pytest.mark.parametrize("slot", [-1, 2, 1000])
def test_a_slot_that_is_not_there_is_refused(slot: int) -> None:
    watcher, _ = make_watcher(2)
    for call in (lambda: watcher.watch(slot, 0), lambda: watcher.unwatch(slot), lambda: watcher.is_dead(slot)):
        with pytest.raises(UsageError, match=r"not in 0\.\.1"):
            call()
    with pytest.raises(UsageError, match="descriptor"):
        watcher.watch(0, -1)
    watcher.close()


STUCK = """
    import os, signal, sys, ctypes
    from shmenv import _memory
    manager = _memory.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        _memory.end_with(manager)
        grandchild = os.fork()
        if grandchild == 0:
            signal.pause()
        print(os.getpid(), grandchild, flush=True)
        libc = ctypes.PyDLL(None)  # keeps the GIL
        while True:
            libc.pause()
    signal.pause()
"""


def test_a_worker_stuck_in_c_ends_with_its_manager_and_takes_its_group_along(
    start_script: Callable[..., Script],
) -> None:
    script = start_script(STUCK)
    worker, grandchild = map(int, script.line().split())
    assert not is_gone(worker)
    os.kill(script.process.pid, signal.SIGKILL)
    eventually(lambda: is_gone(worker) and is_gone(grandchild), timeout=10)
