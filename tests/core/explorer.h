/* Between the model (model.c), its state's hash (state.c) and the search over its choices (explorer.c). */
#ifndef EXPLORER_H
#define EXPLORER_H
#include <setjmp.h>
#include "model.h"

enum { THREADS = 8, LOCATIONS = 64, MESSAGES = 64 };

/* What a thread has seen: for each location, the oldest of its messages that it may still read; and, in the same
 * array since both grow by the larger, how many payload accesses of each thread happen before it (a vector clock). */
typedef struct {
    uint8_t at[LOCATIONS + THREADS];
} view;

typedef enum { RUNNABLE, BLOCKED, ENDED, KILLED } state;
typedef struct {
    const char *name;
    model_body body;
    int arg, mortal;
    state state;
    int futex;            /* location it sleeps on while BLOCKED */
    int heartbeats;       /* how many of its parks may still end by one */
    int result;           /* of the futex wait, once it is RUNNABLE again */
    view seen;            /* what its next load may not go behind */
    view acquired;        /* what an acquire fence would add */
    view released;        /* what it had seen at its last release fence: handed over by relaxed stores */
    uint64_t history;     /* hash of every value it has read: with the code, its local state */
    int steps;            /* accesses so far */
    int entered;          /* has a stack of its own to return to */
    jmp_buf at;
} thread;

typedef struct {
    thread threads[THREADS];
    int thread_count, running; /* running: index, or -1 outside of threads */
    int stale_left;
    int new_user; /* a thread accessed a location for the first time in this search: states met so far are void */
} model_world;
extern model_world world;

/* A value in a location's history, and what its reader learns by acquiring it. */
typedef struct {
    uint64_t value;
    view carries;
    int continues; /* written by a read-modify-write of the message before it: nothing may come between */
} message;
typedef struct {
    message messages[MESSAGES];
    int count;
    view futex_seen; /* handed from futex call to futex call on this word */
    int writer;      /* of payload: the last one, and its clock then; of each thread, its clock when it last read */
    uint8_t written, read[THREADS];
} location;
extern location memory[LOCATIONS];
extern view sc_seen; /* the last seq_cst store of each location, and what seq_cst fences have seen */

/* The block of shared memory, and which words of it are locations. Kept between the executions of a search. */
enum { BLOCK_BYTES = 1 << 13 };
struct block {
    char *base;
    size_t size;
    uint8_t index[BLOCK_BYTES / 4]; /* of a location, by its offset: 1 + index, 0 unknown */
    void *address[LOCATIONS];
    const char *name[LOCATIONS];
    int wide[LOCATIONS], futex[LOCATIONS];
    unsigned users[LOCATIONS]; /* bit per thread that accessed it in any execution so far */
    int count;
};
extern struct block block;

/* A step of a hash; the finaliser of splitmix64, since two states taken for one would hide executions. */
static inline uint64_t mix(uint64_t hash, uint64_t value) {
    hash = hash * UINT64_C(0xD1342543DE82EF95) + value + UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ hash >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    hash = (hash ^ hash >> 27) * UINT64_C(0x94D049BB133111EB);
    return hash ^ hash >> 31;
}

/* model.c */
void model_begin(const scenario *s, int stale_bound);
void model_forget(void);            /* between two scenarios */
void model_kill(int index);         /* and the next model_start starts with what it had seen */
void model_wake(int index, int result);
void model_trace(int on);

/* state.c */
uint64_t model_state(uint64_t search); /* hash of memory, threads, futex queues, and what the search adds */

/* explorer.c */
int choose(int count);              /* 0 to count - 1: the search tries them all */
void give_way(void);                /* before every access: the search decides who goes on */
void fail(const char *why);
#endif
