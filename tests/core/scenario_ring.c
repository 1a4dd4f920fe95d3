/* The ring with both sides blocking: every item arrives once, whole, in order, and nobody sleeps for ever, whoever is
 * killed and succeeded. Between a kill and the successor's next step, the heartbeat is what wakes the other side. */
#include "ring.h"

typedef struct {
    uint32_t capacity, mask, items;
    int mortal_producer, mortal_consumer, spin;
} ring_case;
enum { START = 0xFFFFFFFE, WORDS = 2 }; /* the counters wrap on the way */

static const ring_case *c;
static struct {
    shm_ring ring;
    a32 items[4 * WORDS];
} S;

static void produce(int unused) {
    (void)unused;
    shm_wait wait = MODEL_WAIT(c->spin);
    uint32_t cached = shm_popped(&S.ring), next = shm_pushed(&S.ring) - START;
    while (next++ < c->items) {
        const uint32_t item[WORDS] = {next, ~next};
        for (;;) {
            MODEL_KNOWS(next, cached);
            uint32_t popped = shm_popped(&S.ring);
            if (shm_push(&S.ring, S.items, c->capacity, c->mask, sizeof item, item, &cached))
                break;
            shm_await_counter(&S.ring.head, &S.ring.producer_parked, popped, &wait);
        }
    }
}
static void consume(int unused) {
    (void)unused;
    shm_wait wait = MODEL_WAIT(c->spin);
    uint32_t cached = shm_popped(&S.ring), next = cached - START;
    while (next++ < c->items) {
        uint32_t item[WORDS];
        for (;;) {
            MODEL_KNOWS(next, cached);
            uint32_t pushed = shm_pushed(&S.ring);
            if (shm_pop(&S.ring, S.items, c->mask, sizeof item, item, &cached))
                break;
            shm_await_counter(&S.ring.tail, &S.ring.consumer_parked, pushed, &wait);
        }
        model_check(item[0] == next && item[1] == ~next, "an item is lost, doubled, stale or torn");
    }
}
static void setup(const void *with) {
    c = with;
    model_shared(&S, sizeof S);
    S.ring.tail.v = S.ring.head.v = START;
    MODEL_NAME(&S.ring.tail);
    MODEL_NAME(&S.ring.head);
    MODEL_NAME(&S.ring.producer_parked);
    MODEL_NAME(&S.ring.consumer_parked);
    model_start("producer", produce, 0, c->mortal_producer);
    model_start("consumer", consume, 1, c->mortal_consumer);
}
static void succeed(int consumer) {
    if (consumer)
        model_start("successor", consume, 1, 0);
    else
        model_start("successor", produce, 0, 0);
}

static const ring_case one = {.capacity = 1, .mask = 0, .items = 3}, two = {.capacity = 2, .mask = 1, .items = 4},
                       odd = {.capacity = 3, .mask = 3, .items = 5},
                       spun = {.capacity = 2, .mask = 1, .items = 4, .spin = 1},
                       producer = {.capacity = 2, .mask = 1, .items = 4, .mortal_producer = 1},
                       consumer = {.capacity = 2, .mask = 1, .items = 4, .mortal_consumer = 1},
                       both = {.capacity = 1, .mask = 0, .items = 3, .mortal_producer = 1, .mortal_consumer = 1};
#define RING(text, how, ...) \
    { .name = text, .with = &(how), .setup = setup, .on_kill = succeed, .heartbeat = 1, .stale = 2, __VA_ARGS__ }
const scenario scenarios[] = {
    RING("ring of 1", one, .preemptions = 2, .full = 2),
    RING("ring of 2", two, .preemptions = 2, .full = 2),
    RING("ring of 3 in 4 cells", odd, .preemptions = 2, .full = 1),
    RING("ring, with spinning", spun, .preemptions = 2, .full = 1),
    RING("ring, interrupted", two, .preemptions = 2, .signals = 1, .full = 1),
    RING("ring, producer killed and succeeded", producer, .preemptions = 1, .kills = 1, .full = 1),
    RING("ring, consumer killed and succeeded", consumer, .preemptions = 1, .kills = 1, .full = 1),
    RING("ring, both killed and succeeded", both, .preemptions = 1, .kills = 2, .full = 1),
    {0},
};
