/* GET /healthz: the process lives.  GET /readyz: 200 when the engine was proven to hold a version and the agent is not
 * draining, else 503 with the reason.  GET /metrics: the agent's counters, then all metrics.  Called by the HTTP
 * layer. */
#include "services/rollout-agent/api/routes.h"

#include "common/base/metrics.h"
#include "services/rollout-agent/api/agent_state.h"

static void handle_readyz(struct http_request *r, void *context) {
  struct agent *a = context;
  struct err err;
  struct buf body = BUF_INIT;
  char trouble[ERR_MESSAGE_MAX];
  loader_trouble(a->loader, trouble);
  if (trouble[0] || atomic_load(&a->draining)) {
    err_set(&err, RC_UNAVAILABLE, NULL, "%s", trouble[0] ? trouble : "the agent is draining");
    http_fail(r, &err);
    return;
  }
  buf_puts(&body, "{\"status\":\"ready\"}");
  http_reply_json(r, 200, &body);
}

static void show(enum metric_type type, const char *name, const char *help, double value) {
  metric_set(metrics_register(type, name, "", help), value);
}

static void handle_metrics(struct http_request *r, void *context) {
  struct agent *a = context;
  struct leases_counters n;
  struct loader_counters w;
  struct held_version held;
  leases_read_counters(a->leases, &n);
  loader_read_counters(a->loader, &w);
  const bool holds = loader_holds(a->loader, &held);
  show(METRIC_COUNTER, "leasehold_agent_tokens_sampled_total", "Tokens that the engine sampled and that were proven.",
       (double)n.tokens_sampled);
  show(METRIC_COUNTER, "leasehold_agent_results_posted_total", "Lease results accepted by the coordinator.",
       (double)n.posted);
  show(METRIC_COUNTER, "leasehold_agent_results_handed_back_total", "Of these, leases handed back.",
       (double)n.handed_back);
  show(METRIC_COUNTER, "leasehold_agent_busy_slot_seconds_total", "Time spent by slots on samples, summed over slots.",
       (double)n.busy_us / 1e6);
  show(METRIC_COUNTER, "leasehold_agent_loads_total", "Versions that the engine loaded and was proven to hold.",
       (double)w.loads);
  show(METRIC_COUNTER, "leasehold_agent_proofs_total", "Proofs asked of the engine after requests.", (double)w.proofs);
  show(METRIC_COUNTER, "leasehold_agent_doubts_total",
       "Loads that did not show, proofs that failed, answers that named other weights.", (double)w.doubts);
  show(METRIC_GAUGE, "leasehold_agent_slots", "Requests sent at once.", a->options.leases.slots);
  show(METRIC_GAUGE, "leasehold_agent_slots_busy", "Requests running.", n.slots_busy);
  show(METRIC_GAUGE, "leasehold_agent_leases_held", "Leases held, those being posted included.", n.held);
  show(METRIC_GAUGE, "leasehold_agent_engine_proven", "1 while the engine is proven to hold a version.", holds);
  show(METRIC_GAUGE, "leasehold_agent_policy_version", "The version that the engine holds; 0 while none is proven.",
       holds ? (double)held.version : 0);
  http_handle_metrics(r, context);
}

const struct http_route *routes_all(size_t *count) {
  static const struct http_route routes[] = {
      {.method = "GET", .path = "/healthz", .handler = http_handle_healthz, .roles = HTTP_OPEN, .health = true},
      {.method = "GET", .path = "/readyz", .handler = handle_readyz, .roles = HTTP_OPEN, .health = true},
      {.method = "GET", .path = "/metrics", .handler = handle_metrics, .roles = HTTP_VIEWER, .health = true},
  };
  *count = sizeof routes / sizeof routes[0];
  return routes;
}
