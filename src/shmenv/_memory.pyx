"""Blocks of memory, handles of processes, and the threads that watch them: binding of core/os.h and core/watch.h."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.string cimport memset
from libc.stdint cimport int64_t, uint64_t, uintptr_t

import os

from shmenv.errors import UsageError

cdef extern from "watch.h":
    int os_memory(const char *label)
    int os_resize(int fd, int64_t size) nogil
    int os_reserve(int fd, int64_t offset, int64_t length) nogil
    int os_release(int fd, int64_t offset, int64_t length) nogil
    int os_seal(int fd)
    void *os_map(int fd, int64_t size) nogil
    void os_unmap(void *base, int64_t size) nogil
    int os_pidfd(int pid)
    ctypedef struct shm_semaphore:
        pass
    ctypedef struct shm_worker:
        pass
    ctypedef struct shm_clock:
        shm_worker *worker
        int64_t limits[6]
        int64_t shortest
        int pid
        uint64_t doing
        int64_t stacks_from
    ctypedef struct shm_watcher:
        int slots
        shm_clock *clocks
    int shm_start_watcher(shm_watcher **made, shm_semaphore *rung, int slots, int stacks, int stack_signal)
    void shm_watch(shm_watcher *w, int index, int pidfd, const shm_clock *clock) noexcept nogil
    int shm_is_late(shm_watcher *w, int index) noexcept nogil
    int shm_is_dead(shm_watcher *w, int index) noexcept nogil
    void shm_stop_watcher(shm_watcher *w) noexcept nogil
    void shm_free_watcher(shm_watcher *w) noexcept nogil
    int shm_end_with(int pidfd)

cdef int64_t RESERVE_AT_ONCE = 64 << 20  # bytes: signals are looked at in between


cdef int checked(int result) except -1:
    """The result of a call of os.h, or the OSError that it stands for."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def create_memory(str label) -> int:
    """Makes an unsized block of shared memory; `label` shows in /proc only. Returns its descriptor (close-on-exec)."""
    return checked(os_memory(label.encode()))


def allocate(int fd, int64_t size) -> None:
    """Gives the block its size in bytes and reserves every page of it. Raises OSError: not enough; it is empty again."""
    cdef int result
    cdef int64_t offset = 0, length
    with nogil:
        result = os_resize(fd, size)
    checked(result)
    try:
        while offset < size:
            length = min(RESERVE_AT_ONCE, size - offset)
            with nogil:
                result = os_reserve(fd, offset, length)
            PyErr_CheckSignals()  # some kernels interrupt a reservation for a signal, others finish it first
            if result != -EINTR:
                checked(result)
                offset += length
    except BaseException:
        os_resize(fd, 0)
        raise


def resize(int fd, int64_t size) -> None:
    """Gives the block its size in bytes, without pages: each comes with the first store to it."""
    checked(os_resize(fd, size))


def release(int fd, int64_t offset, int64_t length) -> None:
    """Gives the pages of this range of bytes back to the system; it reads as zeros."""
    cdef int result
    with nogil:
        result = os_release(fd, offset, length)
    checked(result)


def seal(int fd) -> None:
    """Makes the size final for all holders. Raises OSError (EPERM, EINVAL) where there was no memfd to be had."""
    checked(os_seal(fd))


def pidfd_open(int pid) -> int:
    """Descriptor of a process; readable once it has ended. Raises OSError (ESRCH): there is no such process."""
    return checked(os_pidfd(pid))


def end_with(int pidfd) -> None:
    """Ends this process group by SIGKILL once the process behind `pidfd` is gone, even while this one is stuck in C.

    Called by: a worker, once. The descriptor must stay open.
    """
    checked(shm_end_with(pidfd))


@cython.final
cdef class Mapping:
    """`size` bytes of a block of shared memory, mapped; a buffer of writable bytes. Unmapped with its last view."""

    cdef void *base
    cdef readonly Py_ssize_t size

    def __cinit__(self, int fd, Py_ssize_t size):
        if size <= 0:
            raise UsageError(f"a mapping needs at least one byte, not {size}")
        with nogil:
            self.base = os_map(fd, size)
        if self.base == NULL:
            checked(-errno)
        self.size = size

    def __dealloc__(self):
        if self.base != NULL:
            os_unmap(self.base, self.size)

    @property
    def address(self) -> int:
        """Where it starts in this process; a multiple of the page size."""
        return <uintptr_t>self.base

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.base, self.size, 0, flags)

    def __buffer__(self, int flags, /):
        """The same by the name of PEP 688, which Python before 3.12 does not add by itself."""
        return memoryview(self)

    def __reduce__(self):
        raise TypeError("a Mapping belongs to its process: it cannot be pickled or copied")


@cython.final
cdef class Watcher:
    """Watches processes by their pidfds and rings a semaphore with an alert when one ends, without the GIL.

    Called by: the manager, one thread at a time. In a forked child it watches nothing, and close() does nothing.

    Args:
        semaphore_address: where the semaphore stands that is to be alerted.
        keep: the object whose life keeps that address valid.
        slots: how many processes at most.
        stacks: descriptor of the log to which a process prints its stacks when it gets `stack_signal`; a process that
            takes too long is made to do so before it is killed.
    """

    cdef shm_watcher *watcher
    cdef object keep

    def __cinit__(self, uintptr_t semaphore_address, object keep, int slots, int stacks=-1, int stack_signal=0):
        if slots < 1:
            raise UsageError(f"slots must be at least 1, not {slots}")
        self.keep = keep
        checked(shm_start_watcher(&self.watcher, <shm_semaphore *>semaphore_address, slots, stacks, stack_signal))

    def __dealloc__(self):
        if self.watcher != NULL:
            shm_stop_watcher(self.watcher)
            shm_free_watcher(self.watcher)

    cdef int slot(self, int index) except -1:
        if not 0 <= index < self.watcher.slots:
            raise UsageError(f"slot {index} is not in 0..{self.watcher.slots - 1}")
        return index

    def watch(self, int index, int pidfd, int pid=0, uintptr_t worker_address=0, limits=()) -> None:
        """Watch the process behind `pidfd` in slot `index`; the slot is not dead until it ends.

        Args:
            index: the slot.
            pidfd: the process.
            pid: its id, where it is timed.
            worker_address: where its `shm_worker` stands.
            limits: seconds by phase that it may take (None or 0: for ever), in the order of core/channel.h.
        """
        cdef shm_clock clock
        cdef int phase
        if pidfd < 0:
            raise UsageError(f"{pidfd} is no descriptor")
        self.slot(index)
        memset(&clock, 0, sizeof(clock))
        for phase, seconds in enumerate(limits):
            clock.limits[phase] = <int64_t>(min(seconds or 0, 1e9) * 1e9)
            if clock.limits[phase] and (not clock.shortest or clock.limits[phase] < clock.shortest):
                clock.shortest = clock.limits[phase]
        if clock.shortest:
            clock.worker, clock.pid = <shm_worker *>worker_address, pid
        with nogil:
            shm_watch(self.watcher, index, pidfd, &clock)

    def late(self, int index) -> tuple[int, int] | None:
        """What a dead process was killed for taking too long with, and where its stacks begin in the log; None: for nothing."""
        if not shm_is_late(self.watcher, self.slot(index)):
            return None
        return self.watcher.clocks[index].doing, self.watcher.clocks[index].stacks_from

    def unwatch(self, int index) -> None:
        """Stop watching slot `index`. On return the descriptor is no longer used and may be closed."""
        self.slot(index)
        with nogil:
            shm_watch(self.watcher, index, -1, NULL)

    def is_dead(self, int index) -> bool:
        """Whether the process last watched in slot `index` was seen to end."""
        return shm_is_dead(self.watcher, self.slot(index)) != 0

    def dead(self) -> list[int]:
        """All slots whose process was seen to end, ascending."""
        return [index for index in range(self.watcher.slots) if shm_is_dead(self.watcher, index)]

    def close(self) -> None:
        """End the thread. Idempotent; what was seen before stays readable."""
        with nogil:
            shm_stop_watcher(self.watcher)
