/* Copies a coordinator's database while that coordinator works: `coordinator --db FROM --backup TO`.
 *
 * The copy holds what was committed when it began, and nothing of what comes meanwhile; the writer waits for nothing.
 * Called by main.c, in a process of its own. */
#ifndef LEASEHOLD_COORDINATOR_STORE_BACKUP_H
#define LEASEHOLD_COORDINATOR_STORE_BACKUP_H

#include "common/base/rc.h"

/* Writes TO.partial, makes it durable and gives it its name: there is either no new file or a whole one.  RC_NOT_FOUND
 * without FROM, RC_CONFLICT when TO is there already. */
enum rc store_backup(const char *from, const char *to, struct err *err);

#endif
