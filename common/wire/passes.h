/* Passes without a gradient: the reference's log-probabilities of a run with a KL term, computed by workers of their
 * own (trainer-server --role preprocess) while the trainer trains on other groups.
 *
 *   POST /v1/workers/{id}/passes  -->  passes, each a lease on one sealed group under the run's version 0
 *   heartbeats with their ids     -->  renewed; `lost` names those that are no longer this worker's
 *   PUT /v1/passes/{id}/result    -->  the log-probabilities, accepted or refused; the batch that trains on the group
 *                                      brings them along (batch_sample.reference)
 *
 * A pass is named after its group, "r7.12.3"; a pass that is given out again carries a higher fence, and a result under
 * an older one is refused.  The forward pass has the same bits on every machine, so no digest depends on who computes.
 *
 * Requests and passes are JSON (passes.c).  A result has many numbers: it is safetensors (pass_result.c). */
#ifndef LEASEHOLD_WIRE_PASSES_H
#define LEASEHOLD_WIRE_PASSES_H

#include "common/wire/training.h"

/* POST /v1/workers/{id}/passes: a long poll. */
struct pass_request {
  uint64_t epoch;
  int32_t groups_max; /* passes wanted: 1 to LIMIT_PASSES_PER_REQUEST */
  int32_t wait_ms;
};

struct pass {
  const char *run;
  uint64_t fence;
  int64_t version;              /* whose log-probabilities: the run's 0 */
  struct digest weights_digest; /* of that version */
  const char *weights_from;     /* where to pull them: {weights_from}/v1/weights/{version}?run={run} */
  int32_t chunk_tokens;         /* as in the run's training_config */
  float temperature;            /* > 0, likewise */
  struct batch_group group;     /* its id is the pass's; without advantages, behaviour and reference */
};

struct pass_answer {
  uint64_t epoch;
  struct pass *passes;
  size_t pass_count; /* 0: nothing came within wait_ms */
};

/* PUT /v1/passes/{id}/result */
struct pass_result {
  const char *worker_id;
  uint64_t epoch, fence;
  struct digest weights_digest; /* of the weights that computed, taken from memory; zero of a pass that is handed
                                 * back */
  bool handed_back;             /* not computed: to be given to others */
  /* With handed_back: this worker can never compute the pass, and why (up to WIRE_REFUSED_BYTES characters); NULL: it
   * could. */
  const char *refused;
  struct sample_logprobs *samples; /* all of the group's, in its order; none of a pass that is handed back */
  size_t sample_count;
};

void pass_request_encode(const struct pass_request *m, struct buf *out);
enum rc pass_request_decode(struct pass_request *m, const struct json *body, struct arena *arena, struct err *err);
void pass_answer_encode(const struct pass_answer *m, struct buf *out);
enum rc pass_answer_decode(struct pass_answer *m, const struct json *body, struct arena *arena, struct err *err);
/* Safetensors.  Checks that every log-probability is finite and at most 0; whether the samples are the group's is the
 * receiver's to check.  *m and what it points to live in the arena, nothing in bytes. */
enum rc pass_result_encode(const struct pass_result *m, struct buf *out, struct err *err);
enum rc pass_result_decode(struct pass_result *m, const void *bytes, size_t len, struct arena *arena, struct err *err);
/* The digest of a result's content: everything but worker, epoch and fence.  A repeat has the same digest.  The answer
 * to a result is a struct lease_result_answer. */
void pass_result_digest(struct digest *out, const struct pass_result *m);

#endif
