/* See route_metrics.h. */
#include "services/coordinator/api/route_metrics.h"

#include "common/base/log.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/views/run_view.h"

void handle_get_metrics(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct err err = {0};
  enum rc rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = run_gauges_set(s, &err);
  readers_give(readers, s);
  if (rc != RC_OK) log_warn("the run's gauges are not refreshed: %s", err.message);
  http_handle_metrics(r, context);
}
