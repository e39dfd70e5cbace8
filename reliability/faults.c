/* Preloaded: counts the calls of a process that change what is on the disk below one folder, and lets one of them fail,
   or kills the process just before it. Built and driven by faults.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long counted, fails_at;
static int fails_with; /* an errno; 0: the process is killed */
static int names = -1; /* where the names of the calls go */

/* Watch `path`; the call number `at` fails with `error`, or with 0 kills. Names of calls go to descriptor `log`. */
void fault_watch(const char *path, long at, int error, int log) {
    snprintf(folder, sizeof folder, "%s", path);
    counted = 0;
    fails_at = at;
    fails_with = error;
    names = log;
}

static int below(const char *path) {
    size_t length = strlen(folder);
    return length && path && strncmp(path, folder, length) == 0;
}

static int fd_below(int fd) {
    char link[64], path[PATH_MAX];
    if (!folder[0] || fd == names) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return below(path);
}

/* Whether this call is the one that fails. Those that take files away are counted, too, but never refused. */
static int fails(const char *name) {
    counted++;
    if (names >= 0) {
        syscall(SYS_write, names, name, strlen(name));
        syscall(SYS_write, names, "\n", 1);
    }
    if (counted != fails_at) return 0;
    if (!fails_with) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    if (strcmp(name, "unlink") == 0 || strcmp(name, "unlinkat") == 0 || strcmp(name, "rmdir") == 0) return 0;
    errno = fails_with;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(result, name, parameters, arguments, inside) \
    result name parameters { \
        if ((inside) && fails(#name)) return -1; \
        return REAL(name) arguments; \
    }

WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), fd_below(fd))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), fd_below(fd))
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), fd_below(fd))
WRAP(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count), fd_below(fd))
WRAP(ssize_t, sendfile, (int to, int from, off_t *at, size_t size), (to, from, at, size), fd_below(to))
WRAP(ssize_t, sendfile64, (int to, int from, off64_t *at, size_t size), (to, from, at, size), fd_below(to))
WRAP(ssize_t, copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags),
     (from, a, to, b, size, flags), fd_below(to))
WRAP(int, fsync, (int fd), (fd), fd_below(fd))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), fd_below(fd))
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), fd_below(fd))
WRAP(int, rename, (const char *from, const char *to), (from, to), below(from) || below(to))
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags),
     below(from) || below(to))
WRAP(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), below(from) || below(to))
WRAP(int, link, (const char *from, const char *to), (from, to), below(from) || below(to))
WRAP(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags),
     below(from) || below(to))
WRAP(int, symlink, (const char *to, const char *path), (to, path), below(path))
WRAP(int, flock, (int fd, int operation), (fd, operation), fd_below(fd))
WRAP(int, fdatasync, (int fd), (fd), fd_below(fd))
WRAP(int, fchmod, (int fd, mode_t mode), (fd, mode), fd_below(fd))
WRAP(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), below(path) || fd_below(at))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), below(path))
WRAP(int, chmod, (const char *path, mode_t mode), (path, mode), below(path))

/* Opening for reading changes nothing. */
#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        if (below(path) && (flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC)) && fails(#name)) return -1; \
        return REAL(name)(path, flags, mode); \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        int inside = below(path) || (path[0] != '/' && fd_below(at)); \
        if (inside && (flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC)) && fails(#name)) return -1; \
        return REAL(name)(at, path, flags, mode); \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

int unlink(const char *path) {
    if (below(path)) fails("unlink");
    return REAL(unlink)(path);
}

int unlinkat(int at, const char *path, int flags) {
    if (fd_below(at)) fails("unlinkat");
    return REAL(unlinkat)(at, path, flags);
}

int rmdir(const char *path) {
    if (below(path)) fails("rmdir");
    return REAL(rmdir)(path);
}
