"""The fields of a `Turn`, for who reads `uses` without Python."""

from libc.stdint cimport uint64_t

cdef class Turn:
    cdef object lock
    cdef readonly object owner      # ident of the thread that uses the pool, or None
    cdef public bint closed
    cdef readonly uint64_t uses     # which one it is, or was the last; from 1 on
    cdef public uint64_t interrupted  # the first use ended by an exception from outside, such as Ctrl-C, and not mended
