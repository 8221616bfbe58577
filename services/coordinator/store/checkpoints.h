/* Copies SQLite's log into the database beside the writer, so that no command waits for it.
 *
 * A commit is an fsynced append to the log; from time to time the log's pages must be copied into the database, so that
 * the log can begin anew.  For a full log that takes tens of milliseconds and an fsync of all of it.  A thread with a
 * connection of its own does it while the writer goes on, again for what came meanwhile, and syncs the database.  What
 * is left then is little, and the writer copies it between two transactions: only when nothing is left does SQLite let
 * its next transaction begin the log anew.
 *
 *   writer: commit --log is long--> thread: copy, copy the rest, sync --due--> writer: copy the last few --> log restarts
 *
 * Durability is SQLite's own: the log is synced before anything is copied, and it begins anew only behind a sync of the
 * database, so a kill at any moment loses nothing.  A copy that fails (disk full) is logged and tried again later; the
 * log grows meanwhile.  Where only its last pages fail the process ends (wal_gather.h).  core.c starts and stops it;
 * checkpoints_go_on is called by the writer's thread alone. */
#ifndef LEASEHOLD_COORDINATOR_STORE_CHECKPOINTS_H
#define LEASEHOLD_COORDINATOR_STORE_CHECKPOINTS_H

#include "services/coordinator/store/store.h"

struct checkpoints;

/* The writer's connection and the path that it has open.  From now on its commits copy nothing by themselves. */
enum rc checkpoints_start(struct checkpoints **out, struct store *writer, const char *path, struct err *err);
/* The writer's share, when it is due; not inside a transaction. */
void checkpoints_go_on(struct checkpoints *c);
void checkpoints_stop(struct checkpoints *c); /* before the writer's connection is closed; NULL is fine */

#endif
