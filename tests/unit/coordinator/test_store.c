/* The store and its migrations. What would break: a value comes back changed, a nested query resets its outer one,
 * there is a second current version (I1), the database of a newer coordinator is opened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "services/coordinator/store/migrations.h"
#include "services/coordinator/store/readers.h"
#include "tests/unit/base/scratch.h"

struct fixture {
  char dir[40], path[64];
  struct store *store;
};

static int setup(void **state) {
  static struct fixture f;
  scratch_folder(f.dir, sizeof f.dir, "store");
  snprintf(f.path, sizeof f.path, "%s/db.sqlite", f.dir);
  *state = &f;
  return store_open(&f.store, f.path, false, NULL) == RC_OK ? 0 : 1;
}

static int teardown(void **state) {
  struct fixture *f = *state;
  store_close(f->store);
  return file_remove_tree(f->dir, NULL) == RC_OK ? 0 : 1;
}

static void values_come_back_as_they_went(void **state) {
  struct fixture *f = *state;
  struct err err;
  struct rows q;
  bool row;
  size_t len;
  struct digest d, got;
  digest_of(&d, "x", 1);
  assert_int_equal(
      store_script(f->store, "CREATE TABLE t (i INTEGER, r REAL, t TEXT, b BLOB, d BLOB, n REAL, e BLOB) STRICT", &err),
      RC_OK);
  assert_int_equal(store_exec(f->store, &err, "INSERT INTO t VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                              BINDS(b_int(INT64_MIN), b_real(0.1), b_text("\xc3\xa4"), b_blob("a\0b", 3), b_digest(&d),
                                    b_real(NAN), b_blob(NULL, 0))),
                   RC_OK);
  assert_int_equal(store_changes(f->store), 1);
  assert_int_equal(store_query(f->store, &q, &err, "SELECT i, r, t, b, d, n, e FROM t", NO_BINDS), RC_OK);
  assert_int_equal(rows_next(&q, &row, &err), RC_OK);
  assert_true(row);
  assert_true(rows_int(&q, 0) == INT64_MIN);
  assert_true(rows_real(&q, 1) == 0.1);
  assert_string_equal(rows_text(&q, 2, NULL), "\xc3\xa4");
  assert_memory_equal(rows_blob(&q, 3, &len), "a\0b", 3);
  assert_int_equal(len, 3);
  assert_true(rows_digest(&q, 4, &got) && digest_equal(&got, &d));
  assert_true(rows_null(&q, 5));
  assert_false(rows_digest(&q, 3, &got));
  assert_false(rows_null(&q, 6)); /* empty, not null */
  assert_int_equal(rows_next(&q, &row, &err), RC_OK);
  assert_false(row);
  rows_end(&q);
}

/* A prompt may hold byte 0, and people see the whole prompt in their rollouts. */
static void a_text_with_byte_0_comes_back_whole(void **state) {
  struct fixture *f = *state;
  struct err err;
  struct rows q;
  bool row;
  size_t len;
  assert_int_equal(store_script(f->store, "CREATE TABLE u (t TEXT) STRICT", &err), RC_OK);
  assert_int_equal(store_exec(f->store, &err, "INSERT INTO u VALUES (?1)", BINDS(b_chars("a\0b", 3))), RC_OK);
  assert_int_equal(store_query(f->store, &q, &err, "SELECT t FROM u", NO_BINDS), RC_OK);
  assert_int_equal(rows_next(&q, &row, &err), RC_OK);
  assert_true(row);
  assert_memory_equal(rows_text(&q, 0, &len), "a\0b", 3);
  assert_int_equal(len, 3);
  rows_end(&q);
}

static enum rc count_in(struct store *s, int64_t depth, int64_t *rows) {
  struct rows q;
  bool row;
  enum rc rc = store_query(s, &q, NULL, "SELECT 1 UNION SELECT 2 UNION SELECT 3", NO_BINDS);
  while (rc == RC_OK && (rc = rows_next(&q, &row, NULL)) == RC_OK && row) {
    (*rows)++;
    if (depth) rc = count_in(s, depth - 1, rows);
  }
  rows_end(&q);
  return rc;
}

static void a_query_may_be_nested_in_itself(void **state) {
  struct fixture *f = *state;
  int64_t rows = 0;
  assert_int_equal(count_in(f->store, 2, &rows), RC_OK);
  assert_int_equal(rows, 3 + 9 + 27);
}

static void errors_are_told_apart(void **state) {
  struct fixture *f = *state;
  struct err err = {0};
  int64_t value = 5;
  assert_int_equal(store_script(f->store, "CREATE TABLE u (k INTEGER PRIMARY KEY)", &err), RC_OK);
  assert_int_equal(store_int(f->store, &value, &err, "SELECT k FROM u", NO_BINDS), RC_NOT_FOUND);
  assert_int_equal(value, 5);
  assert_int_equal(store_exec(f->store, &err, "INSERT INTO u VALUES (1)", NO_BINDS), RC_OK);
  assert_int_equal(store_exec(f->store, &err, "INSERT INTO u VALUES (1)", NO_BINDS), RC_CONFLICT);
  assert_int_equal(store_exec(f->store, &err, "INSERT INTO nowhere VALUES (1)", NO_BINDS), RC_IO);
  assert_non_null(strstr(err.message, "nowhere"));
}

static void the_schema_is_made_once_and_guards_itself(void **state) {
  struct fixture *f = *state;
  struct err err;
  int64_t n = 0;
  assert_int_equal(migrations_apply(f->store, &err), RC_OK);
  assert_int_equal(migrations_apply(f->store, &err), RC_OK);
  assert_int_equal(store_int(f->store, &n, &err, "SELECT max(version) FROM schema_version", NO_BINDS), RC_OK);
  assert_int_equal(n, migrations_newest());
  assert_int_equal(store_int(f->store, &n, &err,
                             "SELECT count(*) FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND "
                             "strict = 0 AND name NOT LIKE 'sqlite_%'",
                             NO_BINDS),
                   RC_OK);
  assert_int_equal(n, 0); /* every table is STRICT */
  assert_int_equal(
      store_script(
          f->store,
          "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, created_ms) VALUES "
          "(1, '', 0, 0, 'grpo', '{}', x'00', 1, '0', 0);"
          "INSERT INTO versions (run, version, state, digest, published, created_ms) VALUES (1, 0, 1, x'00', 1, 0)",
          &err),
      RC_OK);
  /* I1: never two current versions of a run */
  assert_int_equal(
      store_script(
          f->store,
          "INSERT INTO versions (run, version, state, digest, published, created_ms) VALUES (1, 1, 1, x'00', 1, 0)",
          &err),
      RC_CONFLICT);
  /* foreign keys are on */
  assert_int_equal(
      store_script(
          f->store,
          "INSERT INTO versions (run, version, state, digest, published, created_ms) VALUES (2, 0, 1, x'00', 1, 0)",
          &err),
      RC_CONFLICT);
}

static void a_newer_database_is_refused(void **state) {
  struct fixture *f = *state;
  struct err err;
  assert_int_equal(migrations_apply(f->store, &err), RC_OK);
  assert_int_equal(store_script(f->store, "INSERT INTO schema_version VALUES (999, 0)", &err), RC_OK);
  assert_int_equal(migrations_apply(f->store, &err), RC_UNSUPPORTED);
}

static void a_database_of_another_program_is_refused_and_left_as_it_is(void **state) {
  struct fixture *f = *state;
  struct err err;
  int64_t tables = 0;
  assert_int_equal(store_script(f->store, "CREATE TABLE bookmarks (url TEXT)", &err), RC_OK);
  assert_int_equal(migrations_apply(f->store, &err), RC_CONFLICT);
  assert_int_equal(store_int(f->store, &tables, &err, "SELECT count(*) FROM sqlite_master", NO_BINDS), RC_OK);
  assert_int_equal(tables, 1);
}

static void a_file_that_is_no_database_is_refused(void **state) {
  struct fixture *f = *state;
  struct err err;
  struct store *s = NULL;
  char path[80], junk[4096];
  memset(junk, 'x', sizeof junk);
  snprintf(path, sizeof path, "%s/junk", f->dir);
  assert_int_equal(file_write_atomic(path, junk, sizeof junk, &err), RC_OK);
  assert_int_equal(store_open(&s, path, false, &err), RC_CORRUPT);
}

static void readers_see_one_snapshot_and_write_nothing(void **state) {
  struct fixture *f = *state;
  struct readers *readers;
  struct store *s;
  struct err err;
  int64_t n = -1;
  assert_int_equal(store_script(f->store, "CREATE TABLE u (k INTEGER PRIMARY KEY); INSERT INTO u VALUES (1)", &err),
                   RC_OK);
  assert_int_equal(readers_create(&readers, f->path, &err), RC_OK);
  assert_int_equal(readers_take(readers, &s, &err), RC_OK);
  assert_int_equal(store_int(s, &n, &err, "SELECT count(*) FROM u", NO_BINDS), RC_OK);
  assert_int_equal(store_script(f->store, "INSERT INTO u VALUES (2)", &err), RC_OK);
  assert_int_equal(store_int(s, &n, &err, "SELECT count(*) FROM u", NO_BINDS), RC_OK);
  assert_int_equal(n, 1);
  assert_int_not_equal(store_script(s, "INSERT INTO u VALUES (3)", &err), RC_OK);
  readers_give(readers, s);
  assert_int_equal(readers_take(readers, &s, &err), RC_OK);
  assert_int_equal(store_int(s, &n, &err, "SELECT count(*) FROM u", NO_BINDS), RC_OK);
  assert_int_equal(n, 2);
  readers_give(readers, s);
  readers_destroy(readers);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(values_come_back_as_they_went, setup, teardown),
      cmocka_unit_test_setup_teardown(a_text_with_byte_0_comes_back_whole, setup, teardown),
      cmocka_unit_test_setup_teardown(a_query_may_be_nested_in_itself, setup, teardown),
      cmocka_unit_test_setup_teardown(errors_are_told_apart, setup, teardown),
      cmocka_unit_test_setup_teardown(the_schema_is_made_once_and_guards_itself, setup, teardown),
      cmocka_unit_test_setup_teardown(a_newer_database_is_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(a_database_of_another_program_is_refused_and_left_as_it_is, setup, teardown),
      cmocka_unit_test_setup_teardown(a_file_that_is_no_database_is_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(readers_see_one_snapshot_and_write_nothing, setup, teardown),
  };
  return cmocka_run_group_tests_name("coordinator/store", tests, NULL, NULL);
}
