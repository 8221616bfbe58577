/* Changes a row of logits as a client asks before a token is drawn from it: biases, penalties for tokens that
 * have come, and tokens that may not come yet.
 *
 *   z += bias  ->  z of a token that came (prompt or sample): z / repetition, or z * repetition below zero
 *              ->  z -= frequency * (how often the sample has it) + presence * (whether it has it)  ->  barred: -infinity
 *
 * OpenAI's definitions of bias, frequency and presence; repetition is CTRL's (arXiv 1909.05858), as transformers has
 * it.  Leases never have any: training needs the distribution itself (sampler.h).
 *
 * Pure: the row is the host's, the caller's arrays are read only.  Called by sampler.c on the engine's thread. */
#ifndef LEASEHOLD_MODEL_NETWORK_LOGIT_CHANGES_H
#define LEASEHOLD_MODEL_NETWORK_LOGIT_CHANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct token_bias {
  int32_t token;
  float bias;
};

struct logit_changes {
  const struct token_bias *biases;
  size_t bias_count;
  float repetition;          /* 1: off */
  bool repetition_of_sample; /* tokens that only the prompt has are no repetitions */
  float frequency, presence; /* 0: off */
  const int32_t *barred;     /* until the sample has min_new tokens */
  int barred_count;
  int32_t min_new;
};

/* The tokens that a sample has so far. */
struct token_history {
  const int32_t *prompt, *tokens;
  int32_t prompt_count, count;
};

/* Of no change. */
#define LOGIT_CHANGES_NONE \
  { .repetition = 1 }

/* False: every row stays as it is. */
bool logit_changes_any(const struct logit_changes *c);
/* Ids that are not below V are passed over.  seen: [V], zero before and after. */
void logit_changes_apply(float *row, int V, const struct logit_changes *c, const struct token_history *h,
                         unsigned char *seen);

#endif
