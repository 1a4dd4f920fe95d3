/* What the model itself must and must not show: the classic litmus tests, and the mistakes that the core avoids. A
 * scenario with `fails` must find exactly that; it guards against an explorer that finds nothing because it looks at
 * nothing. Names after Alglave, Maranget, Tautschnig, "Herding cats", TOPLAS 2014. */
#include "atomic.h"

static struct {
    a32 x, y, z, flag;
} S;
static uint32_t r[4];
enum { RELAXED, RELEASE_ACQUIRE, SEQ_CST, FENCES };

static void put(a32 *p, int how) {
    if (how == RELAXED || how == FENCES)
        SHM_STORE(p, 1, relaxed);
    else if (how == RELEASE_ACQUIRE)
        SHM_STORE(p, 1, release);
    else
        SHM_STORE(p, 1, seq_cst);
}
static uint32_t get(a32 *p, int how) {
    if (how == RELAXED || how == FENCES)
        return SHM_LOAD(p, relaxed);
    return how == RELEASE_ACQUIRE ? SHM_LOAD(p, acquire) : SHM_LOAD(p, seq_cst);
}
static void begin(void) {
    model_shared(&S, sizeof S);
    r[0] = r[1] = r[2] = r[3] = 0;
}

/* SB: each stores its flag, then looks at the other's. The shape of both wake-up handshakes. */
static int how;
static void store_then_look(int first) {
    put(first ? &S.x : &S.y, how);
    if (how == FENCES)
        SHM_FENCE(seq_cst);
    r[first] = get(first ? &S.y : &S.x, how);
}
static void setup_sb(const void *with) {
    begin();
    how = *(const int *)with;
    model_start("left", store_then_look, 0, 0);
    model_start("right", store_then_look, 1, 0);
}
static void check_sb(void) { model_check(r[0] || r[1], "both missed the other's store"); }

/* 2+2W: each stores to both, in opposite orders; neither first store may end up as the last value of both. */
static void store_both(int first) {
    a32 *one = first ? &S.x : &S.y, *other = first ? &S.y : &S.x;
    put(one, how);
    if (how == RELEASE_ACQUIRE)
        SHM_STORE(other, 2, release);
    else
        SHM_STORE(other, 2, seq_cst);
}
static void setup_2w(const void *with) {
    begin();
    how = *(const int *)with;
    model_start("left", store_both, 0, 0);
    model_start("right", store_both, 1, 0);
}
static void check_2w(void) {
    model_check(model_last(&S.x) != 1 || model_last(&S.y) != 1, "both first stores came last");
}

/* MP: a payload, then the flag that announces it. */
static void announce(int unused) {
    (void)unused;
    SHM_STORE(&S.x, 1, relaxed);
    if (how == FENCES)
        SHM_FENCE(release);
    put(&S.flag, how);
}
static void follow(int unused) {
    (void)unused;
    uint32_t seen = get(&S.flag, how);
    if (how == FENCES)
        SHM_FENCE(acquire);
    model_check(!seen || SHM_LOAD(&S.x, relaxed), "announced, but stale");
}
static void setup_mp(const void *with) {
    begin();
    how = *(const int *)with;
    model_start("writer", announce, 0, 0);
    model_start("reader", follow, 0, 0);
}

/* Release sequence: an addition by a third thread does not cut off what the release handed over. */
static void count_up(int unused) {
    (void)unused;
    SHM_ADD(&S.flag, 1, relaxed);
}
static void follow_two(int unused) {
    (void)unused;
    if (SHM_LOAD(&S.flag, acquire) == 2)
        model_check(SHM_LOAD(&S.x, relaxed) == 1, "announced, but stale");
}
static void setup_sequence(const void *with) {
    begin();
    how = *(const int *)with;
    model_start("writer", announce, 0, 0);
    model_start("adder", count_up, 0, 0);
    model_start("reader", follow_two, 0, 0);
}

/* The odd-even seqlock as it is often written for x86: no fence between the odd number and the words. */
static void write_odd_even(int fenced) {
    SHM_STORE(&S.flag, 1, relaxed);
    if (fenced)
        SHM_FENCE(release);
    SHM_STORE(&S.x, 1, relaxed);
    SHM_STORE(&S.y, 1, relaxed);
    SHM_STORE(&S.flag, 2, release);
}
static void read_odd_even(int fenced) {
    uint32_t before = SHM_LOAD(&S.flag, acquire), x = SHM_LOAD(&S.x, relaxed), y = SHM_LOAD(&S.y, relaxed);
    if (fenced)
        SHM_FENCE(acquire);
    if (SHM_LOAD(&S.flag, relaxed) == before && !(before & 1))
        model_check(x == y, "a torn value was taken for whole");
}
static void setup_odd_even(const void *with) {
    begin();
    int fenced = *(const int *)with == FENCES;
    model_start("writer", write_odd_even, fenced, 0);
    model_start("reader", read_odd_even, fenced, 0);
}

/* A futex used without looking again after announcing oneself: z is the futex word, flag says that somebody waits. */
static void change_then_wake(int unused) {
    (void)unused;
    put(&S.z, how);
    if (get(&S.flag, how))
        SHM_FUTEX_WAKE(&S.z, 1);
}
static void wait_for_change(int unused) {
    (void)unused;
    put(&S.flag, how);
    if (get(&S.z, how) == 0)
        SHM_FUTEX_WAIT(&S.z, 0, 0);
}
static void setup_futex(const void *with) {
    begin();
    how = *(const int *)with;
    model_start("changer", change_then_wake, 0, 0);
    model_start("waiter", wait_for_change, 0, 0);
}

static const int relaxed = RELAXED, paired = RELEASE_ACQUIRE, total = SEQ_CST, fenced = FENCES;
#define LITMUS(text, how, set_up, end, found) \
    { .name = text, .with = &(how), .setup = set_up, .at_end = end, .preemptions = 9, .stale = 9, .fails = found }
const scenario scenarios[] = {
    LITMUS("SB, relaxed", relaxed, setup_sb, check_sb, "both missed the other's store"),
    LITMUS("SB, release and acquire", paired, setup_sb, check_sb, "both missed the other's store"),
    LITMUS("SB, seq_cst", total, setup_sb, check_sb, NULL),
    LITMUS("SB, seq_cst fences", fenced, setup_sb, check_sb, NULL),
    LITMUS("2+2W, release", paired, setup_2w, check_2w, "both first stores came last"),
    LITMUS("2+2W, seq_cst", total, setup_2w, check_2w, NULL),
    LITMUS("MP, relaxed", relaxed, setup_mp, NULL, "announced, but stale"),
    LITMUS("MP, release and acquire", paired, setup_mp, NULL, NULL),
    LITMUS("MP, fences", fenced, setup_mp, NULL, NULL),
    LITMUS("MP through an addition", paired, setup_sequence, NULL, NULL),
    LITMUS("MP through an addition, relaxed", relaxed, setup_sequence, NULL, "announced, but stale"),
    LITMUS("odd-even seqlock without fences", relaxed, setup_odd_even, NULL, "a torn value was taken for whole"),
    LITMUS("odd-even seqlock with fences", fenced, setup_odd_even, NULL, NULL),
    LITMUS("futex handshake, release and acquire", paired, setup_futex, NULL, "lost wake-up: a thread sleeps for ever"),
    LITMUS("futex handshake, seq_cst", total, setup_futex, NULL, NULL),
    {0},
};
