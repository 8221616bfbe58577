/* Calls on files, as libc names them.  What stdio writes goes by calls inside libc that no shim sees, so a stream that
 * is opened for writing is made over `write` here. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fault/shim.h"

static void *real_open, *real_close, *real_write, *real_pwrite, *real_fsync, *real_fdatasync, *real_rename,
    *real_unlink, *real_remove, *real_rmdir, *real_mkdir, *real_ftruncate, *real_posix_fallocate, *real_fopen;

static bool is_file(int fd) {
  struct stat st;
  return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

static int open_at(const char *path, int flags, mode_t mode) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  int error = 0;
  const enum shim_act act = writes ? shim_enter(CALL_OPEN, &error) : ACT_NONE;
  if (act == ACT_FAIL) {
    errno = error;
    return -1;
  }
  disk_lock();
  struct stat st;
  const bool there = !disk_watches(path) || stat(path, &st) == 0;
  const int fd = REAL(open)(path, flags, mode);
  if (fd >= 0) disk_opened(fd, path, !there, (flags & O_TRUNC) != 0);
  disk_unlock();
  shim_leave(act);
  return fd;
}

static mode_t mode_of(int flags, va_list args) {
  return flags & O_CREAT ? (mode_t)va_arg(args, int) : 0;
}

int open(const char *path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = mode_of(flags, args);
  va_end(args);
  return open_at(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = mode_of(flags, args);
  va_end(args);
  return open_at(path, flags, mode);
}

int close(int fd) {
  disk_lock();
  disk_closed(fd);
  const int rc = REAL(close)(fd);
  disk_unlock();
  return rc;
}

/* at < 0: where the descriptor stands. */
static ssize_t write_at(int fd, const void *bytes, size_t length, off_t at) {
  const bool logs = fd == STDOUT_FILENO || fd == STDERR_FILENO;
  int error = 0;
  if (!logs && !is_file(fd)) return REAL(write)(fd, bytes, length);
  const enum shim_act act = shim_enter(logs ? CALL_LOG : CALL_WRITE, &error);
  if (act == ACT_FAIL) {
    errno = error;
    return -1;
  }
  disk_lock();
  const ssize_t n = at < 0 ? REAL(write)(fd, bytes, length) : REAL(pwrite)(fd, bytes, length, at);
  if (n > 0 && disk_has(fd)) disk_wrote(fd, bytes, (size_t)n, at < 0 ? lseek(fd, 0, SEEK_CUR) - n : at);
  disk_unlock();
  shim_leave(act);
  return n;
}

ssize_t write(int fd, const void *bytes, size_t length) { return write_at(fd, bytes, length, -1); }
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) { return write_at(fd, bytes, length, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t at) { return write_at(fd, bytes, length, at); }

static int sync_by(int fd, bool all) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_SYNC, &error);
  if (act == ACT_FAIL) {
    errno = error;
    return -1;
  }
  shim_sync_delay();
  disk_lock();
  const int rc = all ? REAL(fsync)(fd) : REAL(fdatasync)(fd);
  if (rc == 0 && disk_has(fd)) disk_synced(fd);
  disk_unlock();
  shim_leave(act);
  return rc;
}

int fsync(int fd) { return sync_by(fd, true); }
int fdatasync(int fd) { return sync_by(fd, false); }

int rename(const char *from, const char *to) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_RENAME, &error);
  if (act == ACT_FAIL) {
    errno = error;
    return -1;
  }
  disk_lock();
  const int rc = REAL(rename)(from, to);
  if (rc == 0 && disk_watches(from)) disk_renamed(from, to);
  disk_unlock();
  shim_leave(act);
  return rc;
}

static int remove_by(const char *path, int (*call)(const char *path)) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_REMOVE, &error);
  if (act == ACT_FAIL) {
    errno = error;
    return -1;
  }
  disk_lock();
  const int rc = call(path);
  if (rc == 0 && disk_watches(path)) disk_removed(path);
  disk_unlock();
  shim_leave(act);
  return rc;
}

int unlink(const char *path) { return remove_by(path, REAL(unlink)); }
int remove(const char *path) { return remove_by(path, REAL(remove)); }
int rmdir(const char *path) { return remove_by(path, REAL(rmdir)); }

int mkdir(const char *path, mode_t mode) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_MKDIR, &error);
  if (act == ACT_FAIL) {
    errno = error;
    return -1;
  }
  disk_lock();
  const int rc = REAL(mkdir)(path, mode);
  if (rc == 0 && disk_watches(path)) disk_made(path);
  disk_unlock();
  shim_leave(act);
  return rc;
}

static int truncate_to(int fd, off_t size) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_TRUNCATE, &error);
  if (act == ACT_FAIL) {
    errno = error;
    return -1;
  }
  disk_lock();
  const int rc = REAL(ftruncate)(fd, size);
  if (rc == 0 && disk_has(fd)) disk_truncated(fd, size);
  disk_unlock();
  shim_leave(act);
  return rc;
}

int ftruncate(int fd, off_t size) { return truncate_to(fd, size); }
int ftruncate64(int fd, off_t size) { return truncate_to(fd, size); }

int posix_fallocate(int fd, off_t at, off_t length) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_TRUNCATE, &error);
  if (act == ACT_FAIL) return error;
  const int rc = REAL(posix_fallocate)(fd, at, length);
  shim_leave(act);
  return rc;
}

/* ---- streams ---- */

static ssize_t stream_write(void *cookie, const char *bytes, size_t length) {
  const ssize_t n = write((int)(intptr_t)cookie, bytes, length);
  return n < 0 ? 0 : n; /* a cookie says so that it failed */
}

static int stream_close(void *cookie) { return close((int)(intptr_t)cookie); }

FILE *fopen(const char *path, const char *mode) {
  if (mode[0] != 'w' || strchr(mode, '+')) return REAL(fopen)(path, mode);
  const int fd = open_at(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return NULL;
  FILE *file =
      fopencookie((void *)(intptr_t)fd, "w", (cookie_io_functions_t){.write = stream_write, .close = stream_close});
  if (!file) close(fd);
  return file;
}
