/* Changes a row of logits as a client asked.  A token's penalty is applied once however often it came: `seen` remembers
 * which have had theirs, and is cleared by walking the same tokens again, so that a draw costs their number and not
 * V. */
#include "common/model/network/logit_changes.h"

#include <math.h>

bool logit_changes_any(const struct logit_changes *c) {
  return c->bias_count > 0 || c->repetition != 1 || c->frequency != 0 || c->presence != 0 ||
         (c->barred_count > 0 && c->min_new > 0);
}

static bool is_first(unsigned char *seen, int V, int32_t token) {
  if (token < 0 || token >= V || seen[token]) return false;
  seen[token] = 1;
  return true;
}

static void forget(unsigned char *seen, int V, const int32_t *tokens, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    if (tokens[i] >= 0 && tokens[i] < V) seen[tokens[i]] = 0;
}

static void repeat(float *row, int V, float penalty, const int32_t *tokens, int32_t count, unsigned char *seen) {
  for (int32_t i = 0; i < count; i++) {
    if (!is_first(seen, V, tokens[i])) continue;
    float *z = &row[tokens[i]];
    *z = *z > 0 ? *z / penalty : *z * penalty;
  }
}

void logit_changes_apply(float *row, int V, const struct logit_changes *c, const struct token_history *h,
                         unsigned char *seen) {
  for (size_t i = 0; i < c->bias_count; i++)
    if (c->biases[i].token >= 0 && c->biases[i].token < V) row[c->biases[i].token] += c->biases[i].bias;
  if (c->repetition != 1) {
    if (!c->repetition_of_sample) repeat(row, V, c->repetition, h->prompt, h->prompt_count, seen);
    repeat(row, V, c->repetition, h->tokens, h->count, seen);
    forget(seen, V, h->prompt, h->prompt_count);
    forget(seen, V, h->tokens, h->count);
  }
  if (c->frequency != 0 || c->presence != 0) {
    for (int32_t i = 0; i < h->count; i++) {
      const int32_t token = h->tokens[i];
      if (token < 0 || token >= V) continue;
      row[token] -= c->frequency;
      if (is_first(seen, V, token)) row[token] -= c->presence;
    }
    forget(seen, V, h->tokens, h->count);
  }
  for (int i = 0; i < c->barred_count && h->count < c->min_new; i++)
    if (c->barred[i] >= 0 && c->barred[i] < V) row[c->barred[i]] = -INFINITY;
}
