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
    int64_t patience_ns;  /* spin longer, or not at all, by what is expected: through waits of at most so long; 0: don't */
    int64_t late_ns;      /* who spins and finds out so long after the wait was over shares its core with others */
    int64_t expected_ns;  /* how long such waits lasted lately; starts as spin_ns */
    int64_t began_ns;     /* CLOCK_MONOTONIC at which the wait began that is not over; 0: none */
    int64_t gap_ns;       /* how long the last yield of the last spin took */
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
        if (!wait->shy)
            wait->shy = 1; /* who has waited so long goes on without another spin */
        return SHM_HEARTBEAT;
    case OS_INTERRUPTED:
        return SHM_INTERRUPTED;
    default:
        return SHM_READY;
    }
}

/* A spin that was in vain is the last for some waits, and for twice as many each time; every spin that was not halves
 * their number. */
enum { SHM_SLICE_NS = 1000000, SHM_SHYEST = 1024 };
static inline void shm_note_spin(shm_wait *wait, int in_vain) {
    if (!in_vain)
        wait->shyness >>= 1;
    else
        wait->shy = wait->shyness = wait->shyness == 0 ? 4 : wait->shyness < SHM_SHYEST ? 2 * wait->shyness : SHM_SHYEST;
}

/* Waits of one kind resemble each other, whatever they are for: a policy that thinks, a batch of envs, other workers. So
 * the last ones tell how long the next one will last, and whether it is worth spinning through. */
static inline void shm_begin_wait(shm_wait *wait, int64_t now) {
    if (!wait->began_ns) /* a heartbeat or a signal does not end it */
        wait->began_ns = now;
}
/* over_ns: since when the wait could have ended; spun: it was noticed by a spin. What wakes late is no part of a wait, or
 * parked waits would seem too long to be spun through. The estimate grows by a quarter at most: one long pause, as for a
 * learner, does not hide what is usual. A spin that notices late was in vain: others were on its core, and want it. */
static inline void shm_end_wait(shm_wait *wait, int64_t over_ns, int64_t now, int spun) {
    int64_t began = wait->began_ns, grown = wait->expected_ns + wait->expected_ns / 4 + 10000;
    int64_t lasted = over_ns <= began ? 0 : over_ns - began;
    wait->began_ns = 0;
    if (!began || !wait->patience_ns)
        return;
    if (lasted < wait->expected_ns)
        wait->expected_ns -= (wait->expected_ns - lasted) / 8;
    else
        wait->expected_ns = lasted < grown ? lasted : grown;
    if (spun) /* late by the measure of such waits, too: on a slow machine everything takes its time */
        shm_note_spin(wait, over_ns <= now - wait->late_ns && over_ns <= now - wait->expected_ns / 16);
}
static inline int64_t shm_spin_budget(const shm_wait *wait) {
    if (!wait->patience_ns)
        return wait->spin_ns;
    if (wait->expected_ns > wait->patience_ns)
        return 0;
    return 2 * wait->expected_ns > wait->spin_ns ? 2 * wait->expected_ns : wait->spin_ns;
}

/* Bounded spinning that gives the core away between two looks: evaluates `over` until it holds (1) or the budget is up
 * (0). Never a pause-spin: with as many processes as cores it keeps the awaited side from running.
 * Without patience, in vain is what found nothing, and what got the core back only a time slice after a yield, from a
 * foreign process that computes: who parks instead is woken before that one is done. With it, only shm_end_wait can tell:
 * a yield lasts long where it is the awaited side that has the core. The model looks once. */
#ifdef SHM_MODEL
#define SHM_SPIN(wait, over) ((wait)->spin_ns > 0 && (over))
#else
#define SHM_SPIN(wait, over)                                                                                          \
    __extension__({                                                                                                   \
        int held_ = 0;                                                                                                \
        int64_t budget_ = shm_spin_budget(wait);                                                                      \
        if (budget_ > 0 && (wait)->shy > 0) {                                                                         \
            (wait)->shy--;                                                                                            \
        } else if (budget_ > 0) {                                                                                     \
            int64_t now_ = os_now_ns(), last_ = now_, spin_end_ = now_ + budget_;                                     \
            int64_t slice_ = (wait)->patience_ns ? INT64_MAX : SHM_SLICE_NS;                                          \
            if (spin_end_ > (wait)->deadline_ns)                                                                      \
                spin_end_ = (wait)->deadline_ns;                                                                      \
            while (!(held_ = (over)) && now_ < spin_end_ && now_ - last_ < slice_) {                                  \
                last_ = now_;                                                                                         \
                os_yield();                                                                                           \
                now_ = os_now_ns();                                                                                   \
            }                                                                                                         \
            (wait)->gap_ns = now_ - last_;                                                                            \
            (wait)->spins += (uint64_t)held_;                                                                         \
            if (!(wait)->patience_ns)                                                                                 \
                shm_note_spin(wait, !held_ || (wait)->gap_ns >= SHM_SLICE_NS);                                        \
        }                                                                                                             \
        held_;                                                                                                        \
    })
#endif
#endif
