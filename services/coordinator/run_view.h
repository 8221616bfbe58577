/* How a run reads in JSON: the summary of GET /v1/runs and the whole of GET /v1/runs/{id}.  Reads within the caller's
 * snapshot. */
#ifndef LEASEHOLD_COORDINATOR_RUN_VIEW_H
#define LEASEHOLD_COORDINATOR_RUN_VIEW_H

#include "common/json/json.h"
#include "services/coordinator/store.h"

enum { RUN_HISTORY_ROUNDS = 500 };

/* The items of an array: the last `limit` runs, newest first. */
enum rc run_summaries_write(struct store *s, struct json_writer *w, int64_t limit, struct err *err);
/* One object; RC_NOT_FOUND. now_ms: wall clock. */
enum rc run_write(struct store *s, struct json_writer *w, int64_t run, int64_t now_ms, struct err *err);

/* Pure: what is left of a run, from the mean duration of its done rounds; -1 when nothing is known. */
int64_t run_eta_ms(int64_t rounds, int64_t done, int64_t round_ms_sum);

#endif
