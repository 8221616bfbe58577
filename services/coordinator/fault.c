/* Implements the coordinator's faults (fault.h lists them); an empty translation unit in normal builds. */
#include "services/coordinator/fault.h"

#ifdef LEASEHOLD_FAULTS
#include "services/coordinator/store/store.h"

const char *const coordinator_faults[] = {[FAULT_NONE] = "",
                                          [COORDINATOR_FAULT_NO_FENCE_CHECK] = "no-fence-check",
                                          [COORDINATOR_FAULT_NO_VERSION_CHECK] = "no-version-check",
                                          [COORDINATOR_FAULT_DROP_REFILL] = "drop-refill",
                                          [COORDINATOR_FAULT_DIE_AFTER_ACCEPT] = "die-after-accept",
                                          [COORDINATOR_FAULT_DIE_AFTER_PLAN] = "die-after-plan",
                                          [COORDINATOR_FAULT_DIE_BEFORE_REFUSAL] = "die-before-refusal",
                                          NULL};

bool fault_accepts_any(enum lease_state state) {
  if (state == LEASE_SUPERSEDED) return fault_is(COORDINATOR_FAULT_NO_VERSION_CHECK);
  return fault_is(COORDINATOR_FAULT_NO_FENCE_CHECK);
}

enum rc fault_take_by_force(struct store *store, const struct forced_sample *s, bool *taken, struct err *err) {
  if (!fault_is(COORDINATOR_FAULT_NO_FENCE_CHECK)) return RC_OK;
  const enum rc rc = store_exec(store, err,
                                "UPDATE samples SET state = ?6, fence = ?5 WHERE run = ?1 AND round = ?2 AND "
                                "group_ordinal = ?3 AND sample = ?4 AND "
                                "state IN (?7, ?6)",
                                BINDS(b_int(s->run), b_int(s->round), b_int(s->group), b_int(s->sample),
                                      b_int(s->fence), b_int(SAMPLE_LEASED), b_int(SAMPLE_WAITING)));
  *taken = rc == RC_OK && store_changes(store) == 1;
  return rc;
}
#endif
