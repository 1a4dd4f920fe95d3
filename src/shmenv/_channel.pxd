"""What `_loop`, `_mail` and `_port` use of the headers in core/, where everything is explained."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "row.h" nogil:
    const uint32_t SHM_OP_RESET, SHM_OP_STEP, SHM_OP_CALL, SHM_HAS_PAYLOAD, SHM_KEEP_ROW, SHM_WHOLE, SHM_GO_ON
    uint32_t SHM_OP_CODE(uint32_t)
    uint32_t SHM_OP_PLANE(uint32_t)
    const uint32_t SHM_ROW_ERROR, SHM_ROW_NOTE, SHM_ROW_SPILLED, SHM_ROW_FINAL_NOTE, SHM_ROW_FINAL_SPILLED
    const uint32_t SHM_ROW_NEEDS_RESET
    uint32_t shm_word(uint32_t *)

cdef extern from "channel.h" nogil:
    ctypedef struct a32:
        pass
    ctypedef struct shm_semaphore:
        pass
    ctypedef struct shm_wait:
        int64_t deadline_ns
        int64_t spin_ns
        int64_t patience_ns
        int64_t late_ns
        int64_t expected_ns
        int64_t began_ns
        int64_t gap_ns
        int64_t heartbeat_ns
        uint64_t spins
        uint64_t parks
        uint64_t heartbeats
        uint32_t shy
    ctypedef struct shm_worker:
        pass
    ctypedef uint32_t (*shm_scan)(void *) noexcept nogil
    const int SHM_READY, SHM_TIMEOUT, SHM_INTERRUPTED, SHM_HEARTBEAT
    const int64_t SHM_SLICE_NS
    const uint32_t SHM_QUIT, SHM_IDLE, SHM_CONSTRUCT, SHM_STEP
    const int64_t INT64_MAX
    int64_t os_now_ns()
    uint32_t os_core()
    void shm_begin_wait(shm_wait *, int64_t)
    void shm_end_wait(shm_wait *, int64_t, int64_t, bint)
    # semaphore
    void shm_post(shm_semaphore *, uint32_t)
    int shm_await(shm_semaphore *, uint32_t, uint32_t, shm_scan, void *, shm_wait *, uint32_t *)
    uint32_t shm_alerts(shm_semaphore *)
    void shm_alert(shm_semaphore *)
    # the manager's end
    void shm_command(a32 *, uint32_t)
    uint32_t shm_count_reset(uint32_t, uint32_t)
    int shm_answered(a32 *, uint32_t)
    int shm_has_ended(a32 *, uint32_t)
    int shm_ring_bell(shm_worker *, int64_t)
    void shm_give_order(shm_worker *, uint32_t)
    void shm_reset_channel(a32 *, a32 *)
    void shm_reset_worker(shm_worker *)
    uint32_t shm_generation(shm_worker *)
    void shm_read_account(shm_worker *, uint64_t *)
    uint32_t shm_core(shm_worker *)
    int64_t shm_done_ns(shm_worker *)
    # the worker's end
    uint32_t shm_bell(shm_worker *)
    uint32_t shm_order(shm_worker *)
    int shm_await_bell(shm_worker *, uint32_t, shm_wait *)
    uint32_t shm_commanded(a32 *)
    bint shm_is_new(uint32_t, uint32_t)
    void shm_doing(shm_worker *, uint32_t, uint32_t, uint32_t, int64_t)
    void shm_doing_nothing(shm_worker *, uint32_t)
    bint shm_has_done_all(shm_worker *)
    void shm_count_step(shm_worker *)
    int64_t shm_rung_ns(shm_worker *)
    void shm_note_done(shm_worker *, int64_t)
    void shm_note_core(shm_worker *, uint32_t)
    void shm_account(shm_worker *, int64_t, int64_t, shm_wait *)
    void shm_respond(a32 *, uint32_t)
    uint32_t shm_responded(a32 *)
    void shm_end(a32 *, uint32_t)
