/* Makes one call of a process and its children fail, once. Loaded by LD_PRELOAD; see operations.py.
 *
 * A file that the test maps as well, named by FLAFKA_FAILING, says which call: the `countdown`-th of its kind. Calls
 * are counted from the moment on at which the file named by `trigger` is opened, if there is one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN, WRITE, FORK, MAP, KINDS };

struct page {
    _Atomic int64_t counting;  /* whether the trigger has been opened, or there is none */
    _Atomic int64_t kind;      /* which kind fails; -1: none */
    _Atomic int64_t countdown; /* calls until the one that fails */
    int64_t error;             /* its errno */
    _Atomic int64_t fired;
    _Atomic int64_t calls[KINDS];
    char where[256]; /* call, thread and path */
    char trigger[1024];
};

static struct page *page;

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("FLAFKA_FAILING");
    if (name == NULL)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    void *mapped = (void *)syscall(SYS_mmap, NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (mapped != MAP_FAILED)
        page = mapped;
}

static int fails(enum kind kind, const char *call, const char *path)
{
    if (page == NULL)
        return 0;
    if (!page->counting) {
        if (path == NULL || page->trigger[0] == 0 || strcmp(path, page->trigger) != 0)
            return 0;
        page->counting = 1;
    }
    page->calls[kind]++;
    if (page->kind != kind || atomic_fetch_sub(&page->countdown, 1) != 1)
        return 0;
    char thread[32] = "";
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    snprintf(page->where, sizeof page->where, "%s in %d %s: %s", call, (int)getpid(), thread, path ? path : "");
    page->fired = 1;
    errno = (int)page->error;
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (real == NULL) \
        real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPENING(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(int, name, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return fails(OPEN, #name, path) ? -1 : real(path, flags, mode); \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name) \
    int name(int at, const char *path, int flags, ...) \
    { \
        REAL(int, name, int, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return fails(OPEN, #name, path) ? -1 : real(at, path, flags, mode); \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

#define CALL(type, failed, kind, name, path, parameters, arguments, ...) \
    type name parameters \
    { \
        REAL(type, name, __VA_ARGS__); \
        return fails(kind, #name, path) ? (type)(failed) : real arguments; \
    }
CALL(FILE *, NULL, OPEN, fopen, path, (const char *path, const char *mode), (path, mode), const char *, const char *)
CALL(FILE *, NULL, OPEN, fopen64, path, (const char *path, const char *mode), (path, mode), const char *, const char *)
CALL(int, -1, OPEN, socket, NULL, (int domain, int type, int protocol), (domain, type, protocol), int, int, int)
CALL(int, -1, OPEN, socketpair, NULL, (int d, int t, int p, int *v), (d, t, p, v), int, int, int, int *)
CALL(int, -1, OPEN, accept, NULL, (int fd, struct sockaddr *a, socklen_t *l), (fd, a, l), int, struct sockaddr *,
     socklen_t *)
CALL(int, -1, OPEN, accept4, NULL, (int fd, struct sockaddr *a, socklen_t *l, int f), (fd, a, l, f), int,
     struct sockaddr *, socklen_t *, int)
CALL(int, -1, OPEN, pipe2, NULL, (int *v, int f), (v, f), int *, int)
CALL(int, -1, OPEN, eventfd, NULL, (unsigned n, int f), (n, f), unsigned, int)
CALL(int, -1, OPEN, epoll_create1, NULL, (int f), (f), int)
CALL(int, -1, OPEN, inotify_init1, NULL, (int f), (f), int)
CALL(int, -1, OPEN, dup, NULL, (int fd), (fd), int)

/* The campaign reads from the log which agents run and on which ports; a line that cannot be written is left out. */
ssize_t write(int fd, const void *from, size_t size)
{
    REAL(ssize_t, write, int, const void *, size_t);
    return fd != STDERR_FILENO && fails(WRITE, "write", NULL) ? -1 : real(fd, from, size);
}

CALL(ssize_t, -1, WRITE, pwrite, NULL, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), int, const void *,
     size_t, off_t)
CALL(ssize_t, -1, WRITE, pwrite64, NULL, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o), int,
     const void *, size_t, off64_t)
CALL(ssize_t, -1, WRITE, writev, NULL, (int fd, const struct iovec *v, int n), (fd, v, n), int, const struct iovec *,
     int)
CALL(int, -1, WRITE, fsync, NULL, (int fd), (fd), int)
CALL(int, -1, WRITE, fdatasync, NULL, (int fd), (fd), int)
CALL(int, -1, WRITE, ftruncate64, NULL, (int fd, off64_t n), (fd, n), int, off64_t)
CALL(int, -1, WRITE, rename, to, (const char *from, const char *to), (from, to), const char *, const char *)
CALL(int, -1, WRITE, mkdir, path, (const char *path, mode_t mode), (path, mode), const char *, mode_t)

CALL(pid_t, -1, FORK, fork, NULL, (void), (), void)
/* A function cannot return to the caller of vfork twice: fork does the same, more slowly. */
pid_t vfork(void)
{
    return fork();
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    REAL(int, pthread_create, pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    return fails(FORK, "pthread_create", NULL) ? EAGAIN : real(thread, attributes, run, argument);
}

CALL(void *, MAP_FAILED, MAP, mmap, NULL, (void *a, size_t n, int p, int f, int fd, off_t o), (a, n, p, f, fd, o),
     void *, size_t, int, int, int, off_t)
CALL(void *, MAP_FAILED, MAP, mmap64, NULL, (void *a, size_t n, int p, int f, int fd, off64_t o), (a, n, p, f, fd, o),
     void *, size_t, int, int, int, off64_t)
