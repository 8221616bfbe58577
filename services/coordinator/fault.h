/* The coordinator's faults on purpose.  common/base/fault.h chooses one and says when it strikes.
 *
 *   no-fence-check     a result is accepted under whatever fence it carries
 *   no-version-check   leases are granted to servers with other weights, results of other weights and versions accepted
 *   drop-refill        the first refill of a run is not issued
 *   die-after-accept   SIGKILL once, in the second round or later, after a result's commit and before its answer
 *   die-after-plan     SIGKILL once, in the second round or later, after a batch's commit and before it is sent
 *   die-before-refusal SIGKILL once, in the second round or later, when an answer refuses a group and is not stored yet
 *
 * On the writer's thread, but for die-after-plan and die-before-refusal (the driver's). */
#ifndef LEASEHOLD_COORDINATOR_FAULT_H
#define LEASEHOLD_COORDINATOR_FAULT_H

#include "common/base/fault.h"
#include "services/coordinator/decide/states.h"

enum coordinator_fault {
  COORDINATOR_FAULT_NO_FENCE_CHECK = FAULT_NONE + 1,
  COORDINATOR_FAULT_NO_VERSION_CHECK,
  COORDINATOR_FAULT_DROP_REFILL,
  COORDINATOR_FAULT_DIE_AFTER_ACCEPT,
  COORDINATOR_FAULT_DIE_AFTER_PLAN,
  COORDINATOR_FAULT_DIE_BEFORE_REFUSAL
};

struct store;

/* A sample that a result brings, and the fence of its lease. */
struct forced_sample {
  int64_t run, round, group, sample, fence;
};

#ifdef LEASEHOLD_FAULTS
extern const char *const coordinator_faults[]; /* for fault_set */
/* no-fence-check and no-version-check: is the result of a lease in this state taken all the same? */
bool fault_accepts_any(enum lease_state state);
/* no-fence-check: gives the sample back to this fence, even if another lease holds it now.  *taken becomes false when
 * it was done already: then its rollout was written over, and it must not be counted a second time. */
enum rc fault_take_by_force(struct store *store, const struct forced_sample *s, bool *taken, struct err *err);
#else
static inline bool fault_accepts_any(enum lease_state state) { return (void)state, false; }
static inline enum rc fault_take_by_force(struct store *store, const struct forced_sample *s, bool *taken,
                                          struct err *err) {
  return (void)store, (void)s, (void)taken, (void)err, RC_OK;
}
#endif

#endif
