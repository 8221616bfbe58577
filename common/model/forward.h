/* The one forward pass: sampler and trainer run this very layer loop over the same kernels.
 *
 * forward_run writes the call's keys and values into the KV pool, then attends from it, in the sampler and in the
 * trainer alike; the trainer additionally asks for the activations that its backward needs.  Rows may belong to any
 * mixture of sequences, prefill chunks and decode steps.
 */
#ifndef LEASEHOLD_MODEL_FORWARD_H
#define LEASEHOLD_MODEL_FORWARD_H

#include "common/model/kv_cache.h"
#include "common/model/model.h"

/* What one layer keeps for the backward; T = rows of the chunk. */
struct layer_activations {
  float *x_in;               /* [T,D] residual before attention */
  float *x_mid;              /* [T,D] residual after attention */
  float *rstd_in, *rstd_mid; /* [T] */
  void *norm_in, *norm_mid;  /* operand [T,D] */
  float *q_raw, *k_raw;      /* [T,H*E], [T,G*E] before norm and rope */
  float *rstd_q, *rstd_k;    /* [T,H], [T,G] */
  void *q, *k, *v;           /* operand */
  void *attention;           /* operand [T,H*E] */
  float *lse;                /* [T,H] */
  float *gate, *up;          /* [T,F] */
  void *h;                   /* operand [T,F] */
};

struct activations {
  int rows_max;
  struct layer_activations *layers;
  float *x_out;    /* [T,D] after the last layer */
  float *rstd_out; /* [T] */
};

/* Scratch for calls of up to rows_max rows. */
struct workspace; /* opaque */
enum rc workspace_create(struct workspace **out, const struct model *m, int rows_max, struct err *err);
void workspace_free(struct workspace *ws);
size_t workspace_bytes(const struct model *m, int rows_max);

enum rc activations_create(struct activations **out, const struct model *m, int rows_max, struct err *err);
void activations_free(struct activations *a, const struct model *m);
size_t activations_bytes(const struct model *m, int rows_max);

/* hidden: operand [T,D] after the final norm (borrowed from ws, valid until its next use). save may be NULL.
 * tokens [T]; every row's position must be below its sequence's reserved length and below context_max (asserted). */
void forward_run(const struct weights *w, const struct rows *rows, const int32_t *tokens, struct kv_cache *kv,
                 struct workspace *ws, struct activations *save, const void **hidden);
/* logits [count,V] of chosen rows of hidden (row indices pick[count]; NULL: rows 0..count-1). */
void forward_logits(const struct weights *w, const void *hidden, const int32_t *pick, int count, struct workspace *ws,
                    float *logits);

#endif
