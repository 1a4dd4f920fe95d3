/* The seam through which every header of the core touches shared memory: C11 atomics and the futex in the product,
 * a model of both under the explorer (tests/core). Memory orders stand in core/ alone. */
#ifndef SHM_ATOMIC_H
#define SHM_ATOMIC_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* before the first system header: memfd, seals, pidfd */
#endif
#include <stddef.h>
#include <stdint.h>

/* Adjacent-line prefetch pulls cache lines in pairs on x86-64, and some aarch64 lines are 128 bytes long. */
#define SHM_LINE 128
#define SHM_ALIGNED _Alignas(SHM_LINE)

#ifdef SHM_MODEL
#include "model.h"
#else
#include <stdatomic.h>
#include <string.h>
#include "os.h"
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "needs lock-free 32 and 64 bit atomics");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "SHM_LOW_WORD names the first half of a 64 bit word");
typedef _Atomic uint32_t a32;
typedef _Atomic uint64_t a64;
#define SHM_LOAD(p, order) atomic_load_explicit(p, memory_order_##order)
#define SHM_STORE(p, v, order) atomic_store_explicit(p, v, memory_order_##order)
#define SHM_ADD(p, v, order) atomic_fetch_add_explicit(p, v, memory_order_##order)
#define SHM_SWAP(p, v, order) atomic_exchange_explicit(p, v, memory_order_##order)
#define SHM_FENCE(order) atomic_thread_fence(memory_order_##order)
#define SHM_COPY_IN(shared, own, size) memcpy(shared, own, size)  /* payload: a counter says whose it is, and */
#define SHM_COPY_OUT(own, shared, size) memcpy(own, shared, size) /* its release and acquire order it */
#define SHM_LOW_WORD(p) ((a32 *)(p)) /* what a futex on a 64 bit counter waits on */
#define SHM_FUTEX_WAIT(p, expected, ns) os_futex_wait((uint32_t *)(p), expected, ns)
#define SHM_FUTEX_WAKE(p, count) os_futex_wake((uint32_t *)(p), count)
#endif

/* Counters run for ever and wrap: a is at or past b iff the signed difference says so. */
static inline int shm_reached(uint32_t a, uint32_t b) { return (int32_t)(a - b) >= 0; }

/* One wait: what the caller allows, and what it cost. Lives in the waiter's own memory. */
typedef struct {
    int64_t deadline_ns;  /* CLOCK_MONOTONIC; INT64_MAX waits for ever, 0 only polls */
    int64_t spin_ns;      /* yield-spin so long before parking; 0 parks at once */
    int64_t heartbeat_ns; /* longest single park: the second net under a lost wake-up */
    uint64_t spins;       /* waits that ended while spinning */
    uint64_t parks;       /* futex waits entered */
    uint64_t heartbeats;  /* parks that ended by the heartbeat, not by a wake-up */
    uint32_t shy;         /* waits still to come that do not spin, since a spin was in vain */
    uint32_t shyness;     /* how many that were the last time */
} shm_wait;

enum { SHM_READY = 0, SHM_ALERT = 1, SHM_TIMEOUT = 2, SHM_INTERRUPTED = 3, SHM_HEARTBEAT = 4 };

/* Parks once on *word while it holds `expected`, no longer than the heartbeat and the deadline allow.
 * SHM_READY: look again; else SHM_TIMEOUT, SHM_INTERRUPTED (a signal), SHM_HEARTBEAT. Blocks without the GIL. */
static inline int shm_park(a32 *word, uint32_t expected, shm_wait *wait) {
    int64_t span = wait->heartbeat_ns;
    int last = 0;
    if (wait->deadline_ns != INT64_MAX) {
        int64_t left = wait->deadline_ns - os_now_ns();
        if (left <= 0)
            return SHM_TIMEOUT;
        if (left <= span) {
            span = left;
            last = 1;
        }
    }
    wait->parks++;
    switch (SHM_FUTEX_WAIT(word, expected, span)) {
    case OS_TIMED_OUT:
        if (last)
            return SHM_TIMEOUT;
        wait->heartbeats++;
        return SHM_HEARTBEAT;
    case OS_INTERRUPTED:
        return SHM_INTERRUPTED;
    default:
        return SHM_READY;
    }
}

/* Bounded spinning that gives the core away between two looks: evaluates `over` until it holds (1) or spin_ns is up
 * (0). Never a pause-spin: with as many processes as cores it keeps the awaited side from running.
 * A spin that was in vain is the last for some waits, and for twice as many each time; every spin that succeeds halves
 * their number. In vain is also what got the core back only a time slice after a yield, from a foreign process that
 * computes: who parks instead is woken before that one is done. The model looks once. */
enum { SHM_SLICE_NS = 1000000, SHM_SHYEST = 1024 };
static inline uint32_t shm_shyer(uint32_t shyness) {
    return shyness == 0 ? 4 : shyness < SHM_SHYEST ? 2 * shyness : SHM_SHYEST;
}
#ifdef SHM_MODEL
#define SHM_SPIN(wait, over) ((wait)->spin_ns > 0 && (over))
#else
#define SHM_SPIN(wait, over)                                                                                          \
    __extension__({                                                                                                   \
        int held_ = 0;                                                                                                \
        if ((wait)->spin_ns > 0 && (wait)->shy > 0) {                                                                 \
            (wait)->shy--;                                                                                            \
        } else if ((wait)->spin_ns > 0) {                                                                             \
            int64_t now_ = os_now_ns(), last_ = now_, spin_end_ = now_ + (wait)->spin_ns;                             \
            if (spin_end_ > (wait)->deadline_ns)                                                                      \
                spin_end_ = (wait)->deadline_ns;                                                                      \
            while (!(held_ = (over)) && now_ < spin_end_ && now_ - last_ < SHM_SLICE_NS) {                            \
                last_ = now_;                                                                                         \
                os_yield();                                                                                           \
                now_ = os_now_ns();                                                                                   \
            }                                                                                                         \
            (wait)->spins += (uint64_t)held_;                                                                         \
            if (held_ && now_ - last_ < SHM_SLICE_NS)                                                                 \
                (wait)->shyness >>= 1;                                                                                \
            else                                                                                                      \
                (wait)->shy = (wait)->shyness = shm_shyer((wait)->shyness);                                           \
        }                                                                                                             \
        held_;                                                                                                        \
    })
#endif
#endif
