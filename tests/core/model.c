/* The semantics: memory as messages and views, futexes, the life of threads. See model.h for what it stands for. */
#include "explorer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

location memory[LOCATIONS];
struct block block;
view sc_seen;
model_world world;
static view newborn; /* what a thread started outside of threads has seen */
static int tracing;

static void join(view *into, const view *from) {
    for (size_t i = 0; i < sizeof(view); i++)
        into->at[i] = from->at[i] > into->at[i] ? from->at[i] : into->at[i];
}
static thread *self(void) { return &world.threads[world.running]; }

static void explain(const char *what, int at, uint64_t value, const char *order, const char *how) {
    if (!tracing)
        return;
    char place[40];
    if (block.name[at])
        snprintf(place, sizeof place, "%s", block.name[at]);
    else
        snprintf(place, sizeof place, "+%d", (int)((char *)block.address[at] - block.base));
    printf("    %-12s %-6s %-16s %8lld  %s%s\n", self()->name, what, place, (long long)(int32_t)value, order, how);
}
static const char *const ORDER_NAMES[] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};

static void reset_location(int at) {
    location *l = &memory[at];
    l->count = 1;
    l->messages[0].value = block.wide[at] ? ((a64 *)block.address[at])->v : ((a32 *)block.address[at])->v;
    memset(&l->messages[0].carries, 0, sizeof(view));
    l->messages[0].continues = 0;
    memset(&l->futex_seen, 0, sizeof(view));
    l->written = 0;
    memset(l->read, 0, sizeof l->read);
}
static int locate(void *word, int wide) {
    size_t offset = (size_t)((char *)word - block.base);
    if (offset >= block.size) {
        fprintf(stderr, "an access outside of the block of shared memory\n");
        exit(2);
    }
    uint8_t *index = &block.index[offset / 4];
    if (!*index) {
        if (block.count == LOCATIONS) {
            fprintf(stderr, "LOCATIONS is too small\n");
            exit(2);
        }
        int at = block.count++;
        *index = (uint8_t)(at + 1);
        block.address[at] = word;
        block.name[at] = NULL;
        block.wide[at] = wide;
        reset_location(at);
    }
    int at = *index - 1;
    if (world.running >= 0 && !(block.users[at] >> world.running & 1)) {
        block.users[at] |= 1u << world.running;
        world.new_user = 1;
    }
    return at;
}

void model_shared(void *base, size_t size) {
    if (size > BLOCK_BYTES) {
        fprintf(stderr, "BLOCK_BYTES is too small\n");
        exit(2);
    }
    block.base = base;
    block.size = size;
    memset(base, 0, size);
}
void model_name(void *word, int wide, const char *name) {
    if (tracing)
        block.name[locate(word, wide)] = name;
}
void model_forget(void) { memset(&block, 0, sizeof block); }
void model_begin(const scenario *s, int stale_bound) {
    world.thread_count = 0;
    world.running = -1;
    world.stale_left = stale_bound;
    memset(&newborn, 0, sizeof newborn);
    memset(&sc_seen, 0, sizeof sc_seen);
    s->setup(s->with);
    for (int at = 0; at < block.count; at++)
        reset_location(at);
}
void model_trace(int on) { tracing = on; }

/* ---- loads, stores, fences ---- */

static void learn(uint64_t value) {
    self()->history = mix(self()->history, value + 1);
}
static void shift(view *v, int at, int place) { v->at[at] = (uint8_t)(v->at[at] + (v->at[at] >= place)); }
/* Makes room in a location's order: every view of what stands at `place` or later moves on. */
static void make_room(int at, int place) {
    location *l = &memory[at];
    memmove(&l->messages[place + 1], &l->messages[place], (size_t)(l->count - place) * sizeof(message));
    l->messages[place].carries = (view){{0}};
    for (int i = 0; i < world.thread_count; i++) {
        shift(&world.threads[i].seen, at, place);
        shift(&world.threads[i].acquired, at, place);
        shift(&world.threads[i].released, at, place);
    }
    shift(&sc_seen, at, place);
    for (int i = 0; i < block.count; i++) {
        shift(&memory[i].futex_seen, at, place);
        for (int j = 0; j < memory[i].count + (i == at); j++)
            shift(&memory[i].messages[j].carries, at, place);
    }
}
/* Puts a message at `place` in its location's order, at the end or earlier. */
static void insert(int at, int place, uint64_t value, model_order order, const view *continued) {
    thread *me = self();
    location *l = &memory[at];
    if (l->count == MESSAGES) {
        fail("no end: the threads go round in circles");
        return;
    }
    if (place < l->count)
        make_room(at, place);
    l->count++;
    message *m = &l->messages[place];
    me->seen.at[at] = (uint8_t)place;
    m->value = value;
    m->continues = continued != NULL;
    m->carries = order >= MODEL_release ? me->seen : me->released;
    m->carries.at[at] = (uint8_t)place;
    if (continued) /* a read-modify-write hands on what its predecessor carried: the release sequence */
        join(&m->carries, continued);
    if (order == MODEL_seq_cst)
        sc_seen.at[at] = (uint8_t)place;
}
/* One of `count` candidates, the first of them the newest; another costs one of the execution's stale accesses. */
static int pick(int count) {
    int picked = world.stale_left > 0 ? choose(count) : 0;
    world.stale_left -= picked > 0;
    return picked;
}
/* Where a write that comes after message `oldest` may go: right behind any message that nothing continues. */
static int pick_place(int at, int oldest) {
    const location *l = &memory[at];
    int places[MESSAGES], count = 0;
    for (int place = l->count; place > oldest; place--)
        if (place == l->count || !l->messages[place].continues)
            places[count++] = place;
    return places[pick(count)];
}
static int oldest_readable(int at, model_order order) {
    int seen = self()->seen.at[at], sc = sc_seen.at[at];
    return order == MODEL_seq_cst && sc > seen ? sc : seen;
}
static void take(const message *m, model_order order) {
    join(&self()->acquired, &m->carries);
    if (order == MODEL_acquire || order >= MODEL_acq_rel)
        join(&self()->seen, &m->carries);
}

uint64_t model_load(void *word, int wide, model_order order) {
    give_way();
    int at = locate(word, wide), newest = memory[at].count - 1;
    int chosen = newest - pick(newest - oldest_readable(at, order) + 1);
    const message *m = &memory[at].messages[chosen];
    self()->seen.at[at] = (uint8_t)chosen;
    take(m, order);
    learn(m->value);
    explain("load", at, m->value, ORDER_NAMES[order], chosen < newest ? ", an old value" : "");
    return m->value;
}
void model_store(void *word, int wide, uint64_t value, model_order order) {
    give_way();
    int at = locate(word, wide), end = memory[at].count;
    int place = pick_place(at, oldest_readable(at, order));
    insert(at, place, wide ? value : (uint32_t)value, order, NULL);
    learn(0);
    explain("store", at, value, ORDER_NAMES[order], place < end ? ", overtaken by a newer value" : "");
}
uint32_t model_exchange(a32 *word, int add, uint32_t value, model_order order) {
    give_way();
    int at = locate(word, 0), end = memory[at].count;
    int place = pick_place(at, oldest_readable(at, order));
    const message before = memory[at].messages[place - 1];
    self()->seen.at[at] = (uint8_t)(place - 1);
    take(&before, order);
    insert(at, place, add ? (uint32_t)before.value + value : value, order, &before.carries);
    learn(before.value);
    explain(add ? "add" : "swap", at, before.value, ORDER_NAMES[order], place < end ? ", of an old value" : "");
    return (uint32_t)before.value;
}
static void fence(model_order order) {
    thread *me = self();
    if (order == MODEL_relaxed)
        return;
    if (order != MODEL_release)
        join(&me->seen, &me->acquired);
    if (order == MODEL_seq_cst) {
        join(&me->seen, &sc_seen);
        sc_seen = me->seen;
    }
    if (order != MODEL_acquire)
        me->released = me->seen;
}
void model_fence(model_order order) {
    give_way();
    fence(order);
    learn(0);
    if (tracing)
        printf("    %-12s fence  %s\n", self()->name, ORDER_NAMES[order]);
}
/* ---- payload ---- */

static uint8_t tick(void) {
    uint8_t *clock = &self()->seen.at[LOCATIONS + world.running];
    if (++*clock == UINT8_MAX) {
        fprintf(stderr, "too many payload accesses for a clock of 8 bits\n");
        exit(2);
    }
    return *clock;
}
static int happened(uint8_t clock, int of) { return clock <= self()->seen.at[LOCATIONS + of]; }
void model_write(a32 *word, uint32_t value) {
    give_way();
    location *l = &memory[locate(word, 0)];
    int ordered = happened(l->written, l->writer);
    for (int i = 0; i < world.thread_count; i++)
        ordered &= happened(l->read[i], i);
    model_check(ordered, "payload is written while another thread may use it");
    l->writer = world.running;
    l->written = tick();
    l->messages[0].value = value;
    learn(0);
    explain("write", (int)(l - memory), value, "", "");
}
uint32_t model_read(a32 *word) {
    give_way();
    location *l = &memory[locate(word, 0)];
    model_check(happened(l->written, l->writer), "payload is read while another thread may write it");
    l->read[world.running] = tick();
    learn(l->messages[0].value);
    explain("read", (int)(l - memory), l->messages[0].value, "", "");
    return (uint32_t)l->messages[0].value;
}
void model_copy_in(void *shared, const void *own, size_t size) {
    for (size_t i = 0; i < size / 4; i++)
        model_write((a32 *)shared + i, ((const uint32_t *)own)[i]);
}
void model_copy_out(void *own, const void *shared, size_t size) {
    for (size_t i = 0; i < size / 4; i++)
        ((uint32_t *)own)[i] = model_read((a32 *)(uintptr_t)shared + i);
}

/* ---- futexes ---- */

/* The kernel's queue lock of the word: a call has seen what earlier calls on the same word had. */
static void pass_futex(int at) {
    location *l = &memory[at];
    join(&self()->seen, &l->futex_seen);
    memcpy(&l->futex_seen, &self()->seen, LOCATIONS); /* without the clocks: futex calls order no payload */
    block.futex[at] = 1;
}
int model_futex_wait(a32 *word, uint32_t expected) {
    give_way();
    thread *me = self();
    int at = locate(word, 0);
    pass_futex(at);
    int newest = memory[at].count - 1, chosen = newest - pick(newest - me->seen.at[at] + 1);
    me->seen.at[at] = (uint8_t)chosen;
    uint64_t value = memory[at].messages[chosen].value;
    learn(value);
    explain("park", at, expected, "", (uint32_t)value == expected ? "" : "value has changed");
    if ((uint32_t)value != expected)
        return OS_WOKEN;
    me->state = BLOCKED;
    me->futex = at;
    give_way();
    learn((uint64_t)me->result);
    explain("woken", at, (uint64_t)me->result, "", "");
    return me->result;
}
void model_futex_wake(a32 *word, int count) {
    give_way();
    int at = locate(word, 0);
    pass_futex(at);
    learn(0);
    explain("wake", at, (uint64_t)count, "", "");
    while (count-- > 0) {
        int sleepers[THREADS], n = 0;
        for (int i = 0; i < world.thread_count; i++)
            if (world.threads[i].state == BLOCKED && world.threads[i].futex == at)
                sleepers[n++] = i;
        if (!n)
            return;
        model_wake(sleepers[count < n ? choose(n) : 0], OS_WOKEN);
    }
}
void model_wake(int index, int result) {
    world.threads[index].state = RUNNABLE;
    world.threads[index].result = result;
}

/* ---- threads ---- */

int model_start(const char *name, model_body body, int arg, int flags) {
    if (world.thread_count == THREADS) {
        fprintf(stderr, "THREADS is too small\n");
        exit(2);
    }
    thread *t = &world.threads[world.thread_count];
    memset(t, 0, offsetof(thread, at));
    t->name = name;
    t->body = body;
    t->arg = arg;
    t->mortal = flags & MODEL_MORTAL;
    t->seen = world.running >= 0 ? self()->seen : newborn;
    t->history = mix((uint64_t)(uintptr_t)body + (uint64_t)arg, 0);
    return world.thread_count++;
}
void model_kill(int index) {
    thread *t = &world.threads[index];
    t->state = KILLED;
    newborn = t->seen;
    if (tracing)
        printf("    %-12s KILLED\n", t->name);
}
void model_knows(const void *values, size_t size) {
    thread *me = self();
    me->history = (uint64_t)(uintptr_t)me->body + (uint64_t)me->arg;
    for (size_t i = 0; i < size / sizeof(uint32_t); i++)
        me->history = mix(me->history, ((const uint32_t *)values)[i]);
}
uint64_t model_last(void *word) {
    const location *l = &memory[locate(word, 0)];
    return l->messages[l->count - 1].value;
}
void model_check(int holds, const char *otherwise) {
    if (!holds)
        fail(otherwise);
}
