/* Answers --plan: what a run would find here, before the coordinator runs.
 *
 *   request: {"config", "model", "pace"} --> run_config.h --> the model's folder, the datasets --> run_report.h --> round_times.h
 *            --> JSON on standard output
 *
 * Does what POST /v1/check-run does, with a folder in place of the trainer and without a database: another run that is
 * named (by `start` or a curriculum) is not looked up.  Reads whole datasets, for --check-ms at most.  Main's thread;
 * writes nothing. */
#ifndef LEASEHOLD_COORDINATOR_FORESEE_FORESEE_H
#define LEASEHOLD_COORDINATOR_FORESEE_FORESEE_H

#include "common/base/program.h"
#include "services/coordinator/writer/core_options.h"

/* The reasons why the run would be refused are part of the answer.  An error means that there is no answer. */
enum rc foresee(const struct core_options *options, const struct program *program, const char *request,
                struct err *err);

#endif
