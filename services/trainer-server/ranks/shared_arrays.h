/* What the ranks do together with large arrays: weights from rank 0 to all, an optimizer's array into its shards and back, and
 * the optimizer step, each rank on its shard.
 *
 * All of it goes through `whole`, memory for one fp32 number per parameter: the gradient of a unit, which is free between
 * units.  It is the table's memory, maybe a device's, so it is handed to the comm that takes such (ranks->arrays).
 * The engine's thread of every rank, at the same order. */
#ifndef LEASEHOLD_TRAINER_SERVER_RANKS_SHARED_ARRAYS_H
#define LEASEHOLD_TRAINER_SERVER_RANKS_SHARED_ARRAYS_H

#include "common/model/learning/optimizer.h"
#include "common/model/network/model.h"
#include "services/trainer-server/ranks/ranks.h"

enum { WEIGHTS_CURRENT, WEIGHTS_REFERENCE };

/* ORDER_WEIGHTS on all ranks: rank 0's into everybody's w. */
enum rc ranks_share_weights(struct ranks *r, struct weights *w, float *whole, struct err *err);
/* ORDER_SPREAD: rank 0's `whole` to all, and of it this rank's shard into `part`. */
enum rc ranks_spread(struct ranks *r, float *whole, float *part, struct shard shard, struct err *err);
/* ORDER_COLLECT: everybody's part into everybody's `whole`. */
enum rc ranks_collect(struct ranks *r, float *whole, const float *part, struct shard shard, struct err *err);
/* NUMERICS.md's step over the sums of all ranks; w holds the new weights afterwards, unless it was skipped. */
enum rc ranks_step(struct ranks *r, struct optimizer *o, struct weights *w, float *whole, double denominator,
                   struct step_result *result, struct err *err);

/* Rank 0 gives the order, and takes part in it at once; `which` as in ORDER_WEIGHTS. */
enum rc ranks_tell_weights(struct ranks *r, struct weights *w, int which, float *whole, struct err *err);
/* The current weights to all ranks, which must then hold those of this digest. */
enum rc ranks_begin(struct ranks *r, struct weights *w, float *whole, const struct digest *digest, struct err *err);

#endif
