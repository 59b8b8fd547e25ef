/* Refuses chosen calls of the system, as a file system without locks does, or a disk that is away.

   Loaded before the C library (LD_PRELOAD). Which calls, to files of which name, from the how manieth on and with which
   error is read from the environment at each call; without TROUBLE every call goes through. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long met;

void trouble_begins_anew(void) { met = 0; }

static int ends_with(const char *path, const char *ending) {
    size_t length = strlen(path), wanted = strlen(ending);
    return length >= wanted && !strcmp(path + length - wanted, ending);
}

static int is_refused(const char *call, const char *path) {
    const char *trouble = getenv("TROUBLE"), *ending = getenv("TROUBLE_ENDING"), *from = getenv("TROUBLE_FROM");
    if (!trouble || strcmp(trouble, call) || (ending && !ends_with(path, ending))) return 0;
    if (++met < (from ? atol(from) : 1)) return 0;
    errno = atoi(getenv("TROUBLE_ERRNO"));
    return 1;
}

static int is_refused_to(const char *call, int descriptor) {
    char link[64], path[4096];
    if (!getenv("TROUBLE")) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return is_refused(call, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int flock(int descriptor, int operation) {
    return is_refused_to("lock", descriptor) ? -1 : NEXT(flock)(descriptor, operation);
}

#define FCNTL(name)                                                                                      \
    int name(int descriptor, int command, ...) {                                                         \
        va_list rest;                                                                                    \
        va_start(rest, command);                                                                         \
        void *argument = va_arg(rest, void *);                                                           \
        va_end(rest);                                                                                    \
        int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW; \
        return locks && is_refused_to("lock", descriptor) ? -1 : NEXT(name)(descriptor, command, argument); \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

#define OPEN(name)                                                       \
    int name(const char *path, int flags, ...) {                         \
        va_list rest;                                                    \
        va_start(rest, flags);                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                    \
        return is_refused("open", path) ? -1 : NEXT(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

ssize_t read(int descriptor, void *content, size_t size) {
    return is_refused_to("read", descriptor) ? -1 : NEXT(read)(descriptor, content, size);
}

ssize_t pread(int descriptor, void *content, size_t size, off_t offset) {
    return is_refused_to("read", descriptor) ? -1 : NEXT(pread)(descriptor, content, size, offset);
}

ssize_t pread64(int descriptor, void *content, size_t size, off64_t offset) {
    return is_refused_to("read", descriptor) ? -1 : NEXT(pread64)(descriptor, content, size, offset);
}
