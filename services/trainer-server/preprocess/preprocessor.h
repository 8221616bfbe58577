/* A trainer-server with the role "preprocess": it computes passes without a gradient (common/wire/passes.h) for the
 * runs of a coordinator, and trains nothing.
 *
 *   POST passes (long poll) --> weights of the run's version 0, pulled once --> log-probabilities --> PUT results
 *        ^------------------------------------------------------------------------------------------------'
 *   heartbeats beside it (common/client/registration.h): the passes that are held, what the time went to
 *
 * A pass that cannot be computed here is handed back, for good when it never can be.  A coordinator that comes back
 * with a new epoch, or has forgotten this worker, is registered with again; what was held then is dropped.  At the end
 * the worker leaves, so that the coordinator gives what is held to others at once.
 *
 * Threads: the preprocessor's own owns model, weights and learners; the registration's fills heartbeats.  Memory: all
 * at creation (pass_memory.h), but for the file of weights that are being pulled and the passes at hand.
 *
 * Previous hop of a rollout: coordinator/rounds/group_seal.c.  Next: coordinator/driver/batch_build.c, whose batch
 * brings the log-probabilities along. */
#ifndef LEASEHOLD_TRAINER_SERVER_PREPROCESS_PREPROCESSOR_H
#define LEASEHOLD_TRAINER_SERVER_PREPROCESS_PREPROCESSOR_H

#include "common/http/server.h"
#include "services/trainer-server/engine/options.h"

struct preprocessor;

/* /healthz, /readyz and /metrics: all that it answers.  context is unused. */
extern const struct http_route preprocessor_routes[];
extern const size_t preprocessor_route_count;

/* Makes the model and room for weights; of model_dir only config.json is read, of a teacher's the weights too, and no
 * state_dir is used. */
enum rc preprocessor_create(struct preprocessor **out, const struct trainer_options *options, struct err *err);

struct preprocessor_tie {
  const char *coordinator_url, *name, *advertise_url; /* borrowed */
  const struct http_access *access;
};
/* Registers, and begins to work. */
enum rc preprocessor_start(struct preprocessor *p, const struct preprocessor_tie *tie, struct err *err);
/* Has the device failed?  Then *why says how, and nothing can be computed any more. */
bool preprocessor_failed(struct preprocessor *p, struct err *why);
/* Leaves the coordinator, and waits for the pass in hand. */
void preprocessor_stop(struct preprocessor *p);
void preprocessor_destroy(struct preprocessor *p); /* NULL is fine */

#endif
