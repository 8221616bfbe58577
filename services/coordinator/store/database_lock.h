/* One coordinator a database: two would both believe that their epoch is the newest.
 *
 * The lock is on the database file itself, so a symbolic link, a hard link, a bind mount or another spelling of the path
 * leads to the same lock.  It is an open file description's lock on a byte that SQLite does not lock: such a lock does
 * not get in the way of SQLite's own (which are the process's), and unlike flock it does not do so on NFS either.
 *
 * Closing any descriptor of a file drops the process's own locks on it, SQLite's among them: take the lock before SQLite
 * opens the database, release it after SQLite has closed it.  Called by core.c, before and after the writer's thread. */
#ifndef LEASEHOLD_COORDINATOR_STORE_DATABASE_LOCK_H
#define LEASEHOLD_COORDINATOR_STORE_DATABASE_LOCK_H

#include "common/base/rc.h"

/* Makes the file when it is missing.  *out is a descriptor, -1 on failure; RC_CONFLICT when another coordinator has it. */
enum rc database_lock_take(int *out, const char *path, struct err *err);
/* Tells those that are refused from now on which process holds the lock.  SQLite's connections must be open. */
void database_lock_sign(int fd);
void database_lock_release(int fd);

#endif
