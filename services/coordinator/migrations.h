/* The database's schema as numbered steps; table schema_version holds the numbers that were applied.  A step, once
 * released, is never edited: the next one is added. */
#ifndef LEASEHOLD_COORDINATOR_MIGRATIONS_H
#define LEASEHOLD_COORDINATOR_MIGRATIONS_H

#include "services/coordinator/store.h"

/* The number of the newest step. */
int migrations_newest(void);
/* Applies what is missing, one transaction a step.  RC_UNSUPPORTED when the file was made by a newer coordinator. */
enum rc migrations_apply(struct store *s, struct err *err);

#endif
