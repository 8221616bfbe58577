/* What falls due by time, in the order in which it must be looked at: silent workers, the trainer's place, leases, groups.
 * And what a start and a standstill of the writer mean for them.
 *
 * core.c calls these on the writer's thread; it does not know the rooms that they lead to.  main.c wires them. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_TICK_H
#define LEASEHOLD_COORDINATOR_ROUNDS_TICK_H

#include "services/coordinator/writer/core_options.h"

extern const struct core_callbacks tick_callbacks;

#endif
