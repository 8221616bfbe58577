/* The message of one check, made from the database, and the comparison of its answer with what was recorded.
 *
 *   groups.unchecked --check_read--> submit_batch with a check --trainer--> check_compare--> found[samples]
 *
 * Any thread, on a reader's connection; everything lives in the caller's arena.  All samples of a group are checked,
 * over all their tokens, trained on or not.  It does not send recorded log-probabilities: the trainer must not know
 * them.
 *
 * Previous hop of a rollout: rounds/group_seal.c.  Next: trainer-server/engine/batch.c, then settle.c. */
#ifndef LEASEHOLD_COORDINATOR_CHECKS_CHECK_MESSAGE_H
#define LEASEHOLD_COORDINATOR_CHECKS_CHECK_MESSAGE_H

#include "common/wire/training.h"
#include "services/coordinator/decide/mismatch.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/store.h"

/* What was recorded of a sample, and what the trainer found. */
struct found_sample {
  int64_t group, sample;
  struct digest digest; /* of what was accepted: says whether it is still that sample */
  int32_t tokens;       /* of its completion */
  struct mismatch mismatch;
  int32_t position;    /* of the first token that would not have been drawn; -1: there is none */
  int32_t due;         /* there: the token that the version draws */
  float due_logprob;   /* and its log-probability */
  int32_t shown;       /* that position, or else that of the first log-probability that differs; -1: there is neither */
  int32_t given;       /* the token there */
  float given_logprob; /* its log-probability, as it was recorded */
  float own_logprob;   /* and the trainer's */
  bool confirmed;      /* the trainer has found the same twice: it is no passing fault of its own */
};

struct check {
  int64_t run, round, version;
  struct submit_batch message; /* the caller fills batch_id, epoch and fence */
  struct found_sample *found;  /* [count], in message order */
  struct json_f32s *recorded;  /* [count] log-probabilities of the completions */
  size_t count;
};

/* Groups of a check in hand, in order. */
struct taken_groups {
  int64_t run, round;
  int64_t ordinals[LIMIT_GROUPS_PER_ROUND];
  size_t count;
};

/* The run's oldest groups that wait for a check and that `taken` does not have, of one round, under a token budget;
 * none: message.group_count 0.  Groups that their batch will bring as they are go ahead; in mode sync once nothing of
 * the round is sampled. */
enum rc check_read(struct check *out, struct store *s, const struct run_context *x, int64_t tokens_max,
                   const struct taken_groups *taken, struct arena *arena, struct err *err);
/* Whether an answer without its log-probabilities says that nothing differs. */
bool check_agrees(const struct check *c, const struct batch_status *answer, struct arena *arena);
/* What differs.  RC_CORRUPT when the answer does not fit the message. */
enum rc check_compare(struct check *c, const struct batch_status *answer, struct err *err);
/* Do two checks of one sample tell of the same difference? */
bool check_same(const struct found_sample *a, const struct found_sample *b);

#endif
