/* A process's own time of day: preloaded, it adds the seconds in the file CLOCK_FILE (a long) to the system's.
 *
 * What waits for a condition until a time of day waits until this clock shows it. Clocks that are no time of day are
 * left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define BEFORE_ANY_TIME_OF_DAY 1000000000 /* seconds; a time since the start of the machine is less */
#define STEP 20000000 /* nanoseconds, after which a jump is noticed */

static const volatile long *ahead;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) ahead = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int answer = (int)syscall(SYS_clock_gettime, clock, now);
    if (!answer && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead ? *ahead : 0;
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *also) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (also) *also = now.tv_sec;
    return now.tv_sec;
}

/* As the kernel waits for a time of day: until the clock shows it, however it is set meanwhile. */
typedef int (*wait_function)(void *, void *, const struct timespec *);

static int wait_until(wait_function wait, void *condition, void *mutex, const struct timespec *until, int over) {
    for (;;) {
        struct timespec now, step;
        clock_gettime(CLOCK_REALTIME, &now);
        if (now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec)) return over;
        long long left = (until->tv_sec - now.tv_sec) * 1000000000LL + until->tv_nsec - now.tv_nsec;
        syscall(SYS_clock_gettime, CLOCK_REALTIME, &step);
        step.tv_nsec += left < STEP ? left : STEP;
        if (step.tv_nsec >= 1000000000L) step.tv_sec++, step.tv_nsec -= 1000000000L;
        int answer = wait(condition, mutex, &step);
        if (answer != over) return answer;
    }
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static wait_function wait;
    if (!wait) wait = (wait_function)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (until->tv_sec < BEFORE_ANY_TIME_OF_DAY) return wait(condition, mutex, until);
    return wait_until(wait, condition, mutex, until, ETIMEDOUT);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    static wait_function wait;
    if (!wait) wait = (wait_function)dlsym(RTLD_NEXT, "cnd_timedwait");
    return wait_until(wait, condition, mutex, until, thrd_timedout);
}
