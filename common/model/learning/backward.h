/* Log-probabilities and gradients of packed samples: the trainer's side of the one forward pass.
 *
 * A gradient unit (one group) is a list of samples in order, cut into chunks of whole samples by a configured token
 * budget (a longer sample is a chunk by itself). For each chunk: forward with activations, then the head in row
 * blocks of HEAD_ROWS: logits, log-probability, loss gradient, dlogits; then the layers backwards.  Logits stay in
 * memory where they are small compared with the activations; elsewhere they are computed again.  Gradients are added to
 * a flat float32 array in parameter-table order, in the memory of the model's table, or go tensor by tensor into the
 * optimizer's sums (gradient_parts.h).
 *
 * Memory is sized at creation for chunk_tokens rows and refused with both sizes when it does not fit.  It grows with
 * the rows, never with their square: attention goes through keys in blocks, forward and backward.
 */
#ifndef LEASEHOLD_MODEL_LEARNING_BACKWARD_H
#define LEASEHOLD_MODEL_LEARNING_BACKWARD_H

#include "common/model/learning/gradient_parts.h"
#include "common/model/learning/train_sample.h"
#include "common/model/network/forward.h"

enum { HEAD_ROWS = 256, LEARNER_TRANSPOSES_BYTES = 32 << 20 };

struct learner; /* opaque: workspace, activations, KV pool of one chunk */

struct learner_options {
  int chunk_tokens; /* bounds rows per chunk; a sample longer than that is refused (RC_TOO_LARGE) by the calls below */
  /* Keep only each layer's input and compute the rest again in the backward pass: less memory, more time, the same
   * bits. */
  bool recompute_activations;
  /* About how many bytes there are for transposes that are made when they are needed: a layer's in one piece, the
   * head's in several. 0: the weights have them. */
  size_t transposes_bytes;
  /* Only for learner_logprobs: there is no room for a backward pass. */
  bool forward_only;
};

/* A learner's allocations, by purpose. */
struct learner_memory {
  size_t activations; /* kept by the forward pass for the backward, logits too, grows with chunk_tokens * layers; 0:
                       * forward only */
  size_t scratch;     /* everything else: grows with chunk_tokens, and with the vocabulary alone */
};

enum rc learner_create(struct learner **out, const struct model *m, const struct learner_options *options,
                       struct err *err);
void learner_free(struct learner *l);
struct learner_memory learner_memory(const struct model *m, const struct learner_options *options);

/* share (the default): common beginnings of a chunk's samples are computed once, and results that are not read are not
 * computed.  Otherwise everything is computed everywhere, to the same bits, which tests compare. */
void learner_share_rows(struct learner *l, bool share);

/* From now on rows of logits are cut before anything is computed from them, as the sampler's were (NUMERICS.md,
 * "Cuts"); the cut's temperature is that of the calls below.  All zero, as in the beginning: nothing is left out. */
void learner_set_cut(struct learner *l, const struct sampling_params *cut);

/* Log-probabilities of the scored tokens under w: logprob (and entropy, may be NULL), the host's, have one value per
 * scored token, samples in order; -infinity where the cut leaves the token out.  This and learner_gradients fail as
 * ops->status does, too. */
enum rc learner_logprobs(struct learner *l, const struct weights *w, const struct train_sample *samples, int count,
                         float temperature, float *logprob, float *entropy, struct err *err);

/* What is asked about a token. */
enum draw_kind {
  DRAW_OWN,  /* the token that its uniform draws */
  DRAW_NEAR, /* what uniforms that are less and more by `near` draw.  A distribution whose sums from the first token on
              * differ by at most `near` draws none below or above these from the token's own uniform */
  DRAW_NONE
};
/* What the sampler would have drawn where the scored tokens stand: one entry for each of them, samples in order.  A
 * token that is so likely that it must be drawn, wherever it is in the vocabulary, is not drawn again, but its result
 * is given all the same. */
struct token_draws {
  const float *uniform; /* the token's, as the sampler had it: in (0,1) */
  const uint8_t *kind;  /* enum draw_kind; NULL: DRAW_OWN, of all */
  int32_t *token;       /* results, the host's: of DRAW_OWN, else the scored token */
  float *logprob;       /* of that token, in the row that it is drawn from; DRAW_OWN's */
  float near;
  int32_t *low, *high; /* results of DRAW_NEAR, else the scored token; NULL: none is asked for */
};
/* From now on the calls below draw too, from the very logits that they take the log-probabilities of, by the same
 * ops->sample as the sampler: to the same bits where the weights are the same.  NULL, as at first: they do not. */
void learner_set_draws(struct learner *l, const struct token_draws *draws);

/* Called per chunk between the forward and the backward, in order: given the chunk's log-probabilities (scored tokens
 * from index `first` on, `count` of them), writes dloss/dlogprob. */
typedef void (*loss_gradient)(void *context, int first, int count, const float *logprob, float *dlogprob);

/* Called behind it where the loss has an entropy term: given the entropies of the distributions that the tokens were
 * drawn from, writes dloss/dentropy. */
typedef void (*entropy_gradient)(void *context, int first, int count, const float *entropy, float *dentropy);
/* From now on the loss has such a term, whose context is the loss's; NULL, as at first: none. */
void learner_entropy_term(struct learner *l, entropy_gradient term);

/* From now on learner_gradients writes the entropies of these distributions to out, the host's, one value per scored
 * token as logprob has; NULL, as at first: it does not. */
void learner_entropies(struct learner *l, float *out);

/* Adds the unit's gradient to grads [params.elements].  logprob as above (may be NULL).  Not for a learner that is
 * forward only. */
enum rc learner_gradients(struct learner *l, const struct weights *w, const struct train_sample *samples, int count,
                          float temperature, loss_gradient loss, void *loss_context, float *grads, float *logprob,
                          struct err *err);
/* The same, tensor by tensor into parts, which the caller has begun for this unit and ends. */
enum rc learner_gradients_in_parts(struct learner *l, const struct weights *w, const struct train_sample *samples,
                                   int count, float temperature, loss_gradient loss, void *loss_context,
                                   struct gradient_parts *parts, float *logprob, struct err *err);
/* Sum of the entropies behind the scored tokens of the last learner_gradients, in order, in double. */
double learner_entropy_sum(const struct learner *l);

#endif
