/* Explores every choice that the model leaves open, depth first: each execution runs the core's own code from the
 * start on coroutines, along a string of choices of which the last is then advanced (stateless search, Godefroid,
 * "Model checking for programming languages using VeriSoft", POPL 1997; preemption bounding after Musuvathi and
 * Qadeer, PLDI 2007). An execution that comes to a state already met, with the same bounds left, is cut off there.
 *
 * usage: explore_TOPIC [--full] [--trace] [scenario...]
 * Exit code 0: every scenario came out as it should; 1: one did not; 2: a size in here is too small.
 * The bounds of each scenario stand in its line; what the model itself leaves out stands in model.h. */
#include "explorer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { DEPTH = 20000, STEPS = 2000, STACK_BYTES = 1 << 16, KILL = 100, SIGNAL = 200, HEARTBEAT = 300 };

static struct {
    int choice[DEPTH], count[DEPTH]; /* the string, and how many there were to choose from at each place */
    int length, at;
} path;
static struct {
    uint64_t *slots;
    size_t size, used;
} met;
static struct {
    const scenario *scenario;
    int preemptions_left, kills_left, signals_left;
    int last; /* the thread that ran last, -1 after a kill */
    int steps;
    const char *failure;
} run;
static char *stacks[THREADS];
static jmp_buf searcher;
static ucontext_t caller;
static int tracing;

int choose(int count) {
    if (count <= 1)
        return 0;
    if (path.at == path.length) {
        if (path.length == DEPTH) {
            fprintf(stderr, "DEPTH is too small\n");
            exit(2);
        }
        path.choice[path.length] = 0;
        path.count[path.length++] = count;
    }
    return path.choice[path.at++];
}
void fail(const char *why) {
    if (!run.failure)
        run.failure = why;
}

/* ---- states met before ---- */

static int insert(uint64_t *slots, size_t size, uint64_t key) {
    size_t i = key & (size - 1);
    while (slots[i] && slots[i] != key)
        i = (i + 1) & (size - 1);
    int known = slots[i] == key;
    slots[i] = key;
    return known;
}
static int met_before(void) {
    uint64_t left = (uint64_t)(run.preemptions_left << 8 | run.kills_left << 4 | run.signals_left);
    uint64_t key = model_state(left << 8 | (uint64_t)(run.last + 1));
    key += !key; /* 0 marks a free slot */
    if (met.used * 2 >= met.size) {
        size_t size = met.size ? met.size * 2 : 1 << 16;
        uint64_t *slots = calloc(size, sizeof *slots);
        for (size_t i = 0; i < met.size; i++)
            if (met.slots[i])
                insert(slots, size, met.slots[i]);
        free(met.slots);
        met.slots = slots;
        met.size = size;
    }
    int known = insert(met.slots, met.size, key);
    met.used += !known;
    return known;
}
static void forget_states(void) {
    free(met.slots);
    memset(&met, 0, sizeof met);
}

/* ---- coroutines: entered once by ucontext, then switched by _setjmp, which makes no system call ---- */

static void begin_thread(void) {
    thread *t = &world.threads[world.running];
    t->body(t->arg);
    t->state = ENDED;
    _longjmp(searcher, 1);
}
void give_way(void) {
    if (world.running < 0) {
        fprintf(stderr, "shared memory was accessed outside of threads\n");
        exit(2);
    }
    thread *t = &world.threads[world.running];
    t->steps++;
    if (!_setjmp(t->at))
        _longjmp(searcher, 1);
}
/* Runs a thread up to its next access. */
static void resume(int index) {
    thread *t = &world.threads[index];
    world.running = index;
    if (!_setjmp(searcher)) {
        if (t->entered)
            _longjmp(t->at, 1);
        t->entered = 1;
        if (!stacks[index])
            stacks[index] = malloc(STACK_BYTES);
        ucontext_t fresh;
        getcontext(&fresh);
        fresh.uc_stack.ss_sp = stacks[index];
        fresh.uc_stack.ss_size = STACK_BYTES;
        fresh.uc_link = &caller;
        makecontext(&fresh, begin_thread, 0);
        setcontext(&fresh);
    }
    world.running = -1;
}

/* ---- one execution ---- */

static int list_options(int *options) {
    int n = 0, first_only = 0;
    if (run.last >= 0 && world.threads[run.last].state == RUNNABLE) {
        options[n++] = run.last;
        first_only = run.preemptions_left == 0;
    }
    for (int i = 0; i < world.thread_count && !first_only; i++)
        if (i != run.last && world.threads[i].state == RUNNABLE)
            options[n++] = i;
    for (int i = 0; i < world.thread_count; i++) {
        const thread *t = &world.threads[i];
        if (t->state >= ENDED)
            continue;
        /* Killed right after an access, before the first, or asleep: other moments come to the same. */
        if (run.kills_left && t->mortal && (i == run.last || t->state == BLOCKED || t->steps == 0))
            options[n++] = KILL + i;
        if (t->state == BLOCKED && run.signals_left)
            options[n++] = SIGNAL + i;
        if (t->state == BLOCKED && t->heartbeats)
            options[n++] = HEARTBEAT + i;
    }
    return n;
}
static void kill_thread(int index) {
    run.kills_left--;
    run.last = -1;
    model_kill(index);
    if (run.scenario->heartbeat)
        for (int i = 0; i < world.thread_count; i++)
            world.threads[i].heartbeats = 1;
    run.scenario->on_kill(world.threads[index].arg);
}
static void execute(const scenario *s, int more) {
    int options[4 * THREADS];
    run.scenario = s;
    run.preemptions_left = s->preemptions + more;
    run.kills_left = s->kills;
    run.signals_left = s->signals;
    run.last = -1;
    run.steps = 0;
    run.failure = NULL;
    path.at = 0;
    model_begin(s, s->stale + more);
    while (!run.failure) {
        int count = list_options(options);
        if (!count)
            break;
        if (path.at == path.length && met_before())
            return;
        int picked = options[choose(count)], index = picked % KILL;
        if (picked >= SIGNAL) {
            if (picked < HEARTBEAT)
                run.signals_left--;
            else
                world.threads[index].heartbeats--;
            model_wake(index, picked < HEARTBEAT ? OS_INTERRUPTED : OS_TIMED_OUT);
            continue;
        }
        if (picked >= KILL) {
            kill_thread(index);
            continue;
        }
        if (run.last >= 0 && index != run.last && world.threads[run.last].state == RUNNABLE)
            run.preemptions_left--;
        run.last = index;
        resume(index);
        if (++run.steps == STEPS)
            fail("no end: the threads go round in circles");
    }
    for (int i = 0; i < world.thread_count; i++)
        if (world.threads[i].state == BLOCKED)
            fail("lost wake-up: a thread sleeps for ever");
    if (!run.failure && s->at_end)
        s->at_end();
}

/* ---- the search ---- */

/* NULL, or the first failure, with the path still set to it. */
static const char *explore(const scenario *s, int more, long *executions) {
    path.length = 0;
    *executions = 0;
    model_forget();
    for (;;) {
        execute(s, more);
        ++*executions;
        if (run.failure)
            return run.failure;
        if (world.new_user) {
            world.new_user = 0;
            forget_states();
            path.length = 0;
            continue;
        }
        while (path.length && path.choice[path.length - 1] + 1 == path.count[path.length - 1])
            path.length--;
        if (!path.length)
            return NULL;
        path.choice[path.length - 1]++;
    }
}
/* Runs the failing path again, access by access. */
static void show(const scenario *s, int more, const char *failure) {
    path.length = path.at;
    model_trace(1);
    execute(s, more);
    model_trace(0);
    printf("    %s\n", failure);
}
static int wanted(const scenario *s, char **names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], s->name))
            return 1;
    return count == 0;
}
int main(int argc, char **argv) {
    int full = 0, first_name = 1, bad = 0;
    for (; first_name < argc && !strncmp(argv[first_name], "--", 2); first_name++) {
        full |= !strcmp(argv[first_name], "--full");
        tracing |= !strcmp(argv[first_name], "--trace");
    }
    for (const scenario *s = scenarios; s->name; s++) {
        if (!wanted(s, argv + first_name, argc - first_name) || (s->full < 0 && !full))
            continue;
        int more = full && s->full > 0 ? s->full : 0;
        long executions;
        const char *failure = explore(s, more, &executions);
        int good = s->fails ? failure && !strcmp(failure, s->fails) : !failure;
        printf("%-4s %-58s preemptions<=%d stale<=%d kills<=%d signals<=%d: %s (%ld executions, %zu states)\n",
               good ? "ok" : "BAD", s->name, s->preemptions + more, s->stale + more, s->kills, s->signals,
               failure ? failure : "nothing wrong", executions, met.used);
        fflush(stdout);
        if (!good) {
            bad = 1;
            if (failure && tracing)
                show(s, more, failure);
            break;
        }
        forget_states();
    }
    return bad;
}
