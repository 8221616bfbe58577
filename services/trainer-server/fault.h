/* The trainer's faults on purpose.  common/base/fault.h chooses one and says when it strikes.  Each but short-shard
 * strikes in the second round or a later one (version 1 and up), and says so in one line of the log first.  Of several
 * ranks only those strike that were given the flag.
 *
 *   flip-gradient       once: the sign bit of the largest element of one unit's gradient
 *   double-batch        once: the units of one batch are added to the sums twice
 *   flip-weight         once: a bit of the first tensor, after a step
 *   die-in-batch        SIGKILL after about half of a batch's units are accumulated
 *   die-after-refusal   SIGKILL when a batch has been computed of which a group is refused, and before it is answered
 *   die-before-step     SIGKILL when a step, maybe an inner one, is about to be applied, all its units accumulated
 *   die-in-checkpoint   SIGKILL with the checkpoint's folder half written, before it gets its name; in flight that is
 *                       after the version is published
 *   die-before-publish  SIGKILL after the version is durable, before it is pushed or announced
 *
 *   short-shard         from the start: this rank's shard ends a block of the norm before its bound
 *
 * On the engine's thread, or that of a checkpoint beside it. */
#ifndef LEASEHOLD_TRAINER_FAULT_H
#define LEASEHOLD_TRAINER_FAULT_H

#include <stddef.h>

#include "common/base/fault.h"
#include "common/model/network/model.h"
#include "common/model/shard.h"

enum trainer_fault {
  TRAINER_FAULT_FLIP_GRADIENT = FAULT_NONE + 1,
  TRAINER_FAULT_DOUBLE_BATCH,
  TRAINER_FAULT_FLIP_WEIGHT,
  TRAINER_FAULT_DIE_IN_BATCH,
  TRAINER_FAULT_DIE_BEFORE_STEP,
  TRAINER_FAULT_DIE_IN_CHECKPOINT,
  TRAINER_FAULT_DIE_BEFORE_PUBLISH,
  TRAINER_FAULT_SHORT_SHARD,
  TRAINER_FAULT_DIE_AFTER_REFUSAL
};

#ifdef LEASEHOLD_FAULTS
extern const char *const trainer_faults[]; /* for fault_set */
/* Spoils a unit's gradient of n elements.  version: what the round was sampled at. */
void fault_gradient(float *gradient, size_t n, int64_t version);
/* Must this unit be added once more? */
bool fault_add_twice(const float *gradient, size_t n, int64_t version);
/* Before a batch's first unit. */
void fault_batch_begin(void);
void fault_shard(struct shard *shard);
/* After a step from `version`. */
void fault_weights(struct weights *w, int64_t version);
#else
static inline void fault_gradient(float *gradient, size_t n, int64_t version) {
  (void)gradient, (void)n, (void)version;
}
static inline bool fault_add_twice(const float *gradient, size_t n, int64_t version) {
  return (void)gradient, (void)n, (void)version, false;
}
static inline void fault_batch_begin(void) {}
static inline void fault_shard(struct shard *shard) { (void)shard; }
static inline void fault_weights(struct weights *w, int64_t version) { (void)w, (void)version; }
#endif

#endif
