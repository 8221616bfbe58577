/* Answers GET /v1/runs/{id}/events: finds where the client left off, then subscribes it. */
#include "services/coordinator/api/route_events.h"

#include <stdlib.h>
#include <string.h>

#include "services/coordinator/writer/core.h"
#include "services/coordinator/store/ids.h"

/* Where a client left off: the header that browsers send, or ?after=; -1 where it wants no past events. */
static enum rc last_seen(const struct http_request *r, int64_t *after, struct err *err) {
  const char *header = http_header(r, "Last-Event-ID");
  int64_t past = 1;
  enum rc rc = http_query_i64(r, "after", 0, 0, JSON_EXACT_MAX, after, err);
  if (rc == RC_OK) rc = http_query_i64(r, "past", 1, 0, 1, &past, err);
  if (rc == RC_OK && !past) *after = -1;
  if (rc != RC_OK || !header) return rc;
  const size_t digits = strspn(header, "0123456789");
  *after = strtoll(header, NULL, 10); /* LLONG_MAX when it is larger */
  if (digits > 0 && !header[digits] && *after <= (int64_t)JSON_EXACT_MAX) return RC_OK;
  return err_set(err, RC_INVALID, "Last-Event-ID", "expected an event's number from 0 to %llu, got '%.40s'",
                 (unsigned long long)JSON_EXACT_MAX, header);
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
