/* Keeps the open round's groups that have waiting samples in memory: see waiting.h. */
#include "services/coordinator/pool/waiting.h"

#include <stdlib.h>
#include <string.h>

#include "common/wire/lease.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/run/run_context.h"

enum { ROOM_FIRST = 256 };

/* ---- reading ---- */

static enum rc room_for_one(struct waiting *w, struct err *err) {
  if (w->count < w->room) return RC_OK;
  const int room = w->room ? 2 * w->room : ROOM_FIRST;
  struct waiting_entry *items = realloc(w->items, (size_t)room * sizeof *items);
  if (!items) return err_set(err, RC_NO_MEMORY, NULL, "a round of %d groups was refused memory", room);
  w->items = items;
  w->room = room;
  return RC_OK;
}

static enum rc groups_read(struct core *c, struct waiting *w, struct err *err) {
#define WAITING_COLUMNS                                                                                                \
  "SELECT ordinal, samples_waiting, done_samples, done_tokens, waiting_ms, sample_count, leased_ms IS NULL, purpose, " \
  "overtaken_ms, length(prompt_ids) / 4 + max_new_tokens FROM groups INDEXED BY "
#define WAITING_WHERE " WHERE run = ?1 AND round = ?2 AND state = " SQL_GROUP_OPEN " AND samples_waiting > 0 ORDER BY "
  static const char by_ordinal[] = WAITING_COLUMNS "groups_waiting" WAITING_WHERE "ordinal";
  static const char by_arrival[] = WAITING_COLUMNS "groups_arrived" WAITING_WHERE "purpose, waiting_ms, ordinal";
  struct rows q;
  bool row;
  enum rc rc =
      store_query(c->store, &q, err, w->by_arrival ? by_arrival : by_ordinal, BINDS(b_int(w->run), b_int(w->round)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    if ((rc = room_for_one(w, err)) != RC_OK) break;
    const int32_t waiting = (int32_t)rows_int(&q, 1), done = (int32_t)rows_int(&q, 2);
    struct waiting_entry *e = &w->items[w->count++];
    e->group = (struct waiting_group){.ordinal = (int32_t)rows_int(&q, 0),
                                      .waiting = waiting,
                                      .leased = (int32_t)rows_int(&q, 5) - waiting - done,
                                      .done = done,
                                      .done_tokens = rows_int(&q, 3),
                                      .waiting_since_ms = rows_int(&q, 4),
                                      .overtaken_since_ms = rows_int(&q, 8),
                                      .evaluation = rows_int(&q, 7) == LEASE_EVALUATION,
                                      .begun = rows_int(&q, 6) == 0};
    e->positions = rows_int(&q, 9);
    w->samples += waiting;
  }
  rows_end(&q);
  return rc;
}

static enum rc begun_read(struct core *c, struct waiting *w, struct err *err) {
  int64_t begun = 0;
  const enum rc rc =
      store_int(c->store, &begun, err,
                "SELECT count(*) FROM groups WHERE run = ?1 AND round = ?2 AND ordinal < ?3 AND leased_ms IS NOT NULL",
                BINDS(b_int(w->run), b_int(w->round), b_int(ORDINAL_EVALUATION_FIRST)));
  w->begun = (int32_t)begun;
  return rc;
}

static enum rc open_read(struct core *c, struct waiting *w, struct err *err) {
  struct rows q;
  bool row;
  memset(w->open, 0, sizeof w->open);
  enum rc rc = store_query(c->store, &q, err,
                           "SELECT ordinal FROM groups INDEXED BY groups_open WHERE run = ?1 AND round = ?2 AND state "
                           "= " SQL_GROUP_OPEN " AND ordinal < ?3 AND samples_open > 0",
                           BINDS(b_int(w->run), b_int(w->round), b_int(ORDINAL_EVALUATION_FIRST)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t ordinal = rows_int(&q, 0);
    w->open[ordinal / 64] |= UINT64_C(1) << ordinal % 64;
  }
  rows_end(&q);
  return rc;
}

enum rc waiting_read(struct waiting *w, struct core *c, int64_t run, int64_t round, struct err *err) {
  const bool by_arrival = c->context->config.frontier == FRONTIER_OFF;
  if (w->known && w->undone == c->undone && w->run == run && w->round == round && w->by_arrival == by_arrival)
    return RC_OK;
  w->known = false;
  w->run = run;
  w->round = round;
  w->by_arrival = by_arrival;
  w->undone = c->undone;
  w->first = w->count = 0;
  w->samples = 0;
  enum rc rc = groups_read(c, w, err);
  if (rc == RC_OK) rc = open_read(c, w, err);
  if (rc == RC_OK) rc = begun_read(c, w, err);
  w->known = rc == RC_OK;
  return rc;
}

void waiting_forget(struct waiting *w) { w->known = false; }

void waiting_free(struct waiting *w) {
  free(w->items);
  *w = (struct waiting){0};
}

/* ---- what happens ---- */

/* Where the group is, or -1. */
static int place_of(const struct waiting *w, int64_t group) {
  int low = w->first, high = w->first + w->count;
  if (w->by_arrival) {
    for (; low < high; low++) {
      if (w->items[low].group.ordinal == group) return low;
    }
    return -1;
  }
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (w->items[middle].group.ordinal < group)
      low = middle + 1;
    else
      high = middle;
  }
  return low < w->first + w->count && w->items[low].group.ordinal == group ? low : -1;
}

/* The shorter side moves up: what is served lies mostly at the front. */
static void entry_remove(struct waiting *w, int at) {
  const int before = at - w->first, behind = w->first + w->count - at - 1;
  w->samples -= w->items[at].group.waiting;
  if (before <= behind)
    memmove(&w->items[w->first + 1], &w->items[w->first], (size_t)before * sizeof w->items[0]);
  else
    memmove(&w->items[at], &w->items[at + 1], (size_t)behind * sizeof w->items[0]);
  w->first += before <= behind;
  w->count--;
}

void waiting_granted(struct waiting *w, int64_t group, int64_t samples) {
  const int at = place_of(w, group);
  if (at < 0) {
    w->known = false;
    return;
  }
  struct waiting_entry *e = &w->items[at];
  e->group.waiting -= (int32_t)samples;
  e->group.leased += (int32_t)samples;
  w->begun += !e->group.begun && !e->group.evaluation;
  e->group.begun = true;
  w->samples -= samples;
  if (e->group.waiting <= 0) entry_remove(w, at);
}

void waiting_overtaken(struct waiting *w, int64_t group, int64_t wall_ms) {
  const int at = place_of(w, group);
  if (at >= 0) w->items[at].group.overtaken_since_ms = wall_ms;
}

static bool tells_of(const struct waiting *w, int64_t run, int64_t round) {
  return w->known && w->run == run && w->round == round;
}

void waiting_done(struct waiting *w, int64_t run, int64_t round, int64_t group, int64_t samples, int64_t tokens) {
  const int at = tells_of(w, run, round) ? place_of(w, group) : -1;
  if (at < 0) return;
  w->items[at].group.leased -= (int32_t)samples;
  w->items[at].group.done += (int32_t)samples;
  w->items[at].group.done_tokens += tokens;
}

void waiting_closed(struct waiting *w, int64_t run, int64_t round, int64_t group) {
  if (!tells_of(w, run, round)) return;
  if (place_of(w, group) >= 0) w->known = false; /* none of a closed group's samples waits */
  if (group < ORDINAL_EVALUATION_FIRST) w->open[group / 64] &= ~(UINT64_C(1) << group % 64);
}

int32_t waiting_under_way(const struct waiting *w) {
  int32_t groups = 0;
  for (size_t i = 0; i < sizeof w->open / sizeof w->open[0]; i++) groups += __builtin_popcountll(w->open[i]);
  for (int i = w->first; i < w->first + w->count; i++)
    groups -= !w->items[i].group.begun && !w->items[i].group.evaluation;
  return groups;
}

int32_t waiting_frontier_end(const struct waiting *w, int size) {
  for (int i = 0; i < ORDINAL_EVALUATION_FIRST / 64; i++) {
    uint64_t word = w->open[i];
    const int here = __builtin_popcountll(word);
    if (size >= here) {
      size -= here;
      continue;
    }
    for (; size > 0; size--) word &= word - 1;
    return i * 64 + __builtin_ctzll(word);
  }
  return INT32_MAX;
}
