/* Remembers the servers that failed pushes took long to. */
#include "services/trainer-server/publish/push_pauses.h"

#include <stdio.h>
#include <string.h>

static int find(const struct push_pauses *p, const char *worker_id) {
  int i = 0;
  while (i < p->count && strcmp(p->items[i].worker_id, worker_id) != 0) i++;
  return i;
}

int64_t push_pause_left(const struct push_pauses *p, const char *worker_id, int64_t now_ms) {
  const int i = find(p, worker_id);
  return i < p->count && p->items[i].until_ms > now_ms ? p->items[i].until_ms - now_ms : 0;
}

/* Its place among the items, made if need be. */
static struct push_pause *place(struct push_pauses *p, const char *worker_id) {
  int at = find(p, worker_id);
  if (at < p->count) return &p->items[at];
  if (p->count < PAUSES_MAX) {
    at = p->count++;
  } else {
    at = 0;
    for (int i = 1; i < p->count; i++)
      if (p->items[i].until_ms < p->items[at].until_ms) at = i;
  }
  p->items[at] = (struct push_pause){.times = PAUSE_TIMES};
  snprintf(p->items[at].worker_id, sizeof p->items[at].worker_id, "%s", worker_id);
  return &p->items[at];
}

void push_pause_note(struct push_pauses *p, const char *worker_id, bool reached, int64_t took_ms, int64_t now_ms) {
  if (reached) {
    const int i = find(p, worker_id);
    if (i < p->count) p->items[i] = p->items[--p->count];
    return;
  }
  struct push_pause *pause = place(p, worker_id);
  pause->until_ms = now_ms + pause->times * took_ms;
  if (pause->times < PAUSE_TIMES_MAX) pause->times *= 2;
}
