/* Takes gradients back through a layer of experts: the lists again, each expert, then the router
 * (experts_backward.h). */
#include "common/model/learning/experts_backward.h"

void experts_scratch_place(struct experts_scratch *x, struct array_layout *l, const struct shape *s, size_t operand) {
  const size_t pairs = s->T * s->chosen, rows = s->experts > 0 ? s->T : 0, word = sizeof(int32_t);
  routing_place(&x->forward, l, s);
  routing_place(&x->back, l, s);
  x->saved_row = array_layout_take(l, pairs, word);
  x->saved_slot = array_layout_take(l, pairs, word);
  x->saved_pair = array_layout_take(l, pairs, word);
  x->gathered = array_layout_take(l, rows * s->D, operand);
  x->dgathered = array_layout_take(l, rows * s->D, sizeof(float));
  x->dshare = array_layout_take(l, pairs, sizeof(float));
  x->dlogits = array_layout_take(l, rows * s->experts, operand);
}

static void list_pairs(const struct experts_gradient *g) {
  struct experts_scratch *s = g->scratch;
  const struct model_config *c = &g->model->config;
  const int k = c->chosen, pairs = g->T * k;
  routing_fill(&s->forward, c, g->a->expert, NULL, g->computed);
  routing_fill(&s->back, c, g->a->expert, g->own, g->T);
  for (int i = 0; i < pairs; i++) {
    const int32_t row = s->back.row[i], own = g->own ? g->own[row] : row;
    s->saved_row[i] = own;
    s->saved_slot[i] = own * k + s->back.slot[i] % k;
    s->saved_pair[i] = s->forward.pair[s->saved_slot[i]];
  }
}

static int param_of(const struct experts_gradient *g, enum param_kind kind, int expert) {
  return param_table_expert(&g->model->params, kind, g->layer, expert);
}

/* dW += dy^T x of an expert's rows; row: of x.  Nothing is added for no rows, which is a gradient too. */
static void weight_backward(const struct experts_gradient *g, enum param_kind kind, int expert, const int32_t *row,
                            const void *dy, const void *x, int count) {
  const struct ops *ops = g->model->ops;
  const int index = param_of(g, kind, expert);
  const struct param *p = &g->model->params.items[index];
  float *dW = g->params.open(g->params.context, index);
  if (count > 0) ops->gemm_weight_backward(ops, dW, dy, x, row, NULL, count, p->rows, p->cols);
  g->params.close(g->params.context, index);
}

static void product(const struct experts_gradient *g, enum param_kind kind, int expert, float *dx, const void *dy,
                    int count, bool accumulate) {
  if (count > 0) g->params.product(g->params.context, param_of(g, kind, expert), dx, dy, count, accumulate);
}

static void expert_backward(const struct experts_gradient *g, int expert, float *dnorm) {
  const struct ops *ops = g->model->ops;
  const struct model_config *c = &g->model->config;
  const struct layer_activations *a = g->a;
  struct experts_scratch *s = g->scratch;
  const int first = s->back.first[expert], count = s->back.first[expert + 1] - first, D = c->hidden, F = c->expert_ffn;
  const int32_t *row = s->back.row + first, *slot = s->back.slot + first;
  const int32_t *saved_row = s->saved_row + first, *saved_slot = s->saved_slot + first,
                *saved_pair = s->saved_pair + first;
  if (count > 0) {
    ops->move_rows(ops, s->gathered, g->dx_operand, row, count, (size_t)D * ops->operand_bytes);
    product(g, PARAM_EXPERT_DOWN, expert, g->dh, s->gathered, count, false);
    ops->share_backward(ops, s->dshare, g->dh, a->h, a->share, slot, saved_slot, saved_pair, count, F);
    ops->share_rows(ops, s->gathered, g->dx, a->share, saved_slot, row, count, D);
  }
  weight_backward(g, PARAM_EXPERT_DOWN, expert, saved_pair, s->gathered, a->h, count);
  if (count > 0) ops->swiglu_backward(ops, g->dgate, g->dup, g->dh, a->gate, a->up, saved_pair, count, F);
  weight_backward(g, PARAM_EXPERT_GATE, expert, saved_row, g->dgate, a->norm_mid, count);
  weight_backward(g, PARAM_EXPERT_UP, expert, saved_row, g->dup, a->norm_mid, count);
  product(g, PARAM_EXPERT_GATE, expert, s->dgathered, g->dgate, count, false);
  product(g, PARAM_EXPERT_UP, expert, s->dgathered, g->dup, count, true);
  if (count > 0) ops->add_rows(ops, dnorm, s->dgathered, NULL, NULL, row, count, D);
}

void experts_backward(const struct experts_gradient *g, float *dnorm) {
  const struct ops *ops = g->model->ops;
  const struct model_config *c = &g->model->config;
  const struct layer_activations *a = g->a;
  struct experts_scratch *s = g->scratch;
  list_pairs(g);
  ops->clear(ops, dnorm, (size_t)g->T * (size_t)c->hidden * sizeof *dnorm);
  for (int expert = 0; expert < c->experts; expert++) expert_backward(g, expert, dnorm);
  ops->route_backward(ops, s->dlogits, s->dshare, a->prob, a->expert, a->share, g->own, c->normalizes_chosen, g->T,
                      c->experts, c->chosen);
  weight_backward(g, PARAM_ROUTER, 0, g->own, s->dlogits, a->norm_mid, g->T);
  product(g, PARAM_ROUTER, 0, dnorm, s->dlogits, g->T, true);
}
