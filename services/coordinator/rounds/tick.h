/* Looks at everything that falls due by time, in a fixed order: silent workers, the trainer's place, leases, passes,
 * groups, rounds whose rollouts are dropped.  Also handles a start and a standstill of the writer for them.
 *
 * These are the writer's callbacks (core_options.h).  core.c calls them on its thread and does not know the rooms
 * that they lead to; main.c passes them to core_create. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_TICK_H
#define LEASEHOLD_COORDINATOR_ROUNDS_TICK_H

#include "services/coordinator/writer/core_options.h"

extern const struct core_callbacks tick_callbacks;

#endif
