/* The log of what a service does to the files under one folder (SHIM_ROOT), from which disk.py makes what a power loss
 * leaves.
 *
 * An entry is a struct entry and `length` bytes: a path, two paths with a NUL between them, or what was written.  A
 * file is named by the descriptor that it was opened as.  SQLite's -shm is left out: it is mapped, and rebuilt. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/fault/shim.h"

enum { FD_MAX = 4096 };

struct entry {
  char what; /* o(pen) O(pen, created) T(runcated by open) c(lose) w(rite) t(runcate) s(ync) r(ename) u(nlink) m(kdir)
              * M(ark) */
  char unused[3];
  int32_t fd;
  int64_t at;
  int64_t length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool watched[FD_MAX];
static char root[1024];
static size_t root_length;
static int log_fd = -1;

bool disk_watches(const char *path) {
  if (log_fd < 0 || strncmp(path, root, root_length) != 0) return false;
  const size_t length = strlen(path);
  if (path[root_length] != '/' && path[root_length] != '\0') return false;
  return length < 4 || strcmp(path + length - 4, "-shm") != 0;
}

bool disk_has(int fd) { return log_fd >= 0 && fd >= 0 && fd < FD_MAX && watched[fd]; }
void disk_lock(void) {
  if (log_fd >= 0) pthread_mutex_lock(&lock);
}
void disk_unlock(void) {
  if (log_fd >= 0) pthread_mutex_unlock(&lock);
}

static void put(char what, int fd, off_t at, const void *bytes, size_t length) {
  const int saved = errno;
  struct entry e = {.what = what, .fd = fd, .at = at, .length = (int64_t)length};
  struct iovec parts[2] = {{&e, sizeof e}, {(void *)(uintptr_t)bytes, length}};
  (void)!syscall(SYS_writev, log_fd, parts, length ? 2 : 1);
  errno = saved;
}

void disk_opened(int fd, const char *path, bool created, bool truncated) {
  if (fd < 0 || fd >= FD_MAX || !disk_watches(path)) return;
  watched[fd] = true;
  put(created ? 'O' : truncated ? 'T' : 'o', fd, 0, path, strlen(path));
}

void disk_closed(int fd) {
  if (!disk_has(fd)) return;
  watched[fd] = false;
  put('c', fd, 0, NULL, 0);
}

void disk_wrote(int fd, const void *bytes, size_t length, off_t at) { put('w', fd, at, bytes, length); }
void disk_truncated(int fd, off_t size) { put('t', fd, size, NULL, 0); }
void disk_synced(int fd) { put('s', fd, 0, NULL, 0); }

void disk_renamed(const char *from, const char *to) {
  char both[2048];
  const size_t a = strlen(from), b = strlen(to);
  if (a + b + 1 > sizeof both) return;
  memcpy(both, from, a + 1);
  memcpy(both + a + 1, to, b);
  put('r', -1, 0, both, a + b + 1);
}

void disk_removed(const char *path) { put('u', -1, 0, path, strlen(path)); }
void disk_made(const char *path) { put('m', -1, 0, path, strlen(path)); }

void disk_mark(const char *what) {
  if (log_fd < 0) return;
  disk_lock();
  put('M', -1, 0, what, strlen(what));
  disk_unlock();
}

__attribute__((constructor)) static void disk_begin(void) {
  const char *folder = getenv("SHIM_ROOT"), *path = getenv("SHIM_DISK");
  if (!folder || !path || strlen(folder) >= sizeof root) return;
  log_fd = (int)syscall(SYS_open, path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0644);
  strcpy(root, folder);
  root_length = strlen(root);
  disk_mark("start"); /* descriptors are counted anew */
}
