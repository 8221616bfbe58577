/* The message of one submit-batch, built from the database (groups that were sampled) or from the dataset
 * (cross-entropy), and the comparison of its answer with the behaviour log-probabilities that were recorded.
 *
 * Called by batch.c, on the driver's thread, with a connection for readers.  Everything built lives in the
 * caller's arena, one per batch.  It must not put behaviour log-probabilities into the message, except in `inflight`,
 * whose losses need them: if the trainer knew them, the comparison would prove less. It decides nothing: batching.c has
 * chosen the groups of a batch.
 *
 * Previous hop of a rollout: group_seal.c.  Next: batch.c. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_BATCH_BUILD_H
#define LEASEHOLD_COORDINATOR_DRIVER_BATCH_BUILD_H

#include "common/wire/training.h"
#include "services/coordinator/decide/mismatch.h"
#include "services/coordinator/driver/batch_lag.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/store.h"

struct built_batch {
  struct submit_batch message; /* groups, ids; the caller fills batch_id, run, epoch, fence, version */
  struct json_f32s *behaviour; /* per sample, in message order: of the trained tokens; NULL for cross-entropy */
  bool **compared; /* per sample and trained token: batch_lag.h; NULL: all are */
  struct lag_sums lag;   /* of all groups */
  struct lag_sums *lags; /* [message.group_count], of each; of no tokens but in `inflight` */
  size_t sample_count;
};

/* Which batch: that of this number of a round. */
struct batch_key {
  int64_t run, round, number;
  int64_t version; /* the version under which it is computed */
  int64_t trainer; /* the incarnation that computes it */
  bool inflight;      /* its message has behaviour log-probabilities */
  bool has_reference; /* the run has a KL term: groups bring what preprocessors computed for them */
};

/* The groups of the batch, in order. */
enum rc batch_from_rollouts(struct built_batch *out, struct store *s, const struct batch_key *key, struct arena *arena,
                            struct err *err);
enum rc batch_from_dataset(struct built_batch *out, struct store *s, struct run_context *context, int64_t round,
                           int64_t number, struct arena *arena, struct err *err);

/* Whether the trainer's digest is that of the recorded log-probabilities, or none are recorded. */
bool logprobs_agree(const struct built_batch *b, const struct digest *trainers, struct arena *arena);
/* The trained tokens' log-probabilities, bit for bit.  RC_CORRUPT when samples or counts do not fit the message.
 * Pure. */
enum rc logprobs_compare(struct mismatch *out, const struct built_batch *b, const struct batch_status *answer,
                         struct err *err);

#endif
