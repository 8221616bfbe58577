/* Puts the shards of an optimizer's array together for a checkpoint, and spreads what one held. */
#include "services/trainer-server/engine/optimizer_arrays.h"

#include "services/trainer-server/engine/learning.h"
#include "services/trainer-server/ranks/shared_arrays.h"

enum rc optimizer_array_spread(struct engine *e, int which, struct err *err) {
  struct optimizer *o = e->learning.optimizer;
  const enum rc rc =
      ranks_spread(&e->ranks, learning_scratch(&e->learning), checkpoint_array(o, which), optimizer_shard(o), err);
  optimizer_done_with(o, checkpoint_array(o, which), shard_count(optimizer_shard(o)) * sizeof(float));
  return rc;
}

enum rc optimizer_array_collect(struct engine *e, int which, struct err *err) {
  struct optimizer *o = e->learning.optimizer;
  const enum rc rc =
      ranks_collect(&e->ranks, learning_scratch(&e->learning), checkpoint_array(o, which), optimizer_shard(o), err);
  optimizer_done_with(o, checkpoint_array(o, which), shard_count(optimizer_shard(o)) * sizeof(float));
  return rc;
}

static enum rc shared_collect(void *context, int which, const void **out, struct err *err) {
  struct engine *e = context;
  *out = e->learning.lanes[0].gradient;
  const enum rc rc = ranks_tell(&e->ranks, &(struct order){.kind = ORDER_COLLECT, .which = which}, NULL, err);
  return rc == RC_OK ? optimizer_array_collect(e, which, err) : rc;
}

static void *shared_room(void *context, int which) {
  (void)which;
  struct engine *e = context;
  return learning_scratch(&e->learning);
}

static enum rc shared_spread(void *context, int which, struct err *err) {
  struct engine *e = context;
  const enum rc rc = ranks_tell(&e->ranks, &(struct order){.kind = ORDER_SPREAD, .which = which}, NULL, err);
  return rc == RC_OK ? optimizer_array_spread(e, which, err) : rc;
}

static void shared_done(void *context, const void *values, size_t bytes) {
  (void)context, (void)values, (void)bytes; /* of the scratch, which stays */
}

struct checkpoint_arrays optimizer_arrays(struct engine *e) {
  if (ranks_alone(&e->ranks)) return checkpoint_arrays_of(e->learning.optimizer);
  return (struct checkpoint_arrays){
      .context = e, .collect = shared_collect, .room = shared_room, .spread = shared_spread, .done = shared_done};
}
