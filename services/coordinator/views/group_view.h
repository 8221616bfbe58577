/* One group as JSON: its prompt and its samples, with everything that is stored of each token.
 *
 * HTTP threads, on a reader's snapshot.  Reads only.  The spelling is openapi/coordinator.yaml's. */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_GROUP_VIEW_H
#define LEASEHOLD_COORDINATOR_VIEWS_GROUP_VIEW_H

#include "common/json/json.h"
#include "common/model/tokenizer/tokenizer.h"
#include "services/coordinator/store/store.h"

struct group_place {
  int64_t run, round, ordinal;
};

/* One object; RC_NOT_FOUND.  `limit` samples at most, from number `from` on.  tokenizer NULL, or another than the run's
 * (which shows by a text that is not the stored one): tokens have no texts.  RC_TOO_LARGE beyond bytes_max. */
enum rc group_write(struct store *s, struct json_writer *w, const struct group_place *g, int64_t from, int64_t limit,
                    const struct tokenizer *tokenizer, size_t bytes_max, struct err *err);

#endif
