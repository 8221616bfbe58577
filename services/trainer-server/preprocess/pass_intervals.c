/* Records the intervals of a preprocessor until a heartbeat that tells them is answered. */
#include "services/trainer-server/preprocess/pass_intervals.h"

#include <string.h>

void pass_intervals_init(struct pass_intervals *p, int64_t now_us) {
  *p = (struct pass_intervals){.now = CAUSE_IDLE};
  pthread_mutex_init(&p->mutex, NULL);
  timeline_begin(&p->timeline, now_us);
}

/* Mutex held: what went on until now is over. */
static void mark(struct pass_intervals *p, int64_t now_us) {
  timeline_mark(&p->timeline, p->now == CAUSE_IDLE && p->active ? CAUSE_STARVED : p->now, now_us);
}

void pass_intervals_turn(struct pass_intervals *p, enum interval_cause cause, int64_t now_us) {
  pthread_mutex_lock(&p->mutex);
  mark(p, now_us);
  p->now = cause;
  pthread_mutex_unlock(&p->mutex);
}

void pass_intervals_set_active(struct pass_intervals *p, bool active, int64_t now_us) {
  pthread_mutex_lock(&p->mutex);
  if (p->active != active) mark(p, now_us);
  p->active = active;
  pthread_mutex_unlock(&p->mutex);
}

void pass_intervals_tell(struct pass_intervals *p, struct interval **out, size_t *count, int64_t now_us,
                         int64_t offset_us, struct arena *arena) {
  struct interval *fresh;
  size_t fresh_count;
  *count = 0;
  pthread_mutex_lock(&p->mutex);
  mark(p, now_us);
  if (p->told_count <= LIMIT_INTERVALS - TIMELINE_MAX) { /* else the timeline goes on merging what it has */
    timeline_take(&p->timeline, &fresh, &fresh_count, 0, 0, arena);
    if (fresh_count > 0) memcpy(p->told + p->told_count, fresh, fresh_count * sizeof *fresh);
    p->told_count += fresh_count;
  }
  *out = arena_alloc(arena, p->told_count + 1, sizeof **out);
  for (size_t i = 0; *out && i < p->told_count; i++) {
    (*out)[i] = p->told[i];
    (*out)[i].begin_us += offset_us;
    (*out)[i].end_us += offset_us;
  }
  if (*out) *count = p->told_count;
  pthread_mutex_unlock(&p->mutex);
}

void pass_intervals_told(struct pass_intervals *p) {
  pthread_mutex_lock(&p->mutex);
  p->told_count = 0;
  pthread_mutex_unlock(&p->mutex);
}
