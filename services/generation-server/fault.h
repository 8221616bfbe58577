/* The generation-server's faults on purpose.  common/base/fault.h chooses one and says when it strikes.
 *
 *   flip-weight        a bit of a weight is flipped after its digest was computed
 *   flip-kv            a bit of a KV entry of a leased sample is flipped, once after each activation
 *   no-version-check   from its second version on the server ignores newer ones, and takes any lease all the same
 *   flip-incoming      a bit of every version that comes by broadcast is flipped before it is staged
 *   die-in-lease       SIGKILL, once a leased sample of the second round or a later one has between a third and two
 *                      thirds of the tokens that it may have
 *
 * On the engine's thread, but for fault_ignores_newer_versions (any) and fault_incoming (the stager's).  The
 * module keeps the count of steps until the KV entry is flipped, since a process has one engine. */
#ifndef LEASEHOLD_GENERATION_SERVER_FAULT_H
#define LEASEHOLD_GENERATION_SERVER_FAULT_H

#include "common/base/fault.h"
#include "services/generation-server/engine/decode_job.h"

enum generation_fault {
  GENERATION_FAULT_FLIP_WEIGHT = FAULT_NONE + 1,
  GENERATION_FAULT_FLIP_KV,
  GENERATION_FAULT_NO_VERSION_CHECK,
  GENERATION_FAULT_FLIP_INCOMING,
  GENERATION_FAULT_DIE_IN_LEASE
};

#ifdef LEASEHOLD_FAULTS
extern const char *const generation_faults[]; /* for fault_set */
void fault_after_activation(struct weights *w);
void fault_after_step(struct sample *const *live, int live_count, struct kv_cache *kv);
bool fault_takes_any_lease(void);
/* activations: how many versions the engine has decoded with so far. */
bool fault_ignores_newer_versions(int64_t activations);
void fault_incoming(char *bytes, size_t len);
#else
static inline void fault_after_activation(struct weights *w) { (void)w; }
static inline void fault_after_step(struct sample *const *live, int live_count, struct kv_cache *kv) {
  (void)live, (void)live_count, (void)kv;
}
static inline bool fault_takes_any_lease(void) { return false; }
static inline bool fault_ignores_newer_versions(int64_t activations) { return (void)activations, false; }
static inline void fault_incoming(char *bytes, size_t len) { (void)bytes, (void)len; }
#endif

#endif
