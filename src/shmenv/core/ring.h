/* A bounded queue of fixed-size items, one producer, one consumer: the env channel with room for many
 * (tail = commands given, head = commands answered). After Lamport, "Proving the correctness of multiprocess
 * programs", 1977; the cached opposite counter follows rigtorp/SPSCQueue. */
#ifndef SHM_RING_H
#define SHM_RING_H
#include <string.h>
#include "atomic.h"

typedef struct {
    SHM_ALIGNED a32 tail;      /* futex word of the consumer. writer: producer. Items ever pushed */
    a32 producer_parked;       /* writer: producer */
    SHM_ALIGNED a32 head;      /* futex word of the producer. writer: consumer. Items ever popped */
    a32 consumer_parked;       /* writer: consumer */
} shm_ring;

/* Crash: killed before the store of tail, the producer has pushed nothing; its successor uses the same cell. */
static inline int shm_push(shm_ring *r, void *items, uint32_t capacity, uint32_t itemsize, const void *item,
                           uint32_t *cached_head) {
    uint32_t tail = SHM_LOAD(&r->tail, relaxed);
    if (tail - *cached_head >= capacity) {
        *cached_head = SHM_LOAD(&r->head, acquire); /* PAIRS WITH shm_pop "cell free" */
        if (tail - *cached_head >= capacity)
            return 0;
    }
    memcpy((char *)items + (size_t)(tail & (capacity - 1)) * itemsize, item, itemsize);
    SHM_STORE(&r->tail, tail + 1, seq_cst); /* commit point. PAIRS WITH shm_pop "item pushed" */
    if (SHM_LOAD(&r->consumer_parked, seq_cst))
        SHM_FUTEX_WAKE(&r->tail, 1);
    return 1;
}
/* Crash: killed before the store of head, the consumer has popped nothing; its successor gets the same item. */
static inline int shm_pop(shm_ring *r, const void *items, uint32_t capacity, uint32_t itemsize, void *item,
                          uint32_t *cached_tail) {
    uint32_t head = SHM_LOAD(&r->head, relaxed);
    if (head == *cached_tail) {
        *cached_tail = SHM_LOAD(&r->tail, acquire); /* PAIRS WITH shm_push "item pushed" */
        if (head == *cached_tail)
            return 0;
    }
    memcpy(item, (const char *)items + (size_t)(head & (capacity - 1)) * itemsize, itemsize);
    SHM_STORE(&r->head, head + 1, seq_cst); /* commit point. PAIRS WITH shm_push "cell free" */
    if (SHM_LOAD(&r->producer_parked, seq_cst))
        SHM_FUTEX_WAKE(&r->head, 1);
    return 1;
}
/* Waits until *counter, written by the other side, is no longer `seen`; `parked` is this side's flag. */
static inline int shm_await_counter(a32 *counter, a32 *parked, uint32_t seen, shm_wait *wait) {
    SHM_SPIN(wait, SHM_LOAD(counter, relaxed) != seen);
    int how = SHM_READY;
    SHM_STORE(parked, 1, seq_cst);
    if (SHM_LOAD(counter, seq_cst) == seen)
        how = shm_park(counter, seen, wait);
    SHM_STORE(parked, 0, relaxed);
    return how;
}
#endif
