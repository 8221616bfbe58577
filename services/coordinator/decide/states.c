/* Holds the state tables that states.h draws.  A transition that is not listed is refused. */
#include "services/coordinator/decide/states.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum { STATES_MAX = 9 };
#define TO(state) (1u << (state))

struct machine {
  const char *name;
  int count;
  const char *names[STATES_MAX];
  uint32_t next[STATES_MAX]; /* bit per state that may follow */
};

static const struct machine machines[] = {
    [MACHINE_RUN] = {"run",
                     9,
                     {"queued", "starting", "running", "paused", "stopping", "stopped", "completed", "failed",
                      "checking"},
                     {[RUN_QUEUED] = TO(RUN_STARTING) | TO(RUN_STOPPING) | TO(RUN_STOPPED),
                      [RUN_STARTING] = TO(RUN_RUNNING) | TO(RUN_PAUSED) | TO(RUN_STOPPING) | TO(RUN_QUEUED),
                      [RUN_RUNNING] = TO(RUN_PAUSED) | TO(RUN_STOPPING) | TO(RUN_COMPLETED),
                      [RUN_PAUSED] = TO(RUN_RUNNING) | TO(RUN_STARTING) | TO(RUN_STOPPING),
                      [RUN_STOPPING] = TO(RUN_STOPPED),
                      [RUN_CHECKING] = TO(RUN_QUEUED) | TO(RUN_FAILED) | TO(RUN_STOPPING)}},
    [MACHINE_ROUND] = {"round",
                       6,
                       {"open", "training", "stepping", "publishing", "done", "abandoned"},
                       {[ROUND_OPEN] = TO(ROUND_TRAINING) | TO(ROUND_DONE) | TO(ROUND_ABANDONED),
                        [ROUND_TRAINING] = TO(ROUND_STEPPING) | TO(ROUND_OPEN) | TO(ROUND_ABANDONED),
                        [ROUND_STEPPING] = TO(ROUND_PUBLISHING) | TO(ROUND_ABANDONED),
                        [ROUND_PUBLISHING] = TO(ROUND_DONE) | TO(ROUND_ABANDONED)}},
    [MACHINE_GROUP] = {"group",
                       8,
                       {"open", "sealed", "submitted", "consumed", "filtered", "failed", "evaluated", "abandoned"},
                       {[GROUP_OPEN] = TO(GROUP_SEALED) | TO(GROUP_FILTERED) | TO(GROUP_FAILED) | TO(GROUP_EVALUATED) |
                                       TO(GROUP_ABANDONED),
                        [GROUP_SEALED] = TO(GROUP_SUBMITTED) | TO(GROUP_FILTERED) | TO(GROUP_ABANDONED),
                        [GROUP_SUBMITTED] =
                            TO(GROUP_CONSUMED) | TO(GROUP_SEALED) | TO(GROUP_FILTERED) | TO(GROUP_ABANDONED)}},
    [MACHINE_SAMPLE] = {"sample",
                        4,
                        {"waiting", "leased", "done", "void"},
                        {[SAMPLE_WAITING] = TO(SAMPLE_LEASED) | TO(SAMPLE_VOID),
                         [SAMPLE_LEASED] = TO(SAMPLE_DONE) | TO(SAMPLE_WAITING) | TO(SAMPLE_VOID),
                         [SAMPLE_DONE] = TO(SAMPLE_WAITING)}},
    [MACHINE_LEASE] = {"lease",
                       6,
                       {"granted", "done", "expired", "lost", "handed_back", "superseded"},
                       {[LEASE_GRANTED] = TO(LEASE_DONE) | TO(LEASE_EXPIRED) | TO(LEASE_LOST) | TO(LEASE_HANDED_BACK) |
                                          TO(LEASE_SUPERSEDED)}},
    [MACHINE_VERSION] =
        {"version",
         3,
         {"staged", "current", "superseded"},
         {[VERSION_STAGED] = TO(VERSION_CURRENT) | TO(VERSION_SUPERSEDED), [VERSION_CURRENT] = TO(VERSION_SUPERSEDED)}},
};

static const struct machine *machine_of(enum state_machine machine) {
  assert((size_t)machine < sizeof machines / sizeof machines[0]);
  return &machines[machine];
}

bool state_may(enum state_machine machine, int from, int to) {
  const struct machine *m = machine_of(machine);
  assert(from >= 0 && from < m->count && to >= 0 && to < m->count);
  return (m->next[from] & TO(to)) != 0;
}

const char *state_name(enum state_machine machine, int state) {
  const struct machine *m = machine_of(machine);
  assert(state >= 0 && state < m->count);
  return m->names[state];
}

enum rc state_check(enum state_machine machine, int from, int to, const char *id, struct err *err) {
  if (state_may(machine, from, to)) return RC_OK;
  return err_set(err, RC_CONFLICT, "state", "%s %s is %s and cannot become %s", machine_of(machine)->name, id,
                 state_name(machine, from), state_name(machine, to));
}
