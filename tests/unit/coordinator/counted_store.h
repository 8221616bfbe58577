/* A store in memory, for tests of statements by themselves, whose instructions can be counted. */
#ifndef LEASEHOLD_TESTS_UNIT_COORDINATOR_COUNTED_STORE_H
#define LEASEHOLD_TESTS_UNIT_COORDINATOR_COUNTED_STORE_H

#include <sqlite3.h>

#include "services/coordinator/store/migrations.h"
#include "services/coordinator/writer/core_state.h"
#include "tests/unit/base/cm.h"

static struct core core;
static sqlite3 *connection; /* the store's own, to count the instructions of its statements */
static int64_t instructions;

static inline void must(enum rc rc, const struct err *err) {
  if (rc != RC_OK) fail_msg("%s: %s", rc_name(rc), err->message);
}

static inline int64_t number(const char *sql) {
  struct err err = {0};
  int64_t n = -1;
  must(store_int(core.store, &n, &err, sql, NO_BINDS), &err);
  return n;
}

static inline void run_sql(const char *sql) {
  struct err err = {0};
  must(store_exec(core.store, &err, sql, NO_BINDS), &err);
}

static inline int note_connection(sqlite3 *opened, char **error, const struct sqlite3_api_routines *api) {
  (void)error, (void)api;
  connection = opened;
  return SQLITE_OK;
}

static inline int count_instruction(void *context) {
  (void)context;
  instructions++;
  return 0;
}

/* With all tables and no rows. */
static inline enum rc counted_store_open(void) {
  sqlite3_auto_extension((void (*)(void))note_connection);
  core = (struct core){.wall_ms = 1000};
  const enum rc rc = store_open(&core.store, ":memory:", false, NULL);
  return rc == RC_OK ? migrations_apply(core.store, NULL) : rc;
}

static inline void count_begin(void) {
  instructions = 0;
  sqlite3_progress_handler(connection, 1, count_instruction, NULL);
}

/* Of all statements since count_begin. */
static inline int64_t count_end(void) {
  sqlite3_progress_handler(connection, 0, NULL, NULL);
  return instructions;
}

#endif
