/* The way back through a layer of experts (network/experts.h): gradients of the router and of every expert, and that of
 * the layer's input.
 *
 *   dx of the residual -> each expert: its rows' dx -> down' -> dh; share' -> gate', up' -> added to dnorm in ascending
 *   order -> router': from the shares' gradients to dnorm
 *
 * Rows are the chunk's, all of them: an expert's weight gradients are dot products over the rows that chose it, without
 * gaps, so that the last layer leaves no row out (forward_stays_finite).
 *
 * Called by backward.c, on its thread; memory is the learner's. */
#ifndef LEASEHOLD_MODEL_LEARNING_EXPERTS_BACKWARD_H
#define LEASEHOLD_MODEL_LEARNING_EXPERTS_BACKWARD_H

#include "common/model/network/experts.h"
#include "common/model/network/forward.h"

/* Scratch of the way back; of no size in a model without experts. */
struct experts_scratch {
  struct routing forward, back; /* of the computed rows, as the forward pass had it, and of the chunk's rows */
  int32_t *saved_row;           /* [pairs] of back: the computed row.. */
  int32_t *saved_slot;          /* ..where the share stands among the computed rows' */
  int32_t *saved_pair;          /* ..and gate, up and h */
  void *gathered;               /* operand [T,D] */
  float *dgathered;             /* [T,D] */
  float *dshare;                /* [T,k] */
  void *dlogits;                /* operand [T,experts] */
};
void experts_scratch_place(struct experts_scratch *x, struct array_layout *l, const struct shape *s, size_t operand);

/* What backward.c does for a parameter, whether gradients lie in one array or come and go (gradient_parts.h). */
struct expert_params {
  const void *context;
  float *(*open)(const void *context, int param); /* its gradient, to be added to until it is closed */
  void (*close)(const void *context, int param);
  /* dx[rows,K] (+)= dy[rows,N] W */
  void (*product)(const void *context, int param, float *dx, const void *dy, int rows, bool accumulate);
};

/* One layer's call: T rows, of which row t was computed as own[t] (NULL: t). */
struct experts_gradient {
  const struct model *model;
  const struct layer_activations *a;
  struct expert_params params;
  int layer, T, computed;
  const int32_t *own;
  const float *dx;        /* [T,D] of the residual.. */
  const void *dx_operand; /* ..and rounded */
  float *dh;              /* scratch [T,width]; of dgate and dup too, as operands */
  void *dgate, *dup;
  struct experts_scratch *scratch;
};
/* dnorm [T,D]: the gradient of the layer's input. */
void experts_backward(const struct experts_gradient *g, float *dnorm);

#endif
