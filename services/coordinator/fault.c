/* See fault.h.  An empty translation unit in normal builds. */
#include "services/coordinator/fault.h"

#ifdef LEASEHOLD_FAULTS
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"

static const char *const names[] = {[FAULT_NONE] = "",
                                    [FAULT_NO_FENCE_CHECK] = "no-fence-check",
                                    [FAULT_NO_VERSION_CHECK] = "no-version-check",
                                    [FAULT_DROP_REFILL] = "drop-refill",
                                    [FAULT_DIE_AFTER_ACCEPT] = "die-after-accept",
                                    [FAULT_DIE_AFTER_PLAN] = "die-after-plan"};
static enum coordinator_fault chosen;

enum rc fault_set(const char *name, struct err *err) {
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    chosen = (enum coordinator_fault)i;
    return RC_OK;
  }
  return err_set(err, RC_INVALID, "fault", "there is no fault '%.60s'", name);
}

bool fault_is(enum coordinator_fault fault) { return chosen == fault; }

void fault_die(enum coordinator_fault fault, int64_t round) {
  if (chosen != fault || round < 1) return;
  log_warn("fault: %s in round %lld", names[fault], (long long)round);
  kill(getpid(), SIGKILL);
}
#endif
