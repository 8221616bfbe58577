/* A round as JSON, for the routes that show it and for its event, in the spelling of openapi/coordinator.yaml.
 *
 * Any thread: readers' connections for routes, the writer's for events.  Reads only.  A figure that was
 * not measured, or not yet, is null and never zero. */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_ROUND_VIEW_H
#define LEASEHOLD_COORDINATOR_VIEWS_ROUND_VIEW_H

#include "common/json/json.h"
#include "services/coordinator/decide/mismatch.h"
#include "services/coordinator/store/store.h"

/* The items of an array: up to `limit` done rounds from round `from` on (newest false), or the last `limit` ones
 * (newest true), in order. */
enum rc rounds_write(struct store *s, struct json_writer *w, int64_t run, int64_t from, int64_t limit, bool newest,
                     struct err *err);
/* One round as a line of JSON. */
enum rc round_text(struct store *s, int64_t run, int64_t round, struct buf *out, bool *found, struct err *err);
/* "workers": who sampled how much of a round. */
enum rc contributions_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, struct err *err);
/* "workers_count": who has sampled any of the run; "workers": of those before the worker `before`, the last
 * LIMIT_SHOWN_WORKERS and how much each sampled. */
enum rc contributions_of_run_write(struct store *s, struct json_writer *w, int64_t run, int64_t before,
                                   struct err *err);
/* "logprob_*": how far trainer and samplers differ over `tokens` trained tokens. */
void mismatch_write(struct json_writer *w, const struct mismatch *m, int64_t tokens);
/* The share of n ratios that weighs as much as equal ones would: sum^2 / (n * squares), at most 1. */
double ratio_ess(double sum, double squares, double tokens);
/* NaN (null in JSON) when the whole is not above zero or either is NaN. */
double ratio_of(double part, double whole);
/* Shorthands for columns that may be null. */
void json_kv_column_real(struct json_writer *w, const char *key, const struct rows *q, int column);
void json_kv_column_int(struct json_writer *w, const char *key, const struct rows *q, int column);

#endif
