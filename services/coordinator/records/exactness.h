/* Is a round exact, and if not, why?  It is exact when the trainer's log-probabilities equal the samplers' bit for
 * bit, no group and no reward timed out, all kernels that took part are batch-invariant, and all engines are ours.
 *
 * Writer's thread only, inside the caller's savepoint; no memory of its own.  Called by round.c when a round's
 * training has ended (again if its batches had to be sent to another trainer), and when all samples of an evaluation
 * are in.  It decides from what is stored: the rows of the batches and of the workers that took part. */
#ifndef LEASEHOLD_COORDINATOR_RECORDS_EXACTNESS_H
#define LEASEHOLD_COORDINATOR_RECORDS_EXACTNESS_H

#include "services/coordinator/writer/core_state.h"

/* Writes the round's sums over its batches, `exact` and `inexact_reason`, and logs the reason: once a round. */
enum rc exactness_note(struct core *c, int64_t run, int64_t round, struct err *err);
/* Do all workers that sampled or trained of the round so far promise invariant kernels of ours? */
enum rc exactness_promised(struct store *s, int64_t run, int64_t round, bool *out, struct err *err);

#endif
