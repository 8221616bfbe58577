/* Faults on purpose, for the tests that must notice them or survive them: which one this process has (--fault NAME), and
 * when it strikes.  What a fault does is each service's own: services/<service>/fault.h lists its faults.
 *
 * Compiled only with -DLEASEHOLD_FAULTS; otherwise nothing is ever chosen, and the calls below cost nothing.  One fault a
 * process.  It is chosen before any thread starts and asked for from any thread.
 *
 * Most faults strike in the second round or later (round 1 and up): by then there is something to lose and to compare.
 * Rounds and the versions that they are sampled at are counted alike, so a trainer gives the version. */
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
