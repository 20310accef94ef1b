/* A clock of the day that jumps: preloaded into every process of a run, it adds the seconds that a file holds.

   cc -shared -fPIC -O2 -o shifted_clock.so shifted_clock.c -ldl
   LD_PRELOAD=shifted_clock.so SHIFTED_CLOCK=FILE command

   The file holds one 64-bit number of seconds; writing another one makes all clocks jump. Monotonic clocks go on as
   they are, as they do where somebody sets a machine's clock. Times at which waits end are shifted back: the kernel
   would have moved them along. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Monotonic clocks begin when a machine starts: none has been up for thirty years. */
#define IS_OF_THE_DAY(at) ((at)->tv_sec > 1000000000)

static volatile int64_t none, *seconds = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) seconds = page;
    close(file);
}

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*plain)(clockid_t, struct timespec *);
    if (!plain) plain = next("clock_gettime");
    int failed = plain(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *seconds;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    static int (*plain)(struct timeval *, void *);
    if (!plain) plain = next("gettimeofday");
    int failed = plain(now, zone);
    if (!failed) now->tv_sec += *seconds;
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

static struct timespec unshifted(const struct timespec *at) {
    struct timespec plain = *at;
    if (IS_OF_THE_DAY(at)) plain.tv_sec -= *seconds;
    return plain;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *at) {
    static int (*plain)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    /* Without a version, an ancient one with conditions of another size may be found. */
    if (!plain) plain = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!plain) plain = next("pthread_cond_timedwait");
    struct timespec then = unshifted(at);
    return plain(condition, mutex, &then);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *at) {
    static int (*plain)(sem_t *, const struct timespec *);
    if (!plain) plain = next("sem_timedwait");
    struct timespec then = unshifted(at);
    return plain(semaphore, &then);
}
