/* Draws tokens from logits.
 *
 * Plain temperature sampling, the only kind that leases use, is just ops->sample: all draws of a step in one call,
 * which spreads them over the threads.  Rows of leases that leave tokens out were cut before (ops->cut, in
 * engine_step.c), so that their log-probabilities are those of the rest.  The truncating modes serve clients of the
 * plain API, with log-probabilities of the whole vocabulary.  Candidates are taken from a heap in order of falling
 * logit (lower id first among equals) and cut in this order, each cut applied to the rest that the one before left:
 * temperature, top-k, top-p (over the renormalized rest; the entry that crosses top_p stays), min-p (relative to the
 * most likely).  Then inverse CDF over the rest, in that order.  NaN logits are never candidates; if all logits are
 * NaN, token 0 is drawn.
 *
 * A row with changes (logit_changes.h) is copied to the host's memory and changed there, then drawn from likewise;
 * without cuts by inverse CDF in vocabulary order.
 *
 * Owned by the engine's thread; scratch is made once. */
#include "common/model/network/sampler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/network/elementary.h"

struct candidate {
  float logit;
  int32_t token;
};

struct sampler {
  const struct ops *ops; /* borrowed */
  int V;
  struct candidate *heap;   /* [V] largest logit first */
  struct candidate *sorted; /* [V] taken from the heap, in order */
  double *weight;           /* [V] exp((logit - largest) / T) of sorted */
  int heap_count;
  struct lone {
    int32_t target;
    float logprob, lse;
  } * lone;   /* of sampler_logprob, the table's memory */
  float *row; /* [V] of logits where the table's memory is not the host's */
  float *changed;      /* [V] of logits with a client's changes */
  unsigned char *seen; /* [V] of logit_changes_apply */
};

size_t sampler_bytes(const struct ops *ops, int vocabulary) {
  const struct sampler *s = NULL;
  const size_t V = (size_t)vocabulary;
  return V * (sizeof *s->heap + sizeof *s->sorted + sizeof *s->weight + sizeof *s->changed + sizeof *s->seen) +
         ops_place_bytes(ops, V * sizeof *s->row);
}

struct sampler *sampler_create(const struct ops *ops, int vocabulary) {
  struct sampler *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->ops = ops;
  s->V = vocabulary;
  s->heap = calloc((size_t)vocabulary, sizeof *s->heap);
  s->sorted = calloc((size_t)vocabulary, sizeof *s->sorted);
  s->weight = calloc((size_t)vocabulary, sizeof *s->weight);
  s->changed = calloc((size_t)vocabulary, sizeof *s->changed);
  s->seen = calloc((size_t)vocabulary, sizeof *s->seen);
  s->lone = ops->alloc(ops, sizeof *s->lone);
  if (!ops->host_memory) s->row = calloc((size_t)vocabulary, sizeof *s->row);
  if (s->heap && s->sorted && s->weight && s->changed && s->seen && s->lone && (s->row || ops->host_memory)) return s;
  sampler_free(s);
  return NULL;
}

void sampler_free(struct sampler *s) {
  if (!s) return;
  free(s->heap);
  free(s->sorted);
  free(s->weight);
  if (s->lone) s->ops->release(s->ops, s->lone);
  free(s->row);
  free(s->changed);
  free(s->seen);
  free(s);
}

/* --- candidates in order --- */

static bool before(struct candidate a, struct candidate b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static void sift_down(struct sampler *s, int at) {
  const struct candidate moving = s->heap[at];
  for (;;) {
    int child = 2 * at + 1;
    if (child >= s->heap_count) break;
    if (child + 1 < s->heap_count && before(s->heap[child + 1], s->heap[child])) child++;
    if (!before(s->heap[child], moving)) break;
    s->heap[at] = s->heap[child];
    at = child;
  }
  s->heap[at] = moving;
}

static void heap_make(struct sampler *s, const float *logits) {
  s->heap_count = 0;
  for (int v = 0; v < s->V; v++)
    if (logits[v] == logits[v]) s->heap[s->heap_count++] = (struct candidate){logits[v], v};
  for (int at = s->heap_count / 2 - 1; at >= 0; at--) sift_down(s, at);
}

static struct candidate heap_take(struct sampler *s) {
  assert(s->heap_count > 0);
  const struct candidate first = s->heap[0];
  s->heap[0] = s->heap[--s->heap_count];
  if (s->heap_count > 0) sift_down(s, 0);
  return first;
}

/* --- truncation --- */

static double weight_of(float logit, float largest, float temperature) {
  return elementary_exp(((double)logit - (double)largest) / (double)temperature);
}

/* The weight of everything that may still come out of the heap; order of summation: the heap's, which depends on the
 * logits alone. */
static double heap_weight(const struct sampler *s, float largest, float temperature) {
  double sum = 0;
  for (int i = 0; i < s->heap_count; i++) sum += weight_of(s->heap[i].logit, largest, temperature);
  return sum;
}

/* Fills sorted and weight; returns how many candidates survive all cuts, at least one. */
static int truncate_candidates(struct sampler *s, const struct sampling_params *p) {
  const float largest = s->heap[0].logit;
  const int k = p->top_k > 0 && p->top_k < s->heap_count ? p->top_k : s->heap_count;
  const bool all = k == s->heap_count;
  double total = 0, cumulated = 0;
  int count = 0;
  if (all) {
    total = heap_weight(s, largest, p->temperature);
  } else {
    for (; count < k; count++) {
      s->sorted[count] = heap_take(s);
      s->weight[count] = weight_of(s->sorted[count].logit, largest, p->temperature);
      total += s->weight[count];
    }
  }
  const double enough = p->top_p < 1 ? (double)p->top_p * total : total * 2;
  int kept = 0;
  while (kept < k && cumulated < enough) {
    if (all) {
      s->sorted[kept] = heap_take(s);
      s->weight[kept] = weight_of(s->sorted[kept].logit, largest, p->temperature);
    }
    if (kept > 0 && s->weight[kept] < (double)p->min_p) break; /* falling: all the others fall below too */
    cumulated += s->weight[kept++];
  }
  return kept > 0 ? kept : 1;
}

static int32_t choose_truncated(struct sampler *s, const float *logits, const struct sampling_params *p, float u) {
  heap_make(s, logits);
  if (s->heap_count == 0) return 0;
  const struct candidate best = s->heap[0];
  if (!(best.logit - best.logit == 0)) return best.token; /* infinite: no distribution to draw from */
  const int kept = truncate_candidates(s, p);
  if (kept == 1) return best.token;
  double total = 0, running = 0;
  for (int i = 0; i < kept; i++) total += s->weight[i];
  const double threshold = (double)u * total;
  for (int i = 0; i < kept; i++) {
    running += s->weight[i];
    if (running > threshold) return s->sorted[i].token;
  }
  return s->sorted[kept - 1].token;
}

/* --- changed rows --- */

/* The lowest id among equals; 0 when all logits are NaN. */
static int32_t likeliest(const float *logits, int V) {
  int32_t best = -1;
  for (int32_t v = 0; v < V; v++)
    if (logits[v] == logits[v] && (best < 0 || logits[v] > logits[best])) best = v;
  return best < 0 ? 0 : best;
}

/* Without cuts: inverse CDF in vocabulary order. */
static int32_t choose_whole(struct sampler *s, const float *logits, float temperature, float u) {
  const int32_t best = likeliest(logits, s->V);
  const float largest = logits[best];
  double total = 0, running = 0;
  if (!(largest - largest == 0)) return best; /* infinite or NaN: no distribution to draw from */
  for (int v = 0; v < s->V; v++) {
    s->weight[v] = logits[v] == logits[v] ? weight_of(logits[v], largest, temperature) : 0;
    total += s->weight[v];
  }
  const double threshold = (double)u * total;
  for (int32_t v = 0; v < s->V; v++) {
    running += s->weight[v];
    if (running > threshold) return v;
  }
  return best;
}

/* --- the calls --- */

static bool is_truncating(const struct sampler *s, const struct sampling_params *p) {
  return p->temperature > 0 && ((p->top_k > 0 && p->top_k < s->V) || p->top_p < 1 || p->min_p > 0);
}

/* A row of logits as the host reads it. */
static const float *read_row(struct sampler *s, const float *logits) {
  return ops_fetch(s->ops, s->row, logits, (size_t)s->V * sizeof *logits);
}

static struct lone lone_logprob(struct sampler *s, const float *logits, int32_t token) {
  const struct ops *ops = s->ops;
  struct lone *at = s->lone, result;
  ops->upload(ops, &at->target, &token, sizeof token);
  ops->logprob(ops, &at->logprob, &at->lse, NULL, logits, &at->target, 1, 1, s->V);
  ops->download(ops, &result, at, sizeof result);
  return result;
}

float sampler_logprob(struct sampler *s, const float *logits, int32_t token) {
  return lone_logprob(s, logits, token).logprob;
}

static void draw_truncated(struct sampler *s, const float *logits, const struct sampling_params *p, struct draw *d) {
  d->token = choose_truncated(s, read_row(s, logits), p, d->u);
  d->logprob = sampler_logprob(s, logits, d->token);
}

void sampler_draw(struct sampler *s, const float *logits, const struct sampling_params *const *params,
                  struct draw *draws, int count) {
  for (int i = 0; i < count;) {
    int plain = 0;
    for (; i + plain < count && !is_truncating(s, params[i + plain]); plain++)
      draws[i + plain].temperature = params[i + plain]->temperature;
    if (plain > 0) s->ops->sample(s->ops, draws + i, plain, logits, s->V);
    i += plain;
    if (i == count) break;
    draw_truncated(s, logits + (size_t)draws[i].row * (size_t)s->V, params[i], &draws[i]);
    i++;
  }
}

void sampler_draw_changed(struct sampler *s, const float *logits, const struct sampling_params *p,
                          const struct logit_changes *changes, const struct token_history *history, struct draw *d) {
  memcpy(s->changed, read_row(s, logits), (size_t)s->V * sizeof *s->changed);
  logit_changes_apply(s->changed, s->V, changes, history, s->seen);
  if (!(p->temperature > 0))
    d->token = likeliest(s->changed, s->V);
  else if (is_truncating(s, p))
    d->token = choose_truncated(s, s->changed, p, d->u);
  else
    d->token = choose_whole(s, s->changed, p->temperature, d->u);
  d->logprob = sampler_logprob(s, logits, d->token);
}

int32_t sampler_rank(struct sampler *s, const float *logits, int32_t token) {
  const float *row = read_row(s, logits);
  int32_t rank = 1;
  for (int v = 0; v < s->V; v++) rank += before((struct candidate){row[v], v}, (struct candidate){row[token], token});
  return rank;
}

void sampler_top(struct sampler *s, const float *logits, int count, int32_t *tokens, float *logprobs) {
  const float *row = read_row(s, logits), lse = lone_logprob(s, logits, 0).lse;
  assert(count <= s->V);
  heap_make(s, row);
  for (int i = 0; i < count; i++) {
    const bool any = s->heap_count > 0; /* fewer numbers than asked for: NaN logits; the rest repeats token 0 */
    const struct candidate c = any ? heap_take(s) : (struct candidate){row[0], 0};
    tokens[i] = c.token;
    logprobs[i] = c.logit - lse;
  }
}
