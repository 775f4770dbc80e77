/* CubeCL's CPU runtime takes the size of the L1 data cache for the shared memory of a cube. Where that is 32 KiB, Burn finds no kernel for some
 * products in bf16 ("Shared memory budget exceeded"), and no GPU has so little. Where the runtime cannot read the size, it takes 64 KiB. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>

static const char CACHES[] = "/sys/devices/system/cpu/cpu0/cache/";

int open64(const char *path, int flags, ...) {
  static int (*next)(const char *, int, ...);
  mode_t mode = 0;
  va_list rest;
  if (!strncmp(path, CACHES, sizeof CACHES - 1)) return errno = ENOENT, -1;
  va_start(rest, flags);
  if (flags & (O_CREAT | O_TMPFILE)) mode = va_arg(rest, mode_t);
  va_end(rest);
  if (!next) next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
  return next(path, flags, mode);
}
