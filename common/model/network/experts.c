/* Sorts the rows of a layer of experts by the experts that they chose, and takes each expert's rows through it
 * (experts.h). */
#include "common/model/network/experts.h"

#include <string.h>

void routing_place(struct routing *r, struct array_layout *l, const struct shape *s) {
  const size_t pairs = s->T * s->chosen, word = sizeof(int32_t);
  r->first = array_layout_take(l, s->experts > 0 ? s->experts + 1 : 0, word);
  r->row = array_layout_take(l, pairs, word);
  r->slot = array_layout_take(l, pairs, word);
  r->pair = array_layout_take(l, pairs, word);
}

/* By counting: how many pairs each expert has, where they begin, then each row's pairs in the order of the rows. */
void routing_fill(struct routing *r, const struct model_config *c, const int32_t *expert, const int32_t *own,
                  int rows) {
  const int k = c->chosen;
  memset(r->first, 0, (size_t)(c->experts + 1) * sizeof *r->first);
  for (int t = 0; t < rows; t++)
    for (int j = 0; j < k; j++) r->first[expert[(own ? own[t] : t) * k + j] + 1]++;
  for (int e = 0; e < c->experts; e++) r->first[e + 1] += r->first[e];
  for (int t = 0; t < rows; t++) {
    for (int j = 0; j < k; j++) {
      const int32_t pair = r->first[expert[(own ? own[t] : t) * k + j]]++, slot = t * k + j;
      r->row[pair] = t;
      r->slot[pair] = slot;
      r->pair[slot] = pair;
    }
  }
  for (int e = c->experts; e > 0; e--) r->first[e] = r->first[e - 1]; /* they were moved on by a whole expert */
  r->first[0] = 0;
}

static const struct matrix *weight_of(const struct experts_call *c, enum param_kind kind, int expert) {
  return &c->w->matrices[param_table_expert(&c->w->model->params, kind, c->layer, expert)];
}

/* The expert's rows through gate and up to h. */
static void widen(const struct experts_call *c, int expert) {
  const struct ops *ops = c->model->ops;
  const struct model_config *config = &c->model->config;
  const int first = c->routing->first[expert], count = c->routing->first[expert + 1] - first;
  const size_t at = (size_t)first * (size_t)config->expert_ffn, n = (size_t)count * (size_t)config->expert_ffn;
  if (count == 0) return;
  ops->move_rows(ops, c->gathered, c->x, c->routing->row + first, count,
                 (size_t)config->hidden * ops->operand_bytes);
  ops->gemm(ops, c->gate + at, c->gathered, weight_of(c, PARAM_EXPERT_GATE, expert), count, false);
  ops->gemm(ops, c->up + at, c->gathered, weight_of(c, PARAM_EXPERT_UP, expert), count, false);
  ops->swiglu(ops, (char *)c->h + at * ops->operand_bytes, c->gate + at, c->up + at, n);
}

void experts_inner(const struct experts_call *c) {
  const struct ops *ops = c->model->ops;
  const struct model_config *config = &c->model->config;
  ops->gemm(ops, c->prob, c->x, weight_of(c, PARAM_ROUTER, 0), c->T, false);
  ops->route(ops, c->expert, c->share, c->prob, config->normalizes_chosen, c->T, config->experts, config->chosen);
  routing_fill(c->routing, config, c->expert, NULL, c->T);
  for (int expert = 0; expert < config->experts; expert++) widen(c, expert);
}

void experts_outer(const struct experts_call *c, float *residual) {
  const struct ops *ops = c->model->ops;
  const struct model_config *config = &c->model->config;
  const struct routing *r = c->routing;
  for (int expert = 0; expert < config->experts; expert++) {
    const int first = r->first[expert], count = r->first[expert + 1] - first;
    const size_t at = (size_t)first * (size_t)config->expert_ffn;
    if (count == 0) continue;
    ops->gemm(ops, c->out, (const char *)c->h + at * ops->operand_bytes, weight_of(c, PARAM_EXPERT_DOWN, expert),
              count, false);
    ops->add_rows(ops, residual, c->out, c->share, r->slot + first, r->row + first, count, config->hidden);
  }
}
