/* Readable, derived ids: run r7, round r7.12, group r7.12.3, sample r7.12.3.0, lease r7.12.3.0-3, batch r7.12.b0,
 * inner step r7.12.s0, worker w3.  They are stable under retry, because they hold positions only.
 *
 * Pure, any thread; a text is returned by value.  Each id has one spelling: leading zeros, signs and more than 18
 * digits are refused.  A text that is no id gets 404, because nothing can have it. */
#ifndef LEASEHOLD_COORDINATOR_STORE_IDS_H
#define LEASEHOLD_COORDINATOR_STORE_IDS_H

#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/rc.h"

struct id_text {
  char text[LIMIT_NAME_MAX];
};

struct id_text id_run(int64_t run);
struct id_text id_round(int64_t run, int64_t round);
struct id_text id_group(int64_t run, int64_t round, int64_t group);
struct id_text id_sample(int64_t run, int64_t round, int64_t group, int64_t sample);
struct id_text id_lease(int64_t run, int64_t round, int64_t group, int64_t first, int64_t count);
struct id_text id_batch(int64_t run, int64_t round, int64_t number);
struct id_text id_inner_step(int64_t run, int64_t round, int64_t step);
struct id_text id_worker(int64_t worker);

/* "r7" and "w3"; RC_NOT_FOUND for anything else, because nothing has such an id. */
enum rc id_parse_run(int64_t *run, const char *text, struct err *err);
enum rc id_parse_worker(int64_t *worker, const char *text, struct err *err);
/* "r7.12.3", of a group and of its pass; what: which of both, for the error. */
enum rc id_parse_group(int64_t *run, int64_t *round, int64_t *group, const char *what, const char *text,
                       struct err *err);
/* "r7.12" */
enum rc id_parse_round(int64_t *run, int64_t *round, const char *text, struct err *err);

#endif
