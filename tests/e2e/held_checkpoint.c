/* Preloaded into a trainer: no checkpoint's folder is made while the file that HELD names is there; one that waits
 * makes the file WAITS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int mkdir(const char *path, mode_t mode) {
  int (*const real)(const char *, mode_t) = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
  const char *const held = getenv("HELD"), *const waits = getenv("WAITS");
  while (held && waits && strstr(path, ".partial-") && access(held, F_OK) == 0) {
    close(open(waits, O_WRONLY | O_CREAT, 0644));
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  return real(path, mode);
}
