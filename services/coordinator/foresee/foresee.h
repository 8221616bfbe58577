/* What a run would find here before the coordinator runs: --plan.
 *
 *   request: {"config", "model", "pace"} --> run_config.h --> the model's folder, the datasets --> run_report.h --> round_times.h
 *            --> JSON on standard output
 *
 * As POST /v1/check-run, with a folder in the trainer's place and without a database: what names another run (`start`,
 * a curriculum's) is not looked up.  Reads whole datasets, for as long as --check-ms.  Main's thread; writes
 * nothing. */
#ifndef LEASEHOLD_COORDINATOR_FORESEE_FORESEE_H
#define LEASEHOLD_COORDINATOR_FORESEE_FORESEE_H

#include "common/base/program.h"
#include "services/coordinator/writer/core_options.h"

/* What the run would be refused for is part of the answer.  An error: there is no answer. */
enum rc foresee(const struct core_options *options, const struct program *program, const char *request,
                struct err *err);

#endif
