/* Evaluations as JSON, for the routes that show them and for their event, in the spelling of openapi/coordinator.yaml.
 *
 * Any thread: readers' connections for routes, the writer's for events.  Reads only. */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_EVALUATION_VIEW_H
#define LEASEHOLD_COORDINATOR_VIEWS_EVALUATION_VIEW_H

#include "common/json/json.h"
#include "services/coordinator/store/store.h"

/* "evaluations_count": all of the run; "evaluations": of rounds before `before`, the last LIMIT_SHOWN_EVALUATIONS in
 * the order of their rounds. */
enum rc evaluations_write(struct store *s, struct json_writer *w, int64_t run, int64_t before, struct err *err);
/* One as a line of JSON. */
enum rc evaluation_text(struct store *s, int64_t run, int64_t round, struct buf *out, bool *found, struct err *err);
/* "sets": an evaluation's sets with their figures. */
enum rc evaluation_sets_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, struct err *err);
/* "items": a set's problems from number `from` on, `limit` at most. */
enum rc evaluation_items_write(struct store *s, struct json_writer *w, int64_t run, int64_t round, int64_t set,
                               int64_t from, int64_t limit, struct err *err);

#endif
