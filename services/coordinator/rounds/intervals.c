/* Stores what workers did when: packed intervals for the timeline, and sums by cause and round. */
#include "services/coordinator/rounds/intervals.h"

#include <string.h>

#include "services/coordinator/decide/clock_skew.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/rounds/settled.h"
#include "services/coordinator/run/run_context.h"

enum { COORDINATOR_WORKER = 0, BEAT_ROUNDS_MAX = 512, MS = 1000 };

/* A message's times are held to these around the time it came: whatever a sender says, sums stay in bounds. */
static const int64_t PAST_US = (int64_t)30 * 24 * 3600 * 1000000, FUTURE_US = (int64_t)24 * 3600 * 1000000;
/* An interval that begins so long before the end of the stored ones is no repeat: the sender's clock was set back. */
static const int64_t REPEAT_US = 60000000;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- packing ---- */

static void pack(unsigned char *out, const struct interval *i) {
  memcpy(out, &i->begin_us, sizeof i->begin_us);
  memcpy(out + 8, &i->end_us, sizeof i->end_us);
  out[16] = (unsigned char)i->cause;
}

bool interval_unpack(struct interval *out, const void *packed, size_t bytes, size_t n) {
  if ((n + 1) * INTERVAL_PACKED_BYTES > bytes) return false;
  const unsigned char *from = (const unsigned char *)packed + n * INTERVAL_PACKED_BYTES;
  memcpy(&out->begin_us, from, sizeof out->begin_us);
  memcpy(&out->end_us, from + 8, sizeof out->end_us);
  out->cause = (enum interval_cause)from[16];
  return from[16] < CAUSE_COUNT;
}

/* ---- the picture ---- */

/* A worker's newest row; id 0: none. */
struct row {
  int64_t id, begin_us, end_us;
  size_t bytes;
  unsigned char items[INTERVAL_ROW_ITEMS * INTERVAL_PACKED_BYTES];
};

static enum rc row_read(struct core *c, int64_t worker, struct row *out, struct err *err) {
  struct rows q;
  bool found = false;
  out->id = 0;
  out->bytes = 0;
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT id, begin_us, end_us, items FROM intervals WHERE worker = ?1 ORDER BY end_us DESC LIMIT 1",
                  BINDS(b_int(worker)));
  if (rc == RC_OK) rc = rows_next(&q, &found, err);
  if (rc == RC_OK && found) {
    const void *items = rows_blob(&q, 3, &out->bytes);
    out->id = rows_int(&q, 0);
    out->begin_us = rows_int(&q, 1);
    out->end_us = rows_int(&q, 2);
    if (out->bytes > sizeof out->items) out->bytes = sizeof out->items;
    memcpy(out->items, items, out->bytes);
  }
  rows_end(&q);
  return rc;
}

static enum rc row_write(struct core *c, int64_t worker, struct row *row, struct err *err) {
  if (row->id)
    return store_exec(c->store, err, "UPDATE intervals SET begin_us = ?2, end_us = ?3, items = ?4 WHERE id = ?1",
                      BINDS(b_int(row->id), b_int(row->begin_us), b_int(row->end_us), b_blob(row->items, row->bytes)));
  enum rc rc =
      store_exec(c->store, err, "INSERT INTO intervals (worker, begin_us, end_us, items) VALUES (?1, ?2, ?3, ?4)",
                 BINDS(b_int(worker), b_int(row->begin_us), b_int(row->end_us), b_blob(row->items, row->bytes)));
  if (rc != RC_OK) return rc;
  return store_exec(c->store, err, "DELETE FROM intervals WHERE id <= ?1",
                    BINDS(b_int(store_last_id(c->store) - INTERVAL_ROWS_MAX)));
}

/* Behind the newest row's last one, of which it may be the continuation. */
static bool row_add(struct row *row, const struct interval *i) {
  struct interval last;
  const size_t count = row->bytes / INTERVAL_PACKED_BYTES;
  if (count > 0 && i->end_us - row->begin_us > INTERVAL_ROW_SPAN_US) return false;
  if (count > 0 && interval_unpack(&last, row->items, row->bytes, count - 1) && last.cause == i->cause &&
      last.end_us == i->begin_us) {
    last.end_us = i->end_us;
    pack(row->items + (count - 1) * INTERVAL_PACKED_BYTES, &last);
  } else if (count < INTERVAL_ROW_ITEMS) {
    pack(row->items + row->bytes, i);
    row->bytes += INTERVAL_PACKED_BYTES;
  } else {
    return false;
  }
  row->begin_us = count > 0 ? least(row->begin_us, i->begin_us) : i->begin_us;
  row->end_us = count > 0 ? most(row->end_us, i->end_us) : i->end_us;
  return true;
}

/* row: the worker's newest. */
static enum rc picture_add(struct core *c, int64_t worker, struct row *row, const struct interval *items, size_t count,
                           struct err *err) {
  bool changed = false;
  enum rc rc = RC_OK;
  for (size_t i = 0; i < count && rc == RC_OK; i++) {
    if (!row_add(row, &items[i])) {
      if (changed) rc = row_write(c, worker, row, err);
      *row = (struct row){.id = 0};
      row_add(row, &items[i]);
    }
    changed = true;
  }
  return rc == RC_OK && changed ? row_write(c, worker, row, err) : rc;
}

/* ---- the sums ---- */

struct round_times {
  int64_t run, round, begin_us, end_us;
  int64_t us[CAUSE_COUNT];
  int64_t covered_us; /* of all causes */
  int64_t slot_busy_us, slot_window_us;
};

/* CAUSE_VERIFYING is the coordinator's own: rounds.verify_us. */
static enum rc sums_add(struct core *c, const struct round_times *t, enum time_actor actor, struct err *err) {
  const enum rc rc = store_exec(
      c->store, err,
      "INSERT INTO cause_times (run, round, actor, fill_us, starved_us, logprob_us, compute_us, step_us, "
      "checkpoint_us, push_us, load_us, idle_us, slot_busy_us, slot_window_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, "
      "?9, ?10, ?11, ?12, ?13, ?14) ON CONFLICT (run, round, actor) DO UPDATE SET fill_us = fill_us + "
      "excluded.fill_us, starved_us = starved_us + excluded.starved_us, logprob_us = logprob_us + "
      "excluded.logprob_us, compute_us = compute_us + excluded.compute_us, step_us = step_us + excluded.step_us, "
      "checkpoint_us = checkpoint_us + excluded.checkpoint_us, push_us = push_us + excluded.push_us, load_us = "
      "load_us + excluded.load_us, idle_us = idle_us + excluded.idle_us, slot_busy_us = slot_busy_us + "
      "excluded.slot_busy_us, slot_window_us = slot_window_us + excluded.slot_window_us",
      BINDS(b_int(t->run), b_int(t->round), b_int((int64_t)actor), b_int(t->us[CAUSE_FILL]),
            b_int(t->us[CAUSE_STARVED]), b_int(t->us[CAUSE_LOGPROB]), b_int(t->us[CAUSE_COMPUTE]),
            b_int(t->us[CAUSE_STEP]), b_int(t->us[CAUSE_CHECKPOINT]), b_int(t->us[CAUSE_PUSH]),
            b_int(t->us[CAUSE_LOAD]), b_int(t->us[CAUSE_IDLE]), b_int(t->slot_busy_us), b_int(t->slot_window_us)));
  if (rc != RC_OK || actor != ACTOR_TRAINER) return rc;
  return settled_add_times(c, t->run, t->round, t->us[CAUSE_FILL] + t->us[CAUSE_STARVED],
                           t->us[CAUSE_LOGPROB] + t->us[CAUSE_COMPUTE], err);
}

static void times_add(struct round_times *t, const struct interval *items, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const int64_t us = least(items[i].end_us, t->end_us) - most(items[i].begin_us, t->begin_us);
    if (us <= 0) continue;
    t->us[items[i].cause] += us;
    t->covered_us += us;
  }
}

/* The rounds that were open at some time from begin to end, newest first.  Windows do not overlap: one run samples at a
 * time, and a round opens in the transaction that publishes the one before. */
static enum rc rounds_at(struct core *c, int64_t begin_us, int64_t end_us, struct round_times *out, int *count,
                         struct err *err) {
  struct rows q;
  bool row;
  *count = 0;
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT run, round, opened_ms, coalesce(published_ms, (SELECT ended_ms FROM runs WHERE id = run)) "
                  "FROM rounds WHERE opened_ms <= ?1 ORDER BY opened_ms DESC, run DESC, round DESC LIMIT ?2",
                  BINDS(b_int(end_us / MS), b_int(BEAT_ROUNDS_MAX)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const struct round_times t = {.run = rows_int(&q, 0),
                                  .round = rows_int(&q, 1),
                                  .begin_us = rows_int(&q, 2) * MS,
                                  .end_us = rows_null(&q, 3) ? INT64_MAX : rows_int(&q, 3) * MS};
    if (t.end_us <= begin_us) break;
    out[(*count)++] = t;
  }
  rows_end(&q);
  return rc;
}

static int64_t share(int64_t whole, int64_t part, int64_t of) {
  return of > 0 ? (int64_t)((double)whole * (double)part / (double)of) : 0;
}

/* A run's slot time of this message goes to its rounds: the window by the time told of each, the busy part by the time
 * that was spent computing in each. */
static void slots_share(struct round_times *rounds, int count, const struct slot_account *account) {
  int64_t covered = 0, computed = 0;
  for (int i = 0; i < count; i++) {
    if (rounds[i].run != account->run) continue;
    covered += rounds[i].covered_us;
    computed += rounds[i].us[CAUSE_COMPUTE];
  }
  for (int i = 0; i < count; i++) {
    struct round_times *t = &rounds[i];
    if (t->run != account->run) continue;
    t->slot_window_us = share(account->window_us, t->covered_us, covered);
    t->slot_busy_us = computed > 0 ? share(account->busy_us, t->us[CAUSE_COMPUTE], computed)
                                   : share(account->busy_us, t->covered_us, covered);
  }
}

/* *any: some of it lies in a round. */
static enum rc sums_by_time(struct core *c, enum time_actor actor, const struct interval *items, size_t count,
                            const struct slot_account *accounts, bool *any, struct err *err) {
  struct round_times rounds[BEAT_ROUNDS_MAX];
  int n = 0;
  int64_t begin_us = INT64_MAX, end_us = 0;
  for (size_t i = 0; i < count; i++) {
    begin_us = least(begin_us, items[i].begin_us);
    end_us = most(end_us, items[i].end_us);
  }
  enum rc rc = rounds_at(c, begin_us, end_us, rounds, &n, err);
  for (int i = 0; i < n && rc == RC_OK; i++) times_add(&rounds[i], items, count);
  for (int i = 0; i < SLOT_WINDOWS && accounts && rc == RC_OK; i++)
    if (accounts[i].run) slots_share(rounds, n, &accounts[i]);
  *any = false;
  for (int i = 0; i < n && rc == RC_OK; i++) {
    if (rounds[i].covered_us == 0) continue;
    *any = true;
    rc = sums_add(c, &rounds[i], actor, err);
  }
  return rc;
}

/* ---- what is told ---- */

/* By our clock, and within bounds.  At most LIMIT_INTERVALS. */
static size_t in_our_time(struct core *c, int64_t worker, struct interval *out, const struct interval *items,
                          size_t count) {
  const struct live_worker *w = worker_live(c, worker);
  const int64_t now_us = c->wall_ms * MS, skew_us = w ? clock_skew_us(w->skew_us) : 0;
  size_t kept = 0;
  for (size_t i = 0; i < count && kept < LIMIT_INTERVALS; i++) {
    const struct interval in = {items[i].cause, most(items[i].begin_us - skew_us, now_us - PAST_US),
                                least(items[i].end_us - skew_us, now_us + FUTURE_US)};
    if (in.end_us > in.begin_us) out[kept++] = in;
  }
  return kept;
}

/* In order of time, without overlaps, and behind what is stored. */
static size_t what_is_new(struct interval *items, size_t count, int64_t stored_us) {
  int64_t from_us = count > 0 && items[0].begin_us < stored_us - REPEAT_US ? 0 : stored_us;
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    struct interval in = items[i];
    in.begin_us = most(in.begin_us, from_us);
    if (in.end_us <= in.begin_us) continue;
    from_us = in.end_us;
    items[kept++] = in;
  }
  return kept;
}

/* A round opens when the version before it is published.  Until then a trainer that has nothing to compute publishes,
 * it does not wait: its fill begins where the newest push ends.  Both times are of the trainer's clock. */
static size_t fill_after_push(struct interval *items, size_t count, const struct row *row) {
  struct interval i, push = {.end_us = 0};
  size_t kept = 0;
  for (size_t n = 0; interval_unpack(&i, row->items, row->bytes, n); n++)
    if (i.cause == CAUSE_PUSH && i.end_us > push.end_us) push = i;
  for (size_t n = 0; n < count; n++) {
    i = items[n];
    if (i.cause == CAUSE_FILL && i.begin_us < push.end_us && i.end_us > push.begin_us) i.begin_us = push.end_us;
    if (i.end_us > i.begin_us) items[kept++] = i;
  }
  return kept;
}

static enum rc actor_of(struct core *c, int64_t worker, enum time_actor *out, struct err *err) {
  int64_t kind = WORKER_TRAINER;
  const enum rc rc = store_int(c->store, &kind, err, "SELECT kind FROM workers WHERE id = ?1", BINDS(b_int(worker)));
  *out = kind == WORKER_TRAINER ? ACTOR_TRAINER : ACTOR_POOL;
  return rc == RC_NOT_FOUND ? err_set(err, RC_NOT_FOUND, "worker", "there is no worker %lld", (long long)worker) : rc;
}

enum rc intervals_store(struct core *c, int64_t run, int64_t round, int64_t worker, const struct interval *items,
                        size_t count, struct err *err) {
  struct interval kept[LIMIT_INTERVALS];
  struct row row;
  enum time_actor actor = ACTOR_TRAINER;
  bool any = true;
  size_t n = in_our_time(c, worker, kept, items, count);
  if (n == 0) return RC_OK;
  enum rc rc = actor_of(c, worker, &actor, err);
  if (rc == RC_OK) rc = row_read(c, worker, &row, err);
  const bool pushes_wait = !c->context || c->context->config.mode != MODE_INFLIGHT; /* else they go on beside all
                                                                                     * else */
  if (rc == RC_OK && pushes_wait) n = fill_after_push(kept, n, &row);
  if (rc == RC_OK && round >= 0) {
    struct round_times t = {.run = run, .round = round, .begin_us = 0, .end_us = INT64_MAX};
    times_add(&t, kept, n);
    t.us[CAUSE_IDLE] = 0; /* before the run was opened: it belongs to no round */
    rc = sums_add(c, &t, actor, err);
  } else if (rc == RC_OK) {
    rc = sums_by_time(c, actor, kept, n, NULL, &any, err);
  }
  struct live_worker *w = any ? worker_live(c, worker) : NULL;
  if (w) w->used = true;
  return rc == RC_OK && any ? picture_add(c, worker, &row, kept, n, err) : rc;
}

/* ---- verifying ---- */

void verifying_note(struct core *c, int64_t run, int64_t round, int64_t begin_us, int64_t end_us) {
  int at = 0;
  while (at < VERIFYING_ROUNDS && (c->rounds->verifying[at].run != run || c->rounds->verifying[at].round != round))
    at++;
  if (at == VERIFYING_ROUNDS) { /* the oldest was flushed, or never will be */
    memmove(&c->rounds->verifying[1], &c->rounds->verifying[0],
            (VERIFYING_ROUNDS - 1) * sizeof c->rounds->verifying[0]);
    c->rounds->verifying[at = 0] =
        (struct verifying_notes){.run = run, .round = round, .first_us = begin_us, .last_us = begin_us};
  }
  struct verifying_notes *n = &c->rounds->verifying[at];
  if (end_us < begin_us) end_us = begin_us;
  n->first_us = least(n->first_us, begin_us);
  n->last_us = most(n->last_us, end_us);
  n->sum_us += end_us - begin_us;
}

static enum rc notes_store(struct core *c, struct verifying_notes *n, struct err *err) {
  struct row row = {.id = 0};
  const struct interval whole = {CAUSE_VERIFYING, n->first_us, n->last_us};
  row_add(&row, &whole);
  enum rc rc = store_exec(c->store, err, "UPDATE rounds SET verify_us = verify_us + ?3 WHERE run = ?1 AND round = ?2",
                          BINDS(b_int(n->run), b_int(n->round), b_int(n->sum_us)));
  if (rc == RC_OK) rc = row_write(c, COORDINATOR_WORKER, &row, err);
  if (rc == RC_OK) *n = (struct verifying_notes){0};
  return rc;
}

enum rc verifying_flush(struct core *c, int64_t run, int64_t round, struct err *err) {
  enum rc rc = RC_OK;
  for (int i = 0; i < VERIFYING_ROUNDS && rc == RC_OK; i++) {
    struct verifying_notes *n = &c->rounds->verifying[i];
    if (n->run && n->run == run && n->round == round) rc = notes_store(c, n, err);
  }
  return rc;
}

/* Rounds that are sealed and not published: of an evaluate run, or one that has ended. */
static enum rc flush_sealed(struct core *c, struct err *err) {
  enum rc rc = RC_OK;
  for (int i = 0; i < VERIFYING_ROUNDS && rc == RC_OK; i++) {
    struct verifying_notes *n = &c->rounds->verifying[i];
    int64_t state = ROUND_OPEN;
    if (!n->run) continue;
    rc = store_int(c->store, &state, err, "SELECT state FROM rounds WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(n->run), b_int(n->round)));
    if (rc == RC_OK && state != ROUND_OPEN) rc = notes_store(c, n, err);
  }
  return rc;
}

/* ---- a heartbeat ---- */

enum rc intervals_beat(struct core *c, int64_t worker, enum time_actor actor, const struct interval *items,
                       size_t count, const struct slot_account *accounts, struct err *err) {
  struct interval kept[LIMIT_INTERVALS];
  struct row row;
  bool any = false;
  enum rc rc = flush_sealed(c, err);
  size_t n = in_our_time(c, worker, kept, items, count);
  if (rc != RC_OK || n == 0) return rc;
  rc = row_read(c, worker, &row, err);
  if (rc == RC_OK) n = what_is_new(kept, n, row.id ? row.end_us : 0);
  if (rc == RC_OK && n > 0) rc = sums_by_time(c, actor, kept, n, accounts, &any, err);
  return rc == RC_OK && any ? picture_add(c, worker, &row, kept, n, err) : rc;
}
