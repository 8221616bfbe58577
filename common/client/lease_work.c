/* Sets the log context of a lease's work. */
#include "common/client/lease_work.h"

#include "common/base/log.h"
#include "common/http/trace.h"

void lease_work(const struct lease *lease) {
  struct trace theirs, span;
  log_context_clear();
  log_context_set(LOG_RUN, lease->run);
  log_context_number(LOG_ROUND, lease->round);
  log_context_set(LOG_GROUP, lease->group);
  log_context_set(LOG_LEASE, lease->id);
  log_context_number(LOG_VERSION, lease->version_min);
  if (lease->traceparent && trace_parse(&theirs, lease->traceparent))
    trace_below(&span, &theirs);
  else
    trace_begin(&span);
  trace_set(&span);
}
