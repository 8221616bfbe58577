/* The states of runs, rounds, groups, samples, leases and versions, as tables that are checked before every
 * transition.
 *
 *   run      checking -> queued -> starting -> running <-> paused <-> starting;  running -> completed
 *            running | paused | queued | starting | checking -> stopping -> stopped
 *            checking -> failed: its datasets were refused after it was taken, and nothing of it has begun.  A run that
 *            cannot go on is paused, and can be resumed
 *   round    open -> training -> stepping -> publishing -> done
 *            training -> open (a group of its step was refused);  open | training | stepping | publishing -> abandoned (the
 *            run stopped)
 *   group    open -> sealed -> submitted -> consumed;  open -> filtered | failed | abandoned
 *            sealed -> filtered | abandoned;  submitted -> sealed (a trainer was lost) | filtered (it was refused)
 *            evaluation groups: open -> evaluated
 *   sample   waiting -> leased -> done;  leased -> waiting (lost, expired, handed back);  waiting | leased -> void
 *            done -> waiting (of an open group: its version is too old, or a check has refused it)
 *   lease    granted -> done | expired | lost | handed_back | superseded
 *   version  staged -> current -> superseded */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_STATES_H
#define LEASEHOLD_COORDINATOR_DECIDE_STATES_H

#include <stdbool.h>

#include "common/base/rc.h"

enum state_machine { MACHINE_RUN, MACHINE_ROUND, MACHINE_GROUP, MACHINE_SAMPLE, MACHINE_LEASE, MACHINE_VERSION };

enum run_state {
  RUN_QUEUED,
  RUN_STARTING,
  RUN_RUNNING,
  RUN_PAUSED,
  RUN_STOPPING,
  RUN_STOPPED,
  RUN_COMPLETED,
  RUN_FAILED,
  RUN_CHECKING /* its datasets are too large to be checked while it is posted */
};
enum round_state { ROUND_OPEN, ROUND_TRAINING, ROUND_STEPPING, ROUND_PUBLISHING, ROUND_DONE, ROUND_ABANDONED };
enum group_state {
  GROUP_OPEN,
  GROUP_SEALED,
  GROUP_SUBMITTED,
  GROUP_CONSUMED,
  GROUP_FILTERED,
  GROUP_FAILED,
  GROUP_EVALUATED,
  GROUP_ABANDONED
};
enum sample_state { SAMPLE_WAITING, SAMPLE_LEASED, SAMPLE_DONE, SAMPLE_VOID };
enum lease_state { LEASE_GRANTED, LEASE_DONE, LEASE_EXPIRED, LEASE_LOST, LEASE_HANDED_BACK, LEASE_SUPERSEDED };
enum version_state { VERSION_STAGED, VERSION_CURRENT, VERSION_SUPERSEDED };

bool state_may(enum state_machine machine, int from, int to);
/* RC_CONFLICT naming machine, both states and the thing's id. */
enum rc state_check(enum state_machine machine, int from, int to, const char *id, struct err *err);
const char *state_name(enum state_machine machine, int state); /* "queued"; asserted in range */

#endif
