/* Faults on purpose, for the tests that must notice them.  Compiled only with -DLEASEHOLD_FAULTS (--fault NAME);
 * otherwise these are empty and the option does not exist.
 *
 *   flip-weight        a bit of a weight is flipped after its digest was computed
 *   flip-kv            a bit of a KV entry of a leased sample is flipped, once after each activation
 *   no-version-check   from its second version on the server is deaf to newer ones, and takes any lease all the same
 *   flip-incoming      a bit of every version that comes by broadcast is flipped before it is staged
 *   die-in-lease       SIGKILL, once a leased sample of the second round or a later one has between a third and two
 *                      thirds of the tokens that it may have
 *
 * On the engine's thread, but for fault_is_deaf (any) and fault_incoming (the stager's). */
#ifndef LEASEHOLD_GENERATION_SERVER_FAULT_H
#define LEASEHOLD_GENERATION_SERVER_FAULT_H

#include "services/generation-server/engine/decode_job.h"

/* For the mutant tests; a build without -DLEASEHOLD_FAULTS refuses everything but FAULT_NONE. */
enum engine_fault {
  FAULT_NONE,
  FAULT_FLIP_WEIGHT,
  FAULT_FLIP_KV,
  FAULT_NO_VERSION_CHECK,
  FAULT_FLIP_INCOMING,
  FAULT_DIE_IN_LEASE
};

enum {
  FAULT_KV_STEPS = 5,
  FAULT_BIT = 6, /* of a bf16: the highest bit of the mantissa */
  FAULT_VERSIONS_HEARD = 2
};

struct fault_state {
  int steps_left; /* until the KV entry is flipped; 0: not armed */
};

#ifdef LEASEHOLD_FAULTS
/* The names above, or "none". */
bool fault_parse(enum engine_fault *out, const char *name);
void fault_after_activation(struct fault_state *f, enum engine_fault fault, struct weights *w);
void fault_after_step(struct fault_state *f, enum engine_fault fault, struct sample *const *live, int live_count,
                      struct kv_cache *kv);
bool fault_takes_any_lease(enum engine_fault fault);
/* activations: how many versions the engine has decoded with so far. */
bool fault_is_deaf(enum engine_fault fault, int64_t activations);
void fault_incoming(enum engine_fault fault, char *bytes, size_t len);
#else
static inline void fault_after_activation(struct fault_state *f, enum engine_fault fault, struct weights *w) {
  (void)f, (void)fault, (void)w;
}
static inline void fault_after_step(struct fault_state *f, enum engine_fault fault, struct sample *const *live,
                                    int live_count, struct kv_cache *kv) {
  (void)f, (void)fault, (void)live, (void)live_count, (void)kv;
}
static inline bool fault_takes_any_lease(enum engine_fault fault) { return (void)fault, false; }
static inline bool fault_is_deaf(enum engine_fault fault, int64_t activations) {
  return (void)fault, (void)activations, false;
}
static inline void fault_incoming(enum engine_fault fault, char *bytes, size_t len) {
  (void)fault, (void)bytes, (void)len;
}
#endif

#endif
