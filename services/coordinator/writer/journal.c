/* Stores events and incidents, and compares a message's epoch with core's. */
#include "services/coordinator/writer/journal.h"

#include <inttypes.h>

#include "common/base/log.h"
#include "common/base/metrics.h"
#include "services/coordinator/views/events.h"
#include "services/coordinator/writer/core_state.h"

enum { INCIDENTS_KEPT = 10000 };

enum rc journal_event(struct core *c, int64_t run, const char *type, struct buf *text, bool last, struct err *err) {
  enum rc rc = buf_check(text, err);
  if (rc != RC_OK) {
    buf_free(text);
    return rc;
  }
  size_t len;
  return event_add(c->store, &c->events_tail, run, type, buf_take(text, &len), last, c->wall_ms, err);
}

enum rc journal_incident(struct core *c, int64_t run, const char *kind, const char *subject, const char *detail,
                         struct err *err) {
  log_context_id(subject);
  log_warn("incident: %s %s: %s", kind, subject, detail);
  metric_add(c->m_incidents, 1);
  enum rc rc =
      store_exec(c->store, err, "INSERT INTO incidents (at_ms, run, kind, subject, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
                 BINDS(b_int(c->wall_ms), run ? b_int(run) : b_null(), b_text(kind), b_text(subject), b_text(detail)));
  if (rc != RC_OK) return rc;
  return store_exec(c->store, err, "DELETE FROM incidents WHERE id <= ?1",
                    BINDS(b_int(store_last_id(c->store) - INCIDENTS_KEPT)));
}

enum rc journal_check_epoch(const struct core *c, uint64_t epoch, struct err *err) {
  if (epoch == c->epoch) return RC_OK;
  return err_set(err, RC_CONFLICT, "epoch",
                 "the coordinator's epoch is %" PRIu64 ", the message carries %" PRIu64 ": register again", c->epoch,
                 epoch);
}
