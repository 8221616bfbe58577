/* Finished samples of all rounds of a run as short rows of JSON, the newest first, as far as they match a search.
 *
 * Samples lie in the order of their ids, so a page is found by its place and not by counting.  A request looks at a
 * bounded number of samples, and says where it has stopped: a search over a long run is several requests, each of which
 * takes a reader for some tens of milliseconds.
 *
 * HTTP threads, on a reader's snapshot.  Reads only.  The spelling is openapi/coordinator.yaml's. */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_SAMPLE_VIEW_H
#define LEASEHOLD_COORDINATOR_VIEWS_SAMPLE_VIEW_H

#include "common/json/json.h"
#include "services/coordinator/store/store.h"

enum {
  SAMPLE_ROWS_MAX = 200,       /* rows of an answer */
  SAMPLES_LOOKED_AT = 50000,   /* in a request */
  SAMPLE_TEXTS_LOOKED_AT = 8000, /* of these, whose texts are read */
  SAMPLE_TEXT_SHOWN = 240      /* bytes of a prompt and of a completion in a row */
};

/* A place between samples: those before it are older. */
struct sample_place {
  int64_t round, group, sample;
};

/* What is looked for.  NULL and NaN: anything. */
struct sample_query {
  int64_t run;
  struct sample_place before;
  int64_t round_min;
  double reward_min, reward_max;
  int64_t tokens_min;
  const char *finish, *purpose, *group_state; /* as they are spelled in rows */
  const char *text;                           /* part of a prompt or of a completion; ASCII letters of either case */
};

struct sample_progress {
  int64_t looked_at;
  bool more;                 /* older samples were not looked at */
  struct sample_place until; /* where to go on */
};

/* The items of an array, `limit` at most. */
enum rc samples_write(struct store *s, struct json_writer *w, const struct sample_query *query, int64_t limit,
                      struct sample_progress *progress, struct err *err);

#endif
