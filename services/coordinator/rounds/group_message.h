/* A complete group of samples as messages have it: ids, tokens, segments, advantages; and beside it what was recorded
 * of its tokens.
 *
 * Called by driver/batch_build.c on the driver's thread, for the trainer, and by api/route_passes.c on the writer's,
 * for a preprocessor; with any connection.  Everything lives in the caller's arena. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_GROUP_MESSAGE_H
#define LEASEHOLD_COORDINATOR_ROUNDS_GROUP_MESSAGE_H

#include "common/wire/training.h"
#include "services/coordinator/store/store.h"

struct group_key {
  int64_t run, round, ordinal;
};

/* Its ids, as they are stored. */
struct group_prompt {
  const void *ids;
  size_t len;
};

/* Per sample, in order. */
struct group_record {
  struct json_f32s *behaviour; /* log-probabilities of the trained tokens */
  int64_t *samples;            /* their numbers */
  int64_t *version_first;      /* of the oldest token */
};

/* RC_CORRUPT unless all `count` rollouts are there.  The samples have no behaviour and no reference.  prompt NULL: it
 * is read too. */
enum rc group_message(struct batch_group *out, struct group_record *record, struct store *s,
                      const struct group_key *key, const struct group_prompt *prompt, int64_t count,
                      struct arena *arena, struct err *err);

#endif
