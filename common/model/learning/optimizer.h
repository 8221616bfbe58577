/* AdamW over order-independent gradients: units are scaled by a run-constant power of two, rounded to int64 and
 * summed, so that the order in which groups arrive leaves no trace. A non-finite or overflowing unit poisons the
 * step: it is skipped, recorded, and deterministic.
 *
 * Several ranks that train one model keep a shard of masters and moments each, and sums over all parameters; they take
 * a step together, to the bits of one rank alone (the exchanges are the caller's):
 *
 *   optimizer_poisoned        -> any rank's: optimizer_poison everywhere, and the step is optimizer_step's, which skips it
 *   optimizer_sums            -> every rank's shard of them becomes the sum over all ranks
 *   optimizer_shard_gradient  -> the squares of every rank's blocks to all
 *   optimizer_shard_step
 *   optimizer_shard_operands  -> every rank's part to all; then weights_from_operands
 */
#ifndef LEASEHOLD_MODEL_LEARNING_OPTIMIZER_H
#define LEASEHOLD_MODEL_LEARNING_OPTIMIZER_H

#include "common/model/learning/schedule.h"
#include "common/model/network/model.h"
#include "common/model/shard.h"

struct optimizer; /* opaque: masters, first and second moments, int64 accumulators, the step count */

struct step_result {
  bool skipped;     /* poisoned */
  double grad_norm; /* before clipping */
  double lr;
  int64_t step; /* optimizer steps done, this one included */
};

/* An optimizer of all parameters. */
enum rc optimizer_create(struct optimizer **out, const struct model *m, const struct optimizer_config *config,
                         struct err *err);
/* An optimizer of a shard that shard_of gave. */
enum rc optimizer_create_shard(struct optimizer **out, const struct model *m, struct shard shard,
                               const struct optimizer_config *config, struct err *err);
/* Where its arrays lie. */
struct optimizer_place {
  struct shard shard;
  /* Masters and moments lie in a scratch file in this folder, of which only the part at hand is in memory: the same
   * bits, in less memory, at the price of reading and writing that file in every step.  NULL: in memory.  Not where a
   * device computes. */
  const char *scratch_dir;
  /* No array for a unit's gradient, and none for the step's: units are added in parts, and a step leaves its gradient
   * where its sums were.  The same bits.  Of all parameters alone, and not where a device computes. */
  bool in_parts;
  /* Moments in 8 bits: 6 bytes a parameter less, and another arithmetic (NUMERICS.md).  Of all parameters alone, and
   * not where a device computes. */
  bool moments8;
};
enum rc optimizer_create_at(struct optimizer **out, const struct model *m, const struct optimizer_place *place,
                            const struct optimizer_config *config, struct err *err);
void optimizer_free(struct optimizer *o);
/* In memory, and in a scratch file. */
size_t optimizer_bytes(const struct model *m, const struct optimizer_place *place);
size_t optimizer_mapped_bytes(const struct model *m, const struct optimizer_place *place);
/* The caller has read or written these bytes of masters or moments and is done with them for now: where they are mapped
 * they leave memory. */
void optimizer_done_with(const struct optimizer *o, const void *values, size_t bytes);
/* The shard's masters from an array of all parameters. */
void optimizer_set_masters(struct optimizer *o, const float *masters);
/* Sets the masters of all parameters to these weights, widened. */
void optimizer_from_weights(struct optimizer *o, const struct weights *w);
/* weights_from_masters with its own masters, of all parameters. */
void optimizer_to_weights(const struct optimizer *o, struct weights *w);
struct shard optimizer_shard(const struct optimizer *o);
/* RC_INVALID names the field; pure.  The calls below assert a valid configuration. */
enum rc optimizer_config_check(const struct optimizer_config *config, struct err *err);
/* A resumed run's hyperparameters: moments and masters are kept; set the step count afterwards. */
void optimizer_configure(struct optimizer *o, const struct optimizer_config *config);
/* A new run's hyperparameters; moments and step count to zero; masters kept. */
void optimizer_reset(struct optimizer *o, const struct optimizer_config *config);
/* [shard_count(shard)] each, in the memory of the model's table; the first is element shard.begin of the parameters.
 * Moments in 8 bits: NULL. */
float *optimizer_masters(struct optimizer *o);
float *optimizer_moment1(struct optimizer *o);
float *optimizer_moment2(struct optimizer *o);
/* Moments in 8 bits: codes [params.elements], and the largest magnitude in each block [moment_blocks(params)]. Else all
 * NULL. */
struct moments8 optimizer_moments8(const struct optimizer *o);
/* Where the blocks of parameter i begin and end among all.  A block is MOMENT_BLOCK elements of the flat array from a
 * multiple of that on, or what one parameter has of them. */
static inline size_t moment_block_first(const struct param_table *t, int i) {
  return t->items[i].offset / MOMENT_BLOCK + (size_t)i;
}
static inline size_t moment_block_end(const struct param_table *t, int i) {
  return (t->items[i].offset + t->items[i].count - 1) / MOMENT_BLOCK + 1 + (size_t)i;
}
static inline size_t moment_blocks(const struct param_table *t) { return moment_block_end(t, t->count - 1); }
/* [params.elements] that only optimizer_step uses, which leaves undefined content in it; between steps the caller may
 * keep a unit's gradient in it.  NULL in parts. */
float *optimizer_gradient(struct optimizer *o);
int64_t optimizer_step_count(const struct optimizer *o);
void optimizer_set_step_count(struct optimizer *o, int64_t step);
/* Adds one unit's gradient; false when it poisoned the step. */
bool optimizer_add_unit(struct optimizer *o, const float *grads);
/* The same, but grads are zero afterwards: ready for the next unit. */
bool optimizer_take_unit(struct optimizer *o, float *grads);
/* One unit in parts: values [count] of elements from `at` on, any number of times; false when one of them is refused.
 * Then once, whether all were good: false when the unit poisoned the step. */
bool optimizer_add_part(struct optimizer *o, size_t at, const float *values, size_t count);
bool optimizer_end_parts(struct optimizer *o, bool good);
/* Forgets the units added since the last step. */
void optimizer_discard(struct optimizer *o);
/* Scale back, divide by denominator, global norm, clip, AdamW, accumulators to zero.  The caller then fills weights
 * (optimizer_to_weights).  With a shard it may only be called to skip a poisoned step. */
void optimizer_step(struct optimizer *o, double denominator, struct step_result *result);

/* --- a step of several ranks: see above --- */
bool optimizer_poisoned(const struct optimizer *o);
void optimizer_poison(struct optimizer *o);
int64_t *optimizer_sums(struct optimizer *o); /* [params.elements] */
/* The shard's gradient from its sums, and the sums of squares of its blocks into their places in squares
 * [shard_blocks(params.elements)]; all sums become zero. */
void optimizer_shard_gradient(struct optimizer *o, double denominator, double *squares);
/* The norm from the squares of all blocks, clip, AdamW on the shard. */
void optimizer_shard_step(struct optimizer *o, const double *squares, struct step_result *result);
/* The shard's masters, rounded, at their place in operands [params.elements], which may be optimizer_gradient's
 * memory. */
void optimizer_shard_operands(const struct optimizer *o, void *operands);

#endif
