/* The trainer's side of the one forward pass: samples -> chunks -> forward -> head in row blocks -> loss -> layers
 * backwards.
 *
 *   learner_gradients, per chunk:
 *     forward_run (activations saved) -> per head block: logits, logprob, lse     (pass 1; all log-probabilities of the chunk, then the loss callback)
 *                                     -> per head block: logits, dlogits, dW, dx  (pass 2; logits of a single block are still there and are not recomputed)
 *     final norm, layers from last to first, embedding
 *
 * Letters as in ops.h; T rows of the chunk.  A gradient dx is float32 and is rounded only where it becomes a GEMM
 * operand. The cut into chunks depends on the samples' lengths and chunk_tokens alone: never on memory, time or
 * threads, because it is part of the arithmetic (weight gradients are dot products over the rows of a chunk, added
 * chunk by chunk).
 *
 * Owned by the engine's thread.  Previous hop: the trainer's unit of work (a group).  Next hop: optimizer_add_unit. */
#include "common/model/backward.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/layout.h"
#include "common/model/shape.h"

enum { PAGE_TOKENS = 32, CHUNK_SAMPLES_MAX = 512, CHUNK_SAMPLES_MIN = 16 };

/* Gradients in flight; f: float32, o: operand. */
struct gradients {
  float *dx;                                  /* f [T,D] of the residual */
  float *dnorm;                               /* f [T,D] of a norm's output; before the layers: of hidden */
  void *dx_operand;                           /* o [T,D] */
  float *dh;                                  /* f [T,F] */
  void *dgate, *dup;                          /* o [T,F] */
  float *dattention;                          /* f [T,H*E] */
  void *dattention_operand;                   /* o [T,H*E] */
  float *dq, *dk, *dv;                        /* f [T,H*E], [T,G*E], [T,G*E] */
  float *dq_raw, *dk_raw;                     /* f, before norm and rope */
  void *dq_operand, *dk_operand, *dv_operand; /* o */
};

/* One row block of the head. */
struct head_block {
  float *logits;  /* f [HEAD_ROWS,V] */
  void *dlogits;  /* o [HEAD_ROWS,V] */
  void *hidden;   /* o [HEAD_ROWS,D] */
  float *dhidden; /* f [HEAD_ROWS,D] */
};

/* The chunk at hand, as index arrays. */
struct chunk {
  int T, sequences, scored;
  int32_t *tokens, *sequence, *position; /* [T] */
  int32_t *start;                        /* [sequences + 1] */
  int32_t *pages;                        /* [sequences, pages_per_sequence] */
  int pages_per_sequence;
  int32_t *pick, *target;                    /* [scored] row that predicts, token predicted */
  float *logprob, *lse, *entropy, *dlogprob; /* [scored] */
};

struct learner {
  const struct model *model; /* borrowed */
  int chunk_tokens, sequences_max, pages_max;
  struct workspace *ws;
  struct activations *activations;
  struct kv_cache *kv;
  struct kv_sequence all_pages; /* holds every page of kv; chunks deal them out */
  void *memory;
  struct gradients g;
  struct head_block head;
  struct chunk chunk;
  double entropy_sum; /* of the last learner_gradients */
};

/* --- memory --- */

static int pages_of(int length) { return length / PAGE_TOKENS + (length % PAGE_TOKENS != 0); }

static int sequences_of(int chunk_tokens) {
  const int n = pages_of(chunk_tokens);
  return n < CHUNK_SAMPLES_MIN ? CHUNK_SAMPLES_MIN : n > CHUNK_SAMPLES_MAX ? CHUNK_SAMPLES_MAX : n;
}

static void place_gradients(struct layout *l, struct gradients *g, const struct shape *s, size_t o) {
  const size_t T = s->T, f = sizeof(float);
  g->dx = layout_take(l, T * s->D, f);
  g->dnorm = layout_take(l, T * s->D, f);
  g->dx_operand = layout_take(l, T * s->D, o);
  g->dh = layout_take(l, T * s->F, f);
  g->dgate = layout_take(l, T * s->F, o);
  g->dup = layout_take(l, T * s->F, o);
  g->dattention = layout_take(l, T * s->HE, f);
  g->dattention_operand = layout_take(l, T * s->HE, o);
  g->dq = layout_take(l, T * s->HE, f);
  g->dk = layout_take(l, T * s->GE, f);
  g->dv = layout_take(l, T * s->GE, f);
  g->dq_raw = layout_take(l, T * s->HE, f);
  g->dk_raw = layout_take(l, T * s->GE, f);
  g->dq_operand = layout_take(l, T * s->HE, o);
  g->dk_operand = layout_take(l, T * s->GE, o);
  g->dv_operand = layout_take(l, T * s->GE, o);
}

static void place_chunk(struct layout *l, struct chunk *c, size_t T, size_t sequences, size_t pages_per_sequence) {
  const size_t i = sizeof(int32_t), f = sizeof(float);
  c->tokens = layout_take(l, T, i);
  c->sequence = layout_take(l, T, i);
  c->position = layout_take(l, T, i);
  c->start = layout_take(l, sequences + 1, i);
  c->pages = layout_take(l, sequences * pages_per_sequence, i);
  c->pick = layout_take(l, T, i);
  c->target = layout_take(l, T, i);
  c->logprob = layout_take(l, T, f);
  c->lse = layout_take(l, T, f);
  c->entropy = layout_take(l, T, f);
  c->dlogprob = layout_take(l, T, f);
}

static size_t place_learner(struct learner *l, char *base, const struct model *m, int chunk_tokens) {
  const struct shape s = shape_make(&m->config, chunk_tokens);
  const size_t o = m->ops->operand_bytes;
  struct layout layout = {base, 0};
  place_gradients(&layout, &l->g, &s, o);
  l->head.logits = layout_take(&layout, HEAD_ROWS * s.V, sizeof(float));
  l->head.dlogits = layout_take(&layout, HEAD_ROWS * s.V, o);
  l->head.hidden = layout_take(&layout, HEAD_ROWS * s.D, o);
  l->head.dhidden = layout_take(&layout, HEAD_ROWS * s.D, sizeof(float));
  place_chunk(&layout, &l->chunk, s.T, (size_t)sequences_of(chunk_tokens), (size_t)pages_of(chunk_tokens));
  return layout.used;
}

size_t learner_bytes(const struct model *m, int chunk_tokens) {
  struct learner measured = {0};
  const size_t pages = (size_t)(pages_of(chunk_tokens) + sequences_of(chunk_tokens));
  return place_learner(&measured, NULL, m, chunk_tokens) + workspace_bytes(m, chunk_tokens) +
         activations_bytes(m, chunk_tokens) + pages * kv_page_bytes(m, PAGE_TOKENS);
}

static enum rc create_parts(struct learner *l, struct err *err) {
  const struct model *m = l->model;
  enum rc rc = workspace_create(&l->ws, m, l->chunk_tokens, err);
  if (rc == RC_OK) rc = activations_create(&l->activations, m, l->chunk_tokens, err);
  if (rc == RC_OK) rc = kv_cache_create(&l->kv, m, l->pages_max, PAGE_TOKENS, err);
  if (rc == RC_OK) rc = kv_sequence_init(&l->all_pages, l->kv, l->pages_max * PAGE_TOKENS, err);
  if (rc != RC_OK) return rc;
  rc = kv_reserve(l->kv, &l->all_pages, l->pages_max * PAGE_TOKENS);
  assert(rc == RC_OK);
  const size_t bytes = place_learner(l, NULL, m, l->chunk_tokens);
  l->memory = m->ops->alloc(m->ops, bytes);
  if (!l->memory)
    return err_set(err, RC_NO_MEMORY, NULL, "gradients of %d rows need %zu bytes, which were refused", l->chunk_tokens,
                   bytes);
  place_learner(l, l->memory, m, l->chunk_tokens);
  return RC_OK;
}

enum rc learner_create(struct learner **out, const struct model *m, int chunk_tokens, struct err *err) {
  *out = NULL;
  if (chunk_tokens < 2 || chunk_tokens > LIMIT_SEQUENCE_TOKENS)
    return err_set(err, RC_INVALID, "chunk_tokens", "expected 2 to %d tokens per chunk, got %d", LIMIT_SEQUENCE_TOKENS,
                   chunk_tokens);
  struct learner *l = calloc(1, sizeof *l);
  if (!l) return err_set(err, RC_NO_MEMORY, NULL, "a learner record of %zu bytes was refused", sizeof *l);
  l->model = m;
  l->chunk_tokens = chunk_tokens;
  l->sequences_max = sequences_of(chunk_tokens);
  l->pages_max = pages_of(chunk_tokens) + l->sequences_max;
  struct err cause = {0};
  const enum rc rc = create_parts(l, &cause);
  if (rc != RC_OK) {
    learner_free(l);
    return err_set(err, rc, "chunk_tokens", "a learner with chunks of %d tokens needs %zu bytes in all: %s",
                   chunk_tokens, learner_bytes(m, chunk_tokens), cause.message);
  }
  *out = l;
  return RC_OK;
}

void learner_free(struct learner *l) {
  if (!l) return;
  if (l->memory) l->model->ops->release(l->model->ops, l->memory);
  if (l->kv) kv_sequence_release(l->kv, &l->all_pages);
  kv_cache_free(l->kv);
  activations_free(l->activations, l->model);
  workspace_free(l->ws);
  free(l);
}

/* --- samples and chunks --- */

static enum rc check_sample(const struct learner *l, const struct train_sample *s, int index, struct err *err) {
  const struct model *m = l->model;
  const int longest = l->chunk_tokens < m->context_max ? l->chunk_tokens : m->context_max;
  if (s->length < 1)
    return err_set(err, RC_INVALID, "samples", "sample %d: expected at least one token, got %d", index, s->length);
  if (s->length > longest)
    return err_set(err, RC_TOO_LARGE, "samples", "sample %d has %d tokens; chunks hold %d and the context %d", index,
                   s->length, l->chunk_tokens, m->context_max);
  if (s->scored[0])
    return err_set(err, RC_INVALID, "samples", "sample %d: its first token has no predecessor and cannot be scored",
                   index);
  for (int t = 0; t < s->length; t++)
    if (s->tokens[t] < 0 || s->tokens[t] >= m->config.vocabulary)
      return err_set(err, RC_INVALID, "samples", "sample %d, token %d: expected an id below %d, got %d", index, t,
                     m->config.vocabulary, s->tokens[t]);
  return RC_OK;
}

static enum rc check_samples(const struct learner *l, const struct train_sample *samples, int count, float temperature,
                             struct err *err) {
  if (!(temperature > 0) || temperature > 1e6f)
    return err_set(err, RC_INVALID, "temperature", "expected a positive number up to 1e6, got %g", (double)temperature);
  for (int i = 0; i < count; i++) {
    const enum rc rc = check_sample(l, &samples[i], i, err);
    if (rc != RC_OK) return rc;
  }
  return RC_OK;
}

static void add_sample(struct chunk *c, const struct train_sample *s) {
  for (int t = 0; t < s->length; t++) {
    const int row = c->T + t;
    c->tokens[row] = s->tokens[t];
    c->sequence[row] = c->sequences;
    c->position[row] = t;
    if (!s->scored[t]) continue;
    c->pick[c->scored] = row - 1;
    c->target[c->scored++] = s->tokens[t];
  }
  c->T += s->length;
  c->start[++c->sequences] = c->T;
}

/* Fills the chunk with whole samples from samples[0] on; returns how many. */
static int fill_chunk(struct learner *l, const struct train_sample *samples, int count) {
  struct chunk *c = &l->chunk;
  c->T = c->sequences = c->scored = c->pages_per_sequence = 0;
  c->start[0] = 0;
  int taken = 0;
  while (taken < count && taken < l->sequences_max && c->T + samples[taken].length <= l->chunk_tokens) {
    add_sample(c, &samples[taken]);
    if (pages_of(samples[taken].length) > c->pages_per_sequence)
      c->pages_per_sequence = pages_of(samples[taken].length);
    taken++;
  }
  int next = 0; /* sum of ceil(length / 32) <= chunk_tokens / 32 + samples = pages_max */
  for (int s = 0; s < taken; s++) {
    int32_t *row = c->pages + (size_t)s * (size_t)c->pages_per_sequence;
    for (int i = 0; i < c->pages_per_sequence; i++)
      row[i] = i < pages_of(samples[s].length) ? l->all_pages.pages[next++] : 0;
  }
  assert(taken > 0 && next <= l->pages_max);
  return taken;
}

static const void *run_chunk(struct learner *l, const struct weights *w, bool save) {
  const struct chunk *c = &l->chunk;
  const struct rows rows = {.T = c->T,
                            .sequence = c->sequence,
                            .position = c->position,
                            .pages = c->pages,
                            .pages_per_sequence = c->pages_per_sequence,
                            .sequences = c->sequences};
  const void *hidden = NULL;
  forward_run(w, &rows, c->tokens, l->kv, l->ws, save ? l->activations : NULL, &hidden);
  return hidden;
}

/* --- the head --- */

static int block_rows(const struct chunk *c, int first) {
  return c->scored - first < HEAD_ROWS ? c->scored - first : HEAD_ROWS;
}

/* Log-probabilities of the whole chunk; the last block's logits stay in l->head.logits. */
static void head_forward(struct learner *l, const struct weights *w, const void *hidden, float temperature,
                         bool entropy) {
  const struct ops *ops = l->model->ops;
  struct chunk *c = &l->chunk;
  for (int first = 0; first < c->scored; first += HEAD_ROWS) {
    const int rows = block_rows(c, first);
    forward_logits(w, hidden, c->pick + first, rows, l->ws, l->head.logits);
    ops->logprob(ops, c->logprob + first, c->lse + first, entropy ? c->entropy + first : NULL, l->head.logits,
                 c->target + first, temperature, rows, l->model->config.vocabulary);
  }
}

static int head_index(const struct model *m) {
  return param_table_index(&m->params, m->config.tied ? PARAM_EMBED : PARAM_HEAD, -1);
}

/* dlogprob -> the head's gradient, and that of hidden into g.dnorm [T,D] (zero where a row predicts no scored token). */
static void head_backward(struct learner *l, const struct weights *w, const void *hidden, float temperature,
                          float *grads) {
  const struct model *m = l->model;
  const struct ops *ops = m->ops;
  const struct chunk *c = &l->chunk;
  const int D = m->config.hidden, V = m->config.vocabulary, head = head_index(m);
  const size_t row_bytes = (size_t)D * ops->operand_bytes;
  memset(l->g.dnorm, 0, (size_t)c->T * (size_t)D * sizeof(float));
  for (int first = 0; first < c->scored; first += HEAD_ROWS) {
    const int rows = block_rows(c, first);
    if (c->scored > HEAD_ROWS) forward_logits(w, hidden, c->pick + first, rows, l->ws, l->head.logits);
    for (int i = 0; i < rows; i++)
      memcpy((char *)l->head.hidden + (size_t)i * row_bytes,
             (const char *)hidden + (size_t)c->pick[first + i] * row_bytes, row_bytes);
    ops->logprob_backward(ops, l->head.dlogits, c->dlogprob + first, l->head.logits, c->lse + first, c->target + first,
                          temperature, rows, V);
    ops->gemm_weight_backward(ops, grads + m->params.items[head].offset, l->head.dlogits, l->head.hidden, rows, V, D);
    ops->gemm(ops, l->head.dhidden, l->head.dlogits, &w->transposed[head], rows, false);
    for (int i = 0; i < rows; i++)
      memcpy(l->g.dnorm + (size_t)c->pick[first + i] * (size_t)D, l->head.dhidden + (size_t)i * (size_t)D,
             (size_t)D * sizeof(float));
  }
}

/* --- the layers --- */

/* One layer's backward, as the kernels see it. */
struct layer_pass {
  struct learner *l;
  const struct weights *w;
  const struct layer_activations *a;
  float *grads;
  int layer, T;
  const struct ops *ops;
};

static float *grad_of(const struct layer_pass *p, enum param_kind kind) {
  const struct param_table *t = &p->l->model->params;
  return p->grads + t->items[param_table_index(t, kind, p->layer)].offset;
}
static const void *vector_of(const struct layer_pass *p, enum param_kind kind) {
  return p->w->matrices[param_table_index(&p->l->model->params, kind, p->layer)].data;
}

/* y = x W^T backwards: dW += dy^T x, and dx = dy W (added when accumulate). */
static void linear_backward(const struct layer_pass *p, enum param_kind kind, const void *dy, const void *x, float *dx,
                            bool accumulate) {
  const struct matrix *transposed = &p->w->transposed[param_table_index(&p->l->model->params, kind, p->layer)];
  p->ops->gemm_weight_backward(p->ops, grad_of(p, kind), dy, x, p->T, transposed->K, transposed->N);
  p->ops->gemm(p->ops, dx, dy, transposed, p->T, accumulate);
}

static void mlp_backward(const struct layer_pass *p) {
  const struct ops *ops = p->ops;
  const struct model_config *c = &p->l->model->config;
  struct gradients *g = &p->l->g;
  const size_t TD = (size_t)p->T * (size_t)c->hidden, TF = (size_t)p->T * (size_t)c->ffn;
  ops->to_operand(ops, g->dx_operand, g->dx, TD);
  linear_backward(p, PARAM_DOWN, g->dx_operand, p->a->h, g->dh, false);
  ops->swiglu_backward(ops, g->dgate, g->dup, g->dh, p->a->gate, p->a->up, TF);
  linear_backward(p, PARAM_GATE, g->dgate, p->a->norm_mid, g->dnorm, false);
  linear_backward(p, PARAM_UP, g->dup, p->a->norm_mid, g->dnorm, true);
  ops->rmsnorm_backward(ops, g->dx, grad_of(p, PARAM_POST_NORM), g->dnorm, p->a->x_mid, vector_of(p, PARAM_POST_NORM),
                        p->a->rstd_mid, p->T, c->hidden);
}

static void attention_block_backward(const struct layer_pass *p) {
  const struct ops *ops = p->ops;
  const struct model *m = p->l->model;
  const struct model_config *c = &m->config;
  struct gradients *g = &p->l->g;
  const struct layer_activations *a = p->a;
  const int T = p->T, H = c->heads, G = c->kv_heads, E = c->head_dim;
  const size_t TD = (size_t)T * (size_t)c->hidden, TQ = (size_t)T * (size_t)(H * E), TK = (size_t)T * (size_t)(G * E);
  const struct packed batch = {.sequences = p->l->chunk.sequences, .start = p->l->chunk.start};
  const int32_t *position = p->l->chunk.position;
  ops->to_operand(ops, g->dx_operand, g->dx, TD);
  linear_backward(p, PARAM_O, g->dx_operand, a->attention, g->dattention, false);
  ops->to_operand(ops, g->dattention_operand, g->dattention, TQ);
  ops->attention_backward(ops, g->dq, g->dk, g->dv, g->dattention_operand, a->attention, a->lse, a->q, a->k, a->v,
                          &batch, H, G, E, 1.0f / __builtin_sqrtf((float)E));
  ops->head_norm_rope_backward(ops, g->dq_raw, grad_of(p, PARAM_Q_NORM), g->dq, a->q_raw, vector_of(p, PARAM_Q_NORM),
                               a->rstd_q, m->rope, position, T, H, E);
  ops->head_norm_rope_backward(ops, g->dk_raw, grad_of(p, PARAM_K_NORM), g->dk, a->k_raw, vector_of(p, PARAM_K_NORM),
                               a->rstd_k, m->rope, position, T, G, E);
  ops->to_operand(ops, g->dq_operand, g->dq_raw, TQ);
  ops->to_operand(ops, g->dk_operand, g->dk_raw, TK);
  ops->to_operand(ops, g->dv_operand, g->dv, TK);
  linear_backward(p, PARAM_Q, g->dq_operand, a->norm_in, g->dnorm, false);
  linear_backward(p, PARAM_K, g->dk_operand, a->norm_in, g->dnorm, true);
  linear_backward(p, PARAM_V, g->dv_operand, a->norm_in, g->dnorm, true);
  ops->rmsnorm_backward(ops, g->dx, grad_of(p, PARAM_INPUT_NORM), g->dnorm, a->x_in, vector_of(p, PARAM_INPUT_NORM),
                        a->rstd_in, T, c->hidden);
}

/* From g.dnorm, the gradient of hidden, down to the embedding. */
static void layers_backward(struct learner *l, const struct weights *w, float *grads) {
  const struct model *m = l->model;
  const struct ops *ops = m->ops;
  const struct activations *saved = l->activations;
  const int T = l->chunk.T, D = m->config.hidden;
  const int norm = param_table_index(&m->params, PARAM_FINAL_NORM, -1);
  memset(l->g.dx, 0, (size_t)T * (size_t)D * sizeof(float));
  ops->rmsnorm_backward(ops, l->g.dx, grads + m->params.items[norm].offset, l->g.dnorm, saved->x_out,
                        w->matrices[norm].data, saved->rstd_out, T, D);
  for (int layer = m->config.layers - 1; layer >= 0; layer--) {
    const struct layer_pass pass = {
        .l = l, .w = w, .a = &saved->layers[layer], .grads = grads, .layer = layer, .T = T, .ops = ops};
    mlp_backward(&pass);
    attention_block_backward(&pass);
  }
  const int embed = param_table_index(&m->params, PARAM_EMBED, -1);
  ops->embed_backward(ops, grads + m->params.items[embed].offset, l->g.dx, l->chunk.tokens, T, m->config.vocabulary, D);
}

/* --- the two calls --- */

enum rc learner_logprobs(struct learner *l, const struct weights *w, const struct train_sample *samples, int count,
                         float temperature, float *logprob, float *entropy, struct err *err) {
  const enum rc rc = check_samples(l, samples, count, temperature, err);
  if (rc != RC_OK) return rc;
  size_t first = 0;
  for (int done = 0; done < count;) {
    done += fill_chunk(l, samples + done, count - done);
    const struct chunk *c = &l->chunk;
    if (c->scored == 0) continue;
    head_forward(l, w, run_chunk(l, w, false), temperature, entropy != NULL);
    memcpy(logprob + first, c->logprob, (size_t)c->scored * sizeof *logprob);
    if (entropy) memcpy(entropy + first, c->entropy, (size_t)c->scored * sizeof *entropy);
    first += (size_t)c->scored;
  }
  return RC_OK;
}

enum rc learner_gradients(struct learner *l, const struct weights *w, const struct train_sample *samples, int count,
                          float temperature, loss_gradient loss, void *loss_context, float *grads, float *logprob,
                          struct err *err) {
  assert(w->transposed);
  const enum rc rc = check_samples(l, samples, count, temperature, err);
  if (rc != RC_OK) return rc;
  int first = 0;
  l->entropy_sum = 0;
  for (int done = 0; done < count;) {
    done += fill_chunk(l, samples + done, count - done);
    struct chunk *c = &l->chunk;
    if (c->scored == 0) continue; /* no gradient flows from rows that nobody scores */
    const void *hidden = run_chunk(l, w, true);
    head_forward(l, w, hidden, temperature, true);
    for (int i = 0; i < c->scored; i++) l->entropy_sum += (double)c->entropy[i];
    loss(loss_context, first, c->scored, c->logprob, c->dlogprob);
    if (logprob) memcpy(logprob + first, c->logprob, (size_t)c->scored * sizeof *logprob);
    first += c->scored;
    head_backward(l, w, hidden, temperature, grads);
    layers_backward(l, w, grads);
  }
  return RC_OK;
}

double learner_entropy_sum(const struct learner *l) { return l->entropy_sum; }
