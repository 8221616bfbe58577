/* Prometheus metrics.  Registered at start, updated from any thread with atomics, rendered by GET /metrics. */
#ifndef LEASEHOLD_BASE_METRICS_H
#define LEASEHOLD_BASE_METRICS_H

#include <stdint.h>

#include "common/base/buf.h"

enum metric_type { METRIC_COUNTER, METRIC_GAUGE };
struct metric; /* opaque, owned by the registry, lives until the process ends */

/* name follows Prometheus' rules ("leasehold_tokens_sampled_total"); labels is "" or `kind="eval",run="r1"`.
 * Registering the same (name, labels) again returns the same metric.  At most 512 metrics; NULL beyond. */
struct metric *metrics_register(enum metric_type type, const char *name, const char *labels, const char *help);
void metric_add(struct metric *m, double delta); /* NULL is ignored */
void metric_set(struct metric *m, double value);
double metric_value(const struct metric *m);
void metrics_render(struct buf *out);

#endif
