/* A model on a backend: config, parameter table, rope table; and weights: one policy version in the memory that the
 * kernels use.
 *
 * Weights are created once and filled many times (double buffering: one set decodes, the other is staged), from
 * safetensors bytes, from random numbers, or from the trainer's fp32 masters.  Their digest is always computed from
 * the kernels' memory, never echoed. Owners: an engine owns its model and its weights; a staged set belongs to the
 * stager until it is swapped in.
 */
#ifndef LEASEHOLD_MODEL_NETWORK_MODEL_H
#define LEASEHOLD_MODEL_NETWORK_MODEL_H

#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/model/network/config.h"
#include "common/model/network/params.h"
#include "common/model/ops.h"
#include "common/safetensors/safetensors.h"

struct model {
  struct model_config config;
  struct param_table params;
  const struct ops *ops; /* borrowed */
  float *rope;           /* [positions][head_dim/2][2]; positions = context_max */
  float *rope_local;     /* of sliding layers, where they have one of their own; else NULL */
  int context_max;       /* longest sequence served: min(positions_max, asked for) */
};

/* context_max 0: positions_max. */
enum rc model_create(struct model **out, const struct model_config *config, const struct ops *ops, int context_max,
                     struct err *err);
void model_free(struct model *m);
/* The layer's table. */
const float *model_rope(const struct model *m, int layer);
size_t model_rope_bytes(const struct model *m);
/* Scores of attention are multiplied by this. */
float model_attention_scale(const struct model *m);
/* Embeddings are multiplied by this, a number in the operand format; 1: they are not. */
float model_embedding_scale(const struct model *m);
/* About the bytes of a safetensors file of the weights in the operand format. */
size_t model_file_bytes(const struct model *m);

struct weights {
  const struct model *model; /* borrowed */
  struct matrix *matrices;   /* [params.count]; vectors: N = 1, data = plain operand[cols] */
  /* [params.count] for the backward, or NULL; vectors and the embedding of an untied model, and without transposes all:
   * data NULL */
  struct matrix *transposed;
  /* [params.count] with transposed: the largest magnitude in each tensor, infinite when one is not a number */
  float *largest;
  /* operand [largest tensor]: between row-major bytes and the kernels' layout; one filler or reader at a time */
  void *staging;
  void *memory; /* holds staging and the data of all matrices */
  /* Where memory is not the host's: staging as the host reads it, and a place for numbers to be rounded (in memory) */
  void *host, *converting;
};

enum rc weights_create(struct weights **out, const struct model *m, bool for_training, struct err *err);
/* For training, but the backward makes each transpose when it needs it.  Only where memory is the host's. */
enum rc weights_create_without_transposes(struct weights **out, const struct model *m, struct err *err);
void weights_free(struct weights *w);
/* Bytes that weights_create allocates; without transposes as many as not for training. */
size_t weights_bytes(const struct model *m, bool for_training);
/* And of the host's memory, where that is another. */
size_t weights_host_bytes(const struct model *m);
/* Fills from a safetensors file whose tensors must be exactly the table's (BF16, F16 or F32, rounded to the operand
 * format); RC_INVALID names the tensor. */
enum rc weights_from_safetensors(struct weights *w, const struct st_file *file, struct err *err);
/* The same, and says how far it has come: for files that take long to read.  what: see struct progress. */
enum rc weights_load(struct weights *w, const struct st_file *file, const char *what, struct err *err);
/* Fills from fp32 masters [params.elements], rounded to the operand format. */
void weights_from_masters(struct weights *w, const float *masters);
/* From and to row-major operands [params.elements] (the table's memory) in parameter-table order, as ranks hand weights
 * to each other; what pads the parameters is not looked at, and not written. */
void weights_from_operands(struct weights *w, const void *operands);
void weights_to_operands(const struct weights *w, void *operands);
/* The same weights of the same model. */
void weights_copy(struct weights *to, const struct weights *from);
/* The widened values into masters [params.elements]. */
void weights_to_masters(const struct weights *w, float *masters);
/* normal(0, initializer_range) for matrices (norms 1, or 0 where they multiply by 1 + w; biases 0), by Philox
 * (RNG_INIT, seed): masters [params.elements].  RC_NO_MEMORY where memory is not the host's and the buffer between is
 * refused. */
enum rc masters_random(const struct model *m, float *masters, uint64_t seed, struct err *err);
/* The values [count] of one parameter of these, in the host's memory. */
void master_random(const struct model *m, int param, float *values, uint64_t seed);
/* Of weights for training: RC_CORRUPT with the first tensor that has an infinity or a NaN. */
enum rc weights_check_finite(const struct weights *w, struct err *err);
/* SHA-256 over the per-tensor digests in table order, computed from the kernels' memory.  Also fails where the device
 * has (ops->status), so that no set of weights is taken for good that was not filled. */
enum rc weights_digest(struct digest *out, const struct weights *w, struct err *err);
/* Appends the whole safetensors file (BF16; F32 in fp32 mode), metadata {"format":"pt"} plus the given pairs, and one
 * more of digest_key and the digest in hexadecimal.  The digest is weights_digest's: every tensor is read out of the
 * kernels' memory once for both. */
enum rc weights_to_safetensors(struct buf *out, struct digest *digest, const struct weights *w,
                               const char *const *metadata, const char *digest_key, struct err *err);
/* Other weights of the same model, as weights_to_safetensors wrote them: row-major operands, tensor behind tensor. */
struct weights_base {
  const void *operands; /* NULL: there are none */
  size_t bytes;
  struct digest digest;
  /* Called, where memory is the host's, with bytes of the new file and of these that are not needed again soon; by any
   * of the pool's threads.  NULL: nobody asks. */
  void (*done)(void *context, const void *bytes, size_t count);
  /* Called, by any of the pool's threads, when the changes that were found have grown to `changes` bytes.  NULL: nobody
   * asks. */
  void (*grown)(void *context, size_t changes);
  void *context;
};
/* The same, and on the way what turns base into these weights (weights_changes.h) into *changes, which is empty.  It
 * stays empty where that would be more than half of the file, operands are not bf16, or memory was refused. */
enum rc weights_to_safetensors_from(struct buf *out, struct digest *digest, const struct weights *w,
                                    const char *const *metadata, const char *digest_key,
                                    const struct weights_base *base, struct buf *changes, struct err *err);
/* Fills w from base, which may be w itself and else is only read, and the changes that such calls made, one behind the
 * other.  The digest is weights_digest's of w, which the caller compares.  RC_INVALID for bytes that are no changes of
 * this model and of this base, or that make a number that is not finite; w is of no use then. */
enum rc weights_apply_changes(struct weights *w, const struct weights *base, const void *changes, size_t len,
                              const struct digest *base_digest, struct digest *out, struct err *err);

#endif
