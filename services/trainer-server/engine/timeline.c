/* Records what the engine did when, and merges neighbouring stretches when the record is full. */
#include "services/trainer-server/engine/timeline.h"

#include <stdio.h>
#include <string.h>

/* A block of 16 neighbours has at most CAUSE_COUNT causes: merging it always makes room. */
enum { BLOCK_MIN = 4, BLOCK_ENOUGH = 16, COUNT_ENOUGH = TIMELINE_MAX / 4 * 3 };
_Static_assert(CAUSE_COUNT * 4 <= BLOCK_ENOUGH * 3, "merging blocks of this size makes enough room");

void timeline_begin(struct timeline *t, int64_t now_us) {
  t->at_us = now_us;
  t->count = 0;
  for (int c = 0; c < CAUSE_COUNT; c++) {
    char labels[48];
    snprintf(labels, sizeof labels, "cause=\"%s\"", interval_cause_name((enum interval_cause)c));
    t->seconds[c] = metrics_register(METRIC_COUNTER, "leasehold_trainer_seconds_total", labels,
                                     "Time of the engine by cause; push: of the publisher, beside it");
  }
}

static size_t append(struct interval *items, size_t count, struct interval item) {
  struct interval *last = count ? &items[count - 1] : NULL;
  if (!last || last->cause != item.cause || last->end_us != item.begin_us) {
    items[count] = item;
    return count + 1;
  }
  last->end_us = item.end_us;
  return count;
}

/* Each block of neighbours becomes one stretch a cause, in the order in which the causes came, laid end to end. */
static size_t merge(struct interval *items, size_t count, size_t block) {
  size_t kept = 0; /* never beyond the block at hand: a block has no more causes than items */
  for (size_t first = 0; first < count; first += block) {
    const size_t end = first + block < count ? first + block : count;
    int64_t took[CAUSE_COUNT] = {0}, at = items[first].begin_us;
    enum interval_cause order[CAUSE_COUNT];
    int causes = 0;
    for (size_t i = first; i < end; i++) {
      if (!took[items[i].cause]) order[causes++] = items[i].cause;
      took[items[i].cause] += items[i].end_us - items[i].begin_us;
    }
    for (int c = 0; c < causes; c++) {
      kept = append(items, kept, (struct interval){order[c], at, at + took[order[c]]});
      at += took[order[c]];
    }
  }
  return kept;
}

int64_t timeline_mark(struct timeline *t, enum interval_cause cause, int64_t until_us) {
  const int64_t took = until_us - t->at_us;
  if (took <= 0) return 0;
  for (size_t block = BLOCK_MIN; t->count == TIMELINE_MAX || (block > BLOCK_MIN && t->count > COUNT_ENOUGH); block *= 2)
    t->count = merge(t->items, t->count, block);
  t->count = append(t->items, t->count, (struct interval){cause, t->at_us, until_us});
  t->at_us = until_us;
  metric_add(t->seconds[cause], (double)took * 1e-6);
  return took;
}

void timeline_take(struct timeline *t, struct interval **out, size_t *count, size_t extra, int64_t offset_us,
                   struct arena *arena) {
  *count = 0;
  *out = arena_alloc(arena, t->count + extra + 1, sizeof **out);
  if (!*out) return;
  for (size_t i = 0; i < t->count; i++) {
    const struct interval *at = &t->items[i];
    (*out)[i] = (struct interval){at->cause, at->begin_us + offset_us, at->end_us + offset_us};
  }
  *count = t->count;
  t->count = 0;
}
