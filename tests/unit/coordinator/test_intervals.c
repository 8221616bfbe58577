/* Bubble accounting on the coordinator's side. What would break: time is counted twice, lost, or given to the wrong
 * round; a ratio is a guess; a sender whose clock is wrong spoils the sums; a table grows for ever. */
#include <math.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "tests/unit/coordinator/fake_server.h"
#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/api/route_timeline.h"

enum { SECOND = 1000000 };

/* ---- rounds at chosen times, and commands on the writer's thread ---- */

/* A run whose rounds 0 .. rounds-1 lasted 10 s each, the last of them ending `ago_s` ago; open: it has not ended. */
struct past_run {
  int64_t id;
  int rounds;
  int64_t ago_s;
  bool open;
};

static int64_t begin_of(const struct past_run *r, int round, int64_t now_ms) {
  return (now_ms - r->ago_s * 1000 - (int64_t)(r->rounds - round) * 10000) * 1000;
}

static enum rc run_insert(struct core *c, struct command *cmd, struct err *err) {
  const struct past_run *r = cmd->message;
  const struct digest none = {0};
  enum rc rc = store_exec(c->store, err,
                          "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, "
                          "created_ms, ended_ms) VALUES (?1, '', 6, 0, 'grpo', '{}', ?2, 9, '1', 0, ?3)",
                          BINDS(b_int(r->id), b_digest(&none), r->open ? b_null() : b_int(c->wall_ms)));
  if (rc == RC_OK)
    rc = store_exec(c->store, err, "INSERT INTO versions VALUES (?1, 0, 2, ?2, 1, NULL, 0, NULL)",
                    BINDS(b_int(r->id), b_digest(&none)));
  for (int i = 0; i < r->rounds && rc == RC_OK; i++) {
    const int64_t opened_ms = begin_of(r, i, c->wall_ms) / 1000;
    const bool open = r->open && i == r->rounds - 1;
    rc = store_exec(c->store, err,
                    "INSERT INTO rounds (run, round, state, version, opened_ms, published_ms, groups_open) VALUES (?1, "
                    "?2, ?3, 0, ?4, ?5, 0)",
                    BINDS(b_int(r->id), b_int(i), b_int(open ? 1 : 4), b_int(opened_ms),
                          open ? b_null() : b_int(opened_ms + 10000)));
  }
  return rc;
}

struct telling {
  int64_t run, round, worker;
  bool beat;
  struct interval items[LIMIT_INTERVALS];
  size_t count;
  struct slot_account accounts[SLOT_WINDOWS];
};

static enum rc tell_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct telling *t = cmd->message;
  return t->beat ? intervals_beat(c, t->worker, ACTOR_POOL, t->items, t->count, t->accounts, err)
                 : intervals_store(c, t->run, t->round, t->worker, t->items, t->count, err);
}

static void carry_out(struct fixture *f, command_execute execute, const void *message, size_t bytes) {
  struct err err = {0};
  struct command *cmd = command_new(execute, bytes);
  memcpy(cmd->message, message, bytes);
  if (core_call(f->core, cmd, &err) != RC_OK) fail_msg("%s", err.message);
}

/* The run's first round's begin, in microseconds. */
static int64_t past_run(struct fixture *f, struct past_run r) {
  struct json *answer;
  char path[64];
  carry_out(f, run_insert, &r, sizeof r);
  snprintf(path, sizeof path, "/v1/runs/r%lld/timeline", (long long)r.id);
  assert_int_equal(call(f, "GET", path, NULL, &answer), 200);
  const int64_t begin_us = get_int(json_at(json_get(answer, "rounds"), 0), "opened_ms", NULL) * 1000;
  json_free(answer);
  return begin_us;
}

static void tell(struct fixture *f, struct telling t) { carry_out(f, tell_execute, &t, sizeof t); }

static int64_t worker_number(const struct fake_server *s) { return atoll(s->is.worker_id + 1); }

static struct json *timeline(struct fixture *f, const char *path) {
  struct json *answer;
  assert_int_equal(call(f, "GET", path, NULL, &answer), 200);
  return answer;
}

static int64_t sum_of(const struct json *timeline, size_t round, const char *actor, const char *column) {
  const struct json *sums = json_get(json_at(json_get(timeline, "rounds"), round), actor);
  if (json_type_of(sums) == JSON_NULL) return -1;
  return get_int(sums, column, NULL);
}

/* The intervals of the worker with this name. */
static const struct json *intervals_of(const struct json *timeline, const char *name) {
  const struct json *workers = json_get(timeline, "workers");
  for (size_t i = 0; i < json_length(workers); i++) {
    const struct json *w = json_at(workers, i);
    if (strcmp(json_string(json_get(w, "name"), NULL), name) == 0) return json_get(w, "intervals");
  }
  fail_msg("the timeline has no worker %s", name);
  return NULL;
}

static void check_interval(const struct json *items, size_t at, const char *cause, int64_t begin_us, int64_t end_us) {
  const struct json *item = json_at(items, at);
  assert_non_null(item);
  assert_string_equal(json_string(json_at(item, 0), NULL), cause);
  assert_int_equal(json_int(json_at(item, 1)), begin_us);
  assert_int_equal(json_int(json_at(item, 2)), end_us);
}

/* ---- heartbeats ---- */

static void a_heartbeat_is_cut_where_rounds_end(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 2, .ago_s = 100});
  tell(f, (struct telling){.beat = true,
                           .worker = worker_number(&s),
                           .items = {{CAUSE_IDLE, t - 5 * SECOND, t - 1 * SECOND}, /* before the run: dropped */
                                     {CAUSE_LOAD, t - 1 * SECOND, t + 1 * SECOND},
                                     {CAUSE_COMPUTE, t + 1 * SECOND, t + 7 * SECOND},
                                     {CAUSE_STARVED, t + 7 * SECOND, t + 12 * SECOND},
                                     {CAUSE_COMPUTE, t + 12 * SECOND, t + 13 * SECOND},
                                     {CAUSE_IDLE, t + 13 * SECOND, t + 50 * SECOND}},
                           .count = 6});
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  assert_int_equal(sum_of(line, 0, "generation", "load_us"), 1 * SECOND);
  assert_int_equal(sum_of(line, 0, "generation", "compute_us"), 6 * SECOND);
  assert_int_equal(sum_of(line, 0, "generation", "starved_us"), 3 * SECOND);
  assert_int_equal(sum_of(line, 0, "generation", "idle_us"), 0);
  assert_int_equal(sum_of(line, 1, "generation", "starved_us"), 2 * SECOND);
  assert_int_equal(sum_of(line, 1, "generation", "compute_us"), 1 * SECOND);
  assert_int_equal(sum_of(line, 1, "generation", "idle_us"), 7 * SECOND);
  const struct json *items = intervals_of(line, "gen-1");
  assert_int_equal(json_length(items), 5);
  check_interval(items, 0, "load", t, t + 1 * SECOND); /* cut to the window */
  check_interval(items, 2, "starved", t + 7 * SECOND, t + 12 * SECOND);
  check_interval(items, 4, "idle", t + 13 * SECOND, t + 20 * SECOND);
  json_free(line);
  line = timeline(f, "/v1/runs/r1/timeline?from=1&limit=1");
  items = intervals_of(line, "gen-1");
  assert_int_equal(json_length(items), 3);
  check_interval(items, 0, "starved", t + 10 * SECOND, t + 12 * SECOND);
  json_free(line);
}

/* A server that got no answer sends everything again, with what has come since. */
static void intervals_sent_again_are_not_counted_twice(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 1, .ago_s = 1, .open = true});
  struct telling first = {
      .beat = true,
      .worker = worker_number(&s),
      .items = {{CAUSE_COMPUTE, t, t + 2 * SECOND}, {CAUSE_STARVED, t + 2 * SECOND, t + 3 * SECOND}},
      .count = 2};
  tell(f, first);
  tell(f, first);
  first.items[1].end_us = t + 4 * SECOND; /* it goes on */
  first.items[2] = (struct interval){CAUSE_COMPUTE, t + 4 * SECOND, t + 5 * SECOND};
  first.count = 3;
  tell(f, first);
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  assert_int_equal(sum_of(line, 0, "generation", "compute_us"), 3 * SECOND);
  assert_int_equal(sum_of(line, 0, "generation", "starved_us"), 2 * SECOND);
  const struct json *items = intervals_of(line, "gen-1");
  assert_int_equal(json_length(items), 3); /* pieces are joined */
  check_interval(items, 1, "starved", t + 2 * SECOND, t + 4 * SECOND);
  json_free(line);
  /* a clock that was set back is no repeat */
  tell(f, (struct telling){.beat = true,
                           .worker = worker_number(&s),
                           .items = {{CAUSE_COMPUTE, t + 200 * SECOND, t + 201 * SECOND}},
                           .count = 1});
  tell(f, (struct telling){.beat = true,
                           .worker = worker_number(&s),
                           .items = {{CAUSE_LOAD, t + 6 * SECOND, t + 7 * SECOND}},
                           .count = 1});
  line = timeline(f, "/v1/runs/r1/timeline");
  assert_int_equal(sum_of(line, 0, "generation", "load_us"), 1 * SECOND);
  json_free(line);
}

static void impossible_times_are_cut_to_bounds(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct telling t = {.beat = true, .count = LIMIT_INTERVALS};
  register_server(f, &s, "gen-1");
  past_run(f, (struct past_run){.id = 1, .rounds = 1, .ago_s = 1, .open = true});
  for (size_t i = 0; i < LIMIT_INTERVALS; i++) t.items[i] = (struct interval){CAUSE_COMPUTE, 0, INT64_MAX};
  t.worker = worker_number(&s);
  tell(f, t);
  tell(f, t);
  t.beat = false; /* lanes may overlap: each is bounded by itself */
  t.run = 1;
  for (int i = 0; i < 4; i++) tell(f, t);
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  const int64_t us = sum_of(line, 0, "generation", "compute_us");
  assert_true(us > 0 && us < INT64_MAX / 100);
  json_free(line);
}

static void slot_time_goes_to_the_round_that_was_computed(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 2, .ago_s = 100});
  tell(f, (struct telling){.beat = true,
                           .worker = worker_number(&s),
                           .items = {{CAUSE_STARVED, t + 6 * SECOND, t + 8 * SECOND},
                                     {CAUSE_COMPUTE, t + 8 * SECOND, t + 14 * SECOND},
                                     {CAUSE_STARVED, t + 14 * SECOND, t + 16 * SECOND}},
                           .count = 3,
                           .accounts = {{.run = 1, .busy_us = 30 * SECOND, .window_us = 80 * SECOND}}});
  struct json *line = timeline(f, "/v1/runs/r1/timeline"), *run;
  assert_int_equal(sum_of(line, 0, "generation", "slot_busy_us"), 10 * SECOND);   /* 2 of 6 s of computing */
  assert_int_equal(sum_of(line, 0, "generation", "slot_window_us"), 32 * SECOND); /* 4 of 10 s reported */
  assert_int_equal(sum_of(line, 1, "generation", "slot_busy_us"), 20 * SECOND);
  assert_int_equal(sum_of(line, 1, "generation", "slot_window_us"), 48 * SECOND);
  json_free(line);
  run = get_run(f, "r1");
  const struct json *history = json_get(run, "history");
  assert_true(fabs(json_number(json_get(json_at(history, 0), "generation_idle_ratio")) - (1 - 10.0 / 32)) < 1e-9);
  assert_int_equal(json_type_of(json_get(json_at(history, 0), "trainer_waiting_ratio")), JSON_NULL);
  json_free(run);
}

static void intervals_outside_every_round_are_dropped(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 1, .ago_s = 100});
  tell(f, (struct telling){.beat = true,
                           .worker = worker_number(&s),
                           .items = {{CAUSE_IDLE, t - 5 * SECOND, t}, {CAUSE_IDLE, t + 10 * SECOND, t + 60 * SECOND}},
                           .count = 2});
  assert_int_equal(read_int(f, "SELECT count(*) FROM intervals"), 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM cause_times"), 0);
}

static void rows_are_packed(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct telling t = {.beat = true};
  register_server(f, &s, "gen-1");
  const int64_t from = past_run(f, (struct past_run){.id = 1, .rounds = 1, .ago_s = 1, .open = true});
  t.worker = worker_number(&s);
  for (int i = 0; i < 1000; i++) {
    t.items[t.count++] =
        (struct interval){i % 2 ? CAUSE_STARVED : CAUSE_COMPUTE, from + i * 5000, from + (i + 1) * 5000};
    if (t.count == 10) {
      tell(f, t);
      t.count = 0;
    }
  }
  t.count = 1;
  for (int64_t i = 0; i < 20; i++) { /* nothing new for longer than a row may span */
    t.items[0] = (struct interval){CAUSE_STARVED, from + (5 + 40 * i) * SECOND, from + (45 + 40 * i) * SECOND};
    tell(f, t);
  }
  assert_int_equal(read_int(f, "SELECT count(*) FROM intervals"), 1000 / INTERVAL_ROW_ITEMS + 2);
  assert_int_equal(read_int(f, "SELECT sum(length(items)) FROM intervals"), 1001 * INTERVAL_PACKED_BYTES);
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  const struct json *items = intervals_of(line, "gen-1");
  assert_int_equal(json_length(items), 1000);
  for (size_t i = 0; i < 999; i++)
    check_interval(items, i, i % 2 ? "starved" : "compute", from + (int64_t)i * 5000, from + (int64_t)(i + 1) * 5000);
  check_interval(items, 999, "starved", from + 999 * 5000, from + 805 * SECOND);
  json_free(line);
}

static enum rc fill_execute(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd;
  return store_exec(c->store, err,
                    "INSERT INTO intervals (id, worker, begin_us, end_us, items) WITH RECURSIVE n(i) AS (SELECT 1 "
                    "UNION ALL SELECT i + 1 FROM n WHERE i < ?1) SELECT i, 99, i, i + 1, x'' FROM n",
                    BINDS(b_int(INTERVAL_ROWS_MAX + 500)));
}

static void the_oldest_rows_are_deleted(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  char nothing = 0;
  register_server(f, &s, "gen-1");
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 1, .ago_s = 1, .open = true});
  carry_out(f, fill_execute, &nothing, 1);
  tell(f, (struct telling){
              .beat = true, .worker = worker_number(&s), .items = {{CAUSE_COMPUTE, t, t + SECOND}}, .count = 1});
  assert_int_equal(read_int(f, "SELECT count(*) FROM intervals"), INTERVAL_ROWS_MAX);
  assert_int_equal(read_int(f, "SELECT min(id) FROM intervals"), 502);
}

/* ---- the trainer ---- */

/* Round 0's first batch was submitted after 4 s, its last one done after 9. */
static enum rc round_trained(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd;
  return store_exec(c->store, err,
                    "UPDATE rounds SET groups_trained = 2, submitted_ms = opened_ms + 4000, trained_ms = opened_ms + "
                    "9000 WHERE run = 1 AND round = 0",
                    NO_BINDS);
}

/* A round whose groups were all filtered has a step, too. */
static enum rc round_filtered(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd;
  return store_exec(
      c->store, err,
      "UPDATE rounds SET submitted_ms = opened_ms + 5000, trained_ms = opened_ms + 5000 WHERE run = 1 AND "
      "round = 1",
      NO_BINDS);
}

static double number_of(const struct json *object, const char *key) {
  const struct json *v = json_get(object, key);
  if (!v || json_type_of(v) == JSON_NULL) fail_msg("%s is null or missing", key);
  return json_number(v);
}

static void ratios_come_from_the_trainers_intervals(void **state) {
  struct fixture *f = *state;
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 2, .ago_s = 100});
  const int64_t trainer = atoll(f->trainer_is.worker_id + 1);
  carry_out(f, round_trained, &t, sizeof t);
  carry_out(f, round_filtered, &t, sizeof t);
  /* overlapping lanes, and a fill that began before the coordinator says that the round did */
  tell(f, (struct telling){.run = 1,
                           .round = 0,
                           .worker = trainer,
                           .items = {{CAUSE_FILL, t - 1 * SECOND, t + 4 * SECOND},
                                     {CAUSE_LOGPROB, t + 4 * SECOND, t + 5 * SECOND},
                                     {CAUSE_COMPUTE, t + 5 * SECOND, t + 6 * SECOND},
                                     {CAUSE_STARVED, t + 6 * SECOND, t + 7 * SECOND},
                                     {CAUSE_COMPUTE, t + 7 * SECOND, t + 9 * SECOND},
                                     {CAUSE_STEP, t + 9 * SECOND, t + 10 * SECOND},
                                     {CAUSE_PUSH, t + 9 * SECOND, t + 11 * SECOND}},
                           .count = 7});
  struct json *run = get_run(f, "r1"), *line = timeline(f, "/v1/runs/r1/timeline");
  const struct json *round = json_at(json_get(run, "history"), 0), *totals = json_get(run, "totals");
  assert_true(fabs(number_of(round, "trainer_waiting_ratio") - 6.0 / 10) < 1e-9);
  assert_true(fabs(number_of(round, "trainer_first_dispatch_ratio") - 0.4) < 1e-9);
  assert_int_equal(get_int(round, "window_ms", NULL), 10000);
  assert_int_equal(get_int(round, "window_without_publish_ms", NULL), 9000);
  assert_int_equal(json_type_of(json_get(round, "generation_idle_ratio")), JSON_NULL);
  const struct json *silent = json_at(json_get(run, "history"), 1); /* nobody reported round 1: there is no guess */
  assert_int_equal(json_type_of(json_get(silent, "trainer_waiting_ratio")), JSON_NULL);
  assert_int_equal(json_type_of(json_get(silent, "trainer_first_dispatch_ratio")), JSON_NULL);
  assert_int_equal(json_type_of(json_get(silent, "window_without_publish_ms")), JSON_NULL);
  assert_int_equal(get_int(totals, "trainer_wait_ms", NULL), 6000);
  assert_int_equal(get_int(totals, "trainer_compute_ms", NULL), 4000);
  assert_true(fabs(number_of(totals, "trainer_waiting_ratio") - 0.6) < 1e-9);
  assert_true(fabs(number_of(totals, "trainer_first_dispatch_ratio") - 0.4) < 1e-9); /* of the rounds with batches */
  assert_int_equal(get_int(totals, "window_ms", NULL), 20000);
  assert_int_equal(get_int(totals, "window_without_publish_ms", NULL), 9000);
  assert_int_equal(sum_of(line, 0, "trainer", "fill_us"), 5 * SECOND);
  assert_int_equal(sum_of(line, 0, "trainer", "push_us"), 2 * SECOND);
  assert_int_equal(sum_of(line, 1, "trainer", "fill_us"), -1);
  assert_int_equal(sum_of(line, 0, "generation", "compute_us"), -1);
  assert_int_equal(json_length(intervals_of(line, "trainer")), 7);
  json_free(run);
  json_free(line);
}

/* After its step the trainer publishes; the next round opens when that is done. */
static void fill_begins_when_the_push_has_ended(void **state) {
  struct fixture *f = *state;
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 2, .ago_s = 100});
  const int64_t trainer = atoll(f->trainer_is.worker_id + 1);
  tell(f, (struct telling){.run = 1,
                           .round = 0,
                           .worker = trainer,
                           .items = {{CAUSE_IDLE, t - 9 * SECOND, t},
                                     {CAUSE_FILL, t, t + 5 * SECOND},
                                     {CAUSE_STEP, t + 5 * SECOND, t + 6 * SECOND},
                                     {CAUSE_PUSH, t + 6 * SECOND, t + 10 * SECOND}},
                           .count = 4});
  tell(f, (struct telling){.run = 1,
                           .round = 1,
                           .worker = trainer,
                           .items = {{CAUSE_FILL, t + 6 * SECOND, t + 13 * SECOND},
                                     {CAUSE_COMPUTE, t + 13 * SECOND, t + 14 * SECOND},
                                     {CAUSE_FILL, t + 14 * SECOND, t + 15 * SECOND}},
                           .count = 3});
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  assert_int_equal(sum_of(line, 0, "trainer", "fill_us"), 5 * SECOND);
  assert_int_equal(sum_of(line, 1, "trainer", "fill_us"), 4 * SECOND);
  check_interval(intervals_of(line, "trainer"), 3, "fill", t + 10 * SECOND, t + 13 * SECOND);
  json_free(line);
}

static void trainer_intervals_without_a_round_are_assigned_by_time(void **state) {
  struct fixture *f = *state;
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 2, .ago_s = 100});
  tell(f, (struct telling){.run = 1,
                           .round = -1,
                           .worker = atoll(f->trainer_is.worker_id + 1),
                           .items = {{CAUSE_LOAD, t + 8 * SECOND, t + 13 * SECOND}},
                           .count = 1});
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  assert_int_equal(sum_of(line, 0, "trainer", "load_us"), 2 * SECOND);
  assert_int_equal(sum_of(line, 1, "trainer", "load_us"), 3 * SECOND);
  json_free(line);
}

static void gauges_show_the_newest_run(void **state) {
  struct fixture *f = *state;
  const char *const waiting = "leasehold_run_trainer_waiting_ratio";
  wait_metric(f, waiting, NAN);
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 1, .ago_s = 100});
  carry_out(f, round_trained, &t, sizeof t);
  tell(f, (struct telling){.run = 1,
                           .round = 0,
                           .worker = atoll(f->trainer_is.worker_id + 1),
                           .items = {{CAUSE_FILL, t, t + 3 * SECOND}, {CAUSE_COMPUTE, t + 3 * SECOND, t + 4 * SECOND}},
                           .count = 2});
  wait_metric(f, waiting, 0.75);
  assert_true(fabs(read_metric(f, "leasehold_run_trainer_first_dispatch_ratio") - 0.4) < 1e-9);
  assert_true(isnan(read_metric(f, "leasehold_run_generation_idle_ratio")));
  assert_true(read_metric(f, "leasehold_round_window_seconds") == 10);
  assert_true(read_metric(f, "leasehold_round_window_without_publish_seconds") == 9);
}

/* The alarm of a run without progress subtracts it from the clock of who scrapes: of a clock that had been days ahead
 * it would have kept silent for days. */
static void progress_is_told_by_the_machines_clock(void **state) {
  struct fixture *f = *state;
  past_run(f, (struct past_run){.id = 1, .rounds = 1, .ago_s = 100});
  const char *const progress = "leasehold_run_progress_timestamp_seconds";
  AWAIT(!isnan(read_metric(f, progress)), "no progress") a_moment_passes(f);
  const double age_s = (double)clock_real_ms() / 1000 - read_metric(f, progress);
  if (!(age_s > 99 && age_s < 200)) fail_msg("%g s ago", age_s);
}

/* ---- the coordinator ---- */

static enum rc verify_execute(struct core *c, struct command *cmd, struct err *err) {
  const int64_t t = *(const int64_t *)cmd->message;
  verifying_note(c, 1, 0, t + 1000, t + 3000);
  verifying_note(c, 1, 1, t + 2 * SECOND, t + 2 * SECOND + 7);
  verifying_note(c, 1, 0, t + 8000, t + 9000);
  verifying_note(c, 1, 0, t + 500, t + 400); /* a clock that was set */
  enum rc rc = verifying_flush(c, 1, 0, err);
  if (rc == RC_OK) rc = verifying_flush(c, 1, 0, err); /* nothing is left */
  return rc == RC_OK ? verifying_flush(c, 7, 0, err) : rc;
}

static void verifying_is_stored_as_one_interval_and_a_sum(void **state) {
  struct fixture *f = *state;
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 2, .ago_s = 100});
  carry_out(f, verify_execute, &t, sizeof t);
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  assert_int_equal(get_int(json_at(json_get(line, "rounds"), 0), "verify_us", NULL), 3000);
  assert_int_equal(get_int(json_at(json_get(line, "rounds"), 1), "verify_us", NULL), 0); /* still sealing */
  const struct json *items = intervals_of(line, "coordinator");
  assert_int_equal(json_length(items), 1);
  check_interval(items, 0, "verifying", t + 500, t + 9000);
  json_free(line);
  tell(f, (struct telling){.beat = true}); /* nobody publishes round 1, but all its groups are in */
  line = timeline(f, "/v1/runs/r1/timeline");
  assert_int_equal(get_int(json_at(json_get(line, "rounds"), 1), "verify_us", NULL), 7);
  json_free(line);
}

/* ---- over HTTP ---- */

static struct worker_heartbeat_answer beat(struct fixture *f, const struct fake_server *s, int64_t sent_us,
                                           struct interval *items, size_t count) {
  struct err err = {0};
  struct worker_heartbeat_answer answer;
  const struct worker_heartbeat m = {
      .epoch = s->is.epoch, .ready = true, .sent_us = sent_us, .intervals = items, .interval_count = count};
  if (coordinator_heartbeat(&f->client, s->is.worker_id, &m, &answer, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
  return answer;
}

static void a_heartbeat_brings_intervals_and_learns_of_the_run(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer leases;
  register_server(f, &s, "gen-1");
  assert_false(beat(f, &s, 0, NULL, 0).run_active);
  post_run(f, GRPO(1, "}"));
  poll_leases(f, &s, 64, &leases);
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  const int64_t t = get_int(json_at(json_get(line, "rounds"), 0), "opened_ms", NULL) * 1000;
  json_free(line);
  struct interval items[] = {{CAUSE_STARVED, t + 10, t + 20}, {CAUSE_COMPUTE, t + 20, t + 50}};
  assert_true(beat(f, &s, 0, items, 2).run_active);
  line = timeline(f, "/v1/runs/r1/timeline");
  check_interval(intervals_of(line, "gen-1"), 1, "compute", t + 20, t + 50);
  assert_int_equal(sum_of(line, 0, "generation", "compute_us"), 30);
  json_free(line);
  for (size_t i = 0; i < leases.lease_count; i++) {
    struct lease_result r = make_result(f, &s, &leases.leases[i]);
    struct err err;
    assert_int_equal(put_result(f, &leases.leases[i], &r, NULL, &err), RC_OK);
  }
  json_free(wait_state(f, "r1", "completed"));
  assert_false(beat(f, &s, 0, NULL, 0).run_active); /* its weights are still current, but nothing is to be done */
}

static const struct json *skew_of(struct fixture *f, struct json **workers) {
  assert_int_equal(call(f, "GET", "/v1/workers", NULL, workers), 200);
  return json_get(json_at(json_get(*workers, "workers"), 0), "clock_skew_ms");
}

static void a_workers_clock_that_is_off_is_shown(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct json *workers;
  register_server(f, &s, "gen-1");
  beat(f, &s, 0, NULL, 0); /* not told */
  assert_int_equal(json_type_of(skew_of(f, &workers)), JSON_NULL);
  json_free(workers);
  beat(f, &s, core_wall_us(f->core) + 300000, NULL, 0);
  assert_int_equal(json_type_of(skew_of(f, &workers)), JSON_NULL);
  json_free(workers);
  beat(f, &s, core_wall_us(f->core) - (int64_t)3600 * SECOND, NULL, 0);
  assert_true(llabs(json_int(skew_of(f, &workers)) + 3600000) < 5000);
  json_free(workers);
}

/* The clock of the machine was set after the coordinator was started and before the server was. */
static void intervals_of_a_clock_that_is_off_are_shown_in_our_time(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  const int64_t ahead = (int64_t)7200 * SECOND;
  register_server(f, &s, "gen-1");
  const int64_t t = past_run(f, (struct past_run){.id = 1, .rounds = 2, .ago_s = 100});
  struct interval items[] = {{CAUSE_STARVED, t + 1 * SECOND + ahead, t + 8 * SECOND + ahead},
                             {CAUSE_COMPUTE, t + 8 * SECOND + ahead, t + 12 * SECOND + ahead}};
  beat(f, &s, core_wall_us(f->core) + ahead, items, 2);
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  assert_true(llabs(sum_of(line, 0, "generation", "starved_us") - 7 * SECOND) < SECOND / 2);
  assert_true(llabs(sum_of(line, 0, "generation", "compute_us") - 2 * SECOND) < SECOND / 2);
  assert_true(llabs(sum_of(line, 1, "generation", "compute_us") - 2 * SECOND) < SECOND / 2);
  const struct json *shown = json_at(intervals_of(line, "gen-1"), 0);
  assert_true(llabs(json_int(json_at(shown, 1)) - (t + 1 * SECOND)) < SECOND / 2);
  json_free(line);
}

static void a_long_timeline_says_that_it_is_cut(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct telling t = {.beat = true};
  register_server(f, &s, "gen-1");
  const int64_t from = past_run(f, (struct past_run){.id = 1, .rounds = 1, .ago_s = 3600, .open = true});
  t.worker = worker_number(&s);
  for (int64_t i = 0; i < 26000; i++) {
    t.items[t.count++] =
        (struct interval){i % 2 ? CAUSE_STARVED : CAUSE_COMPUTE, from + i * 5000, from + (i + 1) * 5000};
    if (t.count == 1000 || i == 25999) {
      tell(f, t);
      t.count = 0;
    }
  }
  struct json *line = timeline(f, "/v1/runs/r1/timeline");
  const struct json *worker = json_at(json_get(line, "workers"), 0);
  assert_int_equal(json_length(json_get(worker, "intervals")), TIMELINE_INTERVALS / 2); /* the rest: for the others */
  assert_true(json_bool(json_get(worker, "truncated")));
  assert_int_equal(sum_of(line, 0, "generation", "compute_us") + sum_of(line, 0, "generation", "starved_us"),
                   26000LL * 5000);
  json_free(line);
}

#define ON_A_COORDINATOR(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      ON_A_COORDINATOR(a_heartbeat_is_cut_where_rounds_end),
      ON_A_COORDINATOR(intervals_sent_again_are_not_counted_twice),
      ON_A_COORDINATOR(impossible_times_are_cut_to_bounds),
      ON_A_COORDINATOR(slot_time_goes_to_the_round_that_was_computed),
      ON_A_COORDINATOR(intervals_outside_every_round_are_dropped),
      ON_A_COORDINATOR(rows_are_packed),
      ON_A_COORDINATOR(the_oldest_rows_are_deleted),
      ON_A_COORDINATOR(ratios_come_from_the_trainers_intervals),
      ON_A_COORDINATOR(fill_begins_when_the_push_has_ended),
      ON_A_COORDINATOR(trainer_intervals_without_a_round_are_assigned_by_time),
      ON_A_COORDINATOR(gauges_show_the_newest_run),
      ON_A_COORDINATOR(progress_is_told_by_the_machines_clock),
      ON_A_COORDINATOR(verifying_is_stored_as_one_interval_and_a_sum),
      ON_A_COORDINATOR(a_heartbeat_brings_intervals_and_learns_of_the_run),
      ON_A_COORDINATOR(a_workers_clock_that_is_off_is_shown),
      ON_A_COORDINATOR(intervals_of_a_clock_that_is_off_are_shown_in_our_time),
      ON_A_COORDINATOR(a_long_timeline_says_that_it_is_cut),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
