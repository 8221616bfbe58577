/* See fault.h.  An empty translation unit in normal builds. */
#include "services/trainer-server/fault.h"

#ifdef LEASEHOLD_FAULTS
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"

static const char *const names[] = {[FAULT_NONE] = "",
                                    [FAULT_FLIP_GRADIENT] = "flip-gradient",
                                    [FAULT_DOUBLE_BATCH] = "double-batch",
                                    [FAULT_FLIP_WEIGHT] = "flip-weight",
                                    [FAULT_DIE_IN_BATCH] = "die-in-batch",
                                    [FAULT_DIE_BEFORE_STEP] = "die-before-step",
                                    [FAULT_DIE_IN_CHECKPOINT] = "die-in-checkpoint",
                                    [FAULT_DIE_BEFORE_PUBLISH] = "die-before-publish",
                                    [FAULT_SHORT_SHARD] = "short-shard"};
static enum trainer_fault chosen;
static bool struck;    /* what strikes once has */
static bool in_strike; /* the batch at hand is the one that is doubled */

enum rc fault_set(const char *name, struct err *err) {
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    chosen = (enum trainer_fault)i;
    struck = in_strike = false;
    return RC_OK;
  }
  return err_set(err, RC_INVALID, "fault", "there is no fault '%.60s'", name);
}

static bool is_time(enum trainer_fault fault, int64_t version) { return chosen == fault && version >= 1; }

void fault_die(enum trainer_fault fault, int64_t version) {
  if (!is_time(fault, version)) return;
  log_warn("fault: %s at version %" PRId64, names[fault], version);
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

static size_t largest_of(const float *gradient, size_t n) {
  size_t largest = 0;
  for (size_t i = 0; i < n; i++) {
    if (__builtin_fabsf(gradient[i]) > __builtin_fabsf(gradient[largest])) largest = i;
  }
  return largest;
}

void fault_gradient(float *gradient, size_t n, int64_t version) {
  if (struck || !is_time(FAULT_FLIP_GRADIENT, version)) return;
  const size_t i = largest_of(gradient, n);
  if (gradient[i] == 0) return; /* a group without advantages would not show it */
  gradient[i] = -gradient[i];
  struck = true;
  log_warn("fault: flip-gradient: the sign bit of element %zu", i);
}

bool fault_add_twice(const float *gradient, size_t n, int64_t version) {
  if (in_strike) return true;
  if (struck || !is_time(FAULT_DOUBLE_BATCH, version) || gradient[largest_of(gradient, n)] == 0) return false;
  log_warn("fault: double-batch at version %" PRId64, version);
  struck = in_strike = true;
  return true;
}

void fault_batch_begin(void) { in_strike = false; }

void fault_weights(struct weights *w, int64_t version) {
  if (struck || !is_time(FAULT_FLIP_WEIGHT, version)) return;
  *(uint8_t *)w->matrices[0].data ^= 1;
  struck = true;
  log_warn("fault: flip-weight at version %" PRId64, version);
}

void fault_shard(struct shard *shard) {
  if (chosen == FAULT_SHORT_SHARD && shard_count(*shard) > 0) shard->end = (shard_blocks(shard->end) - 1) * SHARD_BLOCK;
}
#endif
