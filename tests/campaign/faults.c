/* A disk that fails and a clock that jumps, for one process: loaded before the C library, it counts what the process does to
 * files under a folder and lets one of these fail.
 *
 * FAULT_ROOT   the folder; relative paths are taken to be in it
 * FAULT_KIND   "write": what changes files is counted; "read": files that are opened to be read
 * FAULT_AT     the number of the one that fails, from 1; 0 for none
 * FAULT_FOR    how many fail from there on
 * FAULT_ERRNO  what it fails with
 * FAULT_COUNT  the file that gets the count at the end
 * FAULT_CLOCK  seconds that the time of day jumps back and forth by
 * FAULT_SLEEP  seconds that the time since the start of the machine jumps forward by when it is asked for the FAULT_AT-th time
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILES 65536

static const char *root, *counted;
static int writes, error;
static long first, length, jump, sleep_for;
static atomic_long count, calls, looks;
static atomic_char ours[FILES];

__attribute__((constructor)) static void begin(void) {
    const char *kind = getenv("FAULT_KIND"), *at = getenv("FAULT_AT"), *number = getenv("FAULT_ERRNO");
    const char *many = getenv("FAULT_FOR"), *seconds = getenv("FAULT_CLOCK"), *slept = getenv("FAULT_SLEEP");
    writes = kind && strcmp(kind, "write") == 0;
    first = at ? atol(at) : 0;
    length = many ? atol(many) : 1;
    error = number ? atoi(number) : EIO;
    jump = seconds ? atol(seconds) : 0;
    sleep_for = slept ? atol(slept) : 0;
    root = kind ? getenv("FAULT_ROOT") : NULL;
    counted = getenv("FAULT_COUNT");
    /* Programs that this one starts are left alone. */
    unsetenv("LD_PRELOAD");
}

static int fails(void) {
    long number = atomic_fetch_add(&count, 1) + 1;
    if (first > 0 && number >= first && number < first + length) {
        errno = error;
        return 1;
    }
    return 0;
}

static int is_ours(const char *path) {
    return root && path && (path[0] != '/' || strncmp(path, root, strlen(root)) == 0);
}

static int holds(int file) {
    return file >= 0 && file < FILES && atomic_load(&ours[file]);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int opened(int file, const char *path, int flags) {
    int writing = (flags & O_ACCMODE) != O_RDONLY;
    if (file >= 0 && file < FILES)
        atomic_store(&ours[file], writing && is_ours(path));
    return file;
}

/* Folders are opened too, to be listed and synced: that is neither. */
static int open_fails(const char *path, int flags) {
    int writing = (flags & O_ACCMODE) != O_RDONLY;
    return is_ours(path) && writing == writes && !(flags & O_DIRECTORY) && fails();
}

#define OPEN(name)                                                                                                             \
    int name(const char *path, int flags, ...) {                                                                               \
        va_list rest;                                                                                                          \
        va_start(rest, flags);                                                                                                 \
        mode_t mode = va_arg(rest, mode_t);                                                                                    \
        va_end(rest);                                                                                                          \
        return open_fails(path, flags) ? -1 : opened(NEXT(name)(path, flags, mode), path, flags);                              \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                           \
    int name(int folder, const char *path, int flags, ...) {                                                                   \
        va_list rest;                                                                                                          \
        va_start(rest, flags);                                                                                                 \
        mode_t mode = va_arg(rest, mode_t);                                                                                    \
        va_end(rest);                                                                                                          \
        return open_fails(path, flags) ? -1 : opened(NEXT(name)(folder, path, flags, mode), path, flags);                      \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int file) {
    if (file >= 0 && file < FILES)
        atomic_store(&ours[file], 0);
    return NEXT(close)(file);
}

ssize_t write(int file, const void *bytes, size_t size) {
    return writes && holds(file) && fails() ? -1 : NEXT(write)(file, bytes, size);
}

ssize_t writev(int file, const struct iovec *parts, int number) {
    return writes && holds(file) && fails() ? -1 : NEXT(writev)(file, parts, number);
}

ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t at) {
    return writes && holds(file) && fails() ? -1 : NEXT(pwrite64)(file, bytes, size, at);
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *place, size_t size, unsigned flags) {
    return writes && holds(to) && fails() ? -1 : NEXT(copy_file_range)(from, at, to, place, size, flags);
}

int fsync(int file) {
    return writes && holds(file) && fails() ? -1 : NEXT(fsync)(file);
}

int fdatasync(int file) {
    return writes && holds(file) && fails() ? -1 : NEXT(fdatasync)(file);
}

int ftruncate64(int file, off64_t size) {
    return writes && holds(file) && fails() ? -1 : NEXT(ftruncate64)(file, size);
}

int mkdir(const char *path, mode_t mode) {
    return writes && is_ours(path) && fails() ? -1 : NEXT(mkdir)(path, mode);
}

int rename(const char *from, const char *to) {
    return writes && is_ours(to) && fails() ? -1 : NEXT(rename)(from, to);
}

int symlink(const char *from, const char *to) {
    return writes && is_ours(to) && fails() ? -1 : NEXT(symlink)(from, to);
}

int unlink(const char *path) {
    return writes && is_ours(path) && fails() ? -1 : NEXT(unlink)(path);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = NEXT(clock_gettime)(clock, time);
    if (jump && clock == CLOCK_REALTIME)
        time->tv_sec += atomic_fetch_add(&calls, 1) % 2 ? jump : -jump;
    if (sleep_for && clock == CLOCK_MONOTONIC && atomic_fetch_add(&looks, 1) + 1 >= first)
        time->tv_sec += sleep_for;
    return result;
}

__attribute__((destructor)) static void end(void) {
    FILE *file = counted ? fopen(counted, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", atomic_load(&count));
        fclose(file);
    }
}
