/* Locks the database file against a second coordinator. */
#include "services/coordinator/store/database_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

/* SQLite locks its PENDING_BYTE and the 511 bytes behind it. */
enum { SQLITE_LOCKS_END = 0x40000000 + 512, GUARD_AT = SQLITE_LOCKS_END, HOLDER_AT = SQLITE_LOCKS_END + 1 };

static struct flock one_byte(int at) {
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}

/* The process that holds the lock; 0: none, or one that cannot be seen from here. */
static long holder_of(int fd) {
  struct flock byte = one_byte(HOLDER_AT);
  const bool signed_by = fcntl(fd, F_GETLK, &byte) == 0 && byte.l_type != F_UNLCK;
  return signed_by && byte.l_pid > 0 ? (long)byte.l_pid : 0;
}

static enum rc held(const char *path, long holder, struct err *err) {
  char process[40] = "";
  if (holder) snprintf(process, sizeof process, " (process %ld)", holder);
  return err_set(err, RC_CONFLICT, "db",
                 "another coordinator%s has the database %s open: stop it, or give --db another", process, path);
}

enum rc database_lock_take(int *out, const char *path, struct err *err) {
  struct flock guard = one_byte(GUARD_AT);
  *out = -1;
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return err_set_errno(err, RC_IO, "the database %s cannot be opened", path);
  if (fcntl(fd, F_OFD_SETLK, &guard) == 0) {
    *out = fd;
    return RC_OK;
  }
  const enum rc rc = errno == EAGAIN || errno == EACCES
                         ? held(path, holder_of(fd), err)
                         : err_set_errno(err, RC_IO, "the database %s cannot be locked", path);
  close(fd);
  return rc;
}

void database_lock_sign(int fd) {
  struct flock byte = one_byte(HOLDER_AT);
  fcntl(fd, F_SETLK, &byte); /* this process's lock, which names it; the guard does not depend on it */
}

void database_lock_release(int fd) {
  if (fd >= 0) close(fd);
}
