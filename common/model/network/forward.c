/* Runs the one layer loop, for the sampler and for the trainer.
 *
 * Both call forward_run; the trainer passes `save`, and then the same kernels write into the saved arrays instead of
 * the scratch ones, with the same results.  Where only each layer's input was saved, forward_again runs that layer once
 * more with the same functions.
 *
 * Letters as in ops.h.  Residual x [T,D] is float32 and updated in place; GEMM operands are rounded where they are
 * made.  Only the two create functions allocate.
 *
 * Previous hop: the rows of engine_step.c (generation-server) or a chunk (backward.c).  Next: forward_logits, then
 * sampler.c or loss.c. */
#include "common/model/network/forward.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/network/array_layout.h"
#include "common/model/network/experts.h"
#include "common/model/network/rope.h"
#include "common/model/network/shape.h"

/* Where a call's lists are kept for a device, by the names of struct forward_call; all NULL where memory is the
 * host's. */
struct list_places {
  int32_t *tokens, *row, *finish, *pick, *pages;
  struct row_places {
    int32_t *sequence, *position;
  } rows, computed, finished;
};

struct workspace {
  const struct model *model; /* borrowed */
  int rows_max, pages_max;
  struct list_places places;
  struct forward_call staged; /* the last call, as operations take it */
  void *memory;
  struct layer_activations scratch; /* used for every layer of a call that saves nothing; x_in, x_mid unused */
  float *x;                         /* [T,D] */
  float *v_raw;                     /* [T,G*E] */
  void *hidden;                     /* operand [T,D] */
  void *picked;                     /* operand [T,D] */
  float *expert_out;                /* [T,D]; of no size without experts, like routing */
  struct routing routing;
};

/* --- memory --- */

/* Which layers an array of activations is for: one with an MLP, one of experts, or all. */
enum layer_form { FORM_MLP, FORM_EXPERTS, FORM_ANY };

static void place_mlp(struct array_layout *l, struct layer_activations *a, const struct shape *s, size_t operand,
                      enum layer_form form) {
  const size_t F = form == FORM_MLP ? s->F : form == FORM_EXPERTS ? s->chosen * s->FE : s->mlp;
  const size_t routed = form == FORM_MLP ? 0 : s->T;
  a->gate = array_layout_take(l, s->T * F, sizeof(float));
  a->up = array_layout_take(l, s->T * F, sizeof(float));
  a->h = array_layout_take(l, s->T * F, operand);
  a->prob = array_layout_take(l, routed * s->experts, sizeof(float));
  a->share = array_layout_take(l, routed * s->chosen, sizeof(float));
  a->expert = array_layout_take(l, routed * s->chosen, sizeof(int32_t));
}

static void place_layer(struct array_layout *l, struct layer_activations *a, const struct shape *s, size_t operand,
                        enum layer_form form, bool save) {
  const size_t T = s->T, D = s->D, HE = s->HE, GE = s->GE, H = s->H, G = s->G;
  const size_t f = sizeof(float);
  if (save) {
    a->x_in = array_layout_take(l, T * D, f);
    a->x_mid = array_layout_take(l, T * D, f);
  }
  a->rstd_in = array_layout_take(l, T, f);
  a->rstd_mid = array_layout_take(l, T, f);
  a->norm_in = array_layout_take(l, T * D, operand);
  a->norm_mid = array_layout_take(l, T * D, operand);
  a->q_raw = array_layout_take(l, T * HE, f);
  a->k_raw = array_layout_take(l, T * GE, f);
  a->rstd_q = array_layout_take(l, T * H, f);
  a->rstd_k = array_layout_take(l, T * G, f);
  a->q = array_layout_take(l, T * HE, operand);
  a->k = array_layout_take(l, T * GE, operand);
  a->v = array_layout_take(l, T * GE, operand);
  a->attention = array_layout_take(l, T * HE, operand);
  a->lse = array_layout_take(l, T * H, f);
  place_mlp(l, a, s, operand, form);
  a->attention_out = array_layout_take(l, s->out * T * D, f);
  a->mlp_out = array_layout_take(l, s->out * T * D, f);
  a->rstd_attention_out = array_layout_take(l, s->out * T, f);
  a->rstd_mlp_out = array_layout_take(l, s->out * T, f);
}

static void place_lists(struct array_layout *l, struct list_places *p, size_t rows_max, size_t pages_max) {
  int32_t **const rows[] = {&p->tokens,
                            &p->row,
                            &p->finish,
                            &p->pick,
                            &p->rows.sequence,
                            &p->rows.position,
                            &p->computed.sequence,
                            &p->computed.position,
                            &p->finished.sequence,
                            &p->finished.position};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) *rows[i] = array_layout_take(l, rows_max, sizeof(int32_t));
  p->pages = array_layout_take(l, pages_max, sizeof(int32_t));
}

static size_t place_workspace(struct workspace *ws, char *base, const struct model *m, int rows_max, int pages_max) {
  const struct shape s = shape_make(&m->config, rows_max);
  const size_t operand = m->ops->operand_bytes;
  struct array_layout l = {base, 0};
  if (!m->ops->host_memory) place_lists(&l, &ws->places, (size_t)rows_max, (size_t)pages_max);
  place_layer(&l, &ws->scratch, &s, operand, FORM_ANY, false);
  ws->x = array_layout_take(&l, s.T * s.D, sizeof(float));
  ws->v_raw = array_layout_take(&l, s.T * s.GE, sizeof(float));
  ws->hidden = array_layout_take(&l, s.T * s.D, operand);
  ws->picked = array_layout_take(&l, s.T * s.D, operand);
  ws->expert_out = array_layout_take(&l, s.experts > 0 ? s.T * s.D : 0, sizeof(float));
  routing_place(&ws->routing, &l, &s);
  return l.used;
}

size_t workspace_bytes(const struct model *m, int rows_max, int pages_max) {
  struct workspace measured = {0};
  return place_workspace(&measured, NULL, m, rows_max, pages_max);
}

enum rc workspace_create(struct workspace **out, const struct model *m, int rows_max, int pages_max, struct err *err) {
  *out = NULL;
  if (rows_max < 1) return err_set(err, RC_INVALID, "rows_max", "expected at least one row, got %d", rows_max);
  const size_t bytes = workspace_bytes(m, rows_max, pages_max);
  struct workspace *ws = calloc(1, sizeof *ws);
  void *memory = ws ? m->ops->alloc(m->ops, bytes) : NULL;
  if (!memory) {
    free(ws);
    return err_set(err, RC_NO_MEMORY, NULL, "scratch for %d rows needs %zu bytes, which were refused", rows_max, bytes);
  }
  *ws = (struct workspace){.model = m, .rows_max = rows_max, .pages_max = pages_max, .memory = memory};
  place_workspace(ws, memory, m, rows_max, pages_max);
  *out = ws;
  return RC_OK;
}

void workspace_free(struct workspace *ws) {
  if (!ws) return;
  ws->model->ops->release(ws->model->ops, ws->memory);
  free(ws);
}

/* x_out stands first in the allocation, so that activations_free finds it again.  scratch: of the workspace where all
 * layers share it; NULL while measuring. */
static size_t place_activations(struct activations *a, char *base, const struct model *m, int rows_max, bool recompute,
                                const struct layer_activations *scratch) {
  const struct shape s = shape_make(&m->config, rows_max);
  const size_t f = sizeof(float);
  struct array_layout l = {base, 0};
  a->x_out = array_layout_take(&l, s.T * s.D, f);
  a->rstd_out = array_layout_take(&l, s.T, f);
  float *x_mid = recompute ? array_layout_take(&l, s.T * s.D, f) : NULL;
  for (int i = 0; i < m->config.layers; i++) {
    struct layer_activations unused, *layer = a->layers ? &a->layers[i] : &unused;
    if (recompute) {
      if (scratch) *layer = *scratch;
      layer->x_in = array_layout_take(&l, s.T * s.D, f);
      layer->x_mid = x_mid;
    } else {
      const enum layer_form form = model_config_sparse(&m->config, i) ? FORM_EXPERTS : FORM_MLP;
      place_layer(&l, layer, &s, m->ops->operand_bytes, form, true);
    }
  }
  return l.used;
}

size_t activations_bytes(const struct model *m, int rows_max, bool recompute) {
  struct activations measured = {0};
  return place_activations(&measured, NULL, m, rows_max, recompute, NULL);
}

enum rc activations_create(struct activations **out, const struct model *m, struct workspace *ws, bool recompute,
                           struct err *err) {
  *out = NULL;
  const int rows_max = ws->rows_max;
  const size_t bytes = activations_bytes(m, rows_max, recompute);
  struct activations *a = calloc(1, sizeof *a);
  struct layer_activations *layers = calloc((size_t)m->config.layers, sizeof *layers);
  void *memory = a && layers ? m->ops->alloc(m->ops, bytes) : NULL;
  if (!memory) {
    free(a);
    free(layers);
    return err_set(err, RC_NO_MEMORY, NULL, "activations of %d rows need %zu bytes, which were refused", rows_max,
                   bytes);
  }
  *a = (struct activations){.rows_max = rows_max, .recompute = recompute, .layers = layers};
  place_activations(a, memory, m, rows_max, recompute, &ws->scratch);
  *out = a;
  return RC_OK;
}

void activations_free(struct activations *a, const struct model *m) {
  if (!a) return;
  m->ops->release(m->ops, a->x_out);
  free(a->layers);
  free(a);
}

/* --- the pass --- */

struct pass {
  const struct weights *w;
  const struct model *m;
  const struct ops *ops;
  const struct forward_call *call;
  struct workspace *ws;
  float scale; /* of attention's scores */
};

static const struct matrix *weight_of(const struct weights *w, enum param_kind kind, int layer) {
  return &w->matrices[param_table_index(&w->model->params, kind, layer)];
}

/* NULL where the model has none. */
static const void *vector_of(const struct weights *w, enum param_kind kind, int layer) {
  const int index = param_table_index(&w->model->params, kind, layer);
  return index >= 0 ? w->matrices[index].data : NULL;
}

/* y [T,N] = x [T,K] W^T + b, or y +=; b where the model has one. */
static void project(const struct pass *p, int layer, enum param_kind kind, float *y, const void *x, int T,
                    bool accumulate) {
  const struct matrix *W = weight_of(p->w, kind, layer);
  const void *b = vector_of(p->w, param_kind_bias(kind), layer);
  p->ops->gemm(p->ops, y, x, W, T, accumulate);
  if (b) p->ops->add_bias(p->ops, y, b, T, W->N);
}

/* y = norm(x), with the family's weights. */
static void norm(const struct pass *p, int layer, enum param_kind kind, void *y, float *rstd, const float *x, int T) {
  const struct model_config *c = &p->m->config;
  p->ops->rmsnorm(p->ops, y, rstd, x, vector_of(p->w, kind, layer), c->plus_one, c->rms_eps, T, c->hidden);
}

/* Keys and values of the computed rows, then the attention of those rows that are finished here; x keeps these. */
static void attention_block(const struct pass *p, int layer, const struct kv_layer *kv,
                            const struct layer_activations *a, const struct rows *finished, const int32_t *finish) {
  const struct ops *ops = p->ops;
  const struct model_config *c = &p->m->config;
  const struct rows *computed = &p->call->computed;
  const int T = computed->T, D = c->hidden, H = c->heads, G = c->kv_heads, E = c->head_dim;
  const void *normed = a->norm_in;
  const float *rope = model_rope(p->m, layer);
  norm(p, layer, PARAM_INPUT_NORM, a->norm_in, a->rstd_in, p->ws->x, T);
  project(p, layer, PARAM_K, a->k_raw, a->norm_in, T, false);
  project(p, layer, PARAM_V, p->ws->v_raw, a->norm_in, T, false);
  ops->head_norm_rope(ops, a->k, a->rstd_k, a->k_raw, vector_of(p->w, PARAM_K_NORM, layer), c->plus_one, c->rms_eps,
                      rope, computed->position, T, G, E);
  ops->to_operand(ops, a->v, p->ws->v_raw, (size_t)T * (size_t)(G * E));
  ops->kv_write(ops, kv, &p->call->rows, a->k, a->v, p->call->row);
  if (finish) {
    ops->move_rows(ops, p->ws->x, p->ws->x, finish, finished->T, (size_t)D * sizeof(float));
    ops->move_rows(ops, p->ws->picked, a->norm_in, finish, finished->T, (size_t)D * ops->operand_bytes);
    normed = p->ws->picked;
  }
  project(p, layer, PARAM_Q, a->q_raw, normed, finished->T, false);
  ops->head_norm_rope(ops, a->q, a->rstd_q, a->q_raw, vector_of(p->w, PARAM_Q_NORM, layer), c->plus_one, c->rms_eps,
                      rope, finished->position, finished->T, H, E);
  struct rows attending = *finished;
  attending.window = model_config_window(c, layer);
  attending.cap = c->scores_cap;
  ops->attention(ops, a->attention, a->lse, a->q, kv, &attending, H, p->scale);
  if (!c->out_norms) {
    project(p, layer, PARAM_O, p->ws->x, a->attention, finished->T, true);
    return;
  }
  project(p, layer, PARAM_O, a->attention_out, a->attention, finished->T, false);
  norm(p, layer, PARAM_ATTENTION_OUT_NORM, p->ws->picked, a->rstd_attention_out, a->attention_out, finished->T);
  ops->add_operand(ops, p->ws->x, p->ws->picked, (size_t)finished->T * (size_t)D);
}

static struct experts_call experts_of(const struct pass *p, int layer, const struct layer_activations *a, int T) {
  return (struct experts_call){.model = p->m,
                               .w = p->w,
                               .layer = layer,
                               .T = T,
                               .x = a->norm_mid,
                               .prob = a->prob,
                               .share = a->share,
                               .expert = a->expert,
                               .gate = a->gate,
                               .up = a->up,
                               .h = a->h,
                               .routing = &p->ws->routing,
                               .gathered = p->ws->picked,
                               .out = p->ws->expert_out};
}

/* All but the way back into x: what the backward reads. */
static void mlp_inner(const struct pass *p, int layer, const struct layer_activations *a, int T) {
  const struct ops *ops = p->ops;
  const struct model_config *c = &p->m->config;
  norm(p, layer, PARAM_POST_NORM, a->norm_mid, a->rstd_mid, p->ws->x, T);
  if (model_config_sparse(c, layer)) {
    const struct experts_call call = experts_of(p, layer, a, T);
    experts_inner(&call);
    return;
  }
  project(p, layer, PARAM_GATE, a->gate, a->norm_mid, T, false);
  project(p, layer, PARAM_UP, a->up, a->norm_mid, T, false);
  (c->gelu ? ops->geglu : ops->swiglu)(ops, a->h, a->gate, a->up, (size_t)T * (size_t)c->ffn);
  if (!c->out_norms) return;
  project(p, layer, PARAM_DOWN, a->mlp_out, a->h, T, false);
  norm(p, layer, PARAM_MLP_OUT_NORM, p->ws->picked, a->rstd_mlp_out, a->mlp_out, T);
}

static void mlp_block(const struct pass *p, int layer, const struct layer_activations *a, int T) {
  mlp_inner(p, layer, a, T);
  if (model_config_sparse(&p->m->config, layer)) {
    const struct experts_call call = experts_of(p, layer, a, T);
    experts_outer(&call, p->ws->x);
  } else if (p->m->config.out_norms)
    p->ops->add_operand(p->ops, p->ws->x, p->ws->picked, (size_t)T * (size_t)p->m->config.hidden);
  else
    project(p, layer, PARAM_DOWN, p->ws->x, a->h, T, true);
}

/* Returns the largest position, plus 1. */
static int check_rows(const struct model *m, const struct rows *rows, const struct workspace *ws,
                      const struct activations *save) {
  int longest = 0;
  assert(rows->T >= 1 && rows->T <= ws->rows_max && (!save || rows->T <= save->rows_max));
  for (int t = 0; t < rows->T; t++) {
    assert(rows->position[t] >= 0 && rows->position[t] < m->context_max);
    assert(rows->sequence[t] >= 0 && rows->sequence[t] < rows->sequences);
    if (rows->position[t] >= longest) longest = rows->position[t] + 1;
  }
  return longest;
}

/* like: rows whose lists may be the same ones. */
static void stage_rows(const struct ops *ops, struct rows *out, const struct rows *rows,
                       const struct row_places *places, const struct rows *like, const struct rows *like_staged) {
  const size_t bytes = (size_t)rows->T * sizeof(int32_t);
  const bool same = rows->sequence == like->sequence && rows->position == like->position && rows->T == like->T;
  out->sequence = same ? like_staged->sequence : ops_stage(ops, places->sequence, rows->sequence, bytes);
  out->position = same ? like_staged->position : ops_stage(ops, places->position, rows->position, bytes);
}

/* The call with its lists where operations can read them, in ws->staged. */
static void stage_call(struct workspace *ws, const struct forward_call *call, int longest) {
  const struct ops *ops = ws->model->ops;
  const struct list_places *p = &ws->places;
  const struct rows none = {0}, *rows = &call->rows;
  const size_t word = sizeof(int32_t), pages = (size_t)rows->sequences * (size_t)rows->pages_per_sequence;
  struct forward_call *s = &ws->staged;
  assert(ops->host_memory || pages <= (size_t)ws->pages_max);
  *s = *call;
  stage_rows(ops, &s->rows, rows, &p->rows, &none, &none);
  stage_rows(ops, &s->computed, &call->computed, &p->computed, rows, &s->rows);
  if (call->finish) stage_rows(ops, &s->finished, &call->finished, &p->finished, rows, &s->rows);
  s->tokens = ops_stage(ops, p->tokens, call->tokens, (size_t)call->computed.T * word);
  s->row = ops_stage(ops, p->row, call->row, (size_t)rows->T * word);
  s->finish = ops_stage(ops, p->finish, call->finish, (size_t)call->finished.T * word);
  s->rows.pages = ops_stage(ops, p->pages, rows->pages, pages * word);
  s->computed.pages = s->finished.pages = s->rows.pages;
  s->rows.longest = s->computed.longest = s->finished.longest = longest;
}

/* The model is the workspace's, so that weights staged under a twin model run on this engine's pool. */
static struct pass pass_make(const struct weights *w, struct workspace *ws) {
  return (struct pass){.w = w,
                       .m = ws->model,
                       .ops = ws->model->ops,
                       .call = &ws->staged,
                       .ws = ws,
                       .scale = model_attention_scale(ws->model)};
}

/* The staged call, from tokens to ws->hidden. */
static void run_layers(const struct pass *pass, struct kv_cache *kv, struct activations *save) {
  const struct ops *ops = pass->ops;
  const struct model_config *c = &pass->m->config;
  const struct forward_call *call = pass->call;
  struct workspace *ws = pass->ws;
  const size_t row_bytes = (size_t)c->hidden * sizeof(float);
  int T = call->computed.T;
  ops->embed(ops, ws->x, weight_of(pass->w, PARAM_EMBED, -1), call->tokens, T);
  if (c->root_embedding) ops->scale(ops, ws->x, model_embedding_scale(pass->m), (size_t)T * (size_t)c->hidden);
  for (int layer = 0; layer < c->layers; layer++) {
    const struct layer_activations *a = save ? &save->layers[layer] : &ws->scratch;
    const struct kv_layer kv_layer = kv_cache_layer(kv, layer);
    const bool partly = layer == c->layers - 1 && call->finish;
    if (save) ops->copy(ops, a->x_in, ws->x, (size_t)T * row_bytes);
    attention_block(pass, layer, &kv_layer, a, partly ? &call->finished : &call->computed,
                    partly ? call->finish : NULL);
    if (partly) T = call->finished.T;
    if (save) ops->copy(ops, a->x_mid, ws->x, (size_t)T * row_bytes);
    mlp_block(pass, layer, a, T);
  }
  if (save) ops->copy(ops, save->x_out, ws->x, (size_t)T * row_bytes);
  norm(pass, -1, PARAM_FINAL_NORM, ws->hidden, save ? save->rstd_out : NULL, ws->x, T);
}

/* A decode step's like comes again: `longest` rises by whole steps, so that few of them differ. */
enum { REPEATED_ROWS_MAX = 256, REPEATED_LONGEST_STEP = 256 };

static bool is_repeated(const struct forward_call *call, const struct activations *save) {
  return !save && !call->row && !call->finish && call->computed.T <= REPEATED_ROWS_MAX;
}

void forward_run_shared(const struct weights *w, const struct forward_call *call, struct kv_cache *kv,
                        struct workspace *ws, struct activations *save, const void **hidden) {
  const bool repeated = is_repeated(call, save);
  int longest = check_rows(ws->model, &call->rows, ws, save);
  check_rows(ws->model, &call->computed, ws, save);
  if (repeated) longest = (longest + REPEATED_LONGEST_STEP - 1) / REPEATED_LONGEST_STEP * REPEATED_LONGEST_STEP;
  stage_call(ws, call, longest);
  const struct pass pass = pass_make(w, ws);
  const struct ops *ops = pass.ops;
  const struct repeat_key key = {{w->memory, ws->memory, kv_cache_layer(kv, 0).keys},
                                 {call->rows.T, longest, call->rows.pages_per_sequence}};
  *hidden = ws->hidden;
  if (repeated && !ops->repeat_begin(ops, &key)) return;
  run_layers(&pass, kv, save);
  if (repeated) ops->repeat_end(ops);
}

void forward_again(const struct weights *w, struct kv_cache *kv, struct workspace *ws, const struct activations *saved,
                   int layer) {
  const struct forward_call *call = &ws->staged;
  const int T = call->computed.T, last = ws->model->config.layers - 1;
  if (!saved->recompute || layer == last) return;
  const struct pass pass = pass_make(w, ws);
  const struct ops *ops = pass.ops;
  const struct layer_activations *a = &saved->layers[layer];
  const size_t bytes = (size_t)T * (size_t)pass.m->config.hidden * sizeof(float);
  const struct kv_layer kv_layer = kv_cache_layer(kv, layer);
  ops->copy(ops, ws->x, a->x_in, bytes);
  attention_block(&pass, layer, &kv_layer, a, &call->computed, NULL);
  ops->copy(ops, a->x_mid, ws->x, bytes);
  mlp_inner(&pass, layer, a, T);
}

void forward_run(const struct weights *w, const struct rows *rows, const int32_t *tokens, struct kv_cache *kv,
                 struct workspace *ws, struct activations *save, const void **hidden) {
  const struct forward_call call = {.rows = *rows, .computed = *rows, .tokens = tokens};
  forward_run_shared(w, &call, kv, ws, save, hidden);
}

/* --- how large values can get --- */

/* 0 for a kind that the model does not have. */
static double largest_of(const struct weights *w, enum param_kind kind, int layer) {
  const int index = param_table_index(&w->model->params, kind, layer);
  return index >= 0 ? (double)w->largest[index] : 0;
}

/* SLACK covers the roundings on the way. */
static const double SLACK = 1.1;

static double largest_norm(const struct weights *w, enum param_kind kind, int layer) {
  return largest_of(w, kind, layer) + (w->model->config.plus_one ? 1 : 0);
}

/* The largest output of a projection of K inputs whose largest is x. */
static double largest_projected(const struct weights *w, enum param_kind kind, int layer, double K, double x) {
  return SLACK * K * x * largest_of(w, kind, layer) + SLACK * largest_of(w, param_kind_bias(kind), layer);
}

/* |DOT(x, w)| <= |x| |w| in Euclidean length; an RMS-normed row of n has at most sqrt(n) times its largest weight.
 * BOUND leaves room below float32's (and bf16's) 3.4e38.  The norms' 1/sqrt needs an epsilon worth the name: with
 * squares that flush to zero it alone keeps x * rstd small. */
bool forward_stays_finite(const struct weights *w) {
  static const double BOUND = 1e30, EPSILON_MIN = 1e-20;
  const struct model_config *c = &w->model->config;
  const double D = c->hidden, E = c->head_dim, HE = E * c->heads, F = c->ffn, eps = (double)c->rms_eps;
  if (c->experts > 0) return false; /* a dot over an expert's rows has no places for rows that are left out */
  const double turned =
      2 * fmax(1, (double)rope_magnitude(c)); /* of a rotated pair, at most, against its larger part */
  double x = largest_of(w, PARAM_EMBED, -1) * (double)model_embedding_scale(w->model);
  for (int layer = 0; layer < c->layers; layer++) {
    /* D = sqrt(D) sqrt(D): of the normed row and of the product. */
    const double in = largest_norm(w, PARAM_INPUT_NORM, layer), mid = largest_norm(w, PARAM_POST_NORM, layer);
    const double q_raw = largest_projected(w, PARAM_Q, layer, D, in),
                 k_raw = largest_projected(w, PARAM_K, layer, D, in);
    const double v = largest_projected(w, PARAM_V, layer, D, in);
    const double q = c->head_norms ? __builtin_sqrt(E) * largest_norm(w, PARAM_Q_NORM, layer) : q_raw;
    const double k = c->head_norms ? __builtin_sqrt(E) * largest_norm(w, PARAM_K_NORM, layer) : k_raw;
    const double score = SLACK * E * (turned * q) * (turned * k);
    const double attention = largest_projected(w, PARAM_O, layer, HE, SLACK * v);
    x += c->out_norms ? D * largest_norm(w, PARAM_ATTENTION_OUT_NORM, layer) : attention;
    if (!(attention < BOUND)) return false;
    const double gate = largest_projected(w, PARAM_GATE, layer, D, mid),
                 up = largest_projected(w, PARAM_UP, layer, D, mid);
    const double h = SLACK * gate * up;
    if (!(q_raw < BOUND && k_raw < BOUND && v < BOUND && score < BOUND && x < BOUND)) return false;
    if (!(gate < BOUND && up < BOUND && h < BOUND)) return false;
    const double mlp = largest_projected(w, PARAM_DOWN, layer, F, h);
    x += c->out_norms ? D * largest_norm(w, PARAM_MLP_OUT_NORM, layer) : mlp;
    if (!(mlp < BOUND)) return false;
  }
  const double hidden = D * largest_norm(w, PARAM_FINAL_NORM, -1);
  return x < BOUND && hidden < BOUND && eps >= EPSILON_MIN;
}

void forward_logits(const struct weights *w, const void *hidden, const int32_t *pick, int count, struct workspace *ws,
                    float *logits) {
  const struct ops *ops = ws->model->ops;
  const size_t row_bytes = (size_t)ws->model->config.hidden * ops->operand_bytes;
  assert(count >= 1 && count <= ws->rows_max);
  if (pick) {
    for (int i = 0; i < count; i++) assert(pick[i] >= 0 && pick[i] < ws->rows_max);
    const int32_t *rows = ops_stage(ops, ws->places.pick, pick, (size_t)count * sizeof *pick);
    ops->move_rows(ops, ws->picked, hidden, rows, count, row_bytes);
    hidden = ws->picked;
  }
  const struct model_config *c = &ws->model->config;
  ops->gemm(ops, logits, hidden, weight_of(w, c->tied ? PARAM_EMBED : PARAM_HEAD, -1), count, false);
  if (c->logits_cap > 0) ops->soft_cap(ops, logits, c->logits_cap, (size_t)count * (size_t)c->vocabulary);
}
