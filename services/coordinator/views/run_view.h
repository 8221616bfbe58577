/* A run as JSON: summaries for GET /v1/runs, everything for GET /v1/runs/{id}, as openapi/coordinator.yaml says.
 *
 * HTTP threads, on a reader's snapshot; writes into the caller's buffer.  The cost grows neither with the run's rounds
 * (run_sums.h) nor with its samples, whose figures are counted when a round is consumed (publish.c). */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_RUN_VIEW_H
#define LEASEHOLD_COORDINATOR_VIEWS_RUN_VIEW_H

#include "common/json/json.h"
#include "services/coordinator/store/store.h"

enum { RUN_HISTORY_ROUNDS = 500 };

/* How much of a run is shown: the newest `history` rounds, and evaluations and workers before these numbers, the newest
 * of them (INT64_MAX: of all). */
struct run_part {
  int64_t history, evaluations_before, workers_before;
};

/* The items of an array: the last `limit` runs before the run `before`, newest first. */
enum rc run_summaries_write(struct store *s, struct json_writer *w, int64_t before, int64_t limit, struct err *err);
/* One object; RC_NOT_FOUND. now_ms: wall clock. */
enum rc run_write(struct store *s, struct json_writer *w, int64_t run, const struct run_part *part, int64_t now_ms,
                  struct err *err);

/* Sets the gauges of /metrics to what the newest run with a round comes to; NaN: not measured (yet). */
enum rc run_gauges_set(struct store *s, struct err *err);

/* Pure: what is left of a run, from the mean duration of its done rounds; -1 when nothing is known. */
int64_t run_eta_ms(int64_t rounds, int64_t done, int64_t round_ms_sum);

#endif
