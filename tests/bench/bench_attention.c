/* Attention alone, with a model's heads: over whole sequences (a prefill, a training chunk), its gradients, and for the
 * last row of each sequence (a step of decoding).  What it reads is random; nothing depends on what it is. */
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { PAGE_TOKENS = 32 };

struct attending {
  const struct ops *ops;
  struct model_config config;
  struct kv_layer kv;
  struct rows rows;
  struct packed batch;
  void *q, *k, *v, *out, *dout;
  float *lse, *dq, *dk, *dv, scale;
  int32_t *sequence, *position, *pages, *start;
};

static void attend_call(void *context) {
  struct attending *a = context;
  a->ops->attention(a->ops, a->out, a->lse, a->q, &a->kv, &a->rows, a->config.heads, a->scale);
}

static void backward_call(void *context) {
  struct attending *a = context;
  const struct model_config *c = &a->config;
  a->ops->attention_backward(a->ops, a->dq, a->dk, a->dv, a->dout, a->out, a->lse, a->q, a->k, a->v, &a->batch,
                             c->heads, c->kv_heads, c->head_dim, a->scale);
}

static bool make_lists(struct attending *a, int sequences, int length) {
  const int each = (length + PAGE_TOKENS - 1) / PAGE_TOKENS, T = sequences * length;
  a->sequence = calloc((size_t)T, sizeof *a->sequence);
  a->position = calloc((size_t)T, sizeof *a->position);
  a->pages = calloc((size_t)(sequences * each), sizeof *a->pages);
  a->start = calloc((size_t)sequences + 1, sizeof *a->start);
  if (!a->sequence || !a->position || !a->pages || !a->start) return false;
  for (int t = 0; t < T; t++) {
    a->sequence[t] = t / length;
    a->position[t] = t % length;
  }
  for (int p = 0; p < sequences * each; p++) a->pages[p] = p;
  for (int s = 0; s <= sequences; s++) a->start[s] = s * length;
  a->rows = (struct rows){.T = T,
                          .sequence = a->sequence,
                          .position = a->position,
                          .pages = a->pages,
                          .pages_per_sequence = each,
                          .sequences = sequences,
                          .longest = length};
  a->batch = (struct packed){.T = T, .sequences = sequences, .start = a->start};
  return true;
}

static bool make_arrays(struct attending *a) {
  const struct model_config *c = &a->config;
  const size_t T = (size_t)a->rows.T, E = (size_t)c->head_dim, own = T * (size_t)c->heads * E,
               shared = T * (size_t)c->kv_heads * E, operand = a->ops->operand_bytes,
               pool = (size_t)(a->rows.sequences * a->rows.pages_per_sequence * PAGE_TOKENS * c->kv_heads) * (E + 31);
  a->kv = (struct kv_layer){.keys = a->ops->alloc(a->ops, pool * operand),
                            .values = a->ops->alloc(a->ops, pool * operand),
                            .page_tokens = PAGE_TOKENS,
                            .G = c->kv_heads,
                            .E = c->head_dim};
  a->q = bench_operands(a->ops, own);
  a->k = bench_operands(a->ops, shared);
  a->v = bench_operands(a->ops, shared);
  a->out = bench_operands(a->ops, own);
  a->dout = bench_operands(a->ops, own);
  a->lse = a->ops->alloc(a->ops, T * (size_t)c->heads * sizeof *a->lse);
  a->dq = a->ops->alloc(a->ops, own * sizeof *a->dq);
  a->dk = a->ops->alloc(a->ops, shared * sizeof *a->dk);
  a->dv = a->ops->alloc(a->ops, shared * sizeof *a->dv);
  return a->kv.keys && a->kv.values && a->q && a->k && a->v && a->out && a->dout && a->lse && a->dq && a->dk && a->dv;
}

static void attending_free(struct attending *a) {
  void *const owned[] = {a->kv.keys, a->kv.values, a->q, a->k, a->v, a->out, a->dout, a->lse, a->dq, a->dk, a->dv};
  for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) a->ops->release(a->ops, owned[i]);
  free(a->sequence);
  free(a->position);
  free(a->pages);
  free(a->start);
}

/* Only the last row of each sequence. */
static void keep_last_rows(struct attending *a) {
  const int length = a->rows.longest;
  a->rows.T = a->rows.sequences;
  for (int s = 0; s < a->rows.sequences; s++) {
    a->sequence[s] = s;
    a->position[s] = length - 1;
  }
}

enum rc bench_attention(const struct ops *ops, const char *model, enum bench_attention_part part, int sequences,
                        int length, struct reading *out, struct err *err) {
  struct attending a = {.ops = ops, .scale = 0.125f};
  enum rc rc = bench_config(&a.config, model, err);
  if (rc == RC_OK && (sequences < 1 || length < 1))
    rc = err_set(err, RC_INVALID, "sequences", "expected 1 or more of 1 row or more, got %d of %d", sequences, length);
  if (rc != RC_OK) return rc;
  const double pairs = 0.5 * sequences * length * (length + 1.0), per_pair = 2.0 * a.config.heads * a.config.head_dim;
  if (make_lists(&a, sequences, length) && make_arrays(&a)) {
    ops->kv_write(ops, &a.kv, &a.rows, a.k, a.v, NULL);
    attend_call(&a); /* for lse */
    if (part == BENCH_ATTENTION_STEP) keep_last_rows(&a);
    *out =
        (struct reading){.seconds = bench_repeat(part == BENCH_ATTENTION_BACKWARD ? backward_call : attend_call, &a)};
    out->operations = part == BENCH_ATTENTION_BACKWARD ? 5 * pairs * per_pair
                      : part == BENCH_ATTENTION_STEP   ? 2.0 * sequences * length * per_pair
                                                       : 2 * pairs * per_pair;
  } else {
    rc = err_set(err, RC_NO_MEMORY, NULL, "%d sequences of %d were refused memory", sequences, length);
  }
  attending_free(&a);
  return rc;
}
