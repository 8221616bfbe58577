/* Faults on purpose, for the tests that must notice or survive them: which fault the process was started with
 * (--fault NAME), and when it strikes.  services/<service>/fault.h lists a service's faults and implements them.
 *
 * Compiled only with -DLEASEHOLD_FAULTS; otherwise no fault exists and the calls below cost nothing.  A process has one
 * fault, chosen before any thread starts; any thread may ask for it.
 *
 * Most faults strike in the second round or later (round 1 and up), when there is something to lose and to compare.
 * Round n is sampled at version n, so a trainer passes the version. */
#ifndef LEASEHOLD_BASE_FAULT_H
#define LEASEHOLD_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rc.h"

enum { FAULT_NONE }; /* the first of every service's enum: nothing is chosen */

#ifdef LEASEHOLD_FAULTS
/* names[i] is the name of fault i; "" for FAULT_NONE; NULL ends them.  Borrowed.  RC_INVALID for an unknown name. */
enum rc fault_set(const char *const *names, const char *name, struct err *err);
bool fault_is(int fault);
/* The same, and the round is the second or a later one. */
bool fault_is_due(int fault, int64_t round);
/* The same, but true only once, and the log says so. */
bool fault_strikes_once(int fault, int64_t round);
/* Ends the process by SIGKILL when this fault is due, after one line in the log. */
void fault_die(int fault, int64_t round);
#else
static inline bool fault_is(int fault) { return (void)fault, false; }
static inline bool fault_is_due(int fault, int64_t round) { return (void)fault, (void)round, false; }
static inline bool fault_strikes_once(int fault, int64_t round) { return (void)fault, (void)round, false; }
static inline void fault_die(int fault, int64_t round) { (void)fault, (void)round; }
#endif

#endif
