/* Versioned cells: what a reader accepts is one version, whole, and never older than what it had; who waits for a
 * newer version is woken; a killed writer leaves the last complete value, and its successor goes on. */
#include "cells.h"

typedef struct {
    uint32_t cells;
    int versions, readers, reads, waits, mortal, spin, in_place; /* waits: the readers park until the last version */
} cells_case;
enum { WORDS = 2 };
#define START UINT64_C(0xFFFFFFFF) /* the futex word, its low half, wraps with the first version */

static const cells_case *c;
static struct {
    shm_cells cells;
    a64 values[4 * WORDS];
} S;

static void write_all(int unused) {
    (void)unused;
    uint64_t version = SHM_LOAD(&S.cells.version, relaxed);
    while (version++ < START + (uint64_t)c->versions) {
        MODEL_KNOWS(version);
        const uint64_t value[WORDS] = {version, ~version};
        shm_write_cell(&S.cells, S.values, WORDS, c->cells, value);
    }
}
static uint64_t read_once(uint64_t had) {
    uint64_t value[WORDS], version;
    if (!shm_read_cell(&S.cells, S.values, WORDS, c->cells, value, &version))
        return had;
    model_check(version >= had, "an older version came after a newer one");
    model_check(value[0] == version && value[1] == ~version, "a torn or stale value was taken for whole");
    return version;
}
/* The value is looked at where it stands, and believed if the writer cannot have come round to its cell meanwhile. */
static void read_in_place(int unused) {
    (void)unused;
    for (int i = 0; i < c->reads; i++) {
        MODEL_KNOWS((uint64_t)i);
        uint64_t version = shm_version(&S.cells);
        a64 *cell = &S.values[version % c->cells * WORDS];
        uint64_t first = SHM_LOAD(&cell[0], relaxed), second = SHM_LOAD(&cell[1], relaxed);
        if (shm_version(&S.cells) - version <= c->cells - 2)
            model_check(first == version && second == ~version, "a torn or stale value was taken for whole");
    }
}
static void read_some(int unused) {
    (void)unused;
    uint64_t had = START;
    for (int i = 0; i < c->reads; i++) {
        MODEL_KNOWS((uint64_t)i, had);
        had = read_once(had);
    }
}
static void read_all(int unused) {
    (void)unused;
    shm_wait wait = MODEL_WAIT(c->spin);
    for (uint64_t had = START; had < START + (uint64_t)c->versions; had = read_once(had)) {
        MODEL_KNOWS(had);
        shm_await_version(&S.cells, had, &wait);
    }
}
static void setup(const void *with) {
    c = with;
    model_shared(&S, sizeof S);
    S.cells.version.v = START;
    S.values[START % c->cells * WORDS].v = START;
    S.values[START % c->cells * WORDS + 1].v = ~START;
    MODEL_NAME(&S.cells.version);
    MODEL_NAME(&S.cells.waiters);
    model_start("writer", write_all, 0, c->mortal);
    for (int i = 0; i < c->readers; i++)
        model_start(i ? "reader 2" : "reader 1", c->in_place ? read_in_place : c->waits ? read_all : read_some, i, 0);
}
static void succeed(int unused) { model_start("successor", write_all, unused, 0); }

static const cells_case two = {.cells = 2, .versions = 3, .readers = 1, .reads = 3},
                        three = {.cells = 3, .versions = 4, .readers = 1, .reads = 2},
                        four = {.cells = 4, .versions = 6, .readers = 1, .reads = 2},
                        in_place = {.cells = 3, .versions = 4, .readers = 1, .reads = 2, .in_place = 1},
                        two_killed = {.cells = 2, .versions = 3, .readers = 1, .reads = 2, .mortal = 1},
                        three_killed = {.cells = 3, .versions = 4, .readers = 1, .reads = 2, .mortal = 1},
                        awaited = {.cells = 3, .versions = 2, .readers = 1, .waits = 1},
                        spun = {.cells = 3, .versions = 2, .readers = 1, .waits = 1, .spin = 1},
                        by_two = {.cells = 3, .versions = 2, .readers = 2, .waits = 1},
                        by_two_killed = {.cells = 3, .versions = 2, .readers = 2, .waits = 1, .mortal = 1};
#define CELLS(text, how, ...) \
    { .name = text, .with = &(how), .setup = setup, .on_kill = succeed, .heartbeat = 1, .stale = 2, __VA_ARGS__ }
const scenario scenarios[] = {
    CELLS("2 cells", two, .preemptions = 3, .full = 2),
    CELLS("3 cells", three, .preemptions = 2, .full = 2),
    CELLS("4 cells", four, .preemptions = 2, .full = 2),
    CELLS("3 cells, read in place", in_place, .preemptions = 2, .full = 2),
    CELLS("2 cells, writer killed and succeeded", two_killed, .preemptions = 2, .kills = 1, .full = 2),
    CELLS("3 cells, writer killed and succeeded", three_killed, .preemptions = 2, .kills = 1, .full = 1),
    CELLS("cells, awaited", awaited, .preemptions = 3, .full = 2),
    CELLS("cells, awaited with spinning", spun, .preemptions = 3, .full = 2),
    CELLS("cells, awaited by two, interrupted", by_two, .preemptions = 1, .signals = 1, .full = 1),
    CELLS("cells, awaited by two, writer killed", by_two_killed, .preemptions = 1, .kills = 1, .full = -1),
    {0},
};
