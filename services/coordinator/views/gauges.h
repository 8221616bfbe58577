/* The gauges of /metrics that are read from the database: what people plot and what alerts go by.
 *
 * One caller at a time (route_metrics.c), on a reader's snapshot.  A run's gauges show the newest run with a round;
 * NaN: not measured (yet).  Labels have a fixed set of values. */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_GAUGES_H
#define LEASEHOLD_COORDINATOR_VIEWS_GAUGES_H

#include "services/coordinator/store/store.h"

/* ahead_ms: how far stored times are ahead of the machine's clock.  Who scrapes has a clock of its own, so what is a
 * time is told by the machine's. */
enum rc state_gauges_set(struct store *s, int64_t ahead_ms, struct err *err);

#endif
