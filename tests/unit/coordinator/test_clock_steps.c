/* Time-outs and durations while somebody sets the machine's clock, in virtual time. What would break: a group fails
 * because the clock was set ahead, or does not fail because it was set back; a coordinator that is restarted under an
 * earlier clock stores durations below zero. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/group_timeout.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/rounds/tick.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/decide/states.h"
#include "tests/unit/base/clock_virtual.h"
#include "tests/unit/base/scratch.h"

enum {
  MS = 1000,
  GROUPS = 8,
  TRIALS = 400,
  TRIAL_MS = 6000,
  TIMEOUT_MS = 2000,
  LOOK_MS = 100,  /* core.c's nap */
  LATE_MS = 1300, /* looks are 100 ms apart; a deadline may be owed up to 1000 ms for what did not count */
  TWO_HOURS_MS = 7200000
};

static uint32_t dice = 20231;
static int64_t below(int64_t n) {
  dice = dice * 1664525u + 1013904223u;
  return (int64_t)(dice >> 8) % n;
}

/* ---- a coordinator without its writer's thread: the test is the writer ---- */

struct fixture {
  char dir[40], db[64];
  struct core_options options;
  struct core *core;
};

static void up(struct fixture *f) {
  struct err err = {0};
  if (core_create(&f->core, &f->options, &err) != RC_OK) fail_msg("%s", err.message);
}

static void down(struct fixture *f) {
  core_destroy(f->core);
  f->core = NULL;
}

static int setup(void **state) {
  static struct fixture f;
  log_init("test", LOG_ERROR);
  f = (struct fixture){0};
  scratch_folder(f.dir, sizeof f.dir, "clock-steps");
  snprintf(f.db, sizeof f.db, "%s/db.sqlite", f.dir);
  f.options = (struct core_options){
      .callbacks = &tick_callbacks, .db_path = f.db, .data_dir = f.dir, .lease_ttl_ms = 30000, .worker_ttl_ms = 10000};
  *state = &f;
  return 0;
}

static int teardown(void **state) {
  struct fixture *f = *state;
  return file_remove_tree(f->dir, NULL) == RC_OK ? 0 : 1;
}

static void sql(struct core *c, const char *text, const struct bind *binds, size_t count) {
  struct err err = {0};
  if (store_exec(c->store, &err, text, binds, count) != RC_OK) fail_msg("%s: %s", text, err.message);
}

static int64_t number(struct core *c, const char *text, int64_t value) {
  struct err err = {0};
  int64_t n = -1;
  if (store_int(c->store, &n, &err, text, BINDS(b_int(value))) != RC_OK) fail_msg("%s: %s", text, err.message);
  return n;
}

/* What core.c does at the begin of every transaction. */
static void read_clocks(struct core *c) {
  c->now_ms = clock_monotonic_ms();
  c->wall_ms = clock_wall_ms();
}

/* A running run with one open round, and one group more than can fail, which keeps the round open. */
static void run_insert(struct core *c) {
  const struct digest none = {0};
  sql(c,
      "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, created_ms) VALUES (1, "
      "'', "
      "?1, 0, 'grpo', '{}', ?2, 9, '1', ?3)",
      BINDS(b_int(RUN_RUNNING), b_digest(&none), b_int(c->wall_ms)));
  sql(c, "INSERT INTO versions VALUES (1, 0, 1, ?1, 1, NULL, ?2, NULL)", BINDS(b_digest(&none), b_int(c->wall_ms)));
  sql(c, "INSERT INTO rounds (run, round, state, version, opened_ms, groups_open) VALUES (1, 0, 0, 0, ?1, ?2)",
      BINDS(b_int(c->wall_ms), b_int(GROUPS + 1)));
  for (int i = 0; i <= GROUPS; i++)
    sql(c,
        "INSERT INTO groups (run, round, ordinal, state, purpose, dataset_index, sample_count, samples_open, "
        "prompt_ids, prompt, answer, extra) VALUES (1, 0, ?1, 0, 0, ?1, 4, 4, x'', '', '', '')",
        BINDS(b_int(i)));
}

/* ---- time-outs ---- */

static void look(struct core *c, int64_t *looked_ms) {
  struct err err = {0};
  read_clocks(c);
  if (c->now_ms < *looked_ms + LOOK_MS) return;
  *looked_ms = c->now_ms;
  if (groups_expire(c, &err) != RC_OK) fail_msg("%s", err.message);
}

/* Half of the groups come in time, the others never.  Somebody sets the clock by up to two hours, ahead and back. */
static void trial(struct core *c, int trial_number) {
  int64_t leased_at[GROUPS], done_at[GROUPS], set_at[2], looked_ms = 0;
  const int64_t begin_ms = clock_monotonic_ms();
  for (int i = 0; i < GROUPS; i++) {
    leased_at[i] = below(2000);
    done_at[i] = i % 2 ? TRIAL_MS : leased_at[i] + below(TIMEOUT_MS - 50);
  }
  for (int i = 0; i < 2; i++) set_at[i] = below(4000);
  for (int64_t at = 0; at < TRIAL_MS; at = clock_monotonic_ms() - begin_ms) {
    look(c, &looked_ms);
    for (int i = 0; i < 2; i++) {
      if (at < set_at[i]) continue;
      set_at[i] = TRIAL_MS;
      clock_set_us += (below(2) ? TWO_HOURS_MS : -below(TWO_HOURS_MS)) * MS;
    }
    for (int i = 0; i < GROUPS; i++) {
      const bool failed =
          number(c, "SELECT state FROM groups WHERE run = 1 AND round = 0 AND ordinal = ?1", i) == GROUP_FAILED;
      if (failed && at < leased_at[i] + TIMEOUT_MS)
        fail_msg("trial %d: group %d, leased at %lld ms, has failed at %lld ms", trial_number, i,
                 (long long)leased_at[i], (long long)at);
      if (!failed && at < done_at[i] && at > leased_at[i] + TIMEOUT_MS + LATE_MS)
        fail_msg("trial %d: group %d, leased at %lld ms, has not failed at %lld ms", trial_number, i,
                 (long long)leased_at[i], (long long)at);
      if (at >= leased_at[i])
        sql(c, "UPDATE groups SET leased_ms = coalesce(leased_ms, ?2) WHERE run = 1 AND round = 0 AND ordinal = ?1",
            BINDS(b_int(i), b_int(c->wall_ms)));
      if (at >= done_at[i])
        sql(c, "UPDATE groups SET state = 1 WHERE run = 1 AND round = 0 AND ordinal = ?1 AND state = 0",
            BINDS(b_int(i)));
    }
    virtual_us += (5 + below(55)) * MS;
  }
}

static void a_step_of_the_wall_clock_fails_no_group_and_spares_none(void **state) {
  struct fixture *f = *state;
  struct run_context context = {.run = 1, .config.group_timeout_ms = TIMEOUT_MS};
  up(f);
  struct core *c = f->core;
  c->context = &context;
  worker_add(c, &(struct live_worker){.id = 1, .kind = WORKER_GENERATION, .ready = true});
  read_clocks(c);
  run_insert(c);
  for (int i = 0; i < TRIALS; i++) {
    sql(c, "BEGIN", NO_BINDS);
    c->rounds->group_clock.due_ms = 0;
    trial(c, i);
    sql(c, "ROLLBACK", NO_BINDS);
  }
  c->context = NULL;
  down(f);
}

/* The machine stands still, or sleeps, right after a grant. */
static void a_group_leased_just_before_the_writer_stood_still_does_not_fail(void **state) {
  struct fixture *f = *state;
  struct run_context context = {.run = 1, .config.group_timeout_ms = TIMEOUT_MS};
  int64_t looked_ms = 0;
  up(f);
  struct core *c = f->core;
  c->context = &context;
  worker_add(c, &(struct live_worker){.id = 1, .kind = WORKER_GENERATION, .ready = true});
  read_clocks(c);
  run_insert(c);
  for (int i = 0; i < 5; i++) {
    look(c, &looked_ms);
    virtual_us += LOOK_MS * MS;
  }
  look(c, &looked_ms);
  virtual_us += 50 * MS;
  read_clocks(c);
  sql(c, "UPDATE groups SET leased_ms = ?1 WHERE ordinal = 0", BINDS(b_int(c->wall_ms)));
  virtual_us += (int64_t)TWO_HOURS_MS * MS;
  look(c, &looked_ms);
  virtual_us += LOOK_MS * MS;
  look(c, &looked_ms);
  assert_int_equal(number(c, "SELECT state FROM groups WHERE ordinal = 0 AND ?1", 1), GROUP_OPEN);
  c->context = NULL;
  down(f);
}

/* ---- started again ---- */

/* Runs a life in a process of its own, because a clock begins with its process; the exit status. */
static int in_another_process(struct fixture *f, bool (*life)(struct core *)) {
  const pid_t child = fork();
  if (child == 0) {
    struct core *c;
    struct err err = {0};
    if (core_create(&c, &f->options, &err) != RC_OK) _exit(2);
    const bool good = life(c);
    core_destroy(c);
    _exit(good ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool life_with_an_open_round(struct core *c) {
  run_insert(c);
  return c->wall_ms == clock_real_ms();
}

static bool life_that_goes_on_from_the_open_round(struct core *c) {
  return c->wall_ms == number(c, "SELECT opened_ms FROM rounds WHERE ?1", 1) && c->wall_ms > clock_real_ms();
}

static bool life_that_follows_the_clock(struct core *c) { return c->wall_ms == clock_real_ms(); }

static void a_start_under_an_earlier_clock_goes_on_from_the_newest_stored_time(void **state) {
  struct fixture *f = *state;
  clock_set_us = 0;
  assert_int_equal(in_another_process(f, life_with_an_open_round), 0);
  clock_set_us = -(int64_t)TWO_HOURS_MS * MS;
  assert_int_equal(in_another_process(f, life_that_goes_on_from_the_open_round), 0);
  clock_set_us = (int64_t)TWO_HOURS_MS * MS;
  assert_int_equal(in_another_process(f, life_that_follows_the_clock), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(
          a_start_under_an_earlier_clock_goes_on_from_the_newest_stored_time), /* before this process asks for the
                                                                                * time */
      CASE(a_step_of_the_wall_clock_fails_no_group_and_spares_none),
      CASE(a_group_leased_just_before_the_writer_stood_still_does_not_fail),
  };
  return cmocka_run_group_tests_name("coordinator/clock_steps", tests, NULL, NULL);
}
