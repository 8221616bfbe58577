/* A hash table of the groups that were accumulated since the last step, with linear probing. */
#include "services/trainer-server/engine/accumulated_groups.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(LIMIT_GROUPS_PER_ROUND < UINT16_MAX, "an index plus 1 fits a slot");

static size_t slot_of(const char *id) {
  uint32_t h = 2166136261u;
  for (; *id; id++) h = (h ^ (uint8_t)*id) * 16777619u;
  return h % ACCUMULATED_SLOTS;
}

/* The group's slot, or the free one where it belongs. */
static uint16_t *probe(struct accumulated *a, const char *id) {
  size_t at = slot_of(id);
  while (a->slots[at] && strcmp(a->groups[a->slots[at] - 1].id, id) != 0) at = (at + 1) % ACCUMULATED_SLOTS;
  return &a->slots[at];
}

struct accumulated_group *accumulated_find(struct accumulated *a, const char *id) {
  const uint16_t slot = *probe(a, id);
  return slot ? &a->groups[slot - 1] : NULL;
}

void accumulated_add(struct accumulated *a, const char *id) {
  uint16_t *slot = probe(a, id);
  assert(a->count < LIMIT_GROUPS_PER_ROUND && *slot == 0);
  struct accumulated_group *g = &a->groups[a->count++];
  snprintf(g->id, sizeof g->id, "%s", id);
  g->answered = false;
  g->kept = NULL;
  *slot = (uint16_t)a->count;
}

bool accumulated_keep(struct accumulated_group *g, const struct digest *content, const struct batch_stats *stats,
                      const struct sample_logprobs *samples, size_t count) {
  size_t total = 0, at = 0;
  for (size_t i = 0; i < count; i++) total += samples[i].logprobs.count;
  struct kept_unit *k = malloc(sizeof *k + 2 * total * sizeof k->numbers[0]);
  if (!k) return false;
  k->content = *content;
  k->stats = *stats;
  k->count = total;
  for (size_t i = 0; i < count; i++) {
    const size_t n = samples[i].logprobs.count;
    memcpy(k->numbers + at, samples[i].logprobs.items, n * sizeof k->numbers[0]);
    memcpy(k->numbers + total + at, samples[i].entropies.items, n * sizeof k->numbers[0]);
    at += n;
  }
  g->kept = k;
  return true;
}

void accumulated_clear(struct accumulated *a) {
  for (size_t i = 0; i < a->count; i++) free(a->groups[i].kept);
  if (a->count) memset(a->slots, 0, sizeof a->slots);
  a->count = 0;
}
