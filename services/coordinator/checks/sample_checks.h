/* The two threads that have samples checked: they look for groups that wait, ask the trainer, and tell the writer.
 *
 *   a commit behind which more wait --check_read--> submit-batch with a check --> its answer --check_compare--> command (settle.h)
 *        ^                                                                                            |
 *        +------ a group that differs stays, is found again, and is refused when it differs in the same way
 *
 * Each has one check in hand, of as many groups as --batch-tokens takes, so the trainer has the next one while the
 * answer to the last is stored.  Nothing that it keeps must survive: what waits is in the database, and a check changes
 * nothing at the trainer.  A check that fails is tried again, and meanwhile the driver shows it (rounds_checks_note),
 * as it shows that there is no trainer.  Every call has a deadline.  main.c starts it. */
#ifndef LEASEHOLD_COORDINATOR_CHECKS_SAMPLE_CHECKS_H
#define LEASEHOLD_COORDINATOR_CHECKS_SAMPLE_CHECKS_H

#include "services/coordinator/writer/core.h"

struct sample_checks;

enum rc sample_checks_start(struct sample_checks **out, struct core *core, struct err *err);
/* Ends the calls in hand, and the threads: before the writer ends, which may wake them until then.  NULL is fine. */
void sample_checks_stop(struct sample_checks *t);
void sample_checks_destroy(struct sample_checks *t); /* after core_stop; NULL is fine */

#endif
