/* Versioned cells: a seqlock whose writer never leaves it odd. One writer, any readers, K cells; the writer fills the
 * cell after the newest and then publishes it, so a writer killed half way leaves the last complete value readable
 * and its successor goes on. Fences after Boehm, "Can seqlocks get along with programming language memory models?",
 * HPL-2012-68. */
#ifndef SHM_CELLS_H
#define SHM_CELLS_H
#include "atomic.h"

typedef struct {
    SHM_ALIGNED a64 version; /* writer: the writer. Values ever published; its low half is the readers' futex word */
    SHM_ALIGNED a32 waiters; /* atomic of all readers: how many may be parked. A killed one leaves it too high, which
                                costs a needless wake-up a write and nothing else */
} shm_cells;

/* words: size of one cell in 64 bit words. Crash: before the store of version nothing was written. */
static inline void shm_write_cell(shm_cells *s, a64 *cells, size_t words, uint32_t cell_count, const uint64_t *value) {
    uint64_t version = SHM_LOAD(&s->version, relaxed) + 1;
    a64 *cell = cells + (size_t)(version % cell_count) * words;
    /* version - 1 is out before the words of an older one change.
     * PAIRS WITH shm_read_cell "old cell reused", shm_version "cell read in place reused" */
    SHM_FENCE(release);
    for (size_t i = 0; i < words; i++)
        SHM_STORE(&cell[i], value[i], relaxed);
    /* Commit point. PAIRS WITH shm_read_cell "value published", shm_version "value to read in place",
     * shm_await_version "version then waiters" */
    SHM_STORE(&s->version, version, seq_cst);
    if (SHM_LOAD(&s->waiters, seq_cst))
        SHM_FUTEX_WAKE(SHM_LOW_WORD(&s->version), INT32_MAX);
}
/* 1: `value` is version *version, whole. 0: the writer lapped this reader; try again. */
static inline int shm_read_cell(shm_cells *s, a64 *cells, size_t words, uint32_t cell_count, uint64_t *value,
                                uint64_t *version) {
    uint64_t before = *version = SHM_LOAD(&s->version, acquire); /* PAIRS WITH shm_write_cell "value published" */
    a64 *cell = cells + (size_t)(before % cell_count) * words;
    for (size_t i = 0; i < words; i++)
        value[i] = SHM_LOAD(&cell[i], relaxed);
    SHM_FENCE(acquire); /* PAIRS WITH shm_write_cell "old cell reused" */
    return SHM_LOAD(&s->version, relaxed) - before <= cell_count - 2;
}
/* Of the newest value, which may be read in place from then on. What was read was whole if a later call has moved on by
 * at most cell_count - 2, as in shm_read_cell. */
static inline uint64_t shm_version(shm_cells *s) {
    SHM_FENCE(acquire);                    /* PAIRS WITH shm_write_cell "cell read in place reused" */
    return SHM_LOAD(&s->version, acquire); /* PAIRS WITH shm_write_cell "value to read in place" */
}
/* Blocks: without the GIL, until the version is past `seen`, a signal, the deadline or a heartbeat. */
static inline int shm_await_version(shm_cells *s, uint64_t seen, shm_wait *wait) {
    if (SHM_SPIN(wait, SHM_LOAD(&s->version, relaxed) > seen))
        return SHM_READY;
    int how = SHM_READY;
    SHM_ADD(&s->waiters, 1, seq_cst); /* PAIRS WITH shm_write_cell "version then waiters" */
    uint64_t now = SHM_LOAD(&s->version, seq_cst);
    if (now <= seen)
        how = shm_park(SHM_LOW_WORD(&s->version), (uint32_t)now, wait);
    SHM_ADD(&s->waiters, (uint32_t)-1, relaxed);
    return how;
}
#endif
