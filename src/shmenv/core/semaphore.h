/* A threshold semaphore: any number of posters, one waiter, one wake-up for the k-th post of the k that are wanted.
 * It says when to look; what is there is told by a scan of the caller's (a pool's response words, or `taken` below).
 * Killed anywhere, a poster has either posted or not, and the waiter's next look is right either way. */
#ifndef SHM_SEMAPHORE_H
#define SHM_SEMAPHORE_H
#include "atomic.h"

typedef struct {
    SHM_ALIGNED a32 posted; /* atomics of all posters: posts since the start, never less than what a scan may miss */
    SHM_ALIGNED a32 gate;   /* futex word, atomic of all: 1 while the waiter is parked or about to be */
    a32 wake_at;            /* writer: the waiter. The value of `posted` that deserves the wake-up */
    a32 alert;              /* atomic of all: news that is no result (death, close); any change ends the wait */
    a32 taken;              /* writer: the waiter. Units consumed by the counting semaphore */
} shm_semaphore;

/* What there is now, counted by the caller. */
typedef uint32_t (*shm_scan)(void *arg);

/* Called by: a poster, after it has published what it posts. One wake-up for any number of posts: only whoever closes
 * the gate makes the call.
 * Crash: before the addition nothing was posted; after it, a waiter that deserved the wake-up may sleep until the alert
 * that the death itself brings, or its heartbeat. */
static inline void shm_post(shm_semaphore *s, uint32_t n) {
    /* PAIRS WITH shm_await "results before posts", shm_free_units "units posted" */
    uint32_t posted = SHM_ADD(&s->posted, n, seq_cst) + n;
    if (!SHM_LOAD(&s->gate, seq_cst)) /* PAIRS WITH shm_await "posted then gate" */
        return;
    if (shm_reached(posted, SHM_LOAD(&s->wake_at, relaxed)) && SHM_SWAP(&s->gate, 0, relaxed))
        SHM_FUTEX_WAKE(&s->gate, 1);
}

/* Called by: anyone with news that is not a result. `gate` changes before the wake, so that a waiter between its
 * last look and its futex call does not sleep. */
static inline void shm_alert(shm_semaphore *s) {
    SHM_ADD(&s->alert, 1, seq_cst); /* PAIRS WITH shm_alerts "news before alerts" */
    SHM_STORE(&s->gate, 0, seq_cst); /* PAIRS WITH shm_await "alert then gate" */
    SHM_FUTEX_WAKE(&s->gate, 1);
}

/* Called by: the waiter, before it looks for the news: what it misses changes `alert` again. */
static inline uint32_t shm_alerts(shm_semaphore *s) {
    return SHM_LOAD(&s->alert, acquire); /* PAIRS WITH shm_alert "news before alerts" */
}

/* Waits until scan() counts `need`, or `alert` differs from `seen_alert`; the count goes to *found.
 * Blocks: without the GIL, until then, a signal, the deadline or a heartbeat; the return value says which. */
static inline int shm_await(shm_semaphore *s, uint32_t need, uint32_t seen_alert, shm_scan scan, void *arg,
                            shm_wait *wait, uint32_t *found) {
    for (;;) {
        /* The hint before the truth: a result that the scan misses is posted after this load. */
        uint32_t posted = SHM_LOAD(&s->posted, acquire); /* PAIRS WITH shm_post "results before posts" */
        uint32_t have = *found = scan(arg);
        if (have >= need)
            return SHM_READY;
        if (SHM_LOAD(&s->alert, relaxed) != seen_alert)
            return SHM_ALERT;
        if (wait->deadline_ns == 0)
            return SHM_TIMEOUT;
        uint32_t wake_at = posted + (need - have);
        if (SHM_SPIN(wait, shm_reached(SHM_LOAD(&s->posted, relaxed), wake_at) ||
                               SHM_LOAD(&s->alert, relaxed) != seen_alert))
            continue;
        SHM_STORE(&s->wake_at, wake_at, relaxed);
        SHM_STORE(&s->gate, 1, seq_cst); /* PAIRS WITH shm_post "posted then gate", shm_alert "alert then gate" */
        if (shm_reached(SHM_LOAD(&s->posted, seq_cst), wake_at) || SHM_LOAD(&s->alert, seq_cst) != seen_alert) {
            SHM_STORE(&s->gate, 0, relaxed);
            continue;
        }
        int how = shm_park(&s->gate, 1, wait);
        if (how != SHM_READY) {
            SHM_STORE(&s->gate, 0, relaxed);
            *found = scan(arg); /* what came in with the last moment still counts */
            return *found >= need ? SHM_READY : how;
        }
    }
}

/* The counting semaphore on top: posted - taken units are free. */
static inline uint32_t shm_free_units(void *arg) {
    shm_semaphore *s = (shm_semaphore *)arg;
    uint32_t posted = SHM_LOAD(&s->posted, acquire); /* PAIRS WITH shm_post "units posted" */
    return posted - SHM_LOAD(&s->taken, relaxed);
}
static inline void shm_take(shm_semaphore *s, uint32_t n) {
    SHM_STORE(&s->taken, SHM_LOAD(&s->taken, relaxed) + n, relaxed); /* commit point of a wait */
}
#endif
