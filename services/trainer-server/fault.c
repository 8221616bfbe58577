/* Implements the trainer's faults (fault.h lists them); an empty translation unit in normal builds. */
#include "services/trainer-server/fault.h"

#ifdef LEASEHOLD_FAULTS
#include "common/base/log.h"

const char *const trainer_faults[] = {[FAULT_NONE] = "",
                                      [TRAINER_FAULT_FLIP_GRADIENT] = "flip-gradient",
                                      [TRAINER_FAULT_DOUBLE_BATCH] = "double-batch",
                                      [TRAINER_FAULT_FLIP_WEIGHT] = "flip-weight",
                                      [TRAINER_FAULT_DIE_IN_BATCH] = "die-in-batch",
                                      [TRAINER_FAULT_DIE_BEFORE_STEP] = "die-before-step",
                                      [TRAINER_FAULT_DIE_IN_CHECKPOINT] = "die-in-checkpoint",
                                      [TRAINER_FAULT_DIE_BEFORE_PUBLISH] = "die-before-publish",
                                      [TRAINER_FAULT_SHORT_SHARD] = "short-shard",
                                      [TRAINER_FAULT_DIE_AFTER_REFUSAL] = "die-after-refusal",
                                      NULL};
static bool doubling; /* the batch at hand is the one that is added twice */

static size_t largest_of(const float *gradient, size_t n) {
  size_t largest = 0;
  for (size_t i = 0; i < n; i++) {
    if (__builtin_fabsf(gradient[i]) > __builtin_fabsf(gradient[largest])) largest = i;
  }
  return largest;
}

void fault_gradient(float *gradient, size_t n, int64_t version) {
  if (!fault_is_due(TRAINER_FAULT_FLIP_GRADIENT, version)) return;
  const size_t i = largest_of(gradient, n);
  if (gradient[i] == 0) return; /* a group without advantages would not show it */
  if (!fault_strikes_once(TRAINER_FAULT_FLIP_GRADIENT, version)) return;
  gradient[i] = -gradient[i];
  log_warn("fault: flipped the sign bit of element %zu", i);
}

bool fault_add_twice(const float *gradient, size_t n, int64_t version) {
  if (doubling) return true;
  if (!fault_is_due(TRAINER_FAULT_DOUBLE_BATCH, version) || gradient[largest_of(gradient, n)] == 0) return false;
  doubling = fault_strikes_once(TRAINER_FAULT_DOUBLE_BATCH, version);
  return doubling;
}

void fault_batch_begin(void) { doubling = false; }

void fault_weights(struct weights *w, int64_t version) {
  if (fault_strikes_once(TRAINER_FAULT_FLIP_WEIGHT, version)) *(uint8_t *)w->matrices[0].data ^= 1;
}

void fault_shard(struct shard *shard) {
  if (fault_is(TRAINER_FAULT_SHORT_SHARD) && shard_count(*shard) > 0)
    shard->end = (shard_blocks(shard->end) - 1) * SHARD_BLOCK;
}
#endif
