/* From logits to a token: softmax in fp32, inverse CDF in vocabulary order (NUMERICS.md, "Sampling"), on the engine's
 * thread.  Logits are in the memory of the table; results of a failed device are zero (ops->status).
 *
 * Previous hop of a rollout: forward.c.  Next: the sample in generation-server/engine/engine_step.c. */
#ifndef LEASEHOLD_MODEL_NETWORK_SAMPLER_H
#define LEASEHOLD_MODEL_NETWORK_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/model/network/logit_changes.h"
#include "common/model/ops.h"

/* Scratch of V entries for the truncating modes; made once per engine. */
struct sampler;
struct sampler *sampler_create(const struct ops *ops, int vocabulary); /* NULL when memory is refused */
void sampler_free(struct sampler *s);

size_t sampler_bytes(const struct ops *ops, int vocabulary);

/* Draws count tokens. A draw comes with its row of logits [.,V] and its u in (0,1), and params[i] says how to draw; its
 * temperature is filled in here. logprob: plain temperature sampling (no truncation, T > 0): log-softmax(logits /
 * T)[token] bit for bit as ops->logprob gives it; otherwise log-softmax(logits)[token]. */
void sampler_draw(struct sampler *s, const float *logits, const struct sampling_params *const *params,
                  struct draw *draws, int count);
/* One token from a row that is changed first (logit_changes.h); the log-probability is that of the row as it came:
 * log-softmax(logits)[token]. */
void sampler_draw_changed(struct sampler *s, const float *logits, const struct sampling_params *p,
                          const struct logit_changes *changes, const struct token_history *history, struct draw *d);
/* log-softmax(logits)[token]. */
float sampler_logprob(struct sampler *s, const float *logits, int32_t token);
/* The token's place among all of the row, from 1 on: likelier ones come before it, and of equal ones lower ids. */
int32_t sampler_rank(struct sampler *s, const float *logits, int32_t token);
/* Of the raw distribution: the `count` largest log-probabilities, for clients that ask (`logprobs: n`). */
void sampler_top(struct sampler *s, const float *logits, int count, int32_t *tokens, float *logprobs);

#endif
