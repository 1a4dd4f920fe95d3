/* Named points of the worker's loop at which tests kill it. In the product they are nothing at all; the tests compile
 * the loop once more, with SHM_POINTS. */
#ifndef SHM_POINTS_H
#define SHM_POINTS_H

enum { SHM_TAKEN = 1, SHM_HALF_WRITTEN = 2, SHM_ENDED = 3, SHM_WRITTEN = 4, SHM_PUBLISHED = 5, SHM_POSTED = 6 };

#ifdef SHM_POINTS
#include <signal.h>
#include <unistd.h>
/* The point at which this process ends next, 0 for none. Set by the test's env, by name in the loaded module. */
__attribute__((visibility("default"))) int shm_armed;
static inline void shm_point(int here) {
    if (here == shm_armed)
        kill(getpid(), SIGKILL);
}
#else
#define shm_point(here) ((void)0)
#endif
#endif
