/* The coordinator decides by the clock that it is given.  What would break: a test that moves its clock and waits for
 * ever; times that are stored by another clock than the one that is asked; a wake that returns before what is due is
 * done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/rounds/tick.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/journal.h"
#include "tests/unit/base/scratch.h"

enum { MS = 1000, TTL_MS = 5000, START_MS = 7000 };

static const int64_t WALL_US = INT64_C(1700000000000000);

static int64_t since_start_us(void *context) { return atomic_load((_Atomic int64_t *)context); }
static int64_t since_1970_us(void *context) { return WALL_US + since_start_us(context); }

struct fixture {
  char dir[40], db[64];
  _Atomic int64_t now_us;
  struct core *core;
};

static void up(struct fixture *f) {
  struct err err = {0};
  const struct core_options options = {
      .callbacks = &tick_callbacks,
      .db_path = f->db,
      .data_dir = f->dir,
      .lease_ttl_ms = TTL_MS,
      .worker_ttl_ms = TTL_MS,
      .clock = {.monotonic_us = since_start_us, .wall_us = since_1970_us, .context = &f->now_us}};
  if (core_create(&f->core, &options, &err) != RC_OK || core_start(f->core, &err) != RC_OK) fail_msg("%s", err.message);
}

static int setup(void **state) {
  static struct fixture f;
  log_init("test", LOG_ERROR);
  f = (struct fixture){.now_us = START_MS * MS};
  scratch_folder(f.dir, sizeof f.dir, "core-clock");
  snprintf(f.db, sizeof f.db, "%s/db.sqlite", f.dir);
  up(&f);
  *state = &f;
  return 0;
}

static int teardown(void **state) {
  struct fixture *f = *state;
  core_destroy(f->core);
  return file_remove_tree(f->dir, NULL) == RC_OK ? 0 : 1;
}

/* On the writer's thread. */
static void do_in(struct core *c, command_execute execute) {
  struct err err = {0};
  if (core_call(c, command_new(execute, 0), &err) != RC_OK) fail_msg("%s", err.message);
}

static enum rc worker_comes(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd;
  c->pool->workers[c->pool->worker_count++] =
      (struct live_worker){.id = 1, .kind = WORKER_GENERATION, .seen_ms = c->now_ms};
  return journal_incident(c, 0, "test", "the worker", "has come", err);
}

static enum rc worker_is_there(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd;
  return c->pool->worker_count == 1 ? RC_OK : err_set(err, RC_NOT_FOUND, NULL, "it is gone");
}

static enum rc worker_is_gone(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd;
  return c->pool->worker_count == 0 ? RC_OK : err_set(err, RC_CONFLICT, NULL, "it is there");
}

static void time_passes(struct fixture *f, int64_t ms) {
  struct err err = {0};
  for (; ms > 0; ms -= CORE_LOOK_MS) {
    f->now_us += (ms < CORE_LOOK_MS ? ms : CORE_LOOK_MS) * MS;
    if (core_wake(f->core, &err) != RC_OK) fail_msg("%s", err.message);
  }
}

static int64_t number(struct core *c, const char *sql) {
  struct store *s;
  struct err err = {0};
  int64_t n = -1;
  if (readers_take(core_readers(c), &s, &err) != RC_OK || store_int(s, &n, &err, sql, NO_BINDS) != RC_OK)
    fail_msg("%s: %s", sql, err.message);
  readers_give(core_readers(c), s);
  return n;
}

static void a_worker_is_lost_when_the_given_clock_says_so(void **state) {
  struct fixture *f = *state;
  do_in(f->core, worker_comes);
  time_passes(f, TTL_MS);
  do_in(f->core, worker_is_there);
  time_passes(f, 1);
  do_in(f->core, worker_is_gone);
}

static void what_is_stored_is_of_the_given_clock(void **state) {
  struct fixture *f = *state;
  time_passes(f, 1234);
  do_in(f->core, worker_comes);
  assert_int_equal(number(f->core, "SELECT at_ms FROM incidents"), WALL_US / MS + START_MS + 1234);
}

static void a_clock_behind_the_stored_times_is_put_ahead(void **state) {
  struct fixture *f = *state;
  time_passes(f, 900);
  do_in(f->core, worker_comes);
  const int64_t newest_us = core_wall_us(f->core);
  core_destroy(f->core);
  f->now_us = 0;
  up(f);
  assert_int_equal(core_wall_us(f->core), newest_us);
  f->now_us += 5;
  assert_int_equal(core_wall_us(f->core), newest_us + 5);
  assert_int_equal(core_monotonic_ms(f->core), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_worker_is_lost_when_the_given_clock_says_so),
      CASE(what_is_stored_is_of_the_given_clock),
      CASE(a_clock_behind_the_stored_times_is_put_ahead),
  };
  return cmocka_run_group_tests_name("coordinator/core_clock", tests, NULL, NULL);
}
