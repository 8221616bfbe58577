/* See route_events.h. */
#include "services/coordinator/api/route_events.h"

#include <stdlib.h>

#include "services/coordinator/writer/core.h"
#include "services/coordinator/store/ids.h"

/* Where a client left off: the header that browsers send, or ?after=. */
static enum rc last_seen(const struct http_request *r, int64_t *after, struct err *err) {
  const char *header = http_header(r, "Last-Event-ID");
  char *end;
  if (!header) return http_query_i64(r, "after", 0, 0, INT64_C(1) << 53, after, err);
  long long value = strtoll(header, &end, 10);
  if (end == header || *end || value < 0)
    return err_set(err, RC_INVALID, "Last-Event-ID", "expected a non-negative integer, got '%.40s'", header);
  *after = value;
  return RC_OK;
}

void handle_get_events(struct http_request *r, void *context) {
  struct err err = {0};
  int64_t run, after;
  enum rc rc = id_parse_run(&run, http_param(r, "id"), &err);
  if (rc == RC_OK) rc = last_seen(r, &after, &err);
  if (rc == RC_OK)
    hub_subscribe(core_hub(context), r, run, after);
  else
    http_fail(r, &err);
}
