/* The hash that tells whether the search has met a state before. It leaves out what nobody can tell any more, so that
 * states count as one that differ only in how they came about. */
#include "explorer.h"
#include <string.h>

/* The part of a view above `base`: below it every thread has seen everything. */
static uint64_t hash_view(const view *v, const view *base) {
    view above;
    for (size_t i = 0; i < sizeof(view); i++)
        above.at[i] = v->at[i] > base->at[i] ? v->at[i] - base->at[i] : 0;
    uint64_t words[sizeof(view) / 8], hash = 0;
    memcpy(words, &above, sizeof words);
    for (size_t i = 0; i < sizeof(view) / 8; i++) /* independent of each other, so that they overlap; mostly zeros */
        if (words[i])
            hash += mix(i + 1, words[i]);
    return hash;
}
/* The oldest message of each location that a thread which uses the location may still read. Threads that are not yet
 * started begin with what a living one has seen. */
static void find_base(view *base) {
    unsigned living = 0;
    for (int i = 0; i < world.thread_count; i++)
        living |= (unsigned)(world.threads[i].state < ENDED) << i;
    for (int at = 0; at < block.count; at++) {
        unsigned users = block.users[at] >> world.thread_count ? living : block.users[at] & living;
        uint8_t oldest = (uint8_t)(memory[at].count - 1);
        for (int i = 0; i < world.thread_count; i++)
            if (users >> i & 1 && world.threads[i].seen.at[at] < oldest)
                oldest = world.threads[i].seen.at[at];
        base->at[at] = oldest;
    }
    for (int i = 0; i < world.thread_count; i++) {
        uint8_t oldest = UINT8_MAX;
        for (int j = 0; j < world.thread_count; j++)
            if (living >> j & 1 && world.threads[j].seen.at[LOCATIONS + i] < oldest)
                oldest = world.threads[j].seen.at[LOCATIONS + i];
        base->at[LOCATIONS + i] = oldest;
    }
}
uint64_t model_state(uint64_t search) {
    view base = {{0}};
    find_base(&base);
    uint64_t hash = mix(mix(search, (uint64_t)world.stale_left), hash_view(&sc_seen, &base));
    for (int at = 0; at < block.count; at++) {
        const location *l = &memory[at];
        uint64_t own = (uint64_t)at;
        for (int i = base.at[at]; i < l->count; i++) {
            const message *m = &l->messages[i];
            uint64_t continues = i > base.at[at] && m->continues;
            own = mix(mix(own, m->value + (continues << 62)), hash_view(&m->carries, &base));
        }
        uint64_t clocks = l->written > base.at[LOCATIONS + l->writer] 
                              ? (uint64_t)(l->writer << 8 | (l->written - base.at[LOCATIONS + l->writer]))
                              : 0;
        for (int i = 0; i < world.thread_count; i++)
            if (l->read[i] > base.at[LOCATIONS + i])
                clocks = mix(clocks, (uint64_t)(i << 8 | (l->read[i] - base.at[LOCATIONS + i])));
        own = mix(own, clocks);
        if (block.futex[at])
            own = mix(own, hash_view(&l->futex_seen, &base));
        hash += mix(own, 0);
    }
    for (int i = 0; i < world.thread_count; i++) {
        const thread *t = &world.threads[i];
        uint64_t own = mix((uint64_t)i, (uint64_t)t->state);
        if (t->state < ENDED) {
            own = mix(mix(own, t->history), (uint64_t)(t->heartbeats << 16 | t->result << 8 | t->futex));
            own = mix(mix(own, hash_view(&t->seen, &base)), hash_view(&t->acquired, &base));
            own = mix(own, hash_view(&t->released, &base));
        }
        hash += mix(own, 1);
    }
    return hash;
}
