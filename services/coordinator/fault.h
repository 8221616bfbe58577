/* Faults on purpose, for the tests that must notice them.  Compiled only with -DLEASEHOLD_FAULTS (--fault NAME);
 * otherwise fault_is is always false and costs nothing.
 *
 *   no-fence-check     a result is accepted under whatever fence it carries
 *   no-version-check   leases are granted to servers with other weights, results of other weights and versions accepted
 *   drop-refill        the first refill of a run is not issued
 *   die-after-accept   SIGKILL once, in the second round or later, after a result's commit and before its answer
 *   die-after-plan     SIGKILL once, in the second round or later, after a batch's commit and before it is sent */
#ifndef LEASEHOLD_COORDINATOR_FAULT_H
#define LEASEHOLD_COORDINATOR_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rc.h"

enum coordinator_fault {
  FAULT_NONE,
  FAULT_NO_FENCE_CHECK,
  FAULT_NO_VERSION_CHECK,
  FAULT_DROP_REFILL,
  FAULT_DIE_AFTER_ACCEPT,
  FAULT_DIE_AFTER_PLAN
};

#ifdef LEASEHOLD_FAULTS
/* "" is none; RC_INVALID for an unknown name. Before any thread starts. */
enum rc fault_set(const char *name, struct err *err);
bool fault_is(enum coordinator_fault fault);
/* The process ends here by SIGKILL when this fault is set and the round is the second or a later one. */
void fault_die(enum coordinator_fault fault, int64_t round);
#else
static inline bool fault_is(enum coordinator_fault fault) { return (void)fault, false; }
static inline void fault_die(enum coordinator_fault fault, int64_t round) { (void)fault, (void)round; }
#endif

#endif
