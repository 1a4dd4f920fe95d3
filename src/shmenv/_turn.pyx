"""Whose turn it is to use a pool."""

import threading

from shmenv.errors import ClosedError, ShmenvError, UsageError

cimport cython
from cpython.exc cimport PyErr_CheckSignals


@cython.final
cdef class Turn:
    """Whose turn it is to use a pool: `with turn:` refuses any other thread, and everybody once it is `closed`.

    Compiled, because a signal handler that raises must not run between the turn being taken and being given back.
    """

    def __cinit__(self):
        self.lock, self.closed = threading.Lock(), True

    def __enter__(self):
        if self.waits and self.held_back is not None:
            call, self.held_back = self.held_back, None
            call()
        if not self.lock.acquire(False):
            if self.closed:
                raise ClosedError("the pool is closed")
            who = "a signal handler or callback" if self.owner == threading.get_ident() else "another thread"
            raise UsageError(f"the pool is in use: one thread at a time may call it, and {who} is not the first")
        if self.closed:
            self.lock.release()
            raise ClosedError("the pool is closed")
        self.owner = threading.get_ident()
        self.uses += 1

    def __exit__(self, kind, error, traceback):
        try:
            if kind is None:
                PyErr_CheckSignals()  # the last moment at which the caller can still be owed what it is about to get
                if self.result is not None:
                    self.last = self.result
            elif not issubclass(kind, ShmenvError):
                self.interrupted = self.interrupted or self.uses
        except:
            self.interrupted = self.interrupted or self.uses
            raise
        finally:
            self.owner = self.result = None
            self.lock.release()

    def returns(self, result):
        """Note what the use at hand is about to return. Called by: who uses the pool; the last thing it does."""
        self.result = result
        return result

    def wait(self):
        """Blocks until nobody uses the pool, and keeps it. Ctrl-C ends the wait without it."""
        self.lock.acquire()

    def end(self):
        """Give back what `wait` took."""
        self.lock.release()
