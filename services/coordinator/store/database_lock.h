/* One coordinator per database: two would both believe that their epoch is the newest.
 *
 * The lock (common/base/file_lock.h) is on the database file itself, and covers a byte that SQLite does not lock: it
 * does not get in the way of SQLite's own locks (which belong to the process), on NFS either, where flock would.
 *
 * Closing any descriptor of a file drops the process's own locks on it, SQLite's among them.  So take the lock
 * before SQLite opens the database, and release it after SQLite has closed it.  Called by core.c, before and after
 * the writer's thread. */
#ifndef LEASEHOLD_COORDINATOR_STORE_DATABASE_LOCK_H
#define LEASEHOLD_COORDINATOR_STORE_DATABASE_LOCK_H

#include "common/base/rc.h"

/* Makes the file when it is missing.  *out is a descriptor, -1 on failure; RC_CONFLICT when another coordinator has
 * it. */
enum rc database_lock_take(int *out, const char *path, struct err *err);
/* Tells those that are refused from now on which process holds the lock.  SQLite's connections must be open. */
void database_lock_sign(int fd);
void database_lock_release(int fd);

#endif
