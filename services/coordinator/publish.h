/* A version becomes current: one transaction (I6).  Reached from POST /v1/versions and from the driver, whichever is
 * first; the other is a repeat.  Writer's thread only. */
#ifndef LEASEHOLD_COORDINATOR_PUBLISH_H
#define LEASEHOLD_COORDINATOR_PUBLISH_H

#include "services/coordinator/core_state.h"

struct publication {
  int64_t run, round, version; /* the version that the round made */
  struct digest digest;
  const struct push_report *pushes;
  size_t push_count;
};

/* v+1 current, v superseded, leases void, groups consumed, the round done, the next one opened.  A repeat with the
 * same digest changes nothing; with another digest it is RC_CONFLICT and an incident (*refused true: the incident is
 * to be kept, err says why). */
enum rc publish_version(struct core *c, const struct publication *p, bool *refused, struct err *err);

#endif
