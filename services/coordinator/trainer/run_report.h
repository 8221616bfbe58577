/* Reports on a run before it is posted: what its datasets hold, whether the tokenizer gives texts back, how its
 * verifier judges the dataset's own answers.
 *
 *   POST /v1/check-run --> run_check.h, as a posted run's --> the run's context, as the driver opens it --> told, and dropped
 *
 * On a thread that may block: it reads whole datasets and asks the trainer.  Writes nothing. */
#ifndef LEASEHOLD_COORDINATOR_TRAINER_RUN_REPORT_H
#define LEASEHOLD_COORDINATOR_TRAINER_RUN_REPORT_H

#include "services/coordinator/run/run_context.h"
#include "services/coordinator/writer/core.h"

enum { REPORT_LINES = 10, REPORT_PROMPTS = 1000 };

/* An object (openapi: RunReport).  What run_check refuses is refused here with the same sentence; RC_TIMEOUT when
 * --check-ms did not suffice; RC_UNAVAILABLE when no trainer is there, whose tokenizer is needed. */
enum rc run_report_write(struct core *c, const struct run_config *config, struct json_writer *w, struct err *err);
/* The same object, of a run that is open. */
void run_report_of(const struct run_context *x, struct json_writer *w);

#endif
