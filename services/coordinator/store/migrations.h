/* The database's schema as numbered steps; table schema_version holds the numbers that were applied.
 *
 * Called once by core_create, before the writer's thread starts.  A step, once released, is never edited: the next
 * one is added.  A step fills new columns for old rows itself, and is one transaction: a start that dies in it starts
 * again. */
#ifndef LEASEHOLD_COORDINATOR_STORE_MIGRATIONS_H
#define LEASEHOLD_COORDINATOR_STORE_MIGRATIONS_H

#include "services/coordinator/store/store.h"

/* The number of the newest step. */
int migrations_newest(void);
/* Applies what is missing, one transaction a step.  RC_UNSUPPORTED when the file was made by a newer coordinator,
 * RC_CONFLICT when by another program. */
enum rc migrations_apply(struct store *s, struct err *err);

#endif
