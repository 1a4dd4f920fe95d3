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
    int quit;          /* the same amid the first */
    int goes_on;       /* every step ends its episode, and its worker carries out the reset after it by itself; how the
                          manager comes by that one, as below */
} pool_case;
enum { START = 0xFFFFFFFE, WORKERS = 2, ENVS = 4, PLANES = 2 };
/* TAKE: where it is done, else asked for and waited for. CALL: so, after a call has been answered. ANEW: not at all, for
 * that was switched off in the meantime; another reset is given. */
enum { TAKE = 1, CALL = 2, ANEW = 3 };

/* What a command is and where its answer goes, and what an answer says; with the number, so that none passes for another. */
enum { IS_STEP = 0, IS_RESET = 1, IS_CALL = 2, IS_LAST_STEP = 3 };
static uint32_t command_word(uint32_t n, uint32_t plane, uint32_t code) { return n << 3 | plane << 2 | code; }
static uint32_t row_word(uint32_t n, int needs_reset) { return n << 1 | (uint32_t)needs_reset; }

static const pool_case *c;
static struct {
    shm_semaphore results;
    shm_worker worker[WORKERS];
    a32 cmd[ENVS], action[ENVS], rsp[ENVS], ended[ENVS], final[ENVS], obs[PLANES][ENVS], call[ENVS];
    a32 dead[WORKERS]; /* told by the watcher, as watch.h tells it */
} S;
static uint32_t total(void) { return (uint32_t)(c->workers * c->envs); }

static void tell(int w) {
    SHM_STORE(&S.dead[w], 1, release);
    shm_alert(&S.results);
}
static void end(int w) {
    if ((c->renew || c->quit) && shm_generation(&S.worker[w]) == 0)
        tell(w); /* the watcher sees it end */
}
static void work(int w) {
    shm_worker *me = &S.worker[w];
    shm_wait wait = MODEL_WAIT(c->spin);
    uint32_t answered[ENVS], first = (uint32_t)(w * c->envs), last = first + (uint32_t)c->envs;
    for (uint32_t i = first; i < last; i++)
        answered[i] = shm_responded(&S.rsp[i]);
    for (;;) {
        MODEL_KNOWS(answered[first], answered[last - 1]);
        uint32_t seen = shm_bell(me), unposted = 0, following[ENVS] = {0};
        int busy = 0;
        for (uint32_t i = first; i < last; i++) {
            if (shm_order(me) == SHM_QUIT) {
                end(w);
                return;
            }
            uint32_t n = shm_commanded(&S.cmd[i]);
            if (!shm_is_new(n, answered[i]))
                continue;
            model_check(n == answered[i] + 1, "a command was skipped, or given to the successor of its worker");
            uint32_t word = model_read(&S.action[i]), plane = word >> 2 & 1, code = word & 3;
            model_check(word == command_word(n, plane, code), "command given, action stale");
            if (c->ends) {
                model_write(&S.final[i], n);
                shm_end(&S.ended[i], n);
            }
            if (code == IS_CALL)
                model_write(&S.call[i], n);
            else
                model_write(&S.obs[plane][i], row_word(n, code == IS_LAST_STEP));
            answered[i] = n;
            shm_respond(&S.rsp[i], n);
            unposted++;
            if (!c->whole) {
                shm_post(&S.results, unposted);
                unposted = 0;
            }
            if (code == IS_LAST_STEP)
                following[i] = 1 + !plane;
            busy = 1;
        }
        if (unposted)
            shm_post(&S.results, unposted);
        for (uint32_t i = first; i < last; i++) {
            if (!following[i] || shm_order(me) == SHM_QUIT)
                continue;
            model_write(&S.obs[following[i] - 1][i], row_word(++answered[i], 0));
            shm_respond(&S.rsp[i], answered[i]);
            shm_post(&S.results, 1);
        }
        if (!busy) {
            if (shm_order(me) == SHM_QUIT) {
                end(w);
                return;
            }
            shm_await_bell(me, seen, &wait);
        }
    }
}

/* The manager's own memory, set up anew by each execution. */
static struct {
    uint32_t asked[ENVS], played[ENVS], lost[ENVS]; /* commands, answers taken, answers that never come */
    uint32_t given[ENVS], owed[ENVS], plane[ENVS];  /* number of the last command, of the one that is pending; its plane */
    uint32_t code[ENVS], following[ENVS];           /* of the one that is pending; of the reset that nobody gave */
    int pending[ENVS], handled[WORKERS], needs_reset[ENVS], gone_on[ENVS], called[ENVS];
    uint32_t seen_alert, round, got, need;
} M;

static uint32_t count_answers(void *unused) {
    (void)unused;
    uint32_t n = 0;
    for (uint32_t i = 0; i < total(); i++)
        if (M.pending[i]) {
            if (shm_answered(&S.rsp[i], M.owed[i]))
                n++;
            else if (c->ends && shm_has_ended(&S.ended[i], M.owed[i]))
                model_check(model_read(&S.final[i]) == M.owed[i], "step ended, its payload stale");
        }
    return n;
}
static int take_answer(uint32_t i) {
    if (!M.pending[i] || !shm_answered(&S.rsp[i], M.owed[i]))
        return 0;
    uint32_t n = M.owed[i], row = M.code[i] == IS_CALL ? 0 : model_read(&S.obs[M.plane[i]][i]);
    if (M.code[i] == IS_CALL)
        model_check(model_read(&S.call[i]) == n, "call answered, its result stale");
    else
        model_check(row == row_word(n, M.code[i] == IS_LAST_STEP), "answer published, payload stale");
    if (c->ends)
        model_check(model_read(&S.final[i]) == n, "answer published, payload of the ended step stale");
    if (M.code[i] == IS_LAST_STEP) {
        M.gone_on[i] = M.needs_reset[i] = row & 1;
        M.following[i] = n + 1;
    } else if (M.code[i] == IS_RESET)
        M.needs_reset[i] = 0;
    M.pending[i] = 0;
    M.played[i]++;
    return 1;
}
/* A worker that is confirmed dead: what it published counts, the rest is lost, and a successor takes its place. */
static void bury(int w) {
    M.handled[w] = 1;
    for (uint32_t i = (uint32_t)(w * c->envs); i < (uint32_t)((w + 1) * c->envs); i++) {
        if (M.pending[i] && !take_answer(i)) {
            if (c->ends && shm_has_ended(&S.ended[i], M.owed[i]))
                model_check(model_read(&S.final[i]) == M.owed[i], "step ended, its payload lost");
            M.pending[i] = 0;
            M.lost[i]++;
            M.needs_reset[i] = c->goes_on;
        }
        M.gone_on[i] = 0; /* a reset that nobody asked for is lost, and nobody is told */
        shm_reset_channel(&S.cmd[i], &S.rsp[i]);
    }
    uint32_t generation = shm_generation(&S.worker[w]);
    shm_reset_worker(&S.worker[w]);
    model_check(shm_generation(&S.worker[w]) == generation + 1, "a successor has its predecessor's generation");
    model_start("successor", work, w, 0);
}
/* Takes the reset by which an env has gone on, if it is done: then the env can be stepped. */
static void take_reset(uint32_t i) {
    if (!M.gone_on[i] || c->goes_on == ANEW || !shm_answered(&S.rsp[i], M.following[i]))
        return;
    M.given[i] = shm_count_reset(M.given[i], M.following[i]);
    M.plane[i] = !M.plane[i];
    shm_command(&S.cmd[i], M.given[i]);
    model_check(model_read(&S.obs[M.plane[i]][i]) == row_word(M.following[i], 0), "reset taken, payload stale");
    M.needs_reset[i] = M.gone_on[i] = M.called[i] = 0;
    M.asked[i]++;
    M.played[i]++;
}
/* Gives an env what it needs next. Returns whether its worker has to be told. */
static int command(uint32_t i) {
    if (c->goes_on != CALL || M.called[i])
        take_reset(i);
    int is_call = c->goes_on == CALL && M.needs_reset[i] && !M.called[i];
    uint32_t code = is_call ? IS_CALL : M.needs_reset[i] ? IS_RESET : c->goes_on ? IS_LAST_STEP : IS_STEP;
    int is_under_way = code == IS_RESET && M.gone_on[i] && c->goes_on != ANEW && !M.called[i];
    if (M.gone_on[i])
        M.given[i] = shm_count_reset(M.given[i], M.following[i]);
    M.owed[i] = is_under_way ? M.following[i] : ++M.given[i];
    M.code[i] = code;
    M.called[i] = is_call;
    if (!is_call) {
        M.gone_on[i] = 0;
        M.plane[i] = c->goes_on && !M.plane[i];
    }
    M.asked[i]++;
    M.pending[i] = 1;
    model_write(&S.action[i], command_word(M.given[i], M.plane[i], code));
    shm_command(&S.cmd[i], M.given[i]);
    return !is_under_way;
}
static void command_idle(void) {
    int rung[WORKERS] = {0};
    for (uint32_t i = 0; i < total(); i++)
        if (!M.pending[i])
            rung[i / (uint32_t)c->envs] |= command(i);
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
        if (c->renew && M.round == 1) {
            for (uint32_t i = 0; i < total(); i++)
                M.given[i] = M.gone_on[i] ? shm_count_reset(M.given[i], M.following[i]) : M.given[i];
            for (uint32_t i = 0; i < total(); i++)
                M.gone_on[i] = 0;                   /* it may not go on any more: that does not count */
            shm_give_order(&S.worker[0], SHM_QUIT); /* a command that comes with it is played or lost */
        }
        command_idle();
        if (c->quit && M.round == 0) {
            shm_give_order(&S.worker[0], SHM_QUIT);
            shm_ring_bell(&S.worker[0], 0);
        }
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
        S.cmd[i].v = S.rsp[i].v = S.ended[i].v = M.given[i] = M.owed[i] = START;
        MODEL_NAME(&S.cmd[i]);
        MODEL_NAME(&S.action[i]);
        MODEL_NAME(&S.ended[i]);
        MODEL_NAME(&S.final[i]);
        MODEL_NAME(&S.obs[0][i]);
        MODEL_NAME(&S.obs[1][i]);
        MODEL_NAME(&S.call[i]);
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
        model_check(M.played[i] + M.lost[i] == M.asked[i], "an answer is lost or doubled");
        lost += M.lost[i];
    }
    model_check(c->mortal || c->renew || c->quit || !lost, "an answer is lost though nobody died");
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
                       two_first_killed = {.workers = 2, .envs = 1, .rounds = 2, .need = 1, .mortal = 1},
                       going_on = {.workers = 1, .envs = 1, .rounds = 3, .need = 1, .goes_on = TAKE},
                       going_on_two = {.workers = 1, .envs = 2, .rounds = 2, .need = 2, .goes_on = TAKE, .whole = 1},
                       going_on_first = {.workers = 1, .envs = 2, .rounds = 3, .need = 1, .goes_on = TAKE},
                       going_on_called = {.workers = 1, .envs = 1, .rounds = 4, .need = 1, .goes_on = CALL},
                       going_on_anew = {.workers = 1, .envs = 1, .rounds = 3, .need = 1, .goes_on = ANEW},
                       going_on_renewed = {.workers = 1, .envs = 1, .rounds = 3, .need = 1, .goes_on = TAKE, .renew = 1},
                       going_on_quit = {.workers = 1, .envs = 1, .rounds = 3, .need = 1, .goes_on = TAKE, .quit = 1},
                       going_on_killed = {.workers = 1, .envs = 1, .rounds = 3, .need = 1, .goes_on = TAKE, .mortal = 1},
                       going_on_called_killed = {.workers = 1, .envs = 1, .rounds = 3, .need = 1, .goes_on = CALL,
                                                 .mortal = 1},
                       going_on_anew_killed = {.workers = 1, .envs = 1, .rounds = 3, .need = 1, .goes_on = ANEW,
                                               .mortal = 1},
                       going_on_two_killed = {.workers = 1, .envs = 2, .rounds = 2, .need = 2, .goes_on = TAKE,
                                              .whole = 1, .mortal = 1};
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
    POOL("pool, envs that go on", going_on, .preemptions = 2, .stale = 1, .full = 1),
    POOL("pool, envs that go on, two envs, one post for both", going_on_two, .preemptions = 1, .stale = 1,
         .full = 1),
    POOL("pool, envs that go on, two envs, first 1", going_on_first, .preemptions = 1, .stale = 1, .full = 1),
    POOL("pool, envs that go on, a call meanwhile", going_on_called, .preemptions = 1, .stale = 1, .full = 1),
    POOL("pool, envs that go on, nor takes", going_on_anew, .preemptions = 2, .stale = 1, .full = 1),
    POOL("pool, envs that go on, the worker told to quit after a step", going_on_renewed, .preemptions = 2,
         .stale = 1, .full = 1),
    POOL("pool, envs that go on, the worker told to quit in a step", going_on_quit, .preemptions = 2,
         .stale = 1, .full = 1),
    POOL("pool, envs that go on, killed", going_on_killed, .preemptions = 1, .stale = 1, .kills = 1, .full = 1),
    POOL("pool, envs that go on, killed, a call meanwhile", going_on_called_killed, .preemptions = 1,
         .stale = 1, .kills = 1, .full = 1),
    POOL("pool, envs that go on, nor takes, killed", going_on_anew_killed, .preemptions = 1, .stale = 1,
         .kills = 1, .full = 1),
    POOL("pool, envs that go on, two envs, killed", going_on_two_killed, .preemptions = 0, .stale = 1,
         .kills = 1, .full = 1),
    {0},
};
