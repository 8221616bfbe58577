/* The thread that has samples checked: it looks for groups that wait, asks the trainer, and tells the writer.
 *
 *   look every LOOK_MS --check_read--> submit-batch with a check --> its answer --check_compare--> command (settle.h)
 *        ^                                                                                            |
 *        +------ a group that differs stays, is found again, and is refused when it differs in the same way
 *
 * One check at a time, of as many groups as --batch-tokens takes.  Nothing that it keeps must survive: what waits is in the
 * database, and a check changes nothing at the trainer.  Trouble with the trainer is the driver's; here it is tried again.
 * Every call has a deadline.  main.c starts it, and stops it before the writer. */
#ifndef LEASEHOLD_COORDINATOR_CHECKS_SAMPLE_CHECKS_H
#define LEASEHOLD_COORDINATOR_CHECKS_SAMPLE_CHECKS_H

#include "services/coordinator/writer/core.h"

struct sample_checks;

enum rc sample_checks_start(struct sample_checks **out, struct core *core, struct err *err);
/* Ends the call in hand, and the thread.  NULL is fine. */
void sample_checks_stop(struct sample_checks *t);

#endif
