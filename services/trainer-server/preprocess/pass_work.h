/* Computes passes: the log-probabilities of their trained tokens, by the same learner_logprobs as unit_compute of
 * engine/gradient_unit.h, in chunks of the same size, so the calls that reach the kernels are the trainer's own.
 *
 * Small passes are computed side by side, one on each lane, as gradient units are; large ones one after the other, with
 * all threads in each operation.  Called by the preprocessor's thread; a lane's learner belongs to the pass that has
 * it.  Memory: the learners, made for forward passes alone. */
#ifndef LEASEHOLD_TRAINER_SERVER_PREPROCESS_PASS_WORK_H
#define LEASEHOLD_TRAINER_SERVER_PREPROCESS_PASS_WORK_H

#include "common/model/learning/backward.h"
#include "common/wire/passes.h"

struct pass_work {
  const struct model *model; /* borrowed */
  int lanes, chunk_tokens_max;
  int learner_chunk; /* tokens per chunk that the learners were made for; 0: there are none */
  struct learner **learners;
};

/* Learners for chunk_tokens_max, the most that a run may ask for. */
enum rc pass_work_create(struct pass_work *w, const struct model *m, int lanes, int chunk_tokens_max, struct err *err);
void pass_work_free(struct pass_work *w);

struct pass_outcome {
  enum rc rc;
  struct err err;
  struct sample_logprobs *samples; /* [the group's sample_count], in the arena */
};
/* RC_INVALID or RC_TOO_LARGE when the pass can never be computed here; pure. */
enum rc pass_work_check(const struct pass_work *w, const struct pass *pass, struct err *err);
/* Passes that were checked and have the same chunk_tokens, at most `lanes`, under weights; fills outcomes [count]. */
void pass_work_compute(struct pass_work *w, const struct weights *weights, const struct pass *const *passes, int count,
                       struct pass_outcome *outcomes, struct arena *arena);

#endif
