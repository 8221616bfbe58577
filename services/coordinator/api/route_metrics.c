/* Answers GET /metrics: sets the gauges that are read from the database and its disk, then writes all metrics. */
#include "services/coordinator/api/route_metrics.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/machine.h"
#include "common/base/metrics.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/views/gauges.h"
#include "services/coordinator/views/run_view.h"

/* The gauges of a run cost more the more rounds it has, and this route is answered on the threads that health checks
 * wait for: they are read again after GAUGES_REST times as long as reading took, and at the latest after a second. */
enum { GAUGES_REST = 20, GAUGES_REST_US_MAX = 1000000, CLOCKS_APART_MS = 1000 };

/* 0 where they agree, so that a time does not tremble with every scrape. */
static int64_t stored_ahead_ms(const struct core *c) {
  const int64_t ahead_ms = core_wall_us(c) / 1000 - clock_real_ms();
  return llabs(ahead_ms) < CLOCKS_APART_MS ? 0 : ahead_ms;
}

static void refresh_gauges(struct core *c) {
  static atomic_llong due_us; /* process-wide, as the gauges are */
  static atomic_flag refreshing = ATOMIC_FLAG_INIT;
  const int64_t begin_us = clock_monotonic_us();
  if (begin_us < atomic_load(&due_us) || atomic_flag_test_and_set(&refreshing)) return;
  struct readers *readers = core_readers(c);
  struct store *s = NULL;
  struct err err = {0};
  enum rc rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = run_gauges_set(s, &err);
  if (rc == RC_OK) rc = state_gauges_set(s, stored_ahead_ms(c), &err);
  readers_give(readers, s);
  gauge_set("leasehold_database_disk_free_bytes", "Room on the disk of the database",
            machine_disk_free(core_options(c)->db_path));
  if (rc != RC_OK) log_warn("the run's gauges are not refreshed: %s", err.message);
  const int64_t end_us = clock_monotonic_us();
  const int64_t rest_us = GAUGES_REST * (end_us - begin_us);
  atomic_store(&due_us, end_us + (rest_us < GAUGES_REST_US_MAX ? rest_us : GAUGES_REST_US_MAX));
  atomic_flag_clear(&refreshing);
}

void handle_get_metrics(struct http_request *r, void *context) {
  refresh_gauges(context);
  http_handle_metrics(r, context);
}
