/* A layer of experts: which rows each expert takes, and the way forward through them.
 *
 *   router: logits [T,experts] -> ops->route: k experts and their shares for each row -> routing: a list for each
 *   expert
 *   each expert: its rows gathered -> gate, up -> h                      (experts_inner: what the backward reads)
 *                -> down -> added to the residual, times the rows' shares (experts_outer)
 *
 * A pair is a row and one of its experts.  Pairs stand expert after expert, and within an expert in the order of the
 * rows; arrays of pairs ([T*k, ..]) keep that order, so that an expert's rows are one product.  An expert that no row
 * has chosen costs nothing.  A row adds its experts in ascending order, so that its bits do not depend on the other
 * rows (NUMERICS.md, "Experts").
 *
 * Called by forward.c, and by learning/experts_backward.c for the lists.  Threads and memory: the workspace's. */
#ifndef LEASEHOLD_MODEL_NETWORK_EXPERTS_H
#define LEASEHOLD_MODEL_NETWORK_EXPERTS_H

#include "common/model/network/array_layout.h"
#include "common/model/network/model.h"
#include "common/model/network/shape.h"

/* The lists of one layer; the host's, like the memory of every table that routes. */
struct routing {
  int32_t *first; /* [experts + 1] expert e has the pairs [first[e], first[e + 1]) */
  int32_t *row;   /* [pairs] */
  int32_t *slot;  /* [pairs] row * k + which of the row's choices: where its share stands */
  int32_t *pair;  /* [pairs] by slot: the inverse */
};
/* Lays the arrays out for up to s->T rows; nothing in a model without experts. */
void routing_place(struct routing *r, struct array_layout *l, const struct shape *s);
/* expert [.,k] as ops->route gives it, of row own[t] for row t (NULL: t). */
void routing_fill(struct routing *r, const struct model_config *c, const int32_t *expert, const int32_t *own, int rows);

struct experts_call {
  const struct model *model;
  const struct weights *w;
  int layer, T;
  const void *x; /* operand [T,D] */
  /* What the backward reads (struct layer_activations): */
  float *prob, *share; /* [T,experts], [T,k] */
  int32_t *expert;     /* [T,k] */
  float *gate, *up;    /* [pairs,width] */
  void *h;             /* operand, as these */
  struct routing *routing;
  void *gathered; /* operand [T,D], scratch */
  float *out;     /* [T,D], scratch */
};
void experts_inner(const struct experts_call *c);
/* After it: residual [T,D] += */
void experts_outer(const struct experts_call *c, float *residual);

#endif
