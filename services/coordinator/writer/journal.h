/* Events, which go to the run's subscribers after the commit, and incidents, which are kept and counted: execute
 * functions leave them for people.  Also the check that a message is of this start's epoch.
 *
 * Writer's thread only, inside the caller's savepoint: an event that is rolled back is never sent.  No memory of its
 * own. */
#ifndef LEASEHOLD_COORDINATOR_WRITER_JOURNAL_H
#define LEASEHOLD_COORDINATOR_WRITER_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/rc.h"

struct core;

/* Becomes an event of the transaction in hand; takes over text's memory.  last: the run has ended. */
enum rc journal_event(struct core *c, int64_t run, const char *type, struct buf *text, bool last, struct err *err);
/* Something happened that ought not to: a row, a log line and a counter.  run 0: of no run. */
enum rc journal_incident(struct core *c, int64_t run, const char *kind, const char *subject, const char *detail,
                         struct err *err);
/* RC_CONFLICT for any epoch but this start's (I9). */
enum rc journal_check_epoch(const struct core *c, uint64_t epoch, struct err *err);

#endif
