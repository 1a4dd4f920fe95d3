/* The explorer's side of the seam in core/atomic.h: shared memory, futexes and processes as a model, and what the
 * scenarios use of it.
 *
 * What is modelled (model.c):
 * - Memory, after the view semantics of Kang et al., "A promising semantics for relaxed-memory concurrency", POPL
 *   2017, without promises. A location keeps every value it ever had, in one order; a load may return any that the
 *   thread has not seen overwritten, a store may go before one that the thread has not seen. Release and acquire hand
 *   over what was seen; a seq_cst access goes behind the last seq_cst store to its location, fences are C11's, release
 *   sequences are C++20's (broken by any store that is no read-modify-write).
 * - Payload as plain memory with C11's rule: two accesses of which one writes must be ordered by release and acquire,
 *   in both directions (a reader must be done before its cell is written again).
 * - Futexes as futex(2) promises them and no better: comparing and going to sleep is one step, ordered with other
 *   futex calls on the same word; nothing else is fenced. The word may be compared with an old value.
 * - A kill at every access: the process stops, its stores stay, its futex queue entry goes. A notice follows, which
 *   has seen what the process did (the kernel orders its end before the notice of it).
 *
 * Limits, to be known before trusting a pass:
 * - Preemptions, stale accesses and kills an execution are bounded (explorer.c prints the bounds of every scenario).
 * - No load buffering: a load never returns a value that is stored later.
 * - There are no timeouts, and heartbeats only for what a kill interrupts: else they would hide lost wake-ups. */
#ifndef MODEL_H
#define MODEL_H
#include <stddef.h>
#include <stdint.h>

/* v: the value before the first store. All shared words of a scenario live in the block given to model_shared. */
typedef struct {
    uint32_t v;
} a32;
typedef struct {
    uint64_t v;
} a64;

typedef enum { MODEL_relaxed, MODEL_acquire, MODEL_release, MODEL_acq_rel, MODEL_seq_cst } model_order;

uint64_t model_load(void *word, int wide, model_order order);
void model_store(void *word, int wide, uint64_t value, model_order order);
uint32_t model_exchange(a32 *word, int add, uint32_t value, model_order order);
void model_fence(model_order order);
void model_write(a32 *word, uint32_t value); /* payload, no atomics: an access that no release and acquire order */
uint32_t model_read(a32 *word);              /* against another thread's, of which one writes, is a failure */
void model_copy_in(void *shared, const void *own, size_t size);
void model_copy_out(void *own, const void *shared, size_t size);
int model_futex_wait(a32 *word, uint32_t expected);
void model_futex_wake(a32 *word, int count);

static inline uint32_t model_load32(a32 *p, model_order order) { return (uint32_t)model_load(p, 0, order); }
static inline uint64_t model_load64(a64 *p, model_order order) { return model_load(p, 1, order); }
#define SHM_LOAD(p, order) _Generic((p), a32 *: model_load32, a64 *: model_load64)(p, MODEL_##order)
#define SHM_STORE(p, v, order) model_store(p, sizeof *(p) == 8, v, MODEL_##order)
#define SHM_ADD(p, v, order) model_exchange(p, 1, v, MODEL_##order) /* the core adds to a32 alone */
#define SHM_SWAP(p, v, order) model_exchange(p, 0, v, MODEL_##order)
#define SHM_FENCE(order) model_fence(MODEL_##order)
#define SHM_COPY_IN(shared, own, size) model_copy_in(shared, own, size)
#define SHM_COPY_OUT(own, shared, size) model_copy_out(own, shared, size)
#define SHM_LOW_WORD(p) ((a32 *)(p)) /* a location is known by its address; a futex compares its low 32 bits */
#define SHM_FUTEX_WAIT(p, expected, ns) ((void)(ns), model_futex_wait(p, expected))
#define SHM_FUTEX_WAKE(p, count) model_futex_wake(p, count)

/* What shm_park asks of the operating system. Time stands still. */
enum { OS_WOKEN = 0, OS_TIMED_OUT = 1, OS_INTERRUPTED = 2 };
static inline int64_t os_now_ns(void) { return 0; }

/* ---- for scenarios ---- */

enum { MODEL_MORTAL = 1 }; /* the explorer may kill it */
typedef void (*model_body)(int arg);
/* Starts a thread (a process, for the core) that has seen what its parent has; returns its number. In setup and
 * on_kill there is no parent: there the thread has seen everything, or what the killed one had. */
int model_start(const char *name, model_body body, int arg, int flags);
uint64_t model_last(void *word); /* the value that a location ends with; for at_end */
void model_check(int holds, const char *otherwise);
/* These values are all that the calling thread still knows of what it read, so that states which differ only in how
 * they came about count as one. Called at the top of a loop; a variable left out would hide executions. */
void model_knows(const void *values, size_t size);
#define MODEL_KNOWS(...) model_knows((uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}))
void model_shared(void *block, size_t size); /* once a setup, before anything else: clears it */
void model_name(void *word, int wide, const char *name);
#define MODEL_NAME(p) model_name(p, sizeof *(p) == 8, #p) /* for the trace of a failure */

/* A shm_wait without deadline; spin 1: looks once before it parks. */
#define MODEL_WAIT(spin) {.deadline_ns = INT64_MAX, .spin_ns = spin, .heartbeat_ns = INT64_MAX}

typedef struct {
    const char *name;
    const void *with;             /* the scenario's own parameters */
    void (*setup)(const void *with);
    void (*on_kill)(int arg);     /* argument of the killed thread; starts whoever tells or succeeds it */
    void (*at_end)(void);         /* every thread has ended */
    int preemptions, stale;       /* bounds: switches away from a thread that could go on; accesses to an old value */
    int kills, signals;           /* how many threads are killed, futex waits interrupted */
    int heartbeat;                /* after a kill, every thread's wait may once end by its heartbeat */
    int full;                     /* added to both bounds in the full run; -1: this scenario is left out of the short */
    const char *fails;            /* NULL, or what this scenario must find: it shows that the explorer can */
} scenario;

extern const scenario scenarios[]; /* ends with a name of NULL */
#endif
