/* Checks runs whose datasets could not be checked while they were posted, one after the other, on a thread of its own.
 *
 *   POST /v1/runs, --check-ms later: checking --here, from the first line on--> queued
 *                                             \--a line is bad--> failed, with what a refusal would have said
 *
 * Runs behind one that is checked wait for it; the one that is active goes on.  A restart of the coordinator begins the
 * check again, and so does trouble that passes (memory, the disk, the database).  `waiting_for` of the run says how far
 * the check is.  Started and stopped by driver.c; it talks to the writer by commands and owns nothing that must
 * survive. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_LATE_CHECK_H
#define LEASEHOLD_COORDINATOR_DRIVER_LATE_CHECK_H

#include "services/coordinator/writer/core.h"

struct late_check;
enum rc late_check_start(struct late_check **out, struct core *core, struct err *err);
/* Ends a check that is under way.  Before the writer is stopped. */
void late_check_stop(struct late_check *l); /* NULL is fine */

#endif
