/* The one forward pass: sampler and trainer run the same layer loop over the same kernels.
 *
 * forward_run writes the call's keys and values into the KV pool, then attends from it, in the sampler and in the
 * trainer alike; the trainer additionally asks for the activations that its backward needs.  Rows may belong to any
 * mixture of sequences, prefill chunks and decode steps.
 */
#ifndef LEASEHOLD_MODEL_NETWORK_FORWARD_H
#define LEASEHOLD_MODEL_NETWORK_FORWARD_H

#include "common/model/network/kv_cache.h"
#include "common/model/network/model.h"

/* The arrays that one layer keeps for the backward; T = computed rows (struct forward_call).  In the last layer all
 * arrays but x_in, rstd_in, norm_in, k_raw, rstd_k, k and v have only the finished rows. */
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
  float *gate, *up;          /* [T,F], in a layer of experts [pairs, width] (experts.h) */
  void *h;                   /* operand, as these */
  /* In a layer of experts: the router's softmax [T,experts], the experts of a row and their shares [T,k] */
  float *prob, *share;
  int32_t *expert;
  /* Before their norms, in a model that has these; else of no size */
  float *attention_out, *mlp_out;           /* [T,D] */
  float *rstd_attention_out, *rstd_mlp_out; /* [T] */
};

/* Either every layer keeps all of its arrays, or each keeps only x_in: then all layers share one set of the others,
 * which holds the last layer's values after the pass, and forward_again restores another layer's. */
struct activations {
  int rows_max;
  bool recompute;
  struct layer_activations *layers;
  float *x_out;    /* [T,D] after the last layer */
  float *rstd_out; /* [T] */
};

/* Scratch for calls of up to rows_max rows, whose page table has up to pages_max numbers (sequences times
 * pages_per_sequence).  A call's lists are the host's; a device has its copies of them here. */
struct workspace; /* opaque */
enum rc workspace_create(struct workspace **out, const struct model *m, int rows_max, int pages_max, struct err *err);
void workspace_free(struct workspace *ws);
size_t workspace_bytes(const struct model *m, int rows_max, int pages_max);

/* recompute: only each layer's x_in is kept; the one set of everything else is the scratch of ws, whose rows_max it
 * must have and which must live as long. */
enum rc activations_create(struct activations **out, const struct model *m, struct workspace *ws, bool recompute,
                           struct err *err);
void activations_free(struct activations *a, const struct model *m);
size_t activations_bytes(const struct model *m, int rows_max, bool recompute);

/* hidden: operand [T,D] after the final norm (borrowed from ws, valid until its next use). save may be NULL.
 * tokens [T]; every row's position must be below its sequence's reserved length and below context_max (asserted). */
void forward_run(const struct weights *w, const struct rows *rows, const int32_t *tokens, struct kv_cache *kv,
                 struct workspace *ws, struct activations *save, const void **hidden);

/* A call without unnecessary computation.  A row's bits depend only on its tokens from position 0 on, so rows of equal
 * beginnings are computed once; and for a row whose hidden state is not read the last layer computes only the key and
 * the value. */
struct forward_call {
  struct rows rows;      /* all: their keys and values are written */
  const int32_t *row;    /* [rows.T] which of the computed rows each is */
  struct rows computed;  /* one row for each distinct beginning */
  const int32_t *tokens; /* [computed.T] */
  struct rows finished;  /* those that go through the whole last layer.. */
  const int32_t *finish; /* [finished.T] ..as computed rows, ascending; NULL: all of them */
};
/* As forward_run; hidden [finished.T,D]. */
void forward_run_shared(const struct weights *w, const struct forward_call *call, struct kv_cache *kv,
                        struct workspace *ws, struct activations *save, const void **hidden);
/* After forward_run or forward_run_shared and before the next such call: restores saved->layers[layer] as the pass had
 * it, to the bit.  Keys and values are written again.  Does nothing where everything was kept, nor for the last layer,
 * whose arrays are still in place: so that layer comes first. */
void forward_again(const struct weights *w, struct kv_cache *kv, struct workspace *ws, const struct activations *saved,
                   int layer);
/* True when sizes and weights guarantee that every value of a forward pass is finite. Then a row whose gradient is zero
 * has no part in any gradient, and the backward does not need the rows that the last layer leaves out.  For a model
 * with experts it is always false: an expert's gradients are dot products over all rows that chose it. */
bool forward_stays_finite(const struct weights *w);
/* logits [count,V] of chosen rows of hidden (row indices pick[count]; NULL: rows 0..count-1). */
void forward_logits(const struct weights *w, const void *hidden, const int32_t *pick, int count, struct workspace *ws,
                    float *logits);

#endif
