/* Locks the database file against a second coordinator. */
#include "services/coordinator/store/database_lock.h"

#include <stdio.h>

#include "common/base/file_lock.h"

/* SQLite locks its PENDING_BYTE and the 511 bytes behind it. */
enum { SQLITE_LOCKS_END = 0x40000000 + 512, GUARD_AT = SQLITE_LOCKS_END };

enum rc database_lock_take(int *out, const char *path, struct err *err) {
  char process[40] = "";
  long holder;
  const enum rc rc = file_lock_take(out, &holder, path, GUARD_AT, err);
  if (rc != RC_CONFLICT) return rc;
  if (holder) snprintf(process, sizeof process, " (process %ld)", holder);
  return err_set(err, RC_CONFLICT, "db",
                 "another coordinator%s has the database %s open: stop it, or name another database by "
                 "--db", process, path);
}

void database_lock_sign(int fd) { file_lock_sign(fd, GUARD_AT); }

void database_lock_release(int fd) { file_lock_release(fd); }
