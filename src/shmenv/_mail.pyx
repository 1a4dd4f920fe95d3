"""Payloads of the commands that fit no array, and of their answers."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t
from libc.string cimport memcpy, memset
from shmenv._channel cimport shm_word


@cython.final
cdef class Mail:
    """Payloads that fit no array, one an env: written by one side before the store that hands the env over.

    Called by: the manager writes "inbound" and reads "call"; the env's worker the other way round. Shorter ones lie in
    the segment, longer ones in the spill; which, is told by the length.
    """

    cdef object segment, spill, regions
    cdef uint32_t *heads
    cdef char *notes
    cdef uint32_t num_envs, note_bytes

    def __cinit__(self, segment, size_t heads, size_t notes, list regions, spill, *, uint32_t note_bytes):
        cdef size_t base = segment.address
        self.segment, self.spill, self.regions = segment, spill, regions
        self.heads, self.notes = <uint32_t *>(base + heads), <char *>(base + notes)
        self.num_envs, self.note_bytes = len(regions), note_bytes

    def write(self, uint32_t env_id, bytes payload not None, uint32_t status=0):
        """Put a payload and a status of the caller's choice."""
        cdef Py_ssize_t length = PyBytes_GET_SIZE(payload)
        if length > self.note_bytes:
            self.spill.write(self.regions[env_id], payload)
        else:
            memcpy(self.notes + <size_t>env_id * self.note_bytes, PyBytes_AS_STRING(payload), length)
        self.heads[2 * env_id], self.heads[2 * env_id + 1] = <uint32_t>length, status

    def write_all(self, const uint32_t[::1] ids, list payloads not None):
        """Put a payload for each of these envs (None: all), but for those that are empty."""
        cdef uint32_t k
        for k in range(self.num_envs if ids is None else <uint32_t>ids.shape[0]):
            if payloads[k]:
                self.write(k if ids is None else ids[k], payloads[k])

    def read(self, uint32_t env_id):
        """The payload. Its length was written by another process: it is copied once, then used.

        Raises ShmenvError if nobody wrote that much.
        """
        cdef uint32_t length = shm_word(&self.heads[2 * env_id])
        if length > self.note_bytes:
            return self.spill.read(self.regions[env_id], length)
        return PyBytes_FromStringAndSize(self.notes + <size_t>env_id * self.note_bytes, length)

    def status(self, uint32_t env_id):
        """The status that came with the payload."""
        return self.heads[2 * env_id + 1]

    def clear(self):
        """Forget all payloads."""
        memset(self.heads, 0, 2 * sizeof(uint32_t) * self.num_envs)
