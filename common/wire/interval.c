/* Encodes and decodes intervals of a worker's time.  No state; any thread. */
#include "common/wire/interval.h"

#include <inttypes.h>
#include <string.h>

#include "common/wire/fields.h"

static const int64_t INTERVAL_US_MAX = (int64_t)WIRE_EXACT_MAX; /* the year 2255 */

static const char *const CAUSE_NAMES[CAUSE_COUNT] = {[CAUSE_FILL] = "fill",
                                                     [CAUSE_STARVED] = "starved",
                                                     [CAUSE_VERIFYING] = "verifying",
                                                     [CAUSE_LOGPROB] = "logprob",
                                                     [CAUSE_COMPUTE] = "compute",
                                                     [CAUSE_STEP] = "step",
                                                     [CAUSE_CHECKPOINT] = "checkpoint",
                                                     [CAUSE_PUSH] = "push",
                                                     [CAUSE_LOAD] = "load",
                                                     [CAUSE_IDLE] = "idle"};

const char *interval_cause_name(enum interval_cause c) {
  return (size_t)c < WIRE_COUNT(CAUSE_NAMES) ? CAUSE_NAMES[c] : "unknown";
}

int interval_cause_parse(const char *name) {
  for (int c = 0; c < CAUSE_COUNT; c++) {
    if (strcmp(CAUSE_NAMES[c], name) == 0) return c;
  }
  return -1;
}

void intervals_write(struct json_writer *w, const struct interval *items, size_t count) {
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) {
    json_array_begin(w);
    json_write_string(w, interval_cause_name(items[i].cause));
    json_write_int(w, items[i].begin_us);
    json_write_int(w, items[i].end_us);
    json_array_end(w);
  }
  json_array_end(w);
}

static enum rc interval_read(void *target, const struct json *item, struct arena *arena, struct err *err) {
  struct interval *out = target;
  (void)arena;
  const char *name = json_type_of(item) == JSON_ARRAY ? json_word(json_at(item, 0)) : NULL;
  int64_t begin_us = 0, end_us = 0;
  const bool shaped = name && json_length(item) == 3 && json_as_int(json_at(item, 1), &begin_us) &&
                      json_as_int(json_at(item, 2), &end_us);
  if (!shaped) return err_set(err, RC_INVALID, NULL, "expected [cause, begin_us, end_us]");
  const int cause = interval_cause_parse(name);
  if (cause < 0) return err_set(err, RC_INVALID, NULL, "there is no cause '%.40s'", name);
  *out = (struct interval){(enum interval_cause)cause, begin_us, end_us};
  if (out->begin_us < 0 || out->end_us < out->begin_us || out->end_us > INTERVAL_US_MAX)
    return err_set(err, RC_INVALID, NULL, "expected 0 <= begin <= end <= %" PRId64 " us, got %" PRId64 " to %" PRId64,
                   INTERVAL_US_MAX, out->begin_us, out->end_us);
  return RC_OK;
}

enum rc intervals_read(struct interval **out, size_t *count, const struct json *value, struct arena *arena,
                       struct err *err) {
  const struct wire_list list = {
      .name = "intervals", .max = LIMIT_INTERVALS, .item_size = sizeof **out, .read = interval_read};
  void *items = NULL;
  const enum rc rc = wire_items(&list, &items, count, value, arena, err);
  *out = items;
  return rc;
}
