/* Read-only connections for GET handlers and the driver: take one, read in one snapshot (or look one thing up),
 * give it back.
 *
 * Any thread; the pool's lock is held for list operations only.  Connections are opened when first needed and kept,
 * at most 32; beyond that 429.  A reader never blocks the writer (WAL), but it keeps SQLite's log from being cut, so
 * a snapshot must not be held across a wait or a call to the trainer.
 *
 * A database in memory has one connection, the writer's.  Its readers lend that one, to the writer's thread, between
 * two transactions. */
#ifndef LEASEHOLD_COORDINATOR_STORE_READERS_H
#define LEASEHOLD_COORDINATOR_STORE_READERS_H

#include "services/coordinator/store/store.h"

struct readers;
enum rc readers_create(struct readers **out, const char *db_path, struct err *err);
/* They lend this one, which stays the caller's. */
enum rc readers_create_of_one(struct readers **out, struct store *only, struct err *err);
void readers_destroy(struct readers *r); /* all given back; NULL is fine */
/* Begins a snapshot.  At most 32 at once: RC_FULL beyond. */
enum rc readers_take(struct readers *r, struct store **out, struct err *err);
/* Without a snapshot, for a single look-up: each statement sees the newest state. */
enum rc readers_take_newest(struct readers *r, struct store **out, struct err *err);
/* Ends the snapshot, if there is one. */
void readers_give(struct readers *r, struct store *s); /* NULL is fine */
/* Does the query give a row?  Also true when it could not be asked: then the writer finds out. */
bool readers_find(struct readers *r, const char *sql, const struct bind *binds, size_t count);

#endif
