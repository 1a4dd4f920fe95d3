import copy
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from started import finish, started
from support import Script

from shmenv import Semaphore, UsageError
from shmenv.errors import ClosedError
from shmenv.segment import Segment, Spill, StackLog

MIB = 1 << 20


def as_array(segment: Segment) -> np.ndarray[Any, Any]:
    return np.frombuffer(memoryview(segment.buffer), np.uint8)


def attach_and_add(segment: Segment, spill: Spill) -> None:
    segment.attach()
    assert not os.get_inheritable(segment.fileno())
    as_array(segment)[:] += 1
    spill.write(1, spill.read(0, 3) * 2)


def attach_when_told(segment: Segment, told: Semaphore, done: Semaphore) -> None:
    with pytest.raises(UsageError, match="not allocated yet"):
        segment.attach()
    done.post()
    assert told.wait(timeout=30)
    attach_and_add_one(segment)
    done.post()


def attach_and_add_one(segment: Segment) -> None:
    segment.attach()
    as_array(segment)[-1] += 1


def test_a_segment_is_zero_and_writable() -> None:
    segment = Segment("test")
    assert segment.size == 0
    segment.allocate(5000, "a test")
    array = as_array(segment)
    assert (segment.size, array.tolist()) == (5000, [0] * 5000)
    array[4999] = 7
    assert memoryview(segment.buffer)[4999] == 7
    assert segment.buffer.address == array.ctypes.data


def test_a_process_attaches_what_another_allocated(context: str) -> None:
    segment, spill = Segment("test"), Spill(2)
    segment.allocate(100, "a test")
    as_array(segment)[:] = 5
    spill.write(0, b"abc")
    with started(context, attach_and_add, segment, spill) as process:
        finish(process)
    assert set(as_array(segment)) == {6}
    assert spill.read(1, 6) == b"abcabc"


def test_a_segment_may_travel_before_it_has_a_size(context: str) -> None:
    segment, told, done = Segment("test"), Semaphore(), Semaphore()
    with started(context, attach_when_told, segment, told, done) as process:
        assert done.wait(timeout=30)
        segment.allocate(3 * MIB, "a test")
        told.post()
        assert done.wait(timeout=30)
        finish(process)
    assert as_array(segment)[-1] == 1


def test_its_size_is_final() -> None:
    segment = Segment("test")
    segment.allocate(4096, "a test")
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fileno(), size)
    with pytest.raises(UsageError, match="allocated before"):
        segment.allocate(10, "a test")


def test_every_page_is_there_at_once() -> None:
    segment = Segment("test")
    segment.allocate(150 * MIB, "a test")  # more than one step of the allocation
    assert os.fstat(segment.fileno()).st_blocks * 512 == 150 * MIB


def test_signals_do_not_stop_an_allocation() -> None:
    caught = []
    before = signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        segment = Segment("test")
        segment.allocate(200 * MIB, "a test")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert os.fstat(segment.fileno()).st_blocks * 512 == 200 * MIB
    assert caught


def test_a_signal_handler_that_raises_leaves_nothing_allocated() -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    segment = Segment("test")
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.005)
            segment.allocate(2000 * MIB, "a test")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert os.fstat(segment.fileno()).st_size == 0
    segment.allocate(10, "a test")


def test_a_mapping_lives_as_long_as_its_last_view() -> None:
    segment = Segment("test")
    segment.allocate(4096, "a test")
    array = as_array(segment)
    tail = array[100:]
    segment.close()
    del segment, array
    tail[0] = 3
    assert tail[0] == 3


def test_close_is_idempotent_and_keeps_what_is_mapped() -> None:
    segment = Segment("test")
    segment.allocate(10, "a test")
    segment.close()
    segment.close()
    as_array(segment)[0] = 1
    with pytest.raises(ClosedError, match="Segment is closed"):
        segment.fileno()


def test_a_segment_without_a_size_has_no_buffer() -> None:
    with pytest.raises(UsageError, match="not mapped"):
        _ = Segment("test").buffer


def test_it_needs_no_shm_folder_and_shows_nowhere_but_in_proc() -> None:
    segment = Segment("test")
    target = os.readlink(f"/proc/self/fd/{segment.fileno()}")
    assert target == "/memfd:shmenv-test (deleted)"
    assert os.fstat(segment.fileno()).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(segment.fileno())


REFUSED = """
    import ctypes, os, platform, struct, sys

    # A filter that answers memfd_create by EPERM, as some containers do: load number, compare, refuse or allow.
    number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
    program = struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, number, 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)
    code = ctypes.create_string_buffer(program)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
    assert libc.prctl(22, 2, ctypes.addressof(filter), 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    try:
        os.memfd_create("x")
    except PermissionError:
        pass
    else:
        sys.exit("the filter does not work")

    from shmenv import Semaphore
    from shmenv.segment import Segment, Spill
    before = set(os.listdir("/dev/shm"))
    semaphore, spill = Semaphore(), Spill(2)
    assert os.readlink(f"/proc/self/fd/{spill.fileno()}").startswith("/dev/shm/")
    assert set(os.listdir("/dev/shm")) == before
    if os.fork() == 0:
        spill.write(1, b"abc")
        semaphore.post()
        os._exit(0)
    print(semaphore.wait(timeout=30), spill.read(1, 3).decode())
"""


def test_where_memfd_is_refused_a_name_that_is_gone_at_once_does(start_script: Callable[..., Script]) -> None:
    assert start_script(REFUSED).finish() == (0, "True abc\n", "")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_travels_only_at_a_process_start(duplicate: Callable[[Any], Any]) -> None:
    for memory in (Segment("test"), Spill(1)):
        with pytest.raises(TypeError, match="travels only as an argument of a process start"):
            duplicate(memory)
    segment = Segment("test")
    segment.allocate(10, "a test")
    with pytest.raises(TypeError, match="a Mapping belongs to its process"):
        duplicate(segment.buffer)


def test_what_was_told_of_stacks_is_given_back() -> None:
    """Covers a pool of which a month of crashes fills the memory."""
    log = StackLog()
    for _ in range(3):
        os.write(log.fileno(), b"stack\n" * 10_000)
        log.forget(log.size())
    os.write(log.fileno(), b"the last")
    assert log.text(180_000) == "the last"
    assert os.fstat(log.fileno()).st_blocks * 512 <= 8192
