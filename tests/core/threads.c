/* The core between real threads: every protocol with real atomics and futexes, plain and under ThreadSanitizer, which
 * sees plain payload that no release and acquire hands over (but knows no fences: cells are atomic words anyhow).
 * A heartbeat of a minute makes a lost wake-up show as one, instead of hiding it.
 *
 * usage: threads [ROUNDS]; exit code 0: everything came out as it should. */
#include "cells.h"
#include "channel.h"
#include "ring.h"
#include "watch.h"
#include <stdio.h>
#include <sys/wait.h>

enum { START = 0xFFFFFFF0, WORKERS = 4, ENVS = 2, WORDS = 16, MINUTE = 60 };
#define SECONDS INT64_C(1000000000)
#define MILLISECONDS INT64_C(1000000)

static uint32_t rounds = 20000;
static shm_wait patient(int64_t spin_ns) {
    return (shm_wait){.deadline_ns = INT64_MAX, .spin_ns = spin_ns, .heartbeat_ns = MINUTE * SECONDS};
}
static void check(int holds, const char *otherwise) {
    if (!holds) {
        fprintf(stderr, "threads: %s\n", otherwise);
        exit(1);
    }
}
static void start(pthread_t *thread, void *(*body)(void *), void *arg) {
    check(pthread_create(thread, NULL, body, arg) == 0, "no thread");
}

/* ---- the pool's protocol: W workers of E envs, first-k ---- */

static struct {
    shm_semaphore results;
    shm_worker worker[WORKERS];
    a32 cmd[WORKERS * ENVS], rsp[WORKERS * ENVS];
    uint32_t action[WORKERS * ENVS][WORDS], obs[WORKERS * ENVS][WORDS]; /* plain: TSan watches */
} P;
static uint32_t given[WORKERS * ENVS];
static int whole; /* the manager waits for all answers, so each worker posts once for its own */

static void *work(void *arg) {
    int w = (int)(intptr_t)arg;
    shm_wait wait = patient(w % 2 ? 50000 : 0);
    uint32_t answered[ENVS];
    for (int k = 0; k < ENVS; k++)
        answered[k] = shm_responded(&P.rsp[w * ENVS + k]);
    for (;;) {
        uint32_t seen = shm_bell(&P.worker[w]), unposted = 0;
        int busy = 0;
        for (int k = 0; k < ENVS; k++) {
            int env = w * ENVS + k;
            uint32_t n = shm_commanded(&P.cmd[env]);
            if (n == answered[k])
                continue;
            for (int i = 0; i < WORDS; i++) {
                check(P.action[env][i] == n, "command given, action stale");
                P.obs[env][i] = n;
            }
            answered[k] = n;
            shm_respond(&P.rsp[env], n);
            unposted++;
            if (!whole) {
                shm_post(&P.results, unposted);
                unposted = 0;
            }
            busy = 1;
        }
        if (unposted)
            shm_post(&P.results, unposted);
        if (!busy) {
            if (shm_order(&P.worker[w]) == SHM_QUIT)
                return NULL;
            check(shm_await_bell(&P.worker[w], seen, &wait) != SHM_HEARTBEAT, "lost wake-up: of a worker");
        }
    }
}
static uint32_t count_answers(void *pending) {
    uint32_t n = 0;
    for (int env = 0; env < WORKERS * ENVS; env++)
        n += ((int *)pending)[env] && shm_answered(&P.rsp[env], given[env]);
    return n;
}
static void run_pool(uint32_t need, int64_t spin_ns) {
    pthread_t threads[WORKERS];
    int pending[WORKERS * ENVS] = {0};
    shm_wait wait = patient(spin_ns);
    P = (typeof(P)){.results = {.posted = START, .alert = START}};
    whole = need == WORKERS * ENVS;
    for (int env = 0; env < WORKERS * ENVS; env++)
        P.cmd[env] = P.rsp[env] = given[env] = START;
    for (intptr_t w = 0; w < WORKERS; w++)
        start(&threads[w], work, (void *)w);
    for (uint32_t round = 0; round <= rounds; round++) {
        for (int env = 0; env < WORKERS * ENVS && round < rounds; env++)
            if (!pending[env]) {
                pending[env] = 1;
                given[env]++;
                for (int i = 0; i < WORDS; i++)
                    P.action[env][i] = given[env];
                shm_command(&P.cmd[env], given[env]);
            }
        for (int w = 0; w < WORKERS; w++)
            shm_ring_bell(&P.worker[w], 0);
        uint32_t found, left = 0;
        for (int env = 0; env < WORKERS * ENVS; env++)
            left += (uint32_t)pending[env];
        uint32_t wanted = round < rounds ? need : left; /* the last round collects what is left */
        int how = shm_await(&P.results, wanted, START, count_answers, pending, &wait, &found);
        check(how != SHM_HEARTBEAT, "lost wake-up: of the manager");
        check(how == SHM_READY && found >= wanted, "ready without enough");
        for (int env = 0; env < WORKERS * ENVS; env++)
            if (pending[env] && shm_answered(&P.rsp[env], given[env])) {
                for (int i = 0; i < WORDS; i++)
                    check(P.obs[env][i] == given[env], "answer published, payload stale");
                pending[env] = 0;
            }
    }
    for (int w = 0; w < WORKERS; w++) {
        shm_give_order(&P.worker[w], SHM_QUIT);
        shm_ring_bell(&P.worker[w], 0);
    }
    for (int w = 0; w < WORKERS; w++)
        pthread_join(threads[w], NULL);
}

/* ---- the ring, of 3 in 4 cells ---- */

static struct {
    shm_ring ring;
    uint32_t items[4][WORDS];
} R;
enum { CAPACITY = 3, MASK = 3 };

static void *produce(void *spin_ns) {
    shm_wait wait = patient((intptr_t)spin_ns);
    uint32_t cached = shm_popped(&R.ring), item[WORDS];
    for (uint32_t n = 0; n < rounds; n++) {
        for (int i = 0; i < WORDS; i++)
            item[i] = n;
        for (;;) {
            uint32_t popped = shm_popped(&R.ring);
            if (shm_push(&R.ring, R.items, CAPACITY, MASK, sizeof item, item, &cached))
                break;
            int how = shm_await_counter(&R.ring.head, &R.ring.producer_parked, popped, &wait);
            check(how != SHM_HEARTBEAT, "lost wake-up: of the producer");
        }
    }
    return NULL;
}
static void run_ring(intptr_t spin_ns) {
    pthread_t producer;
    shm_wait wait = patient(spin_ns);
    uint32_t cached = START, item[WORDS];
    R = (typeof(R)){.ring = {.tail = START, .head = START}};
    start(&producer, produce, (void *)spin_ns);
    for (uint32_t n = 0; n < rounds; n++) {
        for (;;) {
            uint32_t pushed = shm_pushed(&R.ring);
            if (shm_pop(&R.ring, R.items, MASK, sizeof item, item, &cached))
                break;
            int how = shm_await_counter(&R.ring.tail, &R.ring.consumer_parked, pushed, &wait);
            check(how != SHM_HEARTBEAT, "lost wake-up: of the consumer");
        }
        for (int i = 0; i < WORDS; i++)
            check(item[i] == n, "an item is lost, doubled, stale or torn");
    }
    pthread_join(producer, NULL);
}

/* ---- versioned cells: readers that wait, and one that only reads ---- */

enum { CELLS = 3 };
static struct {
    shm_cells cells;
    a64 values[CELLS * WORDS];
} V;
static const uint64_t FIRST = START; /* the futex word wraps on the way */

static uint64_t read_whole(uint64_t had) {
    uint64_t value[WORDS], version;
    if (!shm_read_cell(&V.cells, V.values, WORDS, CELLS, value, &version))
        return had;
    check(version >= had, "an older version came after a newer one");
    for (int i = 0; i < WORDS && version > FIRST; i++)
        check(value[i] == version + (uint64_t)i, "a torn or stale value was taken for whole");
    return version;
}
static void *read_cells(void *waits) {
    shm_wait wait = patient(0);
    for (uint64_t had = FIRST; had < FIRST + rounds; had = read_whole(had))
        if (waits)
            check(shm_await_version(&V.cells, had, &wait) != SHM_HEARTBEAT, "lost wake-up: of a reader");
    return NULL;
}
static void run_cells(void) {
    pthread_t readers[3];
    V = (typeof(V)){.cells = {.version = FIRST}};
    for (intptr_t i = 0; i < 3; i++)
        start(&readers[i], read_cells, (void *)i);
    for (uint64_t version = FIRST + 1; version <= FIRST + rounds; version++) {
        uint64_t value[WORDS];
        for (int i = 0; i < WORDS; i++)
            value[i] = version + (uint64_t)i;
        shm_write_cell(&V.cells, V.values, WORDS, CELLS, value);
        if (version % 64 == 0)
            os_yield(); /* else the readers are lapped most of the time */
    }
    for (int i = 0; i < 3; i++)
        pthread_join(readers[i], NULL);
}

/* ---- the counting semaphore, and alerts between its posts ---- */

static shm_semaphore S;
static void *post(void *unused) {
    (void)unused;
    for (uint32_t i = 0; i < rounds; i++) {
        shm_post(&S, 1 + i % 2);
        if (i % 64 == 0)
            shm_alert(&S);
    }
    return NULL;
}
static void run_semaphore(int64_t spin_ns) {
    pthread_t posters[3];
    shm_wait wait = patient(spin_ns);
    uint32_t seen = START, found, total = 3 * (rounds + rounds / 2), taken = 0;
    S = (shm_semaphore){.posted = START, .taken = START, .alert = START};
    for (int i = 0; i < 3; i++)
        start(&posters[i], post, NULL);
    while (taken < total) {
        uint32_t need = total - taken < 5 ? total - taken : 5;
        int how = shm_await(&S, need, seen, shm_free_units, &S, &wait, &found);
        check(how != SHM_HEARTBEAT, "lost wake-up: of the semaphore's waiter");
        if (how == SHM_ALERT)
            seen = shm_alerts(&S);
        else
            check(how == SHM_READY && found >= need, "ready without enough");
        if (how == SHM_READY) {
            shm_take(&S, need);
            taken += need;
        }
    }
    for (int i = 0; i < 3; i++)
        pthread_join(posters[i], NULL);
    check(shm_free_units(&S) == 0, "units are left over");
}

/* ---- one deadline, heartbeats, signals ---- */

static a32 over;
static void on_signal(int unused) { (void)unused; }
static void *interrupt(void *waiter) {
    while (!SHM_LOAD(&over, acquire)) { /* until one arrives while it sleeps */
        pthread_kill(*(pthread_t *)waiter, SIGUSR1);
        os_yield();
    }
    return NULL;
}
static void run_waits(void) {
    uint32_t found;
    S = (shm_semaphore){.posted = START, .taken = START};
    int64_t before = os_now_ns(), span = 20 * MILLISECONDS;
    shm_wait wait = {.deadline_ns = before + span, .spin_ns = MILLISECONDS, .heartbeat_ns = 3 * MILLISECONDS};
    int how, heartbeats = 0;
    while ((how = shm_await(&S, 1, 0, shm_free_units, &S, &wait, &found)) == SHM_HEARTBEAT)
        heartbeats++;
    check(how == SHM_TIMEOUT, "a wait did not end by its deadline");
    check(os_now_ns() - before >= span, "a wait ended before its deadline");
    check(os_now_ns() - before < MINUTE * SECONDS, "a wait ended long after its deadline");
    check(wait.heartbeats == (uint64_t)heartbeats, "heartbeats do not add up");
    check(wait.parks >= wait.heartbeats, "a heartbeat came without a park");
    check(SHM_LOAD(&S.gate, relaxed) == 0, "a wait that ran out left the gate open");
    wait.deadline_ns = 0;
    check(shm_await(&S, 1, 0, shm_free_units, &S, &wait, &found) == SHM_TIMEOUT, "a poll did not end at once");
    check(shm_await(&S, 1, 7, shm_free_units, &S, &wait, &found) == SHM_ALERT, "a poll did not see the alert");
    shm_post(&S, 2);
    check(shm_await(&S, 2, 0, shm_free_units, &S, &wait, &found) == SHM_READY && found == 2, "a poll missed a unit");

    pthread_t self = pthread_self(), interrupter;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    wait = patient(0);
    start(&interrupter, interrupt, &self);
    check(shm_await(&S, 3, 0, shm_free_units, &S, &wait, &found) == SHM_INTERRUPTED, "a signal did not end a wait");
    SHM_STORE(&over, 1, release);
    pthread_join(interrupter, NULL);
}

/* ---- the watcher: a death by itself, and one for being late ---- */

static void run_watcher(void) {
    static shm_worker block;
    shm_watcher *watcher;
    shm_wait wait = patient(0);
    uint32_t found;
    int children[2];
    S = (shm_semaphore){.alert = START};
    signal(SIGUSR1, SIG_IGN); /* in the children: what would make a worker print its stacks */
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        while (children[i] == 0)
            pause();
    }
    check(shm_start_watcher(&watcher, &S, 2, STDIN_FILENO, SIGUSR1) == 0, "no watcher");
    const shm_clock untimed = {0};
    shm_clock timed = {.worker = &block, .shortest = MILLISECONDS, .pid = children[1]};
    timed.limits[SHM_STEP] = 20 * MILLISECONDS;
    shm_watch(watcher, 0, os_pidfd(children[0]), &untimed);
    shm_watch(watcher, 1, os_pidfd(children[1]), &timed);
    shm_doing(&block, 1, 0, SHM_STEP, os_now_ns());
    for (int who = 1; who >= 0; who--) { /* 1 is late, 0 is killed */
        if (who == 0)
            kill(children[0], SIGKILL);
        uint32_t seen = START + 1 - (uint32_t)who;
        check(shm_await(&S, 1, seen, shm_free_units, &S, &wait, &found) == SHM_ALERT, "no alert of a death");
        check(shm_alerts(&S) == seen + 1 && shm_is_dead(watcher, who), "a death was not noticed");
        check(shm_is_late(watcher, who) == who, "late is not who was");
    }
    shm_stop_watcher(watcher);
    for (int i = 0; i < 2; i++) {
        int status;
        check(waitpid(children[i], &status, 0) == children[i] && WTERMSIG(status) == SIGKILL, "not killed");
    }
    shm_free_watcher(watcher);
}

/* ---- how long a wait is spun through ---- */

/* A wait of so many nanoseconds, noticed by a spin, so much later. */
static void live_through(shm_wait *wait, int64_t lasted, int64_t late) {
    static int64_t now = SECONDS;
    shm_begin_wait(wait, now);
    shm_begin_wait(wait, now + lasted / 2); /* as after a heartbeat */
    now += lasted + late;
    shm_end_wait(wait, now - late, now, 1);
}
static void run_expectations(void) {
    const int64_t us = 1000;
    shm_wait wait = patient(200 * us);
    live_through(&wait, 900 * us, 0);
    check(shm_spin_budget(&wait) == 200 * us, "what has no patience does not spin by its budget");
    wait.patience_ns = 2000 * us, wait.late_ns = 30 * us;
    for (int i = 0; i < 20; i++)
        live_through(&wait, 900 * us, 0);
    check(shm_spin_budget(&wait) == 1800 * us, "a wait of 900 us is not spun through");
    live_through(&wait, SECONDS, 0);
    check(shm_spin_budget(&wait) >= 1800 * us, "one long pause hides what is usual");
    check(shm_spin_budget(&wait) <= 2400 * us, "one long pause counts for more than it should");
    for (int i = 0; i < 40; i++)
        live_through(&wait, 50 * us, 0);
    check(shm_spin_budget(&wait) == 200 * us, "the estimate does not come down");
    for (int i = 0; i < 20; i++)
        live_through(&wait, 3000 * us, 0);
    check(shm_spin_budget(&wait) == 0, "a wait longer than the patience is spun for");
    live_through(&wait, 3000 * us, 31 * us);
    check(wait.shy == 0, "what is late for a short wait only makes shy");
    live_through(&wait, 3000 * us, 200 * us);
    check(wait.shy == 4, "what is late for a long wait, too, does not make shy");
    for (int i = 0; i < 40; i++)
        live_through(&wait, 50 * us, 0);
    check(wait.shyness == 0, "punctual spins do not make bold again");
    wait.shy = 0;
    live_through(&wait, 50 * us, 31 * us);
    check(wait.shy == 4, "a spin that noticed late does not make shy");
    live_through(&wait, 50 * us, 31 * us);
    check(wait.shy == 8, "the second late spin in a row does not make shyer");
    for (int i = 0; i < 4; i++)
        live_through(&wait, 50 * us, 29 * us);
    check(wait.shyness == 0, "punctual spins do not make bold again");
    shm_end_wait(&wait, SECONDS, SECONDS, 1);
    check(shm_spin_budget(&wait) > 0, "the end of no wait changes something");
    wait.expected_ns = 0;
    live_through(&wait, -100 * us, 0); /* over before it began: the other side was quicker */
    check(wait.expected_ns == 0, "a wait lasted less than nothing");
}

int main(int argc, char **argv) {
    if (argc > 1)
        rounds = (uint32_t)strtoul(argv[1], NULL, 10) & ~1u; /* even: posts of 1 and 2 in turn */
    run_watcher(); /* first: it forks, and there is one thread yet */
    run_waits();
    run_expectations();
    run_pool(WORKERS * ENVS, 0);
    run_pool(3, 50000);
    run_ring(0);
    run_ring(50000);
    run_cells();
    run_semaphore(0);
    run_semaphore(50000);
    printf("threads: %u rounds of each, no lost wake-up, nothing stale, torn, lost or doubled\n", rounds);
    return 0;
}
