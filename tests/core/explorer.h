/* Between the model (model.c) and the search over its choices (explorer.c). */
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

/* model.c */
void model_begin(const scenario *s, int stale_bound);
void model_forget(void);            /* between two scenarios */
uint64_t model_state(uint64_t search); /* hash of memory, threads, futex queues, and what the search adds */
void model_kill(int index);         /* and the next model_start starts with what it had seen */
void model_wake(int index, int result);
void model_trace(int on);

/* explorer.c */
int choose(int count);              /* 0 to count - 1: the search tries them all */
void give_way(void);                /* before every access: the search decides who goes on */
void fail(const char *why);
#endif
