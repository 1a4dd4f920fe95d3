/* What the core does for one lock-step batch, in one thread: the manager's calls and the workers', over the real
 * headers. Each function here is one part; callgrind.py has its instructions counted. Nobody parks, so no system call
 * is made, and the counts are the same in every run.
 *
 * usage: callgrind BATCHES; exit code 0: every answer came. */
#include "channel.h"
#include "row.h"
#include <stdlib.h>

enum { START = 0xFFFFFFF0, SHARE = ENVS / WORKERS };

static struct {
    shm_semaphore results;
    shm_worker worker[WORKERS];
    SHM_ALIGNED a32 cmd[ENVS];
    SHM_ALIGNED a32 rsp[ENVS];
    SHM_ALIGNED uint32_t op[ENVS];
} P;
static uint32_t given[ENVS], answered[ENVS], seen[WORKERS];

static uint32_t count_answers(void *unused) {
    uint32_t found = 0;
    (void)unused;
    for (int env = 0; env < ENVS; env++)
        found += (uint32_t)shm_answered(&P.rsp[env], given[env]);
    return found;
}

#define PART __attribute__((noinline)) void
PART give_commands(void) {
    for (int env = 0; env < ENVS; env++) {
        P.op[env] = SHM_OP_STEP;
        shm_command(&P.cmd[env], ++given[env]);
    }
}
PART ring_bells(void) {
    for (int w = 0; w < WORKERS; w++)
        shm_ring_bell(&P.worker[w], 0);
}
static inline int scan_commands(void) {
    int found = 0;
    for (int w = 0; w < WORKERS; w++) {
        seen[w] = shm_bell(&P.worker[w]);
        for (int env = w * SHARE; env < (w + 1) * SHARE && shm_order(&P.worker[w]) == SHM_RUN; env++) {
            uint32_t n = shm_commanded(&P.cmd[env]);
            if (n != answered[env]) {
                shm_doing(&P.worker[w], n, (uint32_t)env, SHM_STEP, 0);
                answered[env] = n;
                found++;
            }
        }
    }
    return found;
}
PART take_commands(void) {
    if (scan_commands() != ENVS)
        exit(1);
}
PART find_none(void) {
    if (scan_commands() != 0)
        exit(1);
}
PART answer(void) {
    for (int w = 0; w < WORKERS; w++) {
        for (int env = w * SHARE; env < (w + 1) * SHARE; env++) {
            shm_count_step(&P.worker[w]);
            shm_respond(&P.rsp[env], answered[env]);
        }
        shm_post(&P.results, SHARE);
    }
}
PART account(void) {
    static const shm_wait wait;
    for (int w = 0; w < WORKERS; w++) {
        shm_note_core(&P.worker[w], (uint32_t)w);
        shm_account(&P.worker[w], 1, 1, &wait);
        shm_doing_nothing(&P.worker[w], seen[w]);
    }
}
PART await_answers(void) {
    shm_wait wait = {.deadline_ns = 0};
    uint32_t found;
    if (shm_await(&P.results, ENVS, 0, count_answers, NULL, &wait, &found) != SHM_READY)
        exit(1);
}

int main(int argc, char **argv) {
    for (int env = 0; env < ENVS; env++)
        P.cmd[env] = P.rsp[env] = given[env] = answered[env] = START;
    for (long left = argc > 1 ? strtol(argv[1], NULL, 10) : 1; left > 0; left--) {
        give_commands();
        ring_bells();
        take_commands();
        answer();
        find_none();
        account();
        await_answers();
    }
    return 0;
}
