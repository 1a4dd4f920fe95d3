/* Threads that turn the death of a process into an event, written in C so that they never need the GIL: one in the
 * manager watches the workers, one in each worker watches the manager. Nothing here lies in shared memory. */
#ifndef SHM_WATCH_H
#define SHM_WATCH_H
#include <stdlib.h>
#include "channel.h"

/* How long one worker may take, and whether it took longer. */
typedef struct {
    shm_worker *worker;  /* its block in shared memory; NULL: nothing is timed */
    int64_t limits[SHM_CLOSE + 1]; /* nanoseconds by phase, 0: for ever */
    int64_t shortest;    /* of the limits that are not 0 */
    int pid;
    uint64_t doing;      /* what stood too long */
    int64_t kill_at;     /* 0: not late. Else when it is killed, CLOCK_MONOTONIC; INT64_MAX: done */
    int64_t stacks_from; /* where its stacks begin in the log */
    a32 late;            /* writer: the thread. It was killed for what stands in the two fields above */
} shm_clock;

enum { SHM_STACK_NS = 150000000 }; /* for a late worker to print its stacks before it is killed */

typedef struct {
    pthread_t thread;
    pid_t owner;         /* the process that has the thread: a forked child inherits this block, but no thread */
    int joined;          /* written by the owner only */
    int changes;         /* eventfd that ends the thread's poll */
    int slots;
    shm_semaphore *rung; /* told of each death */
    int stacks;          /* descriptor of the log that workers print their stacks to */
    int stack_signal;    /* makes them do so */
    shm_clock *clocks;   /* [slots]; the thread's own while the slot is watched */
    a32 *dead;           /* [slots]; writer: the thread, or shm_watch while nothing is watched there */
    pthread_mutex_t lock;     /* guards the rest */
    pthread_cond_t caught_up; /* seen has changed */
    int *pidfds;              /* [slots]; -1: nothing to watch */
    int quit;
    uint64_t asked;           /* changes made */
    uint64_t seen;            /* changes the thread's next poll will honour */
    struct pollfd *polled;    /* [slots + 1]; the thread's own */
} shm_watcher;

/* A thread that takes no signal, so that none is lost in it for a main thread that waits in a futex. */
static inline int shm_start_thread(pthread_t *thread, void *(*body)(void *), void *arg, int detached) {
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10); /* thread-local data of loaded libraries is taken from it too */
    if (detached)
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, &attributes, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return -error;
}

/* Looks at one worker's clock; returns when to look again. A late worker prints its stacks, then is killed with its
 * group: its death then shows like any other. One that got on meanwhile is spared. */
static inline int64_t shm_look_at_clock(shm_watcher *w, int index, int pidfd, int64_t now) {
    shm_clock *c = &w->clocks[index];
    uint64_t doing;
    int64_t due = shm_due(c->worker, c->limits, c->shortest, now, &doing);
    if (c->kill_at && doing != c->doing) {
        c->kill_at = 0;
    } else if (c->kill_at) {
        if (now < c->kill_at)
            return c->kill_at;
        SHM_STORE(&c->late, 1, release); /* PAIRS WITH shm_is_late "killed for being late" */
        os_kill_group(pidfd, c->pid);
        return c->kill_at = INT64_MAX;
    }
    if (now < due) /* what is done may change at once, to something that may take less */
        return due < now + c->shortest ? due : now + c->shortest;
    c->doing = doing;
    c->stacks_from = os_size(w->stacks);
    os_signal(pidfd, w->stack_signal);
    return c->kill_at = now + SHM_STACK_NS;
}

static inline void *shm_watcher_body(void *arg) {
    shm_watcher *w = (shm_watcher *)arg;
    for (;;) {
        int64_t now = os_now_ns(), next = INT64_MAX;
        pthread_mutex_lock(&w->lock);
        for (int i = 0; i < w->slots; i++)
            if (w->pidfds[i] >= 0 && w->clocks[i].worker) {
                int64_t due = shm_look_at_clock(w, i, w->pidfds[i], now);
                next = due < next ? due : next;
            }
        for (int i = 0; i < w->slots; i++)
            w->polled[i] = (struct pollfd){.fd = w->pidfds[i], .events = POLLIN};
        w->polled[w->slots] = (struct pollfd){.fd = w->changes, .events = POLLIN};
        w->seen = w->asked;
        int quit = w->quit;
        pthread_cond_broadcast(&w->caught_up);
        pthread_mutex_unlock(&w->lock);
        if (quit)
            return NULL;
        /* rounded up: a millisecond early would only mean to look twice */
        int64_t ms = next == INT64_MAX ? -1 : (next - now + 999999) / 1000000;
        if (os_poll(w->polled, w->slots + 1, ms > INT32_MAX ? INT32_MAX : (int)ms) <= 0)
            continue;
        if (w->polled[w->slots].revents)
            os_drain(w->changes);
        int died = 0;
        pthread_mutex_lock(&w->lock);
        for (int i = 0; i < w->slots; i++)
            /* POLLNVAL counts too: a descriptor closed while watched says nothing any more, so somebody must look */
            if (w->polled[i].revents && w->pidfds[i] == w->polled[i].fd) {
                w->pidfds[i] = -1;
                SHM_STORE(&w->dead[i], 1, release); /* PAIRS WITH shm_is_dead "death noticed" */
                died = 1;
            }
        pthread_mutex_unlock(&w->lock);
        if (died)
            shm_alert(w->rung);
    }
}

static inline void shm_free_watcher(shm_watcher *w) {
    if (w->changes >= 0)
        close(w->changes);
    free(w->clocks);
    free(w->dead);
    free(w->pidfds);
    free(w->polled);
    free(w);
}

/* 0 and *made, or -errno. */
static inline int shm_start_watcher(shm_watcher **made, shm_semaphore *rung, int slots, int stacks, int stack_signal) {
    shm_watcher *w = (shm_watcher *)calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    w->owner = getpid();
    w->slots = slots;
    w->rung = rung;
    w->stacks = stacks;
    w->stack_signal = stack_signal;
    w->changes = os_event();
    w->clocks = (shm_clock *)calloc((size_t)slots, sizeof *w->clocks);
    w->dead = (a32 *)calloc((size_t)slots, sizeof *w->dead);
    w->pidfds = (int *)malloc((size_t)slots * sizeof *w->pidfds);
    w->polled = (struct pollfd *)malloc(((size_t)slots + 1) * sizeof *w->polled);
    int error = w->changes < 0 ? w->changes : w->clocks && w->dead && w->pidfds && w->polled ? 0 : -ENOMEM;
    if (!error) {
        for (int i = 0; i < slots; i++)
            w->pidfds[i] = -1;
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->caught_up, NULL);
        error = shm_start_thread(&w->thread, shm_watcher_body, w, 0);
    }
    if (error)
        shm_free_watcher(w);
    else
        *made = w;
    return error;
}

/* Watches pidfd (-1: nothing) in slot `index` from now on, by a copy of `clock` (not needed for nothing).
 * Blocks: without the GIL, for microseconds, until the thread no longer uses what was watched there before. */
static inline void shm_watch(shm_watcher *w, int index, int pidfd, const shm_clock *clock) {
    if (w->owner != getpid())
        return; /* nobody would answer, and the fork may have caught the lock held */
    pthread_mutex_lock(&w->lock);
    int before = w->pidfds[index];
    w->pidfds[index] = pidfd;
    if (pidfd >= 0) {
        w->clocks[index] = *clock;
        SHM_STORE(&w->dead[index], 0, relaxed);
    }
    uint64_t asked = ++w->asked;
    os_notify(w->changes);
    while (before >= 0 && w->seen < asked && !w->quit)
        pthread_cond_wait(&w->caught_up, &w->lock);
    pthread_mutex_unlock(&w->lock);
}
static inline int shm_is_dead(shm_watcher *w, int index) {
    return (int)SHM_LOAD(&w->dead[index], acquire); /* PAIRS WITH shm_watcher_body "death noticed" */
}

/* Called by: the manager, for a slot that is dead. */
static inline int shm_is_late(shm_watcher *w, int index) {
    return (int)SHM_LOAD(&w->clocks[index].late, acquire); /* PAIRS WITH shm_look_at_clock "killed for being late" */
}

/* Blocks: without the GIL, for microseconds, until the thread has ended. Again, or in a forked child: does nothing. */
static inline void shm_stop_watcher(shm_watcher *w) {
    if (w->joined || w->owner != getpid())
        return;
    w->joined = 1;
    pthread_mutex_lock(&w->lock);
    w->quit = 1;
    pthread_mutex_unlock(&w->lock);
    os_notify(w->changes);
    pthread_join(w->thread, NULL);
    close(w->changes); /* now, not with the object: a closed pool that is kept holds no descriptor */
    w->changes = -1;
}

static inline void *shm_end_body(void *arg) {
    struct pollfd watched = {.fd = (int)(intptr_t)arg, .events = POLLIN};
    while (os_poll(&watched, 1, -1) <= 0)
        continue;
    if (watched.revents & POLLIN)
        os_kill_own_group();
    return NULL; /* an env closed descriptors that are not its own: nothing left to watch */
}
/* Called by: a worker. Ends its process group, by SIGKILL, once the process behind pidfd is gone. 0 or -errno. */
static inline int shm_end_with(int pidfd) {
    pthread_t thread;
    return shm_start_thread(&thread, shm_end_body, (void *)(intptr_t)pidfd, 1);
}
#endif
