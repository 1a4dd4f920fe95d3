/* The pool's way of using the core: commands, bells, answers and the threshold semaphore, with one manager and
 * workers of several envs, which are killed and succeeded. Every command is answered or reported lost, exactly once,
 * with the payload it belongs to; nobody sleeps for ever. */
#include "channel.h"

typedef struct {
    int workers, envs; /* envs: of each worker */
    uint32_t rounds, need; /* need: answers that a round waits for, before it steps the envs that gave them again */
    int whole;         /* one post for all answers of a scan, as where the manager waits for them all */
    int ends;          /* every step ends its episode: the ended step is committed before the answer */
    int mortal, spin;
    int renew;         /* the worker is told to quit before the second round, and has a successor */
} pool_case;
enum { START = 0xFFFFFFFE, WORKERS = 2, ENVS = 4 };

static const pool_case *c;
static struct {
    shm_semaphore results;
    shm_worker worker[WORKERS];
    a32 cmd[ENVS], action[ENVS], rsp[ENVS], ended[ENVS], final[ENVS], obs[ENVS];
    a32 dead[WORKERS]; /* told by the watcher, as watch.h tells it */
} S;
static uint32_t total(void) { return (uint32_t)(c->workers * c->envs); }

static void tell(int w) {
    SHM_STORE(&S.dead[w], 1, release);
    shm_alert(&S.results);
}
static void work(int w) {
    shm_worker *me = &S.worker[w];
    shm_wait wait = MODEL_WAIT(c->spin);
    uint32_t answered[ENVS], first = (uint32_t)(w * c->envs), last = first + (uint32_t)c->envs;
    for (uint32_t i = first; i < last; i++)
        answered[i] = shm_responded(&S.rsp[i]);
    for (;;) {
        MODEL_KNOWS(answered[first], answered[last - 1]);
        uint32_t seen = shm_bell(me), unposted = 0;
        int busy = 0;
        for (uint32_t i = first; i < last; i++) {
            uint32_t n = shm_commanded(&S.cmd[i]);
            if (n == answered[i])
                continue;
            model_check(n == answered[i] + 1, "a command was skipped, or given to the successor of its worker");
            model_check(model_read(&S.action[i]) == n, "command given, action stale");
            if (c->ends) {
                model_write(&S.final[i], n);
                shm_end(&S.ended[i], n);
            }
            model_write(&S.obs[i], n);
            answered[i] = n;
            shm_respond(&S.rsp[i], n);
            unposted++;
            if (!c->whole) {
                shm_post(&S.results, unposted);
                unposted = 0;
            }
            busy = 1;
        }
        if (unposted)
            shm_post(&S.results, unposted);
        if (!busy) {
            if (shm_order(me) == SHM_QUIT) {
                if (c->renew && shm_generation(me) == 0)
                    tell(w); /* the watcher sees it end */
                return;
            }
            shm_await_bell(me, seen, &wait);
        }
    }
}

/* The manager's own memory, set up anew by each execution. */
static struct {
    uint32_t given[ENVS], played[ENVS], lost[ENVS]; /* commands, answers taken, answers that never come */
    int pending[ENVS], handled[WORKERS];
    uint32_t seen_alert, round, got, need;
} M;

static uint32_t count_answers(void *unused) {
    (void)unused;
    uint32_t n = 0;
    for (uint32_t i = 0; i < total(); i++)
        if (M.pending[i]) {
            if (shm_answered(&S.rsp[i], M.given[i]))
                n++;
            else if (c->ends && shm_has_ended(&S.ended[i], M.given[i]))
                model_check(model_read(&S.final[i]) == M.given[i], "step ended, its payload stale");
        }
    return n;
}
static int take_answer(uint32_t i) {
    if (!M.pending[i] || !shm_answered(&S.rsp[i], M.given[i]))
        return 0;
    model_check(model_read(&S.obs[i]) == M.given[i], "answer published, payload stale");
    if (c->ends)
        model_check(model_read(&S.final[i]) == M.given[i], "answer published, payload of the ended step stale");
    M.pending[i] = 0;
    M.played[i]++;
    return 1;
}
/* A worker that is confirmed dead: what it published counts, the rest is lost, and a successor takes its place. */
static void bury(int w) {
    M.handled[w] = 1;
    for (uint32_t i = (uint32_t)(w * c->envs); i < (uint32_t)((w + 1) * c->envs); i++) {
        if (M.pending[i] && !take_answer(i)) {
            if (c->ends && shm_has_ended(&S.ended[i], M.given[i]))
                model_check(model_read(&S.final[i]) == M.given[i], "step ended, its payload lost");
            M.pending[i] = 0;
            M.lost[i]++;
        }
        shm_reset_channel(&S.cmd[i], &S.rsp[i]);
    }
    uint32_t generation = shm_generation(&S.worker[w]);
    shm_reset_worker(&S.worker[w]);
    model_check(shm_generation(&S.worker[w]) == generation + 1, "a successor has its predecessor's generation");
    model_start("successor", work, w, 0);
}
static void command_idle(void) {
    int rung[WORKERS] = {0};
    for (uint32_t i = 0; i < total(); i++)
        if (!M.pending[i]) {
            M.pending[i] = 1;
            model_write(&S.action[i], ++M.given[i]);
            shm_command(&S.cmd[i], M.given[i]);
            rung[i / (uint32_t)c->envs] = 1;
        }
    for (int w = 0; w < c->workers; w++)
        if (rung[w])
            shm_ring_bell(&S.worker[w], 0);
}
static void collect(uint32_t need, shm_wait *wait) {
    M.need = need;
    for (M.got = 0;;) {
        model_knows(&M, sizeof M);
        uint32_t left = 0, found;
        for (uint32_t i = 0; i < total(); i++)
            left += (uint32_t)M.pending[i];
        if (M.got >= need || !left)
            return;
        uint32_t wanted = need - M.got < left ? need - M.got : left;
        int how = shm_await(&S.results, wanted, M.seen_alert, count_answers, NULL, wait, &found);
        if (how == SHM_ALERT) {
            M.seen_alert = shm_alerts(&S.results);
            int known = 0;
            for (int w = 0; w < c->workers; w++) {
                if (!M.handled[w] && SHM_LOAD(&S.dead[w], acquire))
                    bury(w);
                known += M.handled[w];
            }
            model_check(known, "an alert came before its reason");
        } else if (how == SHM_READY) {
            uint32_t taken = 0;
            for (uint32_t i = 0; i < total(); i++)
                taken += (uint32_t)take_answer(i);
            model_check(taken >= wanted && found >= wanted, "ready without enough");
            M.got += taken;
        }
    }
}
static void manage(int unused) {
    (void)unused;
    shm_wait wait = MODEL_WAIT(c->spin);
    for (M.round = 0; M.round < c->rounds; M.round++) {
        if (c->renew && M.round == 1)
            shm_give_order(&S.worker[0], SHM_QUIT); /* a command that comes with it is played or lost */
        command_idle();
        collect(c->need, &wait);
    }
    collect(total(), &wait);
    for (int w = 0; w < c->workers; w++) {
        shm_give_order(&S.worker[w], SHM_QUIT);
        shm_ring_bell(&S.worker[w], 0);
    }
}
static void setup(const void *with) {
    c = with;
    model_shared(&S, sizeof S);
    M = (typeof(M)){.seen_alert = START};
    S.results.posted.v = S.results.alert.v = S.results.wake_at.v = START;
    MODEL_NAME(&S.results.posted);
    MODEL_NAME(&S.results.gate);
    MODEL_NAME(&S.results.wake_at);
    MODEL_NAME(&S.results.alert);
    for (int w = 0; w < c->workers; w++) {
        S.worker[w].bell.v = 0xFFFFFFFF;
        MODEL_NAME(&S.worker[w].bell);
        MODEL_NAME(&S.worker[w].parked);
        MODEL_NAME(&S.worker[w].order);
    }
    for (uint32_t i = 0; i < total(); i++) {
        S.cmd[i].v = S.rsp[i].v = S.ended[i].v = M.given[i] = START;
        MODEL_NAME(&S.cmd[i]);
        MODEL_NAME(&S.action[i]);
        MODEL_NAME(&S.ended[i]);
        MODEL_NAME(&S.final[i]);
        MODEL_NAME(&S.obs[i]);
        MODEL_NAME(&S.rsp[i]);
    }
    model_start("manager", manage, 0, 0);
    for (int w = 0; w < c->workers; w++)
        model_start(w ? "worker 2" : "worker 1", work, w, c->mortal);
}
static void after_kill(int w) { model_start("watcher", tell, w, 0); }
static void check_count(void) {
    uint32_t lost = 0;
    for (uint32_t i = 0; i < total(); i++) {
        model_check(!M.pending[i], "a command is neither answered nor lost");
        model_check(M.played[i] + M.lost[i] == M.given[i] - START, "an answer is lost or doubled");
        lost += M.lost[i];
    }
    model_check(c->mortal || c->renew || !lost, "an answer is lost though nobody died");
}

static const pool_case one = {.workers = 1, .envs = 1, .rounds = 3, .need = 1},
                       renewed = {.workers = 1, .envs = 1, .rounds = 3, .need = 1, .renew = 1},
                       grouped = {.workers = 1, .envs = 2, .rounds = 2, .need = 2},
                       whole = {.workers = 1, .envs = 2, .rounds = 2, .need = 2, .whole = 1},
                       two_whole = {.workers = 2, .envs = 2, .rounds = 1, .need = 4, .whole = 1},
                       whole_killed = {.workers = 1, .envs = 2, .rounds = 1, .need = 2, .whole = 1, .mortal = 1},
                       first = {.workers = 1, .envs = 2, .rounds = 2, .need = 1},
                       two = {.workers = 2, .envs = 1, .rounds = 2, .need = 2},
                       two_first = {.workers = 2, .envs = 1, .rounds = 2, .need = 1},
                       spun = {.workers = 2, .envs = 1, .rounds = 1, .need = 2, .spin = 1},
                       four = {.workers = 2, .envs = 2, .rounds = 1, .need = 3},
                       ending = {.workers = 1, .envs = 1, .rounds = 2, .need = 1, .ends = 1},
                       one_killed = {.workers = 1, .envs = 1, .rounds = 2, .need = 1, .mortal = 1},
                       ending_killed = {.workers = 1, .envs = 1, .rounds = 2, .need = 1, .ends = 1, .mortal = 1},
                       grouped_killed = {.workers = 1, .envs = 2, .rounds = 1, .need = 2, .mortal = 1},
                       two_killed = {.workers = 2, .envs = 1, .rounds = 1, .need = 2, .mortal = 1},
                       two_first_killed = {.workers = 2, .envs = 1, .rounds = 2, .need = 1, .mortal = 1};
#define POOL(text, how, ...) \
    { .name = text, .with = &(how), .setup = setup, .on_kill = after_kill, .at_end = check_count, __VA_ARGS__ }
const scenario scenarios[] = {
    POOL("pool, one env", one, .preemptions = 2, .stale = 2, .full = 2),
    POOL("pool, one env, interrupted", one, .preemptions = 1, .stale = 1, .signals = 1, .full = 2),
    POOL("pool, a worker of two envs", grouped, .preemptions = 2, .stale = 1, .full = 1),
    POOL("pool, a worker of two envs, one post for both", whole, .preemptions = 2, .stale = 1, .full = 1),
    POOL("pool, two workers of two envs, one post each", two_whole, .preemptions = 1, .stale = 1, .full = 1),
    POOL("pool, a worker of two envs, first 1", first, .preemptions = 2, .stale = 1, .full = 1),
    POOL("pool, two workers", two, .preemptions = 1, .stale = 1, .full = 1),
    POOL("pool, two workers, first 1", two_first, .preemptions = 1, .stale = 1, .full = 1),
    POOL("pool, two workers, with spinning", spun, .preemptions = 1, .stale = 1, .full = 1),
    POOL("pool, two workers of two envs, first 3", four, .preemptions = 1, .stale = 1, .full = 1),
    POOL("pool, episodes that end", ending, .preemptions = 2, .stale = 1, .full = 2),
    POOL("pool, the worker told to quit and succeeded", renewed, .preemptions = 2, .stale = 1, .full = 2),
    POOL("pool, the worker killed and succeeded", one_killed, .preemptions = 1, .stale = 1, .kills = 1, .full = 2),
    POOL("pool, episodes that end, the worker killed", ending_killed, .preemptions = 1, .stale = 1, .kills = 1,
         .full = 2),
    POOL("pool, a worker of two envs killed", grouped_killed, .preemptions = 1, .stale = 1, .kills = 1, .full = 2),
    POOL("pool, a worker of two envs, one post for both, killed", whole_killed, .preemptions = 1, .stale = 1, .kills = 1,
         .full = 2),
    POOL("pool, two workers, one killed", two_killed, .preemptions = 0, .stale = 1, .kills = 1, .full = 1),
    POOL("pool, two workers, both killed", two_killed, .preemptions = 0, .stale = 1, .kills = 2, .full = -1),
    POOL("pool, two workers, both killed, first 1", two_first_killed, .preemptions = 0, .stale = 0, .kills = 2,
         .full = -1),
    {0},
};
