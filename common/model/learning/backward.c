/* Computes log-probabilities and gradients of packed samples: samples -> chunks -> forward -> head in row blocks ->
 * loss -> layers backwards.
 *
 *   learner_gradients, per chunk:
 *     forward_run (activations saved) -> per head block: logits, logprob, lse     (pass 1; all log-probabilities of the chunk, then the loss callback)
 *                                     -> per head block: logits, dlogits, dW, dx  (pass 2; logits that had room are still there, others are made again)
 *     final norm, layers from last to first (each computed again before, where only its input was kept), embedding
 *
 * Letters as in ops.h; T rows of the chunk.  A gradient dx is float32 and is rounded only where it becomes a GEMM
 * operand.  The cut into chunks depends only on the samples' lengths and chunk_tokens, never on memory, time or
 * threads, because it is part of the arithmetic (weight gradients are dot products over the rows of a chunk, added
 * chunk by chunk).
 *
 * Owned by the engine's thread.  Previous hop: trainer-server/engine/gradient_unit.c.  Next: optimizer.c. */
#include "common/model/learning/backward.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/learning/chunk.h"
#include "common/model/learning/experts_backward.h"
#include "common/model/network/elementary.h"
#include "common/model/network/shape.h"

enum { LOGITS_SHARE = 8 /* of the activations: what logits may take beside them */ };

/* Gradients in flight; f: float32, o: operand. */
struct gradients {
  float *dx;                                  /* f [T,D] of the residual */
  float *dnorm;                               /* f [T,D] of a norm's output; before the layers: of hidden */
  void *dx_operand;                           /* o [T,D] */
  float *dh;                                  /* f [T,F], or an expert's width if that is more */
  void *dgate, *dup;                          /* o as dh */
  float *dattention;                          /* f [T,H*E] */
  void *dattention_operand;                   /* o [T,H*E] */
  float *dq, *dk, *dv;                        /* f [T,H*E], [T,G*E], [T,G*E] */
  float *dq_raw, *dk_raw;                     /* f, before norm and rope */
  void *dq_operand, *dk_operand, *dv_operand; /* o */
  struct experts_scratch experts;
};

/* One row block of the head, and the logits of all those that have room. */
struct head_block {
  int kept;       /* blocks whose logits have room, at least one: the last place is for whatever blocks have none of
                   * their own */
  float *logits;  /* f [kept,HEAD_ROWS,V] */
  void *dlogits;  /* o [HEAD_ROWS,V] */
  float *dhidden; /* f [HEAD_ROWS,D] */
  int32_t *where; /* [HEAD_ROWS], a place for a device's list */
};

/* Where parameters' gradients are added to: one array of all, or parts. */
struct gradient_target {
  float *whole; /* [params.elements]; NULL: parts */
  struct gradient_parts *parts;
};

/* Transposes that are made when they are needed: rows of one, as many as have room, and the products with them. */
struct transposing {
  void *tiles;   /* [tile_bytes]; 0 bytes: the weights have their transposes */
  float *out;    /* f [T, some columns]: of a transpose that is made in several pieces */
  size_t tile_bytes, out_count;
};

struct learner {
  const struct model *model; /* borrowed */
  struct workspace *ws;
  struct activations *activations;
  struct kv_cache *kv;
  struct kv_sequence all_pages; /* holds every page of kv; chunks deal them out */
  bool distrusted; /* kv: something computed with it was not finite */
  void *memory;
  struct gradients g;
  struct head_block head;
  struct transposing transposing;
  struct chunk chunk;
  void *lists, *lists_place; /* the chunk's arrays: the host's, and a device's copy of them all */
  size_t lists_bytes;
  double entropy_sum; /* of the last learner_gradients */
  float *entropies;   /* where it writes them, or NULL */
  struct sampling_params cut; /* without temperature, which comes with a call */
  const struct token_draws *draws; /* borrowed; NULL: nothing is drawn */
  entropy_gradient entropy_term;
};

/* --- memory --- */

static void place_gradients(struct array_layout *l, struct gradients *g, const struct shape *s, size_t o) {
  const size_t T = s->T, f = sizeof(float);
  g->dx = array_layout_take(l, T * s->D, f);
  g->dnorm = array_layout_take(l, T * s->D, f);
  g->dx_operand = array_layout_take(l, T * s->D, o);
  g->dh = array_layout_take(l, T * s->wide, f);
  g->dgate = array_layout_take(l, T * s->wide, o);
  g->dup = array_layout_take(l, T * s->wide, o);
  g->dattention = array_layout_take(l, T * s->HE, f);
  g->dattention_operand = array_layout_take(l, T * s->HE, o);
  g->dq = array_layout_take(l, T * s->HE, f);
  g->dk = array_layout_take(l, T * s->GE, f);
  g->dv = array_layout_take(l, T * s->GE, f);
  g->dq_raw = array_layout_take(l, T * s->HE, f);
  g->dk_raw = array_layout_take(l, T * s->GE, f);
  g->dq_operand = array_layout_take(l, T * s->HE, o);
  g->dk_operand = array_layout_take(l, T * s->GE, o);
  g->dv_operand = array_layout_take(l, T * s->GE, o);
  experts_scratch_place(&g->experts, l, s, o);
}

enum { PIECE_ROWS = 32 }; /* of a transpose, at least */

/* Rows of a transpose [K,N] that fit at once: a multiple of PIECE_ROWS, or all. */
static int piece_rows(const struct ops *ops, size_t tile_bytes, int K, int N) {
  const size_t rows = tile_bytes / (ops->matrix_bytes(ops, PIECE_ROWS, N) / PIECE_ROWS);
  return rows >= (size_t)K ? K : (int)(rows / PIECE_ROWS) * PIECE_ROWS;
}

/* Any layer's matrix whole; the head's, which may be far larger, by pieces. */
static void place_transposing(struct array_layout *l, struct transposing *t, const struct model *m,
                              size_t bytes_wanted) {
  const struct ops *ops = m->ops;
  const size_t head = ops->matrix_bytes(ops, m->config.hidden, m->config.vocabulary);
  const size_t least = ops->matrix_bytes(ops, PIECE_ROWS, m->config.vocabulary);
  *t = (struct transposing){.tile_bytes = head < bytes_wanted ? head : least > bytes_wanted ? least : bytes_wanted};
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    const size_t bytes = p->layer < 0 ? 0 : ops->matrix_bytes(ops, p->cols, p->rows);
    if (bytes > t->tile_bytes) t->tile_bytes = bytes;
  }
  const size_t columns = (size_t)piece_rows(ops, t->tile_bytes, m->config.hidden, m->config.vocabulary);
  t->out_count = columns < (size_t)m->config.hidden ? HEAD_ROWS * columns : 0;
  t->tiles = array_layout_take(l, t->tile_bytes, 1);
  t->out = array_layout_take(l, t->out_count, sizeof(float));
}

static size_t head_block_bytes(const struct model *m) {
  return (size_t)HEAD_ROWS * (size_t)m->config.vocabulary * sizeof(float);
}

/* Blocks of the head whose logits the backward pass finds: all of a chunk's, unless that is much beside the
 * activations.  Making them again costs a product with the head, the memory a few percent. */
static int kept_blocks(const struct model *m, const struct learner_options *options) {
  const int T = options->chunk_tokens, all = (T + HEAD_ROWS - 1) / HEAD_ROWS;
  if (options->forward_only || options->recompute_activations) return 1;
  const size_t room = activations_bytes(m, T, false) / LOGITS_SHARE / head_block_bytes(m);
  return room < 1 ? 1 : room < (size_t)all ? (int)room : all;
}

static size_t place_learner(struct learner *l, char *base, const struct model *m,
                            const struct learner_options *options) {
  const int chunk_tokens = options->chunk_tokens;
  const struct shape s = shape_make(&m->config, chunk_tokens);
  const size_t o = m->ops->operand_bytes;
  struct array_layout layout = {base, 0};
  l->head.kept = kept_blocks(m, options);
  l->head.logits = array_layout_take(&layout, (size_t)l->head.kept * HEAD_ROWS * s.V, sizeof(float));
  if (!options->forward_only) {
    place_gradients(&layout, &l->g, &s, o);
    l->head.dlogits = array_layout_take(&layout, HEAD_ROWS * s.V, o);
    l->head.dhidden = array_layout_take(&layout, HEAD_ROWS * s.D, sizeof(float));
  }
  if (options->transposes_bytes > 0) place_transposing(&layout, &l->transposing, m, options->transposes_bytes);
  l->head.where = array_layout_take(&layout, ops_place_bytes(m->ops, HEAD_ROWS * sizeof(int32_t)), 1);
  l->lists_place = array_layout_take(&layout, ops_place_bytes(m->ops, chunk_bytes(chunk_tokens)), 1);
  return layout.used;
}

static int page_table_max(int chunk_tokens) {
  return chunk_sequences_max(chunk_tokens) * chunk_pages_max(chunk_tokens);
}

struct learner_memory learner_memory(const struct model *m, const struct learner_options *options) {
  struct learner measured = {0};
  const int T = options->chunk_tokens;
  const size_t pages = (size_t)chunk_pages_max(T), placed = place_learner(&measured, NULL, m, options);
  const size_t logits = (size_t)(measured.head.kept - 1) * head_block_bytes(m);
  return (struct learner_memory){
      .activations = options->forward_only ? 0 : activations_bytes(m, T, options->recompute_activations) + logits,
      .scratch = placed - logits + chunk_bytes(T) + workspace_bytes(m, T, page_table_max(T)) +
                 pages * kv_layer_page_bytes(m, CHUNK_PAGE_TOKENS)};
}

static enum rc create_parts(struct learner *l, const struct learner_options *options, struct err *err) {
  const struct model *m = l->model;
  const int chunk_tokens = options->chunk_tokens, pages = chunk_pages_max(chunk_tokens);
  enum rc rc = workspace_create(&l->ws, m, chunk_tokens, page_table_max(chunk_tokens), err);
  if (rc == RC_OK && !options->forward_only)
    rc = activations_create(&l->activations, m, l->ws, options->recompute_activations, err);
  if (rc == RC_OK) rc = kv_cache_create_single(&l->kv, m, pages, CHUNK_PAGE_TOKENS, err);
  if (rc == RC_OK) rc = kv_sequence_init(&l->all_pages, l->kv, pages * CHUNK_PAGE_TOKENS, err);
  if (rc != RC_OK) return rc;
  rc = kv_reserve(l->kv, &l->all_pages, pages * CHUNK_PAGE_TOKENS);
  assert(rc == RC_OK);
  const size_t bytes = place_learner(l, NULL, m, options);
  l->memory = m->ops->alloc(m->ops, bytes);
  l->lists_bytes = chunk_bytes(chunk_tokens);
  l->lists = aligned_alloc(64, l->lists_bytes);
  if (!l->memory || !l->lists)
    return err_set(err, RC_NO_MEMORY, NULL, "the head and gradients of %d rows need %zu bytes, which were refused",
                   chunk_tokens, bytes + l->lists_bytes);
  place_learner(l, l->memory, m, options);
  chunk_init(&l->chunk, l->lists, chunk_tokens);
  return RC_OK;
}

enum rc learner_create(struct learner **out, const struct model *m, const struct learner_options *options,
                       struct err *err) {
  const int chunk_tokens = options->chunk_tokens;
  *out = NULL;
  if (chunk_tokens < 2 || chunk_tokens > LIMIT_SEQUENCE_TOKENS)
    return err_set(err, RC_INVALID, "chunk_tokens", "expected 2 to %d tokens per chunk, got %d", LIMIT_SEQUENCE_TOKENS,
                   chunk_tokens);
  struct learner *l = calloc(1, sizeof *l);
  if (!l) return err_set(err, RC_NO_MEMORY, NULL, "a learner record of %zu bytes was refused", sizeof *l);
  l->model = m;
  struct err cause = {0};
  const enum rc rc = create_parts(l, options, &cause);
  if (rc != RC_OK) {
    const struct learner_memory needed = learner_memory(m, options);
    learner_free(l);
    return err_set(err, rc, "chunk_tokens", "a learner with chunks of %d tokens needs %zu bytes in all: %s",
                   chunk_tokens, needed.activations + needed.scratch, cause.message);
  }
  *out = l;
  return RC_OK;
}

void learner_free(struct learner *l) {
  if (!l) return;
  if (l->memory) l->model->ops->release(l->model->ops, l->memory);
  free(l->lists);
  if (l->kv) kv_sequence_release(l->kv, &l->all_pages);
  kv_cache_free(l->kv);
  activations_free(l->activations, l->model);
  workspace_free(l->ws);
  free(l);
}

/* --- samples and chunks --- */

/* One of the chunk's arrays as operations take it; NULL stays NULL. */
static void *listed(const struct learner *l, const void *array) {
  if (!array || l->model->ops->host_memory) return (void *)array;
  return (char *)l->lists_place + ((const char *)array - (const char *)l->lists);
}

static enum rc check_sample(const struct learner *l, const struct train_sample *s, int index, struct err *err) {
  const struct model *m = l->model;
  const int chunk_tokens = l->chunk.chunk_tokens;
  const int longest = chunk_tokens < m->context_max ? chunk_tokens : m->context_max;
  if (s->length < 1)
    return err_set(err, RC_INVALID, "samples", "sample %d: expected at least one token, got %d", index, s->length);
  if (s->length > longest)
    return err_set(err, RC_TOO_LARGE, "samples", "sample %d has %d tokens; chunks hold %d and the context %d", index,
                   s->length, chunk_tokens, m->context_max);
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

/* Fills the chunk from the first of the samples and runs it forward; returns how many samples that took.  hidden is
 * NULL when none of their tokens is scored: no gradient flows from rows without a scored token. */
static int run_chunk(struct learner *l, const struct weights *w, const struct train_sample *samples, int count,
                     bool save, const void **hidden) {
  struct chunk *c = &l->chunk;
  const bool forward_only = !save && c->shares;
  const int taken = forward_only ? chunk_fill_forward(c, samples, count, l->all_pages.pages)
                                 : chunk_fill(c, samples, count, l->all_pages.pages);
  *hidden = NULL;
  if (c->scored == 0) return taken;
  if (l->distrusted) kv_clear(l->kv);
  l->distrusted = false;
  chunk_finish(c, c->shares && (!save || forward_stays_finite(w)));
  ops_stage(l->model->ops, l->lists_place, l->lists, l->lists_bytes);
  const struct forward_call call = chunk_call(c);
  forward_run_shared(w, &call, l->kv, l->ws, save ? l->activations : NULL, hidden);
  return taken;
}

void learner_share_rows(struct learner *l, bool share) { l->chunk.shares = share; }

void learner_set_cut(struct learner *l, const struct sampling_params *cut) { l->cut = *cut; }

void learner_set_draws(struct learner *l, const struct token_draws *draws) { l->draws = draws; }

/* --- the head --- */

static int block_rows(const struct chunk *c, int first) {
  return c->scored - first < HEAD_ROWS ? c->scored - first : HEAD_ROWS;
}

/* Where the logits of the block from scored token `first` on lie. */
static float *logits_at(const struct learner *l, int first) {
  const int block = first / HEAD_ROWS, place = block < l->head.kept ? block : l->head.kept - 1;
  return l->head.logits + (size_t)place * HEAD_ROWS * (size_t)l->model->config.vocabulary;
}

/* Whether they are still there when the chunk's last block has been made. */
static bool logits_kept(const struct learner *l, int first) {
  const int blocks = (l->chunk.scored + HEAD_ROWS - 1) / HEAD_ROWS;
  return blocks <= l->head.kept || first / HEAD_ROWS < l->head.kept - 1;
}

/* Logits of one block of scored tokens, cut; equal hidden rows are multiplied, and cut, once. */
static void head_logits(struct learner *l, const struct weights *w, const void *hidden, float temperature, int first,
                        int rows) {
  const struct ops *ops = l->model->ops;
  float *logits = logits_at(l, first);
  const size_t bytes = (size_t)l->model->config.vocabulary * sizeof(float);
  int32_t ask[HEAD_ROWS], where[HEAD_ROWS];
  const int distinct = chunk_distinct(&l->chunk, first, rows, ask, where);
  forward_logits(w, hidden, ask, distinct, l->ws, logits);
  struct sampling_params cut = l->cut;
  cut.temperature = temperature;
  if (sampling_cuts(&cut)) ops->cut(ops, logits, &cut, distinct, l->model->config.vocabulary);
  if (distinct == rows) return;
  const int32_t *staged = ops_stage(ops, l->head.where, where, (size_t)rows * sizeof *where);
  ops->move_rows(ops, logits, logits, staged, rows, bytes); /* where[i] <= i */
}

/* More than what the sums of a row can be off by. */
#define DRAW_MARGIN 0x1p-10

/* Must a token of this log-probability be what any uniform in [low, high] draws?  At least 1 - p of the probability
 * lies on neither side of it. */
static bool surely_drawn(float logprob, double low, double high) {
  const double beside = 1 - elementary_exp((double)logprob) + DRAW_MARGIN;
  return beside < low && high < 1 - beside;
}

/* The draws of one token behind the others. */
struct asked_draws {
  struct draw items[2 * HEAD_ROWS];
  int32_t *token[2 * HEAD_ROWS]; /* where each goes */
  float *logprob[2 * HEAD_ROWS]; /* likewise, or NULL */
  int count;
};

static void ask_draw(struct asked_draws *a, const struct draw *draw, int32_t *token, float *logprob) {
  a->items[a->count] = *draw;
  a->token[a->count] = token;
  a->logprob[a->count++] = logprob;
}

/* at: the token among all scored ones of the call.  own: its log-probability, where the host has it. */
static void ask_token(struct asked_draws *a, const struct token_draws *d, size_t at, struct draw draw,
                      const float *own) {
  const double u = (double)d->uniform[at], near = (double)d->near;
  switch (d->kind ? (enum draw_kind)d->kind[at] : DRAW_OWN) {
    case DRAW_OWN:
      draw.u = d->uniform[at];
      if (!own || !surely_drawn(*own, u, u)) ask_draw(a, &draw, &d->token[at], &d->logprob[at]);
      return;
    case DRAW_NEAR: /* where it takes more than 1 - near, no uniform is farther off */
      if (own && 1 - elementary_exp((double)*own) + DRAW_MARGIN < near) return;
      draw.u = u - near > 0x1p-24 ? (float)(u - near) : 0x1p-24f;
      ask_draw(a, &draw, &d->low[at], NULL);
      draw.u = u + near < 1 - 0x1p-24 ? (float)(u + near) : 1 - 0x1p-24f;
      ask_draw(a, &draw, &d->high[at], NULL);
      return;
    case DRAW_NONE: return;
  }
}

/* From the block's logits; first: the block's first token in the chunk, before which the call has scored `before`. */
static void head_draw(struct learner *l, float temperature, size_t before, int first, int rows) {
  const struct ops *ops = l->model->ops;
  const struct token_draws *d = l->draws;
  const struct chunk *c = &l->chunk;
  struct asked_draws asked;
  asked.count = 0;
  for (int i = 0; i < rows; i++) {
    const size_t at = before + (size_t)(first + i);
    const float *own = ops->host_memory ? &c->logprob[first + i] : NULL;
    d->token[at] = c->target[first + i];
    if (own) d->logprob[at] = *own;
    if (d->low) d->low[at] = d->high[at] = c->target[first + i];
    ask_token(&asked, d, at, (struct draw){.row = i, .temperature = temperature}, own);
  }
  if (asked.count > 0) ops->sample(ops, asked.items, asked.count, logits_at(l, first), l->model->config.vocabulary);
  for (int i = 0; i < asked.count; i++) {
    *asked.token[i] = asked.items[i].token;
    if (asked.logprob[i]) *asked.logprob[i] = asked.items[i].logprob;
  }
}

/* Log-probabilities of the whole chunk, before which the call has scored `before` tokens. */
static void head_forward(struct learner *l, const struct weights *w, const void *hidden, float temperature,
                         bool entropy, size_t before) {
  const struct ops *ops = l->model->ops;
  struct chunk *c = &l->chunk;
  for (int first = 0; first < c->scored; first += HEAD_ROWS) {
    const int rows = block_rows(c, first);
    head_logits(l, w, hidden, temperature, first, rows);
    ops->logprob(ops, listed(l, c->logprob + first), listed(l, c->lse + first),
                 entropy ? listed(l, c->entropy + first) : NULL, logits_at(l, first), listed(l, c->target + first),
                 temperature, rows, l->model->config.vocabulary);
    if (l->draws) head_draw(l, temperature, before, first, rows);
  }
  const size_t bytes = (size_t)c->scored * sizeof(float);
  ops_fetch(ops, c->logprob, listed(l, c->logprob), bytes);
  for (int i = 0; i < c->scored; i++) l->distrusted |= isnan(c->logprob[i]);
  if (entropy) ops_fetch(ops, c->entropy, listed(l, c->entropy), bytes);
}

static int head_index(const struct model *m) {
  return param_table_index(&m->params, m->config.tied ? PARAM_EMBED : PARAM_HEAD, -1);
}

#define NOT_BEHIND SIZE_MAX

/* The first of rows that stand one behind another, so that no list of them is needed; else NOT_BEHIND. */
static size_t rows_behind_each_other(const int32_t *row, int count) {
  for (int i = 1; i < count; i++)
    if (row[i] != row[0] + i) return NOT_BEHIND;
  return (size_t)row[0];
}

/* A parameter's gradient, to be added to until it is closed. */
static float *gradient_open(const struct gradient_target *to, const struct model *m, int param) {
  return to->whole ? to->whole + m->params.items[param].offset : gradient_parts_open(to->parts, param);
}
static void gradient_close(const struct gradient_target *to, int param) {
  if (!to->whole) gradient_parts_close(to->parts, param);
}

/* dx[rows,K] (+)= dy[rows,N] W, W the parameter [N,K].  With a transpose that is made in pieces, which only the head's
 * is, at most HEAD_ROWS rows and no accumulating. */
static void product_backward(struct learner *l, const struct weights *w, int param, float *dx, const void *dy, int rows,
                             bool accumulate) {
  const struct ops *ops = l->model->ops;
  const struct transposing *t = &l->transposing;
  const int K = w->transposed[param].N, N = w->transposed[param].K;
  if (w->transposed[param].data) {
    ops->gemm(ops, dx, dy, &w->transposed[param], rows, accumulate);
    return;
  }
  const int most = piece_rows(ops, t->tile_bytes, K, N);
  assert(most > 0 && (most == K || (!accumulate && (size_t)rows * (size_t)most <= t->out_count)));
  for (int first = 0; first < K; first += most) {
    struct matrix piece = {.data = t->tiles, .N = K - first < most ? K - first : most, .K = N};
    ops->matrix_transpose(ops, &piece, &w->matrices[param], first);
    ops->gemm(ops, most == K ? dx : t->out, dy, &piece, rows, accumulate);
    for (int row = 0; row < rows && most < K; row++)
      memcpy(dx + (size_t)row * (size_t)K + first, t->out + (size_t)row * (size_t)piece.N,
             (size_t)piece.N * sizeof *dx);
  }
}

/* dlogprob -> the head's gradient, and that of hidden into g.dnorm [active,D] (zero where a row predicts no scored
 * token). */
static void head_backward(struct learner *l, const struct weights *w, const void *hidden, float temperature,
                          const struct gradient_target *to) {
  const struct model *m = l->model;
  const struct ops *ops = m->ops;
  const struct chunk *c = &l->chunk;
  const int D = m->config.hidden, V = m->config.vocabulary, head = head_index(m);
  const size_t row_bytes = (size_t)D * sizeof(float);
  float *dW = gradient_open(to, m, head);
  ops_stage(ops, listed(l, c->dlogprob), c->dlogprob, (size_t)c->scored * sizeof *c->dlogprob);
  if (l->entropy_term)
    ops_stage(ops, listed(l, c->dentropy), c->dentropy, (size_t)c->scored * sizeof *c->dentropy);
  if (!c->partly) ops->clear(ops, l->g.dnorm, (size_t)c->T * row_bytes);
  for (int first = 0; first < c->scored; first += HEAD_ROWS) {
    const int rows = block_rows(c, first);
    float *dhidden = c->partly ? l->g.dnorm + (size_t)first * (size_t)D : l->head.dhidden;
    if (!logits_kept(l, first)) head_logits(l, w, hidden, temperature, first, rows);
    ops->logprob_backward(ops, l->head.dlogits, listed(l, c->dlogprob + first),
                          l->entropy_term ? listed(l, c->dentropy + first) : NULL,
                          l->entropy_term ? listed(l, c->entropy + first) : NULL, logits_at(l, first),
                          listed(l, c->lse + first), listed(l, c->target + first), temperature, rows, V);
    if (m->config.logits_cap > 0)
      ops->soft_cap_backward(ops, l->head.dlogits, logits_at(l, first), m->config.logits_cap, (size_t)rows * (size_t)V);
    const size_t behind = rows_behind_each_other(c->hidden_row + first, rows);
    const void *x = behind == NOT_BEHIND ? hidden : (const char *)hidden + behind * (size_t)D * ops->operand_bytes;
    ops->gemm_weight_backward(ops, dW, l->head.dlogits, x,
                              behind == NOT_BEHIND ? listed(l, c->hidden_row + first) : NULL, NULL, rows, V, D);
    product_backward(l, w, head, dhidden, l->head.dlogits, rows, false);
    for (int i = 0; i < rows && !c->partly; i++)
      ops->copy(ops, l->g.dnorm + (size_t)c->pick[first + i] * (size_t)D, dhidden + (size_t)i * (size_t)D, row_bytes);
  }
  if (!m->config.tied) gradient_close(to, head); /* else embed_backward adds to it */
}

/* --- the layers --- */

/* Rows that carry gradients, as the kernels see them (listed); NULL lists: see ops.h. */
struct gradient_rows {
  int count;
  const int32_t *row;      /* rows in the arrays that the forward pass saved for them */
  const int32_t *norm_row; /* rows in the array that it saved before the queries: norm_in */
  const int32_t *place;    /* among all rows */
  const int32_t *position;
  /* The gradients of the first `once` of a list without repetitions are computed; row [count] of what adds up over rows
   * has that of `repeat`.  NULL: these are the rows themselves. */
  int once;
  const int32_t *once_row, *once_position, *repeat;
};

/* Without repetitions. */
static struct gradient_rows rows_themselves(struct gradient_rows rows) {
  rows.once = rows.count;
  rows.once_row = rows.row;
  rows.once_position = rows.position;
  return rows;
}

/* One layer's backward, as the kernels see it. */
struct layer_pass {
  struct learner *l;
  const struct weights *w;
  const struct layer_activations *a;
  const struct gradient_target *to;
  int layer;
  const struct ops *ops;
  struct gradient_rows all;     /* keys and values, and the operations before them */
  struct gradient_rows queries; /* and the operations after them */
};

/* NULL where the model has no such parameter. */
static float *grad_open(const struct layer_pass *p, enum param_kind kind) {
  const int index = param_table_index(&p->l->model->params, kind, p->layer);
  return index >= 0 ? gradient_open(p->to, p->l->model, index) : NULL;
}
static void grad_close(const struct layer_pass *p, enum param_kind kind) {
  const int index = param_table_index(&p->l->model->params, kind, p->layer);
  if (index >= 0) gradient_close(p->to, index);
}
static const void *vector_of(const struct layer_pass *p, enum param_kind kind) {
  const int index = param_table_index(&p->l->model->params, kind, p->layer);
  return index >= 0 ? p->w->matrices[index].data : NULL;
}

/* Gradients of once's rows become those of all rows, in place: for what adds up over them. */
static void repeat_rows(const struct ops *ops, const struct gradient_rows *rows, void *dy, size_t row_bytes) {
  if (rows->repeat) ops->move_rows(ops, dy, dy, rows->repeat, rows->count, row_bytes);
}

/* y = x W^T + b backwards: dx = dy W (added when accumulate), dW += dy^T x, and db += dy where there is one; row: of x.
 * dy is used up. */
static void linear_backward(const struct layer_pass *p, enum param_kind kind, const struct gradient_rows *rows,
                            const int32_t *row, void *dy, const void *x, float *dx, bool accumulate) {
  const int param = param_table_index(&p->l->model->params, kind, p->layer);
  const struct matrix *transposed = &p->w->transposed[param];
  product_backward(p->l, p->w, param, dx, dy, rows->once, accumulate);
  repeat_rows(p->ops, rows, dy, (size_t)transposed->K * p->ops->operand_bytes);
  p->ops->gemm_weight_backward(p->ops, grad_open(p, kind), dy, x, row, rows->place, rows->count, transposed->K,
                               transposed->N);
  grad_close(p, kind);
  float *db = grad_open(p, param_kind_bias(kind));
  if (db) p->ops->add_bias_backward(p->ops, db, dy, rows->count, transposed->K);
  grad_close(p, param_kind_bias(kind));
}

/* y = norm(x): dx +=.  dy is used up. */
static void norm_backward(const struct layer_pass *p, enum param_kind kind, const struct gradient_rows *rows, float *dy,
                          const float *x, const float *rstd, float *dx) {
  const struct model_config *c = &p->l->model->config;
  const void *w = vector_of(p, kind);
  float *dw = grad_open(p, kind);
  p->ops->rmsnorm_backward(p->ops, dx, rows->repeat ? NULL : dw, dy, x, w, c->plus_one, rstd, rows->once_row,
                           rows->once, c->hidden);
  if (rows->repeat) {
    repeat_rows(p->ops, rows, dy, (size_t)c->hidden * sizeof *dy);
    p->ops->rmsnorm_backward(p->ops, NULL, dw, dy, x, w, c->plus_one, rstd, rows->row, rows->count, c->hidden);
  }
  grad_close(p, kind);
}

/* Queries or keys of H heads through their norm and rotation.  dy is used up. */
static void rope_backward(const struct layer_pass *p, enum param_kind kind, const struct gradient_rows *rows, float *dx,
                          float *dy, const float *x, const float *rstd, int H) {
  const struct model *m = p->l->model;
  const bool plus_one = m->config.plus_one;
  const float *rope = model_rope(m, p->layer);
  const void *w = vector_of(p, kind);
  float *dw = grad_open(p, kind);
  const int E = m->config.head_dim;
  p->ops->head_norm_rope_backward(p->ops, dx, rows->repeat ? NULL : dw, dy, x, w, plus_one, rstd, rope,
                                  rows->once_position, rows->once_row, rows->once, H, E);
  if (rows->repeat && dw) {
    repeat_rows(p->ops, rows, dy, (size_t)(H * E) * sizeof *dy);
    p->ops->head_norm_rope_backward(p->ops, NULL, dw, dy, x, w, plus_one, rstd, rope, rows->position, rows->row,
                                    rows->count, H, E);
  }
  grad_close(p, kind);
}

/* g.dx_operand: the gradient of a block's output [T,D], from that of the residual to which it was added, through its
 * norm where it has one.  g.dnorm is overwritten. */
static void output_backward(const struct layer_pass *p, enum param_kind kind, const float *x, const float *rstd) {
  const struct ops *ops = p->ops;
  const struct model_config *c = &p->l->model->config;
  const struct gradient_rows *rows = &p->queries;
  struct gradients *g = &p->l->g;
  const size_t count = (size_t)rows->once * (size_t)c->hidden;
  if (c->out_norms) {
    assert(!rows->repeat); /* g.dx is still needed */
    ops->clear(ops, g->dnorm, count * sizeof *g->dnorm);
    norm_backward(p, kind, rows, g->dx, x, rstd, g->dnorm);
  }
  ops->to_operand(ops, g->dx_operand, c->out_norms ? g->dnorm : g->dx, count);
}

/* --- for experts_backward: context is the layer's pass --- */

static float *expert_open(const void *context, int param) {
  const struct layer_pass *p = context;
  return gradient_open(p->to, p->l->model, param);
}
static void expert_close(const void *context, int param) {
  const struct layer_pass *p = context;
  gradient_close(p->to, param);
}
static void expert_product(const void *context, int param, float *dx, const void *dy, int rows, bool accumulate) {
  const struct layer_pass *p = context;
  product_backward(p->l, p->w, param, dx, dy, rows, accumulate);
}

/* From g.dx to g.dnorm, and the gradients of the router and the experts. */
static void sparse_backward(const struct layer_pass *p) {
  const struct learner *l = p->l;
  struct gradients *g = &p->l->g;
  assert(!p->queries.place);
  const struct experts_gradient call = {.model = l->model,
                                        .a = p->a,
                                        .params = {p, expert_open, expert_close, expert_product},
                                        .layer = p->layer,
                                        .T = p->queries.count,
                                        .computed = l->chunk.computed,
                                        .own = p->queries.row,
                                        .dx = g->dx,
                                        .dx_operand = g->dx_operand,
                                        .dh = g->dh,
                                        .dgate = g->dgate,
                                        .dup = g->dup,
                                        .scratch = &g->experts};
  p->ops->to_operand(p->ops, g->dx_operand, g->dx, (size_t)call.T * (size_t)l->model->config.hidden);
  experts_backward(&call, g->dnorm);
}

/* From g.dx to g.dnorm, and the gradients of the MLP. */
static void dense_backward(const struct layer_pass *p) {
  const struct ops *ops = p->ops;
  const struct model_config *c = &p->l->model->config;
  const struct gradient_rows *rows = &p->queries;
  struct gradients *g = &p->l->g;
  output_backward(p, PARAM_MLP_OUT_NORM, p->a->mlp_out, p->a->rstd_mlp_out);
  linear_backward(p, PARAM_DOWN, rows, rows->row, g->dx_operand, p->a->h, g->dh, false);
  (c->gelu ? ops->geglu_backward : ops->swiglu_backward)(ops, g->dgate, g->dup, g->dh, p->a->gate, p->a->up,
                                                         rows->once_row, rows->once, c->ffn);
  linear_backward(p, PARAM_GATE, rows, rows->row, g->dgate, p->a->norm_mid, g->dnorm, false);
  linear_backward(p, PARAM_UP, rows, rows->row, g->dup, p->a->norm_mid, g->dnorm, true);
}

static void mlp_backward(const struct layer_pass *p) {
  struct gradients *g = &p->l->g;
  if (model_config_sparse(&p->l->model->config, p->layer))
    sparse_backward(p);
  else
    dense_backward(p);
  norm_backward(p, PARAM_POST_NORM, &p->queries, g->dnorm, p->a->x_mid, p->a->rstd_mid, g->dx);
}

/* The active row of each of the rows that are computed. */
static const int32_t *query_rows(const struct learner *l) {
  return listed(l, l->chunk.repeats ? l->chunk.once.query : l->chunk.query);
}

/* From g.dx to the gradients of q, k and v, rounded. */
static void attention_core_backward(const struct layer_pass *p) {
  const struct ops *ops = p->ops;
  const struct model *m = p->l->model;
  const struct model_config *c = &m->config;
  const struct chunk *chunk = &p->l->chunk;
  const struct gradient_rows *q = &p->queries, *kv = &p->all;
  const struct layer_activations *a = p->a;
  struct gradients *g = &p->l->g;
  const int H = c->heads, G = c->kv_heads, E = c->head_dim;
  const size_t TQ = (size_t)q->once * (size_t)(H * E), TK = (size_t)kv->once * (size_t)(G * E);
  const struct packed batch = {.T = kv->once,
                               .sequences = chunk->repeats ? chunk->once.sequences : chunk->sequences,
                               .start = listed(p->l, chunk->repeats ? chunk->once.start : chunk->start),
                               .row = kv->once_row,
                               .query = q->place ? query_rows(p->l) : NULL,
                               .query_row = q->once_row,
                               .window = model_config_window(c, p->layer),
                               .cap = c->scores_cap};
  output_backward(p, PARAM_ATTENTION_OUT_NORM, a->attention_out, a->rstd_attention_out);
  linear_backward(p, PARAM_O, q, q->row, g->dx_operand, a->attention, g->dattention, false);
  ops->to_operand(ops, g->dattention_operand, g->dattention, TQ);
  ops->attention_backward(ops, g->dq, g->dk, g->dv, g->dattention_operand, a->attention, a->lse, a->q, a->k, a->v,
                          &batch, H, G, E, model_attention_scale(m));
  rope_backward(p, PARAM_Q_NORM, q, g->dq_raw, g->dq, a->q_raw, a->rstd_q, H);
  rope_backward(p, PARAM_K_NORM, kv, g->dk_raw, g->dk, a->k_raw, a->rstd_k, G);
  ops->to_operand(ops, g->dq_operand, g->dq_raw, TQ);
  ops->to_operand(ops, g->dk_operand, g->dk_raw, TK);
  ops->to_operand(ops, g->dv_operand, g->dv, TK);
}

static void attention_block_backward(const struct layer_pass *p) {
  const struct ops *ops = p->ops;
  const int D = p->l->model->config.hidden;
  const struct gradient_rows *q = &p->queries, *kv = &p->all;
  const struct layer_activations *a = p->a;
  struct gradients *g = &p->l->g;
  attention_core_backward(p);
  linear_backward(p, PARAM_Q, q, q->norm_row, g->dq_operand, a->norm_in, g->dnorm, false);
  if (q->place) { /* from here on all rows have a gradient: row t is query[t] <= t, or zero */
    const int32_t *query = query_rows(p->l);
    ops->move_rows(ops, g->dnorm, g->dnorm, query, kv->once, (size_t)D * sizeof(float));
    ops->move_rows(ops, g->dx, g->dx, query, kv->once, (size_t)D * sizeof(float));
  }
  linear_backward(p, PARAM_K, kv, kv->norm_row, g->dk_operand, a->norm_in, g->dnorm, true);
  linear_backward(p, PARAM_V, kv, kv->norm_row, g->dv_operand, a->norm_in, g->dnorm, true);
  norm_backward(p, PARAM_INPUT_NORM, kv, g->dnorm, a->x_in, a->rstd_in, g->dx);
}

/* All rows of the chunk, and those that have a gradient in the last layer. */
static void list_rows(const struct learner *l, struct gradient_rows *all, struct gradient_rows *last) {
  const struct chunk *c = &l->chunk;
  const int32_t *own = c->computed < c->T ? listed(l, c->row) : NULL; /* else every row is its own */
  *all = rows_themselves(
      (struct gradient_rows){.count = c->T, .row = own, .norm_row = own, .position = listed(l, c->position)});
  *last = *all;
  if (c->partly)
    *last = rows_themselves((struct gradient_rows){.count = c->active,
                                                   .row = listed(l, c->active_row),
                                                   .norm_row = listed(l, c->active_own),
                                                   .place = listed(l, c->pick),
                                                   .position = listed(l, c->active_position)});
  if (!c->repeats) return;
  all->once = c->once.T;
  all->once_row = c->once.row;
  all->once_position = c->once.position;
  all->repeat = c->repeat;
  last->once = c->once.active;
  last->once_row = c->once.active_row;
  last->once_position = c->once.active_position;
  last->repeat = c->repeat_active;
}

/* From g.dnorm, the gradient of hidden for all rows of `last`, to g.dx for those without repetitions. */
static void final_norm_backward(struct learner *l, const struct weights *w, const struct gradient_rows *last,
                                const struct gradient_target *to) {
  const struct model *m = l->model;
  const struct ops *ops = m->ops;
  const struct activations *saved = l->activations;
  const int D = m->config.hidden, norm = param_table_index(&m->params, PARAM_FINAL_NORM, -1);
  const size_t row_bytes = (size_t)D * sizeof(float);
  float *dw = gradient_open(to, m, norm), *dnorm = l->g.dnorm;
  const void *weight = w->matrices[norm].data;
  const bool plus_one = m->config.plus_one;
  ops->clear(ops, l->g.dx, (size_t)last->once * row_bytes);
  ops->rmsnorm_backward(ops, last->repeat ? NULL : l->g.dx, dw, dnorm, saved->x_out, weight, plus_one, saved->rstd_out,
                        last->row, last->count, D);
  if (last->repeat) {
    ops->move_rows(ops, dnorm, dnorm, l->chunk.once.active_from, last->once, row_bytes);
    ops->rmsnorm_backward(ops, l->g.dx, NULL, dnorm, saved->x_out, weight, plus_one, saved->rstd_out, last->once_row,
                          last->once, D);
  }
  gradient_close(to, norm);
}

/* From g.dnorm, the gradient of hidden, down to the embedding. */
static void layers_backward(struct learner *l, const struct weights *w, const struct gradient_target *to) {
  const struct model *m = l->model;
  const struct ops *ops = m->ops;
  const struct chunk *c = &l->chunk;
  const struct activations *saved = l->activations;
  const size_t D = (size_t)m->config.hidden;
  struct gradient_rows all, last;
  list_rows(l, &all, &last);
  final_norm_backward(l, w, &last, to);
  for (int layer = m->config.layers - 1; layer >= 0; layer--) {
    const struct layer_pass pass = {.l = l,
                                    .w = w,
                                    .a = &saved->layers[layer],
                                    .to = to,
                                    .layer = layer,
                                    .ops = ops,
                                    .all = all,
                                    .queries = layer == m->config.layers - 1 ? last : all};
    forward_again(w, l->kv, l->ws, saved, layer);
    mlp_backward(&pass);
    attention_block_backward(&pass);
  }
  const int embed = param_table_index(&m->params, PARAM_EMBED, -1);
  if (m->config.root_embedding) ops->scale(ops, l->g.dx, model_embedding_scale(m), (size_t)all.once * D);
  repeat_rows(ops, &all, l->g.dx, D * sizeof *l->g.dx);
  ops->embed_backward(ops, gradient_open(to, m, embed), l->g.dx, listed(l, c->tokens), c->T, m->config.vocabulary,
                      (int)D);
  gradient_close(to, embed);
}

/* --- the two calls --- */

enum rc learner_logprobs(struct learner *l, const struct weights *w, const struct train_sample *samples, int count,
                         float temperature, float *logprob, float *entropy, struct err *err) {
  const enum rc rc = check_samples(l, samples, count, temperature, err);
  if (rc != RC_OK) return rc;
  size_t first = 0;
  for (int done = 0; done < count;) {
    const void *hidden;
    const struct chunk *c = &l->chunk;
    done += run_chunk(l, w, samples + done, count - done, false, &hidden);
    if (!hidden) continue;
    head_forward(l, w, hidden, temperature, entropy != NULL, first);
    memcpy(logprob + first, c->logprob, (size_t)c->scored * sizeof *logprob);
    if (entropy) memcpy(entropy + first, c->entropy, (size_t)c->scored * sizeof *entropy);
    first += (size_t)c->scored;
  }
  return l->model->ops->status(l->model->ops, err);
}

static bool any_scored(const struct train_sample *samples, int count) {
  for (int i = 0; i < count; i++)
    for (int t = 0; t < samples[i].length; t++)
      if (samples[i].scored[t]) return true;
  return false;
}

static enum rc gradients(struct learner *l, const struct weights *w, const struct train_sample *samples, int count,
                         float temperature, loss_gradient loss, void *loss_context, const struct gradient_target *to,
                         float *logprob, struct err *err) {
  assert(w->transposed && l->activations);
  const enum rc rc = check_samples(l, samples, count, temperature, err);
  if (rc != RC_OK) return rc;
  int first = 0;
  l->entropy_sum = 0;
  for (int done = 0; done < count;) {
    const void *hidden;
    struct chunk *c = &l->chunk;
    done += run_chunk(l, w, samples + done, count - done, true, &hidden);
    if (!hidden) continue;
    head_forward(l, w, hidden, temperature, true, (size_t)first);
    for (int i = 0; i < c->scored; i++) l->entropy_sum += (double)c->entropy[i];
    if (l->entropies) memcpy(l->entropies + first, c->entropy, (size_t)c->scored * sizeof *l->entropies);
    loss(loss_context, first, c->scored, c->logprob, c->dlogprob);
    if (l->entropy_term) l->entropy_term(loss_context, first, c->scored, c->entropy, c->dentropy);
    if (logprob) memcpy(logprob + first, c->logprob, (size_t)c->scored * sizeof *logprob);
    if (to->parts) gradient_parts_chunk(to->parts, first == 0, !any_scored(samples + done, count - done));
    first += c->scored;
    if (l->model->ops->host_memory && !l->model->config.out_norms) chunk_find_repeats(c, l->entropy_term != NULL);
    head_backward(l, w, hidden, temperature, to);
    layers_backward(l, w, to);
  }
  return l->model->ops->status(l->model->ops, err);
}

enum rc learner_gradients(struct learner *l, const struct weights *w, const struct train_sample *samples, int count,
                          float temperature, loss_gradient loss, void *loss_context, float *grads, float *logprob,
                          struct err *err) {
  const struct gradient_target to = {.whole = grads};
  return gradients(l, w, samples, count, temperature, loss, loss_context, &to, logprob, err);
}

enum rc learner_gradients_in_parts(struct learner *l, const struct weights *w, const struct train_sample *samples,
                                   int count, float temperature, loss_gradient loss, void *loss_context,
                                   struct gradient_parts *parts, float *logprob, struct err *err) {
  const struct gradient_target to = {.parts = parts};
  return gradients(l, w, samples, count, temperature, loss, loss_context, &to, logprob, err);
}

double learner_entropy_sum(const struct learner *l) { return l->entropy_sum; }

void learner_entropies(struct learner *l, float *out) { l->entropies = out; }

void learner_entropy_term(struct learner *l, entropy_gradient term) { l->entropy_term = term; }
