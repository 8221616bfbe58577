/* Prometheus metrics.  Registered at start, updated from any thread with atomics, rendered by GET /metrics. */
#ifndef LEASEHOLD_BASE_METRICS_H
#define LEASEHOLD_BASE_METRICS_H

#include <stdint.h>

#include "common/base/buf.h"

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };
enum { METRIC_BOUNDS_MAX = 16 };
struct metric; /* opaque, owned by the registry, lives until the process ends */

/* name follows Prometheus' rules ("leasehold_tokens_sampled_total"); labels is "" or `kind="eval",run="r1"`.
 * Registering the same (name, labels) again returns the same metric.  At most 512 metrics; NULL beyond. */
struct metric *metrics_register(enum metric_type type, const char *name, const char *labels, const char *help);
/* The same for a histogram, which counts observed values by the first of its ascending bounds that they do not exceed;
 * values beyond the last are counted too. */
struct metric *metrics_register_histogram(const char *name, const char *labels, const char *help, const double *bounds,
                                          int count);
void metric_add(struct metric *m, double delta); /* NULL is ignored; of a histogram use metric_observe */
void metric_set(struct metric *m, double value);
/* A gauge without labels: registered when it is first set. */
void gauge_set(const char *name, const char *help, double value);
void metric_observe(struct metric *m, double value); /* NULL and NaN are ignored */
double metric_value(const struct metric *m);         /* of a histogram: the sum of what was observed */
void metrics_render(struct buf *out);

#endif
