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

static const ring_case one = {1, 0, 3, 0, 0, 0}, two = {2, 1, 4, 0, 0, 0}, odd = {3, 3, 5, 0, 0, 0},
                       spun = {2, 1, 4, 0, 0, 1}, killed_producer = {2, 1, 4, 1, 0, 0},
                       killed_consumer = {2, 1, 4, 0, 1, 0}, killed_both = {1, 0, 3, 1, 1, 0};
#define RING(text, how, killed, interrupted) \
    { .name = text, .with = &(how), .setup = setup, .on_kill = succeed, .preemptions = (killed) ? 1 : 2, .stale = 2, \
      .kills = killed, .signals = interrupted, .heartbeat = 1, .full = 1 }
const scenario scenarios[] = {
    RING("ring of 1", one, 0, 0),
    RING("ring of 2", two, 0, 0),
    RING("ring of 3 in 4 cells", odd, 0, 0),
    RING("ring, with spinning", spun, 0, 0),
    RING("ring, interrupted", two, 0, 1),
    RING("ring, producer killed and succeeded", killed_producer, 1, 0),
    RING("ring, consumer killed and succeeded", killed_consumer, 1, 0),
    RING("ring, both killed and succeeded", killed_both, 2, 0),
    {0},
};
