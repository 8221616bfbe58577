/* The context of a thread that works for a round: its log context, and the round's trace.
 *
 * All work for a round has one trace: the round's leases carry it to the generation-servers, its batches and its step
 * to the trainer, and those pass it on in their calls (common/http/trace.h).  It is computed from what the run is made
 * of, so it is the same after a restart, and nothing is stored.  Any thread. */
#ifndef LEASEHOLD_COORDINATOR_RUN_ROUND_WORK_H
#define LEASEHOLD_COORDINATOR_RUN_ROUND_WORK_H

#include "common/http/trace.h"
#include "services/coordinator/run/run_context.h"

void round_trace(struct trace *out, const struct run_context *x, int64_t round);
/* The calling thread works for the run's round, or for its group (-1: for no single one), and for nothing else. */
void round_work(const struct run_context *x, int64_t round, int64_t group);

#endif
