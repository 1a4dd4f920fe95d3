"""Semaphore, ring and versioned cells in memory that the caller brings: binding of the headers in core/ by these names."""

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

import os

from shmenv.errors import UsageError

cdef extern from "atomic.h":
    const int SHM_LINE, SHM_TIMEOUT, SHM_READY
    const int64_t INT64_MAX
    ctypedef uint32_t a32
    ctypedef uint64_t a64
    ctypedef struct shm_wait:
        int64_t deadline_ns
        int64_t spin_ns
        int64_t patience_ns
        int64_t began_ns
        int64_t heartbeat_ns
        uint32_t shy
        uint32_t shyness
    int64_t os_now_ns()
    void os_yield() nogil
    int shm_reached(uint32_t a, uint32_t b) nogil

cdef extern from "semaphore.h":
    ctypedef struct shm_semaphore:
        a32 posted
        a32 taken
    ctypedef uint32_t (*shm_scan)(void *) noexcept nogil
    void shm_post(shm_semaphore *s, uint32_t n)
    uint32_t shm_alerts(shm_semaphore *s)
    int shm_await(
        shm_semaphore *s, uint32_t need, uint32_t seen_alert, shm_scan scan, void *arg, shm_wait *wait, uint32_t *found
    ) nogil
    uint32_t shm_free_units(void *arg) noexcept nogil
    void shm_take(shm_semaphore *s, uint32_t n)

cdef extern from "ring.h":
    ctypedef struct shm_ring:
        a32 tail
        a32 head
        a32 producer_parked
        a32 consumer_parked
    int shm_push(
        shm_ring *r, void *items, uint32_t capacity, uint32_t mask, uint32_t itemsize, const void *item, uint32_t *cached_head
    )
    int shm_pop(shm_ring *r, const void *items, uint32_t mask, uint32_t itemsize, void *item, uint32_t *cached_tail)
    uint32_t shm_pushed(shm_ring *r)
    uint32_t shm_popped(shm_ring *r)
    int shm_await_counter(a32 *counter, a32 *parked, uint32_t seen, shm_wait *wait) nogil

cdef extern from "cells.h":
    ctypedef struct shm_cells:
        a64 version
    void shm_write_cell(shm_cells *s, a64 *cells, size_t words, uint32_t cell_count, const uint64_t *value) nogil
    int shm_read_cell(
        shm_cells *s, a64 *cells, size_t words, uint32_t cell_count, uint64_t *value, uint64_t *version
    ) nogil
    uint64_t shm_version(shm_cells *s)
    int shm_await_version(shm_cells *s, uint64_t seen, shm_wait *wait) nogil

cdef int64_t SPIN_NS = 100_000  # several wake-ups of a sleeping core: what comes sooner costs none
cdef int64_t HEARTBEAT_NS = 100_000_000
cdef size_t COPY_HOLDING_GIL = 64 << 10  # bytes: below, giving the GIL up costs more than it lets others do
cdef int LAPS = 1000  # of a reader by its writer, before it gives up
cdef int LAPS_AT_ONCE = 10

SEMAPHORE_BYTES = sizeof(shm_semaphore)


cpdef int64_t deadline_ns(object timeout) except -1:
    """The moment on CLOCK_MONOTONIC, in nanoseconds, when `timeout` seconds from now are over.

    Args:
        timeout: seconds, at least 0. None or infinity: never (the largest int64); 0: only look, do not wait (0).

    Raises:
        UsageError: it is negative, not a number, or no number at all.
    """
    cdef double seconds
    if timeout is None:
        return INT64_MAX
    try:
        if isinstance(timeout, (str, bytes, bytearray, bool)):
            raise TypeError
        seconds = timeout
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"timeout must be None or a number of seconds, not {timeout!r}") from None
    if not seconds >= 0:
        raise UsageError(f"timeout must be at least 0 seconds, not {timeout!r}")
    if seconds == 0:
        return 0
    return INT64_MAX if seconds > 1e9 else os_now_ns() + <int64_t>(seconds * 1e9)


cdef int allow(shm_wait *wait, object timeout) except -1:
    wait.deadline_ns = deadline_ns(timeout)
    wait.spin_ns, wait.patience_ns, wait.began_ns = SPIN_NS, 0, 0
    wait.shy = wait.shyness = 0
    wait.heartbeat_ns = HEARTBEAT_NS
    return 0


cdef class _Placed:
    """What stands at the start of a buffer, and keeps it."""

    cdef Py_buffer memory
    cdef bint placed

    cdef void *place(self, object memory, object size) except NULL:
        if self.placed:
            raise UsageError("it has its place already")
        PyObject_GetBuffer(memory, &self.memory, PyBUF_WRITABLE)
        self.placed = True
        if self.memory.len < size:
            raise UsageError(f"needs {size} bytes of memory, not {self.memory.len}")
        if <uintptr_t>self.memory.buf % SHM_LINE:
            raise UsageError(f"needs memory on a boundary of {SHM_LINE} bytes")
        return self.memory.buf

    def __dealloc__(self):
        if self.placed:
            PyBuffer_Release(&self.memory)


cdef class SemaphoreCore(_Placed):
    """A counting semaphore in the first bytes of `memory`.

    Args:
        memory: a writable buffer of shared memory, at least SEMAPHORE_BYTES long.
        value: units at the start, or None to join one that stands there.
        start: of the counters that lie behind it, which run for ever and wrap at 2**32.
    """

    cdef shm_semaphore *semaphore
    cdef int waiting_in  # process whose thread waits; a forked child inherits the number, but is another

    def __init__(self, object memory, object value, uint32_t start=0):
        if value is not None and not 0 <= value < 2**31:
            raise UsageError(f"value must be in 0..2**31 - 1, not {value}")
        self.semaphore = <shm_semaphore *>self.place(memory, SEMAPHORE_BYTES)
        if value is not None:
            self.semaphore.taken = start
            self.semaphore.posted = start + <uint32_t>value

    cdef shm_semaphore *get(self) except NULL:
        if self.semaphore == NULL:
            raise UsageError("this semaphore was not initialized")
        return self.semaphore

    @property
    def value(self) -> int:
        """Units that are free now."""
        return shm_free_units(self.get())

    def post(self, object n=1) -> None:
        """Add `n` units; wakes the waiter if it now has what it wants. Any process, any thread. Blocks: no.

        Raises:
            UsageError: n is no integer of at least 1, or the value would reach 2**31. Nothing changed.
        """
        shm_post(self.get(), self.units(n, shm_free_units(self.get())))

    def wait(self, object n=1, object timeout=None) -> bool:
        """Wait until `n` units are free, and take them all at once.

        Called by: one thread of one process at a time. Blocks: without the GIL; Ctrl-C ends it.

        Args:
            n: at least 1.
            timeout: seconds for the whole call. None waits for ever, 0 only looks.

        Returns:
            True: they were taken. False: time ran out, and nothing was taken.

        Raises:
            UsageError: n or timeout is out of range, or another thread waits. Nothing was taken.
        """
        cdef shm_semaphore *s = self.get()
        cdef uint32_t need = self.units(n, 0), found, seen_alert
        cdef shm_wait wait
        cdef int how = SHM_READY
        allow(&wait, timeout)
        if self.waiting_in and self.waiting_in == os.getpid():
            raise UsageError("another thread waits for this semaphore: it has one waiter at a time")
        if shm_free_units(s) < need:
            self.waiting_in = os.getpid()
            try:
                while True:
                    seen_alert = shm_alerts(s)  # news is for others: it ends no wait for units
                    with nogil:
                        how = shm_await(s, need, seen_alert, shm_free_units, s, &wait, &found)
                    if how == SHM_TIMEOUT:
                        return False
                    if how == SHM_READY:
                        break
                    PyErr_CheckSignals()
            finally:
                self.waiting_in = 0
        shm_take(s, need)
        return True

    cdef uint32_t units(self, object n, uint32_t there) except 0:
        cdef object count
        try:
            if isinstance(n, bool):
                raise TypeError
            count = PyNumber_Index(n)
        except TypeError:
            raise UsageError(f"n must be an integer, not {n!r}") from None
        if not 1 <= count < 2**31 - there:
            raise UsageError(f"n must be at least 1 and the value stay below 2**31: n is {n}, the value {there}")
        return count


cdef class RingCore(_Placed):
    """A bounded queue in `memory`: two counters, then a power of two of cells.

    Args:
        memory: a writable buffer of shared memory, at least `ring_bytes(capacity, itemsize)` long.
        capacity: items that fit, 1 to 2**31.
        itemsize: bytes an item, at least 1.
        start: of the two counters, which run for ever and wrap at 2**32, or None to join a ring that stands there.
    """

    cdef shm_ring *ring
    cdef char *items
    cdef readonly uint32_t capacity
    cdef readonly uint32_t itemsize
    cdef uint32_t mask
    cdef uint32_t cached_head
    cdef uint32_t cached_tail

    def __init__(self, object memory, uint32_t capacity, uint32_t itemsize, object start=0):
        self.ring = <shm_ring *>self.place(memory, ring_bytes(capacity, itemsize))
        self.items = <char *>self.ring + sizeof(shm_ring)
        self.capacity = capacity
        self.itemsize = itemsize
        self.mask = _cell_count(capacity) - 1
        if start is not None:
            self.ring.tail = self.ring.head = <uint32_t>start
        self.cached_head = self.cached_tail = shm_popped(self.ring)

    cdef shm_ring *get(self) except NULL:
        if self.ring == NULL:
            raise UsageError("this ring was not initialized")
        return self.ring

    def __len__(self):
        cdef uint32_t popped = shm_popped(self.get())  # first: what is pushed meanwhile counts, nothing is negative
        return min(<uint32_t>(shm_pushed(self.ring) - popped), self.capacity)

    def try_push(self, object x) -> bool:
        """Append `x`, or return False if the ring is full.

        Called by: the producer, one thread of one process at a time. Blocks: no. Crash: x is in the ring or not.

        Args:
            x: an integer in 0..2**64 - 1 if itemsize is 8, else a bytes-like object of `itemsize` bytes.

        Raises:
            UsageError: x is neither. Nothing changed.
        """
        return self.push_or_wait(x, NULL)

    def push(self, object x, object timeout=None) -> None:
        """Append `x`, as `try_push`, waiting while the ring is full.

        Blocks: without the GIL; Ctrl-C ends it.

        Args:
            timeout: seconds for the whole call. None waits for ever, 0 only looks.

        Raises:
            TimeoutError: time ran out. Nothing was appended.
            UsageError: x or timeout is not what it must be. Nothing was appended.
        """
        cdef shm_wait wait
        allow(&wait, timeout)
        if not self.push_or_wait(x, &wait):
            raise TimeoutError(f"the ring stayed full for {timeout} s: its consumer does not keep up, or is gone")

    def try_pop(self) -> int | bytes | None:
        """Take the oldest item, or return None if the ring is empty.

        Called by: the consumer, one thread of one process at a time. Blocks: no. Crash: the item is taken or not.

        Returns:
            An integer in 0..2**64 - 1 if itemsize is 8, else bytes of length itemsize.
        """
        return self.pop_or_wait(NULL)

    def pop(self, object timeout=None) -> int | bytes:
        """Take the oldest item, as `try_pop`, waiting while the ring is empty.

        Blocks: without the GIL; Ctrl-C ends it.

        Args:
            timeout: seconds for the whole call. None waits for ever, 0 only looks.

        Raises:
            TimeoutError: time ran out. Nothing was taken.
            UsageError: timeout is not what it must be. Nothing was taken.
        """
        cdef shm_wait wait
        allow(&wait, timeout)
        item = self.pop_or_wait(&wait)
        if item is None:
            raise TimeoutError(f"the ring stayed empty for {timeout} s: its producer has nothing, or is gone")
        return item

    cdef bint push_or_wait(self, object x, shm_wait *wait) except -1:
        cdef uint64_t word
        cdef Py_buffer view
        self.get()
        if self.itemsize == 8:
            try:
                if isinstance(x, bool):
                    raise TypeError
                word = PyNumber_Index(x)
            except (TypeError, OverflowError):
                raise UsageError(f"an item of this ring is an integer in 0..2**64 - 1, not {x!r}") from None
            return self.push_item(&word, wait)
        try:
            PyObject_GetBuffer(x, &view, PyBUF_SIMPLE)
        except (TypeError, BufferError):
            raise UsageError(f"an item of this ring is {self.itemsize} bytes, not a {type(x).__name__}") from None
        try:
            if view.len != self.itemsize:
                raise UsageError(f"an item of this ring is {self.itemsize} bytes, not {view.len}")
            return self.push_item(view.buf, wait)
        finally:
            PyBuffer_Release(&view)

    cdef bint push_item(self, const void *item, shm_wait *wait) except -1:
        cdef uint32_t seen
        cdef int how = SHM_READY
        while True:
            seen = shm_popped(self.ring)
            if shm_push(self.ring, self.items, self.capacity, self.mask, self.itemsize, item, &self.cached_head):
                return True
            if wait == NULL or how == SHM_TIMEOUT:
                return False
            with nogil:
                how = shm_await_counter(&self.ring.head, &self.ring.producer_parked, seen, wait)
            PyErr_CheckSignals()

    cdef object pop_or_wait(self, shm_wait *wait):
        cdef uint64_t word
        self.get()
        if self.itemsize == 8:
            return word if self.pop_item(&word, wait) else None
        item = PyBytes_FromStringAndSize(NULL, self.itemsize)
        return item if self.pop_item(PyBytes_AS_STRING(item), wait) else None

    cdef bint pop_item(self, void *item, shm_wait *wait) except -1:
        cdef uint32_t seen
        cdef int how = SHM_READY
        while True:
            seen = shm_pushed(self.ring)
            # Another process may have been the consumer meanwhile: what it popped must not count as there.
            if not shm_reached(self.cached_tail, shm_popped(self.ring)):
                self.cached_tail = shm_popped(self.ring)
            if shm_pop(self.ring, self.items, self.mask, self.itemsize, item, &self.cached_tail):
                return True
            if wait == NULL or how == SHM_TIMEOUT:
                return False
            with nogil:
                how = shm_await_counter(&self.ring.tail, &self.ring.consumer_parked, seen, wait)
            PyErr_CheckSignals()


def _cell_count(uint64_t capacity) -> int:
    """The next power of two, so that positions stay right when the counters wrap."""
    cdef uint64_t count = 1
    while count < capacity:
        count *= 2
    return count


def ring_bytes(object capacity, object itemsize) -> int:
    """Bytes of memory that a ring of `capacity` items of `itemsize` bytes needs."""
    if not 1 <= capacity <= 2**31:
        raise UsageError(f"capacity must be in 1..2**31, not {capacity}")
    if not 1 <= itemsize < 2**32:
        raise UsageError(f"itemsize must be in 1..2**32 - 1, not {itemsize}")
    return sizeof(shm_ring) + _cell_count(capacity) * itemsize


@cython.final
cdef class Cells(_Placed):
    """A value of `size` bytes with a version, in `memory`: the version, then `count` cells.

    Args:
        memory: a writable buffer of shared memory, at least `cells_bytes(size, count)` long.
        size: bytes of one value.
        count: cells, at least 3. The more, the slower a reader may be.
        start: the version of the value that stands there, or None to join what another process made.
    """

    cdef shm_cells *head
    cdef a64 *cells
    cdef size_t size
    cdef size_t words
    cdef uint32_t count
    cdef bint writing

    def __init__(self, object memory, size_t size, uint32_t count, object start=0):
        if count < 3:
            raise UsageError(f"count must be at least 3, not {count}")
        self.head = <shm_cells *>self.place(memory, cells_bytes(size, count))
        self.cells = <a64 *>(<char *>self.head + sizeof(shm_cells))
        self.size = size
        self.words = _words(size)
        self.count = count
        if start is not None:
            self.head.version = <uint64_t>start

    cdef uint64_t *get(self, object x, Py_buffer *view, int flags) except NULL:
        """The bytes of `x` as words: where they stand, or in memory of their own (for `done` to free) if those do not fit."""
        cdef void *own
        if self.head == NULL:
            raise UsageError("these cells were not initialized")
        PyObject_GetBuffer(x, view, flags)
        if <size_t>view.len == self.size:
            if self.size == self.words * 8 and <uintptr_t>view.buf % 8 == 0 and self.size:
                return <uint64_t *>view.buf
            own = PyMem_Malloc(self.words * 8 + 8)
            if own != NULL:
                (<uint64_t *>own)[self.words] = 0
                return <uint64_t *>own
        PyBuffer_Release(view)
        if <size_t>view.len == self.size:
            raise MemoryError()
        raise UsageError(f"needs {self.size} contiguous bytes, not {view.len}")

    cdef void done(self, uint64_t *words, Py_buffer *view):
        if words != view.buf:
            PyMem_Free(words)
        PyBuffer_Release(view)

    def write(self, x: object) -> None:
        """Publish the value that the C-contiguous buffer `x` holds.

        Called by: the writer, one thread of one process at a time. Blocks: no; copies long values without the GIL.
        Crash: the value is published or not; the last published one stays readable either way.
        """
        cdef Py_buffer view
        cdef uint64_t *words = self.get(x, &view, PyBUF_C_CONTIGUOUS)
        try:
            if words != view.buf:
                memcpy(words, view.buf, self.size)
            if self.size < COPY_HOLDING_GIL:
                shm_write_cell(self.head, self.cells, self.words, self.count, words)
                return
            if self.writing:
                raise UsageError("another thread writes: there is one writer at a time")
            self.writing = True
            with nogil:
                shm_write_cell(self.head, self.cells, self.words, self.count, words)
            self.writing = False
        finally:
            self.done(words, &view)

    def read(self, out: object) -> int:
        """Copy the newest value into the C-contiguous, writable buffer `out`.

        Blocks: while the writer laps it, which takes two more writes during one copy; gives the core away in between.

        Returns:
            Its version, or -1 after so many laps that there is no hope: `out` is undefined then.
        """
        cdef Py_buffer view
        cdef uint64_t version = 0
        cdef int laps = 0, whole = 0
        cdef uint64_t *words = self.get(out, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        try:
            if self.size < COPY_HOLDING_GIL:
                whole = shm_read_cell(self.head, self.cells, self.words, self.count, words, &version)
            while not whole and laps < LAPS:
                with nogil:
                    whole = self.read_patiently(words, &version)
                laps += LAPS_AT_ONCE
                PyErr_CheckSignals()
            if not whole:
                return -1
            if words != view.buf:
                memcpy(view.buf, words, self.size)
            return version
        finally:
            self.done(words, &view)

    cdef int read_patiently(self, uint64_t *value, uint64_t *version) noexcept nogil:
        cdef int lap
        for lap in range(LAPS_AT_ONCE):
            if shm_read_cell(self.head, self.cells, self.words, self.count, value, version):
                return 1
            os_yield()
        return 0

    @property
    def version(self) -> int:
        """How many values were ever published; of the newest one."""
        return shm_version(self.head)

    def offset_of(self, uint64_t version) -> int:
        """Where the value of this version stands, in bytes from the start of the memory, until it is overwritten."""
        return sizeof(shm_cells) + (version % self.count) * self.words * 8

    def wait_newer(self, uint64_t version, object timeout=None) -> bool:
        """Wait until a value newer than `version` is there; False if `timeout` seconds went by without one.

        Blocks: without the GIL; Ctrl-C ends it.
        """
        cdef shm_wait wait
        cdef int how = SHM_READY
        allow(&wait, timeout)
        while True:
            if shm_version(self.head) > version:
                return True
            if how == SHM_TIMEOUT:
                return False
            with nogil:
                how = shm_await_version(self.head, version, &wait)
            PyErr_CheckSignals()


def cells_bytes(object size, object count) -> int:
    """Bytes of memory that `count` cells for values of `size` bytes need."""
    return sizeof(shm_cells) + count * _words(size) * 8


cdef object _words(object size):
    return -(-size // 8)
