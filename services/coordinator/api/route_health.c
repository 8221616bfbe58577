/* Answers GET /readyz from the writer's counters. */
#include "services/coordinator/api/route_health.h"

#include "services/coordinator/writer/core.h"

enum { READY_QUEUE_MAX = 2048 };

void handle_readyz(struct http_request *r, void *context) {
  struct core *c = context;
  struct err err;
  size_t queued = core_queued(c);
  if (core_broken(c))
    err_set(&err, RC_UNAVAILABLE, NULL, "the database could not be written; the coordinator is ending");
  else if (queued > READY_QUEUE_MAX)
    err_set(&err, RC_UNAVAILABLE, NULL, "%zu commands wait for the writer", queued);
  else {
    struct buf body = BUF_INIT;
    buf_printf(&body, "{\"status\":\"ready\",\"epoch\":%llu,\"queued\":%zu}", (unsigned long long)core_epoch(c),
               queued);
    http_reply_json(r, 200, &body);
    return;
  }
  http_fail(r, &err);
}
