/* The clock of a worker: what the watcher thinks stands too long was never begun later than it thinks, for a call into
 * an env as for a ring that an idle worker does not take up. Else it would kill a healthy worker.
 * And who waits for the next ring has answered what was asked before the last.
 * Time is told by what happens: command n begins at 100 n, ring n of the bell is at 100 n. */
#include "channel.h"

typedef struct {
    uint32_t commands;
    int looks, spin;
} clock_case;
enum { LIMIT = 7, SHORTEST = 5, NEVER = -1000 };
static const int64_t LIMITS[SHM_CLOSE + 1] = {LIMIT, 0, 0, LIMIT, 0, 0};

static const clock_case *c;
static struct {
    shm_worker worker;
    a32 cmd, rsp;
} S;

static void work(int unused) {
    (void)unused;
    shm_wait wait = MODEL_WAIT(c->spin);
    for (uint32_t answered = 0; answered < c->commands;) {
        MODEL_KNOWS(answered);
        uint32_t seen = shm_bell(&S.worker), n = shm_commanded(&S.cmd);
        if (n == answered) {
            shm_doing_nothing(&S.worker, seen);
            shm_await_bell(&S.worker, seen, &wait);
            continue;
        }
        shm_doing(&S.worker, n, 0, SHM_STEP, 100 * (int64_t)n);
        answered = n;
        shm_respond(&S.rsp, n);
    }
}
static void command(int unused) {
    (void)unused;
    for (uint32_t n = 1; n <= c->commands; n++) {
        shm_command(&S.cmd, n);
        shm_ring_bell(&S.worker, 100 * (int64_t)n);
        if (shm_has_done_all(&S.worker))
            model_check(shm_answered(&S.rsp, n), "an answer counts as taken back");
    }
}
static void watch(int unused) {
    (void)unused;
    for (int i = 0; i < c->looks; i++) {
        MODEL_KNOWS((uint64_t)i);
        uint64_t doing;
        int64_t due = shm_due(&S.worker, LIMITS, SHORTEST, NEVER, &doing);
        int64_t number = (int64_t)(doing >> 32);
        if (due == NEVER + SHORTEST)
            model_check((doing & 15) == SHM_IDLE, "a step is not timed");
        else if ((doing & 15) == SHM_IDLE)
            model_check(due >= 100 * (number + 1) + LIMIT, "a ring is timed from an earlier one");
        else
            model_check(due >= 100 * number + LIMIT, "a call is timed from an earlier one");
    }
}
static void setup(const void *with) {
    c = with;
    model_shared(&S, sizeof S);
    MODEL_NAME(&S.worker.bell);
    MODEL_NAME(&S.worker.rung_ns);
    MODEL_NAME(&S.worker.doing);
    MODEL_NAME(&S.worker.since_ns);
    MODEL_NAME(&S.worker.parked);
    MODEL_NAME(&S.cmd);
    MODEL_NAME(&S.rsp);
    model_start("worker", work, 0, 0);
    model_start("manager", command, 0, 0);
    model_start("watcher", watch, 0, 0);
}

static const clock_case two = {.commands = 2, .looks = 1}, three = {.commands = 3, .looks = 2},
                        spun = {.commands = 2, .looks = 1, .spin = 1};
#define CLOCK(text, how, ...) { .name = text, .with = &(how), .setup = setup, .stale = 2, __VA_ARGS__ }
const scenario scenarios[] = {
    CLOCK("clock, two commands", two, .preemptions = 2, .full = 2),
    CLOCK("clock, three commands, two looks", three, .preemptions = 2, .full = 1),
    CLOCK("clock, with spinning", spun, .preemptions = 2, .full = 1),
    {0},
};
