/* Every call to the operating system that the core makes: clock, futex, memory, process handles. A port to another
 * system replaces this file. Functions return 0 or a value, or -errno. */
#ifndef SHM_OS_H
#define SHM_OS_H
#ifndef __linux__
#error "shmenv needs Linux: it is built on futex, memfd and pidfd"
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int64_t os_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}
static inline void os_yield(void) { sched_yield(); }
static inline uint32_t os_core(void) { return (uint32_t)sched_getcpu(); } /* the core this thread runs on just now */

/* Futex words are shared between processes: never FUTEX_PRIVATE_FLAG, whose wake-ups stay inside one process. */
enum { OS_WOKEN = 0, OS_TIMED_OUT = 1, OS_INTERRUPTED = 2 };
static inline int os_futex_wait(uint32_t *word, uint32_t expected, int64_t ns) {
    struct timespec span = {ns / INT64_C(1000000000), ns % INT64_C(1000000000)};
    if (syscall(SYS_futex, word, FUTEX_WAIT, expected, &span, NULL, 0) == 0 || errno == EAGAIN)
        return OS_WOKEN;
    return errno == ETIMEDOUT ? OS_TIMED_OUT : OS_INTERRUPTED;
}
static inline void os_futex_wake(uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

/* A nameless, unsized block of shared memory, mode 0600, close-on-exec: nothing to leak, nothing to find. */
static inline int os_memory(const char *label) {
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
    int fd = (int)syscall(SYS_memfd_create, label, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3; from then on a system may insist on it */
        fd = (int)syscall(SYS_memfd_create, label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0) {
        fchmod(fd, 0600); /* it has no name: the mode only shows in /proc */
        return fd;
    }
    /* refused by a seccomp filter or an old kernel: a name that lives for two system calls */
    char name[64];
    for (int attempt = 0; attempt < 16; attempt++) {
        snprintf(name, sizeof name, "/shmenv-%d-%lld", (int)getpid(), (long long)os_now_ns());
        fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0) {
            shm_unlink(name);
            return fd;
        }
        if (errno != EEXIST)
            break;
    }
    return -errno;
}
static inline int os_resize(int fd, int64_t size) { return ftruncate(fd, size) == 0 ? 0 : -errno; }
/* Reserves every page now: running out is an error here, not a SIGBUS at some later store. -EINTR: call again. */
static inline int os_reserve(int fd, int64_t offset, int64_t length) { return -posix_fallocate(fd, offset, length); }
/* Gives the pages back; the range reads as zeros. */
static inline int os_release(int fd, int64_t offset, int64_t length) {
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length) == 0 ? 0 : -errno;
}
/* The size is final: no holder of the descriptor can take pages away under a mapping. Where sealing is not offered
 * (shm_open) this is said by -EPERM or -EINVAL. */
static inline int os_seal(int fd) {
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 ? 0 : -errno;
}
static inline void *os_map(int fd, int64_t size) {
    void *base = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return base == MAP_FAILED ? NULL : base;
}
static inline void os_unmap(void *base, int64_t size) { munmap(base, (size_t)size); }

static inline int os_pidfd(int pid) {
    int fd = (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec by itself */
    return fd >= 0 ? fd : -errno;
}
/* The group that this process leads, and no other: kill(0) would reach the manager's, had setpgid failed. */
static inline void os_kill_own_group(void) {
    kill(-getpid(), SIGKILL);
    kill(getpid(), SIGKILL);
}
/* What ends another thread's poll. */
static inline int os_event(void) {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return fd >= 0 ? fd : -errno;
}
static inline void os_notify(int event) {
    (void)eventfd_write(event, 1); /* full: it is readable already */
}
static inline void os_drain(int event) {
    eventfd_t count;
    (void)eventfd_read(event, &count);
}
/* To one process, and to the group it leads. */
static inline void os_signal(int pidfd, int number) { syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0); }
static inline void os_kill_group(int pidfd, int pid) {
    kill(-pid, SIGKILL);
    os_signal(pidfd, SIGKILL); /* it may not lead its group yet */
}
static inline int64_t os_size(int fd) {
    struct stat s;
    return fstat(fd, &s) == 0 ? s.st_size : 0;
}
static inline int os_poll(struct pollfd *fds, int count, int timeout_ms) {
    int n = poll(fds, (nfds_t)count, timeout_ms);
    return n >= 0 ? n : -errno;
}
#endif
