/* The counting semaphore: every unit posted is taken once, the waiter is woken when enough are there, alerts end the
 * wait, and the death of a poster or of the waiter costs nobody else anything. */
#include "semaphore.h"

typedef struct {
    int posts[3][3]; /* units of each post of each poster; 0 ends the list */
    uint32_t need[4];  /* units of each wait; 0 ends the list */
    int mortal_posters, mortal_waiter, spin, news; /* news: how many threads alert the waiter, each about its own */
} semaphore_case;
enum { START = 0xFFFFFFFE, POSTERS = 3 };

static const semaphore_case *c;
static struct {
    shm_semaphore semaphore;
    a32 published[POSTERS]; /* units that each poster published before it posted them: the truth that a post hints at */
    a32 dead, news[2];
} S;

static void post(int poster) {
    for (int i = 0, sum = 0; i < 3 && c->posts[poster][i]; i++) {
        MODEL_KNOWS((uint64_t)i);
        sum += c->posts[poster][i];
        SHM_STORE(&S.published[poster], (uint32_t)sum, relaxed);
        shm_post(&S.semaphore, (uint32_t)c->posts[poster][i]);
    }
}
static uint32_t published(void) {
    uint32_t sum = 0;
    for (int i = 0; i < POSTERS && c->posts[i][0]; i++)
        sum += SHM_LOAD(&S.published[i], relaxed);
    return sum;
}
/* Takes what each wait is for. Once a poster is dead, units may be missing for good: then it takes what is there. */
static void take(int unused) {
    (void)unused;
    shm_wait wait = MODEL_WAIT(c->spin);
    uint32_t seen = START, found, taken = SHM_LOAD(&S.semaphore.taken, relaxed) - START, before = 0;
    for (int i = 0; i < 4 && c->need[i]; before += c->need[i++]) {
        while (taken <= before) { /* else a predecessor took it */
            MODEL_KNOWS(taken, seen, (uint64_t)wait.deadline_ns);
            int how = shm_await(&S.semaphore, c->need[i], seen, shm_free_units, &S.semaphore, &wait, &found);
            if (how == SHM_TIMEOUT)
                return;
            if (how == SHM_ALERT) {
                seen = shm_alerts(&S.semaphore);
                model_check((int)SHM_LOAD(&S.dead, relaxed), "an alert came before its reason");
                wait.deadline_ns = 0;
            } else if (how == SHM_READY) {
                model_check(found >= c->need[i], "ready without enough");
                model_check(published() >= taken + c->need[i], "a unit was counted before its result was there");
                shm_take(&S.semaphore, c->need[i]);
                taken += c->need[i];
            }
        }
    }
}
static void tell(int unused) {
    (void)unused;
    SHM_STORE(&S.dead, 1, relaxed);
    shm_alert(&S.semaphore);
}
static void announce(int who) {
    SHM_STORE(&S.news[who], 1, relaxed);
    shm_alert(&S.semaphore);
}
/* Hears of everything: news that comes while it looks is announced by another alert. */
static void listen(int unused) {
    (void)unused;
    shm_wait wait = MODEL_WAIT(c->spin);
    uint32_t seen = START, found;
    for (;;) {
        uint32_t heard = 0;
        for (int i = 0; i < c->news; i++)
            heard += SHM_LOAD(&S.news[i], relaxed);
        if (heard == (uint32_t)c->news)
            return;
        MODEL_KNOWS(seen);
        if (shm_await(&S.semaphore, 1, seen, shm_free_units, &S.semaphore, &wait, &found) == SHM_ALERT)
            seen = shm_alerts(&S.semaphore);
    }
}
static void setup(const void *with) {
    c = with;
    model_shared(&S, sizeof S);
    S.semaphore.posted.v = S.semaphore.taken.v = S.semaphore.alert.v = S.semaphore.wake_at.v = START;
    MODEL_NAME(&S.semaphore.posted);
    MODEL_NAME(&S.semaphore.gate);
    MODEL_NAME(&S.semaphore.wake_at);
    MODEL_NAME(&S.semaphore.alert);
    MODEL_NAME(&S.semaphore.taken);
    model_start("waiter", c->news ? listen : take, -1, c->mortal_waiter);
    for (int i = 0; i < c->news; i++)
        model_start(i ? "alerter 2" : "alerter 1", announce, i, 0);
    for (int i = 0; i < POSTERS && c->posts[i][0]; i++)
        model_start(i == 0 ? "poster 1" : i == 1 ? "poster 2" : "poster 3", post, i, c->mortal_posters);
}
static void after_kill(int who) {
    if (who < 0)
        model_start("successor", take, -1, 0);
    else
        model_start("watcher", tell, 0, 0);
}

static const semaphore_case singly = {.posts = {{1, 1, 1}}, .need = {1, 1, 1}},
                            jointly = {.posts = {{1, 1}, {1, 1}}, .need = {3, 1}},
                            lumps = {.posts = {{2, 1}, {1}}, .need = {2, 2}},
                            spun = {.posts = {{1, 1}, {1}}, .need = {2, 1}, .spin = 1},
                            three = {.posts = {{1}, {1}, {1}}, .need = {2, 1}}, alerted = {.news = 2},
                            spun_alerted = {.news = 2, .spin = 1},
                            poster = {.posts = {{1, 1}, {1, 1}}, .need = {3, 1}, .mortal_posters = 1},
                            waiter = {.posts = {{1, 1}, {1, 1}}, .need = {2, 1, 1}, .mortal_waiter = 1},
                            any = {.posts = {{1}, {1}}, .need = {2}, .mortal_posters = 1, .mortal_waiter = 1};
#define SEMAPHORE(text, how, ...) \
    { .name = text, .with = &(how), .setup = setup, .on_kill = after_kill, .stale = 2, __VA_ARGS__ }
const scenario scenarios[] = {
    SEMAPHORE("semaphore, one poster", singly, .preemptions = 3, .full = 2),
    SEMAPHORE("semaphore, two posters, 3 then 1", jointly, .preemptions = 2, .full = 1),
    SEMAPHORE("semaphore, posts of several units", lumps, .preemptions = 2, .full = 1),
    SEMAPHORE("semaphore, with spinning", spun, .preemptions = 2, .full = 1),
    SEMAPHORE("semaphore, three posters", three, .preemptions = 2, .full = 1),
    SEMAPHORE("semaphore, two alerts", alerted, .preemptions = 3, .full = 2),
    SEMAPHORE("semaphore, two alerts, with spinning", spun_alerted, .preemptions = 3, .full = 1),
    SEMAPHORE("semaphore, interrupted", jointly, .preemptions = 1, .signals = 1, .full = 1),
    SEMAPHORE("semaphore, a poster killed", poster, .preemptions = 1, .kills = 1, .full = 1),
    SEMAPHORE("semaphore, the waiter killed and succeeded", waiter, .preemptions = 1, .kills = 1, .full = 1),
    SEMAPHORE("semaphore, any two killed", any, .preemptions = 1, .kills = 2, .full = -1),
    {0},
};
