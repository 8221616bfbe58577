/* Finds how old the trained tokens of a batch are, and which of them must agree with the trainer bit for bit: in an
 * `inflight` run a sample's tokens may be of several versions.
 *
 *   spans    | v-2, fresh | v-1 | v | v, fresh |     the batch is computed by version v
 *   lag      |     2      |  1  | 0 |    0     |
 *   compared |            |     |   |    yes   |     the trainer computes what the sampler did: it has the same history
 *
 * A token is compared where the version of the batch drew it and computed everything that it attended to (struct
 * version_span.fresh).  In the other modes that is so for all tokens.
 *
 * Called by batch_build.c on the driver's thread, with a connection for readers; memory in the batch's arena. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_BATCH_LAG_H
#define LEASEHOLD_COORDINATOR_DRIVER_BATCH_LAG_H

#include "common/wire/training.h"
#include "services/coordinator/decide/lag.h"
#include "services/coordinator/store/store.h"

struct lag_sample {
  int64_t run, round, group, sample;
  int64_t version_first; /* of its oldest token; of all, when it has no rows of spans */
};

/* Adds the sample's tokens.  *compared: for each trained token, in order. */
enum rc batch_lag_add(struct lag_sums *sums, bool **compared, struct store *s, const struct lag_sample *which,
                      const struct batch_sample *sample, int64_t version, struct arena *arena, struct err *err);

#endif
