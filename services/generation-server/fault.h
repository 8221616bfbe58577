/* Faults on purpose, for the tests that must notice them: a bit of a weight flipped after its digest was computed, a
 * bit of a KV entry. Compiled only with -DLEASEHOLD_FAULTS; otherwise these are empty and --fault does not exist. */
#ifndef LEASEHOLD_GENERATION_FAULT_H
#define LEASEHOLD_GENERATION_FAULT_H

#include "services/generation-server/engine.h"

enum { FAULT_KV_STEPS = 5, FAULT_BIT = 6 }; /* of a bf16: the highest bit of the mantissa */

struct fault_state {
  int steps_left; /* until the KV entry is flipped; 0: not armed */
};

#ifdef LEASEHOLD_FAULTS
/* "flip-weight", "flip-kv", "none". */
bool fault_parse(enum engine_fault *out, const char *name);
void fault_after_activation(struct fault_state *f, enum engine_fault fault, struct weights *w);
void fault_after_step(struct fault_state *f, struct sample *const *live, int live_count, struct kv_cache *kv);
#else
static inline void fault_after_activation(struct fault_state *f, enum engine_fault fault, struct weights *w) {
  (void)f, (void)fault, (void)w;
}
static inline void fault_after_step(struct fault_state *f, struct sample *const *live, int live_count,
                                    struct kv_cache *kv) {
  (void)f, (void)live, (void)live_count, (void)kv;
}
#endif

#endif
