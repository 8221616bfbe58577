/* Takes locks on files. */
#include "common/base/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

static struct flock one_byte(int64_t at) {
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}

static long holder_of(int fd, int64_t at) {
  struct flock byte = one_byte(at + 1);
  const bool signed_by = fcntl(fd, F_GETLK, &byte) == 0 && byte.l_type != F_UNLCK;
  return signed_by && byte.l_pid > 0 ? (long)byte.l_pid : 0;
}

enum rc file_lock_take(int *out, long *holder, const char *path, int64_t at, struct err *err) {
  struct flock guard = one_byte(at);
  *out = -1;
  *holder = 0;
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return err_set_errno(err, RC_IO, "%s cannot be opened", path);
  if (fcntl(fd, F_OFD_SETLK, &guard) == 0) {
    *out = fd;
    return RC_OK;
  }
  const bool held = errno == EAGAIN || errno == EACCES;
  const enum rc rc = held ? RC_CONFLICT : err_set_errno(err, RC_IO, "%s cannot be locked", path);
  if (held) *holder = holder_of(fd, at);
  close(fd);
  return rc;
}

void file_lock_sign(int fd, int64_t at) {
  struct flock byte = one_byte(at + 1);
  fcntl(fd, F_SETLK, &byte);
}

void file_lock_release(int fd) {
  if (fd >= 0) close(fd);
}
