"""The fields of a `Turn`, for who reads `uses` without Python."""

from libc.stdint cimport uint64_t

cdef class Turn:
    cdef object lock
    cdef readonly object owner      # ident of the thread that uses the pool, or None
    cdef public bint closed
    cdef readonly uint64_t uses     # which one it is, or was the last; from 1 on
    cdef public uint64_t interrupted  # the first use ended by an exception from outside, such as Ctrl-C, and not mended
    cdef object result              # what the use at hand is about to return
    cdef public object last         # what the last use that returned something did, whether or not its caller got it
    # Set by who holds signals back between uses of the pool (see unbroken.py):
    cdef public bint waits          # whether the next use may be interrupted
    cdef public object held_back    # the call of a signal handler that waits for such a use, or None
