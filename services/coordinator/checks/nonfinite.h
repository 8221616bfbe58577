/* A generation-server's word that log-probabilities under a version's weights are not finite there.
 *
 * Weights may be finite and their activations overflow, so nobody sees it of a version before samples are drawn from
 * it: training has diverged, the model was broken before, or this one server is.  The others tell, as of a sample that
 * was refused (accused.h): a server that alone says so is in quarantine, and others draw its samples; when nobody is
 * left who draws finite ones, every version to come would be like this one, so the run is paused and says what to do.
 *
 * On the writer's thread, inside the caller's savepoint.  Previous hop: api/route_results.c.  Next: none. */
#ifndef LEASEHOLD_COORDINATOR_CHECKS_NONFINITE_H
#define LEASEHOLD_COORDINATOR_CHECKS_NONFINITE_H

#include "services/coordinator/pool/leases.h"
#include "services/coordinator/writer/core_state.h"

/* l: the active run's, which its worker has just handed back with these words. */
enum rc nonfinite_settle(struct core *c, const struct lease_row *l, int64_t version, struct err *err);

#endif
