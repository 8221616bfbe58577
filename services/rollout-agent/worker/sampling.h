/* Draws one sample of a lease by a foreign engine.
 *
 *   enter --> is the lease for what is held? --> the engine's word for its weights --> generate --> its word again --> a proof --> leave
 *
 * A draw counts only when all of that is in order; else the sample stays as it came, and its lease is handed back.
 * The loader is told of everything that puts the weights in doubt.  Blocking, on a slot's thread; memory in the
 * caller's arena.
 *
 * Previous hop of a rollout: leases.c.  Next: the engine, then leases.c again. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_WORKER_SAMPLING_H
#define LEASEHOLD_ROLLOUT_AGENT_WORKER_SAMPLING_H

#include "services/rollout-agent/weights/loader.h"

struct sampling {
  struct engine_client engine;
  struct loader *loader;
  bool logprobs_at_temperature; /* the engine's log-probabilities are those of logits / temperature */
  int64_t request_timeout_ms, version_timeout_ms;
  bool (*abandoned)(void *context); /* nobody wants the sample any more; asked while this waits */
  void *context;
};

struct draw {
  bool done; /* drawn and proven; false: nothing was added to what the lease brought */
  struct sample_result result;
  int64_t version; /* of the last tokens */
  struct digest digest;
  int32_t sampled; /* tokens that were added */
};

/* What the lease brought for a sample, in the form of a result: earlier holders' tokens, or none. */
enum rc sampling_begin(struct draw *out, const struct lease *lease, int32_t index, struct arena *arena,
                       struct err *err);
/* Draws the rest of it.  RC_INVALID: this engine can never run the lease; any other code: it was not drawn. */
enum rc sampling_run(const struct sampling *s, struct draw *d, const struct lease *lease, struct arena *arena,
                     struct err *err);

#endif
