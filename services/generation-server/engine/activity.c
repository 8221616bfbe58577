/* Records what the server does as intervals of one cause each, and merges short ones while they wait to be reported. */
#include "services/generation-server/engine/activity.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

/* --- the log --- */

static int64_t length(const struct interval *i) { return i->end_us - i->begin_us; }

/* Moves items[j], of items[i]'s cause, to directly behind items[i]; the items between follow.  No sum changes. */
static void gather(struct interval_log *log, size_t i, size_t j) {
  const int64_t moved = length(&log->items[j]);
  log->items[i].end_us += moved;
  for (size_t k = i + 1; k < j; k++) {
    log->items[k].begin_us += moved;
    log->items[k].end_us += moved;
  }
  log->count--;
  memmove(&log->items[j], &log->items[j + 1], (log->count - j) * sizeof log->items[0]);
  if (j < log->count && log->items[j].cause == log->items[j - 1].cause) { /* the moved one had kept them apart */
    log->items[j].begin_us = log->items[j - 1].begin_us;
    log->count--;
    memmove(&log->items[j - 1], &log->items[j], (log->count - (j - 1)) * sizeof log->items[0]);
  }
}

/* The next item of items[i]'s cause, or count. */
static size_t next_alike(const struct interval_log *log, size_t i) {
  size_t j = i + 1;
  while (j < log->count && log->items[j].cause != log->items[i].cause) j++;
  return j;
}

/* Items that end before told_us stay where they are.  False when nothing can be merged. */
static bool merge_shortest(struct interval_log *log, int64_t told_us) {
  size_t best = log->count, best_to = 0;
  int64_t best_us = INT64_MAX;
  for (size_t i = 0; i < log->count; i++) {
    const size_t j = next_alike(log, i);
    if (j == log->count || log->items[i].end_us < told_us) continue;
    const int64_t us = log->items[j].end_us - log->items[i].end_us;
    if (us >= best_us) continue;
    best = i;
    best_to = j;
    best_us = us;
  }
  if (best == log->count) return false;
  gather(log, best, best_to);
  return true;
}

void interval_log_add(struct interval_log *log, enum interval_cause cause, int64_t begin_us, int64_t end_us) {
  if (end_us <= begin_us) return;
  struct interval *last = log->count > 0 ? &log->items[log->count - 1] : NULL;
  if (last && last->cause == cause) {
    last->end_us = end_us;
    return;
  }
  /* CAUSE_COUNT + 1 items in a row have two of a cause, so a full log can always be merged */
  if (log->count == ACTIVITY_KEPT && !merge_shortest(log, log->told_us)) {
    const bool merged = merge_shortest(log, INT64_MIN);
    assert(merged);
  }
  log->items[log->count++] = (struct interval){cause, begin_us, end_us};
  const size_t n = log->count;
  if (n >= 3 && log->items[n - 3].cause == cause && length(&log->items[n - 2]) < ACTIVITY_GAP_US &&
      log->items[n - 2].begin_us >= log->told_us)
    gather(log, n - 3, n - 1);
  if (log->count >= 2 && log->items[log->count - 2].cause == log->items[log->count - 1].cause) {
    log->items[log->count - 2].end_us = log->items[log->count - 1].end_us;
    log->count--;
  }
}

void interval_log_drop(struct interval_log *log, int64_t until_us) {
  size_t gone = 0;
  while (gone < log->count && log->items[gone].end_us <= until_us) gone++;
  log->count -= gone;
  memmove(log->items, log->items + gone, log->count * sizeof log->items[0]);
  if (log->count > 0 && log->items[0].begin_us < until_us) log->items[0].begin_us = until_us;
}

/* --- the server's --- */

struct activity {
  atomic_uint flags; /* changed under the mutex */

  pthread_mutex_t mutex; /* guards everything below */
  enum interval_cause cause;
  int64_t since_us; /* monotonic, as are the log's times */
  int64_t sums_us[CAUSE_COUNT];
  struct interval_log log;
};

static enum interval_cause cause_of(unsigned flags) {
  if (flags & ACTIVITY_COMPUTING) return CAUSE_COMPUTE;
  if (flags & ACTIVITY_LOADING) return CAUSE_LOAD;
  return flags & ACTIVITY_ACTIVE ? CAUSE_STARVED : CAUSE_IDLE;
}

enum rc activity_create(struct activity **out, struct err *err) {
  struct activity *a = *out = calloc(1, sizeof *a);
  if (!a) return err_set(err, RC_NO_MEMORY, NULL, "the record of what the server does was refused its memory");
  pthread_mutex_init(&a->mutex, NULL);
  a->cause = CAUSE_IDLE;
  a->since_us = clock_monotonic_us();
  return RC_OK;
}

void activity_free(struct activity *a) {
  if (!a) return;
  pthread_mutex_destroy(&a->mutex);
  free(a);
}

/* Logs the current interval up to now_us.  Mutex held. */
static void cut(struct activity *a, int64_t now_us) {
  if (now_us <= a->since_us) return; /* another thread read the clock later and came first */
  interval_log_add(&a->log, a->cause, a->since_us, now_us);
  a->sums_us[a->cause] += now_us - a->since_us;
  a->since_us = now_us;
}

void activity_set_at(struct activity *a, enum activity_flag flag, bool on, int64_t now_us) {
  pthread_mutex_lock(&a->mutex);
  unsigned flags = atomic_load(&a->flags);
  flags = on ? flags | flag : flags & ~(unsigned)flag;
  if (flags & ACTIVITY_COMPUTING) flags |= ACTIVITY_ACTIVE;
  atomic_store(&a->flags, flags);
  if (cause_of(flags) != a->cause) {
    cut(a, now_us);
    a->cause = cause_of(flags);
  }
  pthread_mutex_unlock(&a->mutex);
}

void activity_set(struct activity *a, enum activity_flag flag, bool on) {
  if (!a || ((atomic_load_explicit(&a->flags, memory_order_relaxed) & flag) != 0) == on) return;
  activity_set_at(a, flag, on, clock_monotonic_us());
}

void activity_take(struct activity *a, struct activity_report *out, int64_t now_us) {
  const int64_t offset_us = clock_wall_offset_us();
  pthread_mutex_lock(&a->mutex);
  cut(a, now_us);
  a->log.told_us = a->since_us;
  out->count = a->log.count;
  out->until_us = a->since_us;
  out->sent_us = a->since_us + offset_us;
  for (size_t i = 0; i < a->log.count; i++) {
    const struct interval *from = &a->log.items[i];
    out->items[i] = (struct interval){from->cause, from->begin_us + offset_us, from->end_us + offset_us};
  }
  pthread_mutex_unlock(&a->mutex);
}

void activity_told(struct activity *a, int64_t until_us) {
  pthread_mutex_lock(&a->mutex);
  interval_log_drop(&a->log, until_us);
  pthread_mutex_unlock(&a->mutex);
}

void activity_sums(struct activity *a, int64_t out_us[CAUSE_COUNT], int64_t now_us) {
  pthread_mutex_lock(&a->mutex);
  memcpy(out_us, a->sums_us, sizeof a->sums_us);
  if (now_us > a->since_us) out_us[a->cause] += now_us - a->since_us;
  pthread_mutex_unlock(&a->mutex);
}
