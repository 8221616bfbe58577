/* Keeps which fault was chosen, and strikes: see fault.h.  An empty translation unit in normal builds. */
#include "common/base/fault.h"

#ifdef LEASEHOLD_FAULTS
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"

enum { FIRST_ROUND = 1 };

static int chosen;
static const char *chosen_name;
static atomic_bool struck;

enum rc fault_set(const char *const *names, const char *name, struct err *err) {
  for (int i = 0; names[i]; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    chosen = i;
    chosen_name = names[i];
    atomic_store(&struck, false);
    return RC_OK;
  }
  return err_set(err, RC_INVALID, "fault", "there is no fault '%.60s'", name);
}

bool fault_is(int fault) { return chosen == fault; }

bool fault_is_due(int fault, int64_t round) { return chosen == fault && round >= FIRST_ROUND; }

bool fault_strikes_once(int fault, int64_t round) {
  if (!fault_is_due(fault, round) || atomic_exchange(&struck, true)) return false;
  log_warn("fault: %s in round %" PRId64, chosen_name, round);
  return true;
}

void fault_die(int fault, int64_t round) {
  if (!fault_is_due(fault, round)) return;
  log_warn("fault: %s in round %" PRId64, chosen_name, round);
  kill(getpid(), SIGKILL);
  for (;;) pause();
}
#endif
