/* The channel of an env and the doorbell of its worker. `cmd` is written by the manager only, `rsp` by the env's
 * worker only; both count commands and are compared as signed differences, so nothing is ever half reserved. */
#ifndef SHM_CHANNEL_H
#define SHM_CHANNEL_H
#include "semaphore.h"

/* One a worker. */
typedef struct {
    SHM_ALIGNED a32 bell; /* futex word. writers: the manager's threads (an atomic addition a ring) */
    a32 order;            /* writer: manager. SHM_RUN or SHM_QUIT, looked at between two commands */
    a32 generation;       /* writer: manager, while no worker lives. How many workers stood here before */
    a64 rung_ns;          /* writer: manager. CLOCK_MONOTONIC of the last ring */
    SHM_ALIGNED a32 parked; /* writer: worker, or the manager once the worker is confirmed dead */
    a64 doing;              /* writer: worker. Command number << 32 | env << 4 | phase, before each call into an env;
                               bell << 32 | SHM_IDLE, before it waits for the next ring after that one */
    a64 since_ns;           /* writer: worker. CLOCK_MONOTONIC at which `doing` began; 0 where nothing is timed */
    a64 steps;              /* writer: worker, like all below: env steps played */
    a64 busy_ns;            /* time from a command's arrival until no command is left */
    a64 wait_ns;            /* time spent waiting for commands */
    a64 spins;              /* waits that ended while spinning */
    a64 parks;              /* futex waits entered */
    a32 core;               /* the core on which it took up its last commands */
    a64 done_ns;            /* CLOCK_MONOTONIC at which it had carried them out */
} shm_worker;

enum { SHM_RUN = 0, SHM_QUIT = 1 };
enum { SHM_IDLE = 0, SHM_CONSTRUCT = 1, SHM_RESET = 2, SHM_STEP = 3, SHM_CALL = 4, SHM_CLOSE = 5 };

/* Called by: the worker, before each call into an env. For the watcher's clock and for error texts. */
static inline void shm_doing(shm_worker *w, uint32_t n, uint32_t env_id, uint32_t phase, int64_t since_ns) {
    SHM_STORE(&w->since_ns, (uint64_t)since_ns, relaxed);
    uint64_t doing = (uint64_t)n << 32 | (uint64_t)env_id << 4 | phase;
    SHM_STORE(&w->doing, doing, release); /* PAIRS WITH shm_due "doing since" */
}
/* Called by: the worker, before it waits for a ring after `seen`. */
static inline void shm_doing_nothing(shm_worker *w, uint32_t seen) {
    /* PAIRS WITH shm_due "idle after a ring", shm_has_done_all "answered before idle" */
    SHM_STORE(&w->doing, (uint64_t)seen << 32 | SHM_IDLE, release);
}
/* Called by: the manager's thread that gives commands, after it rang for them. Does the worker wait for the next ring?
 * Then all its answers are there; one that is not was taken back by something that writes where it should not. */
static inline int shm_has_done_all(shm_worker *w) {
    uint64_t doing = SHM_LOAD(&w->doing, acquire); /* PAIRS WITH shm_doing_nothing "answered before idle" */
    return (doing & 15) == SHM_IDLE && (uint32_t)(doing >> 32) == SHM_LOAD(&w->bell, relaxed);
}
/* Called by: the manager's watcher. Until when may what the worker does stand, in CLOCK_MONOTONIC nanoseconds?
 * limits: nanoseconds by phase, 0 for no limit; `shortest` of them: what starts from now on is not late before that.
 * A ring that an idle worker does not take up (stopped, swapped out) is timed too, by the limit of SHM_IDLE. */
static inline int64_t shm_due(shm_worker *w, const int64_t *limits, int64_t shortest, int64_t now, uint64_t *doing) {
    /* PAIRS WITH shm_doing "doing since", shm_doing_nothing "idle after a ring" */
    *doing = SHM_LOAD(&w->doing, acquire);
    uint32_t phase = *doing & 15;
    if (phase > SHM_CLOSE || !limits[phase]) /* an env that writes where it should not may put anything there */
        return now + shortest;
    if (phase == SHM_IDLE) {
        uint32_t bell = SHM_LOAD(&w->bell, acquire); /* PAIRS WITH shm_ring_bell "rung at" */
        if (bell == (uint32_t)(*doing >> 32))
            return now + shortest;
    }
    int64_t since = (int64_t)SHM_LOAD(&w->since_ns, relaxed), rung = (int64_t)SHM_LOAD(&w->rung_ns, relaxed);
    return (int64_t)((uint64_t)(phase == SHM_IDLE && rung > since ? rung : since) + (uint64_t)limits[phase]);
}
static inline uint32_t shm_order(shm_worker *w) {
    return SHM_LOAD(&w->order, relaxed); /* the bell that follows an order brings it */
}

/* Called by: the worker, the only writer of its counters. */
static inline void shm_count_step(shm_worker *w) {
    SHM_STORE(&w->steps, SHM_LOAD(&w->steps, relaxed) + 1, relaxed);
}
static inline void shm_note_done(shm_worker *w, int64_t now) { SHM_STORE(&w->done_ns, (uint64_t)now, relaxed); }
static inline void shm_note_core(shm_worker *w, uint32_t core) { SHM_STORE(&w->core, core, relaxed); }
static inline uint32_t shm_core(shm_worker *w) { return SHM_LOAD(&w->core, relaxed); } /* a hint; called by any side */
/* Hints for estimates, so no order: the manager's when it was all done, the worker's when its bell was rung. */
static inline int64_t shm_done_ns(shm_worker *w) { return (int64_t)SHM_LOAD(&w->done_ns, relaxed); }
static inline int64_t shm_rung_ns(shm_worker *w) { return (int64_t)SHM_LOAD(&w->rung_ns, relaxed); }
static inline void shm_account(shm_worker *w, int64_t busy_ns, int64_t wait_ns, const shm_wait *wait) {
    SHM_STORE(&w->busy_ns, SHM_LOAD(&w->busy_ns, relaxed) + (uint64_t)busy_ns, relaxed);
    SHM_STORE(&w->wait_ns, SHM_LOAD(&w->wait_ns, relaxed) + (uint64_t)wait_ns, relaxed);
    SHM_STORE(&w->spins, wait->spins, relaxed);
    SHM_STORE(&w->parks, wait->parks, relaxed);
}

/* Called by: the manager, which has filled the command's fields. Hands them to the worker. */
static inline void shm_command(a32 *cmd, uint32_t n) {
    SHM_STORE(cmd, n, release); /* PAIRS WITH shm_commanded "command given" */
}
static inline uint32_t shm_commanded(a32 *cmd) {
    return SHM_LOAD(cmd, acquire); /* PAIRS WITH shm_command "command given" */
}

/* Called by: the worker. Whether it has yet to carry out command n: the last that it has answered may be ahead of `cmd` by
 * one that nobody has given, a reset by which an env has gone on (SHM_GO_ON). */
static inline int shm_is_new(uint32_t n, uint32_t answered) { return !shm_reached(answered, n); }

/* Called by: the manager, whose env has gone on. The number of its last command, that reset counted. */
static inline uint32_t shm_count_reset(uint32_t given, uint32_t following) {
    return shm_reached(given, following) ? given : following;
}

/* Called by: the manager. Takes effect between two commands, at the latest at the bell that follows it. */
static inline void shm_give_order(shm_worker *w, uint32_t order) {
    SHM_STORE(&w->order, order, relaxed);
}

/* Called by: the manager, once after any number of commands: at most one wake-up a worker. Returns whether it took one. */
static inline int shm_ring_bell(shm_worker *w, int64_t now) {
    SHM_STORE(&w->rung_ns, (uint64_t)now, relaxed);
    /* PAIRS WITH shm_due "rung at", shm_bell "commands before the bell", shm_await_bell "bell then parked" */
    SHM_ADD(&w->bell, 1, seq_cst);
    if (!SHM_LOAD(&w->parked, seq_cst))
        return 0;
    SHM_FUTEX_WAKE(&w->bell, 1);
    return 1;
}
/* Called by: the worker, before it scans its commands: one that the scan misses rings later. */
static inline uint32_t shm_bell(shm_worker *w) {
    return SHM_LOAD(&w->bell, acquire); /* PAIRS WITH shm_ring_bell "commands before the bell" */
}
/* Called by: the worker, when a scan after reading `seen` found nothing to do.
 * Blocks: without the GIL, until the bell rang (SHM_READY), a signal or a heartbeat. */
static inline int shm_await_bell(shm_worker *w, uint32_t seen, shm_wait *wait) {
    if (SHM_SPIN(wait, SHM_LOAD(&w->bell, relaxed) != seen))
        return SHM_READY;
    int how = SHM_READY;
    SHM_STORE(&w->parked, 1, seq_cst); /* PAIRS WITH shm_ring_bell "bell then parked" */
    if (SHM_LOAD(&w->bell, seq_cst) == seen)
        how = shm_park(&w->bell, seen, wait);
    SHM_STORE(&w->parked, 0, relaxed);
    return how;
}

/* Called by: the worker. The commit point of a command: killed before this store it has done nothing, after it
 * everything. The post that follows is only a hint. */
static inline void shm_respond(a32 *rsp, uint32_t n) {
    SHM_STORE(rsp, n, release); /* PAIRS WITH shm_answered "answer published" */
}
static inline uint32_t shm_responded(a32 *rsp) { return SHM_LOAD(rsp, relaxed); } /* by its own writer, at its start */
static inline int shm_answered(a32 *rsp, uint32_t n) {
    return shm_reached(SHM_LOAD(rsp, acquire), n); /* PAIRS WITH shm_respond "answer published" */
}

/* Same-step autoreset commits twice: the ended step here, the reset by shm_respond. No post: nobody waits for the
 * first half unless the worker dies, and a death rings by itself. */
static inline void shm_end(a32 *ended, uint32_t n) {
    SHM_STORE(ended, n, release); /* PAIRS WITH shm_has_ended "ended step published" */
}
static inline int shm_has_ended(a32 *ended, uint32_t n) {
    return SHM_LOAD(ended, acquire) == n; /* PAIRS WITH shm_end "ended step published" */
}

/* Called by: the manager, for each env of a worker that is confirmed dead, before it gives the successor a command. */
static inline void shm_reset_channel(a32 *cmd, a32 *rsp) {
    SHM_STORE(rsp, SHM_LOAD(cmd, relaxed), relaxed); /* the start of the successor orders it */
}
/* doing (0 if an env has written over it), steps, busy_ns, wait_ns, spins, parks; each whole, together no snapshot */
static inline void shm_read_account(shm_worker *w, uint64_t values[6]) {
    values[0] = SHM_LOAD(&w->doing, relaxed);
    if ((values[0] & 15) > SHM_CLOSE) /* no phase that there is */
        values[0] = 0;
    values[1] = SHM_LOAD(&w->steps, relaxed);
    values[2] = SHM_LOAD(&w->busy_ns, relaxed);
    values[3] = SHM_LOAD(&w->wait_ns, relaxed);
    values[4] = SHM_LOAD(&w->spins, relaxed);
    values[5] = SHM_LOAD(&w->parks, relaxed);
}
static inline uint32_t shm_generation(shm_worker *w) { return SHM_LOAD(&w->generation, relaxed); }
static inline void shm_reset_worker(shm_worker *w) {
    SHM_STORE(&w->parked, 0, relaxed);
    SHM_STORE(&w->doing, 0, relaxed);
    SHM_STORE(&w->order, SHM_RUN, relaxed);
    SHM_STORE(&w->generation, SHM_LOAD(&w->generation, relaxed) + 1, relaxed);
}
#endif
