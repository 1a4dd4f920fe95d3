/* A bounded queue of fixed-size items, one producer, one consumer: the env channel with room for many
 * (tail = commands given, head = commands answered). After Lamport, "Proving the correctness of multiprocess
 * programs", 1977; the cached opposite counter follows rigtorp/SPSCQueue. */
#ifndef SHM_RING_H
#define SHM_RING_H
#include "atomic.h"

typedef struct {
    SHM_ALIGNED a32 tail; /* futex word of the consumer. writer: producer. Items ever pushed */
    a32 producer_parked;  /* writer: producer. Left at 1 by a killed one: needless wake-ups until its successor waits */
    SHM_ALIGNED a32 head; /* futex word of the producer. writer: consumer. Items ever popped */
    a32 consumer_parked;  /* writer: consumer. As producer_parked */
} shm_ring;

/* items: mask + 1 cells, a power of two so that the counters may wrap; capacity: 1 to mask + 1, how many may be used.
 * cached_head: the producer's own memory; a producer, the first or a successor, starts it as shm_popped(r).
 * Returns 0 when the ring is full.
 * Crash: killed before the store of tail, the producer has pushed nothing; its successor uses the same cell. Killed
 * between that store and the wake-up, it leaves a parked consumer to its heartbeat. */
static inline int shm_push(shm_ring *r, void *items, uint32_t capacity, uint32_t mask, uint32_t itemsize,
                           const void *item, uint32_t *cached_head) {
    uint32_t tail = SHM_LOAD(&r->tail, relaxed);
    if (tail - *cached_head >= capacity) {
        *cached_head = SHM_LOAD(&r->head, acquire); /* PAIRS WITH shm_pop "cell free" */
        if (tail - *cached_head >= capacity)
            return 0;
    }
    SHM_COPY_IN((char *)items + (size_t)(tail & mask) * itemsize, item, itemsize);
    SHM_STORE(&r->tail, tail + 1, seq_cst); /* commit point. PAIRS WITH shm_pop "item pushed" */
    if (SHM_LOAD(&r->consumer_parked, seq_cst)) /* PAIRS WITH shm_await_counter "tail then parked" */
        SHM_FUTEX_WAKE(&r->tail, 1);
    return 1;
}
/* cached_tail: the consumer's own memory; a consumer, the first or a successor, starts it as shm_popped(r), so that
 * nothing counts as pushed before it has looked. Returns 0 when the ring is empty.
 * Crash: killed before the store of head, the consumer has popped nothing; its successor gets the same item. */
static inline int shm_pop(shm_ring *r, const void *items, uint32_t mask, uint32_t itemsize, void *item,
                          uint32_t *cached_tail) {
    uint32_t head = SHM_LOAD(&r->head, relaxed);
    if (head == *cached_tail) {
        *cached_tail = SHM_LOAD(&r->tail, acquire); /* PAIRS WITH shm_push "item pushed" */
        if (head == *cached_tail)
            return 0;
    }
    SHM_COPY_OUT(item, (const char *)items + (size_t)(head & mask) * itemsize, itemsize);
    SHM_STORE(&r->head, head + 1, seq_cst); /* commit point. PAIRS WITH shm_push "cell free", shm_popped "cells free" */
    if (SHM_LOAD(&r->producer_parked, seq_cst)) /* PAIRS WITH shm_await_counter "head then parked" */
        SHM_FUTEX_WAKE(&r->head, 1);
    return 1;
}
static inline uint32_t shm_pushed(shm_ring *r) { return SHM_LOAD(&r->tail, relaxed); } /* shm_pop looks for itself */
static inline uint32_t shm_popped(shm_ring *r) {
    return SHM_LOAD(&r->head, acquire); /* PAIRS WITH shm_pop "cells free" */
}

/* Waits until *counter, written by the other side, is no longer `seen`; `parked` is this side's flag. Take `seen` from
 * shm_pushed or shm_popped before the attempt that failed, so that what it missed counts as a change.
 * Blocks: without the GIL, until then (SHM_READY), a signal, the deadline or a heartbeat. */
static inline int shm_await_counter(a32 *counter, a32 *parked, uint32_t seen, shm_wait *wait) {
    if (SHM_SPIN(wait, SHM_LOAD(counter, relaxed) != seen))
        return SHM_READY;
    int how = SHM_READY;
    SHM_STORE(parked, 1, seq_cst); /* PAIRS WITH shm_push "tail then parked", shm_pop "head then parked" */
    if (SHM_LOAD(counter, seq_cst) == seen)
        how = shm_park(counter, seen, wait);
    SHM_STORE(parked, 0, relaxed);
    return how;
}
#endif
