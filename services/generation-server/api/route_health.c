/* GET /readyz: 200 when weights are loaded and the server is not draining, else 503 with the reason.  GET /metrics:
 * the engine's counters, then all metrics. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/api/server_state.h"

void handle_readyz(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  if (!admission_model(&s->admission, true, &err)) {
    http_fail(r, &err);
    return;
  }
  struct buf body = BUF_INIT;
  buf_puts(&body, "{\"status\":\"ready\"}");
  http_reply_json(r, 200, &body);
}

static void show(enum metric_type type, const char *name, const char *help, double value) {
  metric_set(metrics_register(type, name, "", help), value);
}

static void show_activity(struct activity *a) {
  static const enum interval_cause causes[] = {CAUSE_COMPUTE, CAUSE_LOAD, CAUSE_STARVED, CAUSE_IDLE};
  int64_t us[CAUSE_COUNT];
  char labels[40];
  activity_sums(a, us, clock_monotonic_us());
  for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
    snprintf(labels, sizeof labels, "cause=\"%s\"", interval_cause_name(causes[i]));
    metric_set(metrics_register(METRIC_COUNTER, "leasehold_generation_seconds_total", labels,
                                "Time by cause: compute (leased samples are decoded), load (nothing else to do than "
                                "to take weights in), starved (a run is active, no sample to decode), idle (no run)."),
               (double)us[causes[i]] / 1e6);
  }
}

/* Decode steps by their number of rows, in the slots of the heartbeats' table (step_cost.h of the coordinator). */
static void show_steps(const struct engine_steps *by_rows) {
  char labels[40];
  for (int i = 0; i < WIRE_STEP_SLOTS; i++) {
    if (by_rows[i].steps == 0) continue;
    snprintf(labels, sizeof labels, "rows_max=\"%d\"", 1 << i);
    metric_set(metrics_register(METRIC_COUNTER, "leasehold_generation_decode_steps_total", labels,
                                "Forward passes without a prompt's positions, by their rows: up to rows_max, more than "
                                "half of it."),
               (double)by_rows[i].steps);
    metric_set(metrics_register(METRIC_COUNTER, "leasehold_generation_decode_rows_total", labels, "Rows of these."),
               (double)by_rows[i].rows);
    metric_set(metrics_register(METRIC_COUNTER, "leasehold_generation_decode_seconds_total", labels, "Time of these."),
               (double)by_rows[i].us / 1e6);
  }
}

/* Metrics are copied when they are scraped, so that the token loop touches only its own counters. */
void handle_metrics(struct http_request *r, void *context) {
  struct server *s = context;
  struct engine_counters n = {0};
  struct policy active = {0};
  struct err err;
  struct loaded_model *loaded = admission_model(&s->admission, false, &err);
  if (loaded) {
    engine_read_counters(loaded->engine, &n);
    engine_policy(loaded->engine, &active);
  }
  show(METRIC_COUNTER, "leasehold_generation_tokens_sampled_total", "Tokens sampled.", (double)n.tokens_sampled);
  show(METRIC_COUNTER, "leasehold_generation_steps_total", "Forward passes.", (double)n.steps);
  show(METRIC_COUNTER, "leasehold_generation_rows_total",
       "Rows (decoded and prefilled positions) over all forward passes.", (double)n.rows);
  show(METRIC_COUNTER, "leasehold_generation_rows_shared_total",
       "Rows of these that were not computed: a sample of the same prompt with the same tokens had the same row.",
       (double)n.rows_shared);
  show(METRIC_COUNTER, "leasehold_generation_preemptions_total",
       "Samples that lost their KV pages and were computed again.", (double)n.preemptions);
  show(METRIC_COUNTER, "leasehold_generation_activations_total", "Swaps of the active weights.", (double)n.activations);
  show(METRIC_COUNTER, "leasehold_generation_activation_seconds_total",
       "Time that running samples paused for swaps, without what they computed again.", (double)n.pause_us / 1e6);
  show(METRIC_COUNTER, "leasehold_generation_recomputed_positions_total",
       "Positions whose keys and values running samples lost at a swap, and computed again.", (double)n.recomputed);
  show(METRIC_COUNTER, "leasehold_generation_busy_slot_seconds_total",
       "Time spent by slots on leased samples, summed over slots.", (double)n.busy_slot_us / 1e6);
  show_activity(s->activity);
  show_steps(n.by_rows);
  show(METRIC_COUNTER, "leasehold_generation_results_posted_total", "Lease results accepted by the coordinator.",
       s->leases ? (double)leases_posted(s->leases) : 0);
  show(METRIC_COUNTER, "leasehold_generation_tokens_resumed_total",
       "Tokens of earlier holders' leases that were continued here, not sampled again.",
       s->leases ? (double)leases_tokens_resumed(s->leases) : 0);
  show(METRIC_GAUGE, "leasehold_generation_slots", "Decode slots.", s->options.model.slots);
  show(METRIC_GAUGE, "leasehold_generation_slots_busy", "Decode slots in use.", n.slots_busy);
  show(METRIC_GAUGE, "leasehold_generation_queue_depth", "Samples that wait for a slot.", n.samples_waiting);
  show(METRIC_GAUGE, "leasehold_generation_kv_pages", "Pages of the KV pool.", n.pages_total);
  show(METRIC_GAUGE, "leasehold_generation_kv_pages_free", "Free pages of the KV pool.", n.pages_free);
  show(METRIC_GAUGE, "leasehold_generation_leases_held", "Leases held, those being posted included.",
       s->leases ? leases_held(s->leases) : 0);
  show(METRIC_GAUGE, "leasehold_generation_requests_open", "Plain requests not answered yet.",
       atomic_load(&s->admission.requests_open));
  show(METRIC_GAUGE, "leasehold_generation_policy_version", "The active policy version.", (double)active.version);
  http_handle_metrics(r, context);
}
