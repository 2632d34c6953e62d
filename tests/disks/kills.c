/* Ends the process at a moment of its writes below a directory: loaded before libc, it sees what Python, RocksDB and
 * Arrow write alike. Each call that changes a file or a directory is a moment, before it begins; in the middle of a
 * write is another one. What RocksDB tells its users (the file LOG) does not count. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char under[PATH_MAX];
static atomic_long seen, chosen;

/* Count moments below a directory, and end the process at the chosen one; 0: only count. */
void disks_arm(const char *directory, long moment) {
    snprintf(under, sizeof under, "%s/", directory);
    seen = 0;
    chosen = moment;
}

static int ours(const char *path) {
    size_t length = strlen(path);
    if (!*under || strncmp(path, under, strlen(under))) return 0;
    return length < 4 || strcmp(path + length - 4, "/LOG");
}

static int ours_open(int descriptor) {
    char link[64], path[PATH_MAX];
    if (!*under) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 2);
    if (length < 0) return 0;
    path[length] = 0;
    if (!strcmp(path + length - (length >= 4 ? 4 : 0), "/LOG")) return 0;
    strcat(path, "/"); /* The directory itself is ours too. */
    return !strncmp(path, under, strlen(under));
}

static int ours_at(int directory, const char *path) { return *path == '/' ? ours(path) : ours_open(directory); }

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static int is_chosen(void) { return atomic_fetch_add(&seen, 1) + 1 == chosen; }

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = dlsym(RTLD_NEXT, #name)
#define MOMENT(condition) \
    if ((condition) && is_chosen()) die()

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        REAL(name); \
        MOMENT((flags & (O_CREAT | O_TRUNC)) && ours(path)); \
        return real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define WRITE(name, call_half, call, ...) \
    ssize_t name(int descriptor, __VA_ARGS__) { \
        REAL(name); \
        if (ours_open(descriptor)) { \
            MOMENT(1); \
            if (is_chosen()) { \
                call_half; \
                die(); \
            } \
        } \
        return call; \
    }
WRITE(write, real(descriptor, data, size / 2), real(descriptor, data, size), const void *data, size_t size)
WRITE(pwrite, real(descriptor, data, size / 2, at), real(descriptor, data, size, at), const void *data, size_t size,
      off_t at)
WRITE(pwrite64, real(descriptor, data, size / 2, at), real(descriptor, data, size, at), const void *data, size_t size,
      off64_t at)
WRITE(writev, real(descriptor, parts, count / 2), real(descriptor, parts, count), const struct iovec *parts, int count)

#define ON_OPEN(name, call, ...) \
    int name(int descriptor __VA_ARGS__) { \
        REAL(name); \
        MOMENT(ours_open(descriptor)); \
        return call; \
    }
#define COMMA ,
ON_OPEN(fsync, real(descriptor))
ON_OPEN(fdatasync, real(descriptor))
ON_OPEN(ftruncate, real(descriptor, size), COMMA off_t size)
ON_OPEN(ftruncate64, real(descriptor, size), COMMA off64_t size)

#define ON_PATH(name, where, call, ...) \
    int name(__VA_ARGS__) { \
        REAL(name); \
        MOMENT(where); \
        return call; \
    }
ON_PATH(rename, ours(to), real(path, to), const char *path, const char *to)
ON_PATH(renameat, ours_at(there, to), real(here, path, there, to), int here, const char *path, int there, const char *to)
ON_PATH(link, ours(to), real(path, to), const char *path, const char *to)
ON_PATH(unlink, ours(path), real(path), const char *path)
ON_PATH(unlinkat, ours_at(here, path), real(here, path, flags), int here, const char *path, int flags)
ON_PATH(rmdir, ours(path), real(path), const char *path)
ON_PATH(mkdir, ours(path), real(path, mode), const char *path, mode_t mode)
