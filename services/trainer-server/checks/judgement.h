/* Judges a sample of a batch that is verified by what the forward pass of its own gradient gave: is it what the version
 * would have drawn?  Pure: no model, no clock, no memory.
 *
 *   trained tokens   | drawn by earlier versions, or after their keys and values | exact_from: this version's alone |
 *                    | held against bounds                                       | the same token, the same bits    |
 *
 * An exact token has the same logits in the sampler and here, so one that differs is enough.  Where earlier versions
 * drew, a later one draws the same from nearly the same uniforms, as far off as the sums of the two distributions are,
 * and the log-probabilities are near.  (It says less when the sample's own uniform draws another token: where tokens
 * have small probabilities, it often does.)  Both bounds are means over the trained tokens, of which a short sample
 * counts as having JUDGED_TOKENS_LEAST: one token's log-probability may move far from one version to the next.  A
 * sample that promises nothing has its own uniforms, so only the bound on log-probabilities applies to it. A token that
 * this version leaves out (a cut, see training_config) has no log-probability here, and is judged only by whether it is
 * drawn.
 *
 * Called by engine/batch.c.  Constants: the coordinator's checks/verdict.h. */
#ifndef LEASEHOLD_TRAINER_SERVER_CHECKS_JUDGEMENT_H
#define LEASEHOLD_TRAINER_SERVER_CHECKS_JUDGEMENT_H

#include "common/wire/training.h"

enum { JUDGED_TOKENS_LEAST = 16 };

/* The trained tokens of a sample, in order; all [count]. */
struct judged_sample {
  const char *id;
  int count, exact_from;   /* -1: it promises nothing */
  const int32_t *position; /* in the completion */
  const int32_t *token;    /* that was sent */
  const int32_t *due;      /* that the version draws; read of exact tokens */
  const float *due_logprob;
  const int32_t *low, *high; /* what it draws from uniforms that are draws_near less and more; of the others */
  const float *recorded; /* by the sampler, finite */
  const float *own;
};

/* True: it is refused, and *out says for what. */
bool judgement_refuses(struct sample_refusal *out, const struct batch_verify *v, const struct judged_sample *s);
/* Do two judgements of the same sample say the same, to the bit? */
bool judgement_same(const struct sample_refusal *a, const struct sample_refusal *b);

#endif
