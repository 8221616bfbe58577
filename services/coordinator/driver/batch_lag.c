/* Reads the spans of a batch's samples: how old each token is, and whether it is compared. */
#include "services/coordinator/driver/batch_lag.h"

#include <inttypes.h>

#include "services/coordinator/store/ids.h"

/* Of each token of the completion. */
struct token_origin {
  int64_t version;
  bool fresh;
};

static enum rc origins_read(struct token_origin *out, size_t count, struct store *s, const struct lag_sample *w,
                            struct err *err) {
  struct rows q;
  bool row;
  size_t told = 0;
  enum rc rc = store_query(s, &q, err,
                           "SELECT start, count, version, fresh FROM spans WHERE run = ?1 AND round = ?2 AND "
                           "group_ordinal = ?3 AND sample = ?4 ORDER BY start",
                           BINDS(b_int(w->run), b_int(w->round), b_int(w->group), b_int(w->sample)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const struct token_origin origin = {.version = rows_int(&q, 2), .fresh = rows_int(&q, 3) != 0};
    const int64_t end = rows_int(&q, 0) + rows_int(&q, 1);
    while (told < count && (int64_t)told < end) out[told++] = origin;
  }
  rows_end(&q);
  if (rc != RC_OK || told == count) return rc;
  if (told > 0)
    return err_set(err, RC_CORRUPT, NULL, "the spans of sample %s cover %zu of its %zu tokens",
                   id_sample(w->run, w->round, w->group, w->sample).text, told, count);
  while (told < count) out[told++] = (struct token_origin){.version = w->version_first, .fresh = true};
  return RC_OK;
}

enum rc batch_lag_add(struct lag_sums *sums, bool **compared, struct store *s, const struct lag_sample *which,
                      const struct batch_sample *sample, int64_t version, struct arena *arena, struct err *err) {
  const size_t count = sample->tokens.count - (size_t)sample->prompt_length;
  struct token_origin *origins = arena_alloc(arena, count + 1, sizeof *origins);
  bool *out = arena_alloc(arena, count + 1, sizeof *out);
  if (!origins || !out) return err_set(err, RC_NO_MEMORY, NULL, "a batch was refused memory");
  const enum rc rc = origins_read(origins, count, s, which, err);
  if (rc != RC_OK) return rc;
  size_t n = 0;
  for (size_t g = 0; g < sample->segment_count; g++) {
    const struct sample_segment *segment = &sample->segments[g];
    for (int32_t i = segment->start; segment->loss_mask && i < segment->start + segment->count; i++) {
      const struct token_origin *o = &origins[i];
      out[n] = o->fresh && o->version == version;
      lag_add(sums, version - o->version, out[n++]);
    }
  }
  *compared = out;
  return RC_OK;
}
