/* The log's pages: gathered before they are written, and copied into the database beside the writer.  What would break:
 * a commit that is acknowledged is not in the file yet, a spilled transaction that is undone damages the log, the log
 * grows for ever under a writer that never stops or behind a reader that has left, pages that could not be copied are
 * forgotten with the log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "services/coordinator/store/checkpoints.h"
#include "services/coordinator/store/readers.h"
#include "tests/unit/base/scratch.h"

enum {
  PAGE = 4096,
  MEGABYTE = 1 << 20,
  LOG_MEGABYTES = 31,
  LOG_MEGABYTES_MAX = 110,
  WRITTEN_MEGABYTES = 250,
  ANEW_MS = 20000
};

static char bytes[MEGABYTE];

struct fixture {
  char dir[40], path[64], log_path[72];
  struct store *store;
};

static int setup(void **state) {
  static struct fixture f;
  scratch_folder(f.dir, sizeof f.dir, "checkpoints");
  snprintf(f.path, sizeof f.path, "%s/db.sqlite", f.dir);
  snprintf(f.log_path, sizeof f.log_path, "%s-wal", f.path);
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 31 >> 3);
  *state = &f;
  if (store_open(&f.store, f.path, false, NULL) != RC_OK) return 1;
  return store_script(f.store, "CREATE TABLE t (k INTEGER PRIMARY KEY, b BLOB NOT NULL) STRICT", NULL) == RC_OK ? 0 : 1;
}

static int teardown(void **state) {
  struct fixture *f = *state;
  store_close(f->store);
  return file_remove_tree(f->dir, NULL) == RC_OK ? 0 : 1;
}

static void insert(struct fixture *f, int64_t key, size_t len) {
  assert_int_equal(store_exec(f->store, NULL, "INSERT INTO t VALUES (?1, ?2)", BINDS(b_int(key), b_blob(bytes, len))),
                   RC_OK);
}

static int64_t count(struct store *s, const char *sql) {
  int64_t n = -1;
  assert_int_equal(store_int(s, &n, NULL, sql, NO_BINDS), RC_OK);
  return n;
}

static void assert_whole(struct store *s) {
  struct rows q;
  bool row = false;
  assert_int_equal(store_query(s, &q, NULL, "PRAGMA integrity_check", NO_BINDS), RC_OK);
  assert_int_equal(rows_next(&q, &row, NULL), RC_OK);
  assert_string_equal(rows_text(&q, 0, NULL), "ok");
  rows_end(&q);
}

static void copy_file(const char *from, const char *to) {
  struct buf all = BUF_INIT;
  assert_int_equal(file_read(&all, from, (size_t)1 << 30, NULL), RC_OK);
  assert_int_equal(file_write_atomic(to, all.data, all.len, NULL), RC_OK);
  buf_free(&all);
}

/* The files as they lie there now: what another process finds after a kill. */
static struct store *as_after_a_kill(const struct fixture *f) {
  char path[64], log_path[72];
  struct store *s;
  snprintf(path, sizeof path, "%s/copy.sqlite", f->dir);
  snprintf(log_path, sizeof log_path, "%s-wal", path);
  copy_file(f->path, path);
  copy_file(f->log_path, log_path);
  assert_int_equal(store_open(&s, path, false, NULL), RC_OK);
  return s;
}

static int64_t log_megabytes(const struct fixture *f) {
  struct stat st;
  assert_int_equal(stat(f->log_path, &st), 0);
  return st.st_size / MEGABYTE;
}

static void a_commit_is_in_the_log_when_it_returns(void **state) {
  struct fixture *f = *state;
  for (int64_t key = 0; key < 5; key++) {
    insert(f, key, key == 3 ? MEGABYTE : 100);
    struct store *after = as_after_a_kill(f);
    assert_int_equal(count(after, "SELECT count(*) FROM t"), key + 1);
    assert_whole(after);
    store_close(after);
  }
}

/* Pages that do not fit into memory go to the log before the commit, and are read back from there. */
static void a_spilled_transaction_is_read_back_and_undone(void **state) {
  struct fixture *f = *state;
  insert(f, 0, PAGE);
  assert_int_equal(store_script(f->store, "PRAGMA cache_size=16; BEGIN IMMEDIATE", NULL), RC_OK);
  for (int64_t key = 1; key < 40; key++) insert(f, key, 20 * PAGE);
  assert_int_equal(count(f->store, "SELECT sum(length(b)) FROM t"), PAGE + 39 * 20 * PAGE);
  assert_int_equal(count(f->store, "SELECT count(*) FROM t WHERE b = (SELECT b FROM t WHERE k = 7)"), 39);
  assert_int_equal(store_script(f->store, "ROLLBACK", NULL), RC_OK);
  insert(f, 100, PAGE);
  assert_int_equal(count(f->store, "SELECT count(*) FROM t"), 2);
  assert_whole(f->store);
  struct store *after = as_after_a_kill(f);
  assert_int_equal(count(after, "SELECT sum(k) FROM t"), 100);
  assert_whole(after);
  store_close(after);
}

static void the_log_begins_anew_under_a_writer_that_never_stops(void **state) {
  struct fixture *f = *state;
  struct checkpoints *c;
  assert_int_equal(checkpoints_start(&c, f->store, f->path, NULL), RC_OK);
  for (int64_t key = 0; key < WRITTEN_MEGABYTES; key++) {
    insert(f, key, MEGABYTE);
    checkpoints_go_on(c);
  }
  assert_in_range(log_megabytes(f), LOG_MEGABYTES, LOG_MEGABYTES_MAX);
  struct store *after = as_after_a_kill(f);
  assert_int_equal(count(after, "SELECT count(*) FROM t"), WRITTEN_MEGABYTES);
  assert_whole(after);
  store_close(after);
  checkpoints_stop(c);
}

/* Changes whenever the log begins anew. */
static uint64_t log_salt(const struct fixture *f) {
  unsigned char head[32];
  uint64_t salt;
  FILE *log = fopen(f->log_path, "rb");
  assert_non_null(log);
  assert_int_equal(fread(head, 1, sizeof head, log), sizeof head);
  fclose(log);
  memcpy(&salt, head + 16, sizeof salt);
  return salt;
}

/* The thread never comes to the end of a log that grows all the time: the last pages are the writer's. */
static void the_writer_copies_the_last_pages(void **state) {
  struct fixture *f = *state;
  struct checkpoints *c;
  int64_t key = 0;
  assert_int_equal(checkpoints_start(&c, f->store, f->path, NULL), RC_OK);
  for (; key <= LOG_MEGABYTES; key++) insert(f, key, MEGABYTE);
  const uint64_t salt = log_salt(f);
  const int64_t until_ms = clock_monotonic_ms() + ANEW_MS;
  while (log_salt(f) == salt && clock_monotonic_ms() < until_ms && log_megabytes(f) < 2 * LOG_MEGABYTES) {
    insert(f, key++, 100);
    checkpoints_go_on(c);
  }
  assert_true(log_salt(f) != salt);
  checkpoints_stop(c);
}

static void a_reader_keeps_the_log_only_while_it_reads(void **state) {
  struct fixture *f = *state;
  struct checkpoints *c;
  struct readers *readers;
  struct store *s;
  int64_t key = 0;
  insert(f, key++, PAGE);
  assert_int_equal(checkpoints_start(&c, f->store, f->path, NULL), RC_OK);
  assert_int_equal(readers_create(&readers, f->path, NULL), RC_OK);
  assert_int_equal(readers_take(readers, &s, NULL), RC_OK);
  assert_int_equal(count(s, "SELECT count(*) FROM t"), 1);
  for (; key < 2 * LOG_MEGABYTES; key++) {
    insert(f, key, MEGABYTE);
    checkpoints_go_on(c);
  }
  assert_int_equal(count(s, "SELECT count(*) FROM t"), 1);
  readers_give(readers, s);
  assert_true(log_megabytes(f) >= 2 * LOG_MEGABYTES - 1);
  for (int i = 0; i < LOG_MEGABYTES_MAX; i++) {
    insert(f, key++, MEGABYTE);
    checkpoints_go_on(c);
  }
  assert_in_range(log_megabytes(f), LOG_MEGABYTES, LOG_MEGABYTES_MAX);
  assert_int_equal(count(f->store, "SELECT count(*) FROM t"), key);
  readers_destroy(readers);
  checkpoints_stop(c);
}

/* What is copied lies in the database once the checkpoint is over, whatever the order of its pages in the log. */
static void pages_are_copied_whole_and_in_their_places(void **state) {
  struct fixture *f = *state;
  struct store *own, *alone;
  int copied = 0;
  char path[64];
  assert_int_equal(store_open(&own, f->path, false, NULL), RC_OK);
  for (int64_t key = 0; key < 60; key++) insert(f, key * 37 % 60, (size_t)(key * 1999 % 90000));
  assert_int_equal(store_exec(f->store, NULL, "DELETE FROM t WHERE k % 7 = 3", NO_BINDS), RC_OK);
  for (int64_t key = 60; key < 90; key++) insert(f, key, 3 * PAGE);
  assert_int_equal(store_checkpoint(own, &copied, NULL), RC_OK);
  assert_true(copied > 600);
  snprintf(path, sizeof path, "%s/alone.sqlite", f->dir); /* without its log */
  copy_file(f->path, path);
  assert_int_equal(store_open(&alone, path, false, NULL), RC_OK);
  assert_whole(alone);
  assert_int_equal(count(alone, "SELECT sum(k * length(b)) FROM t"),
                   count(f->store, "SELECT sum(k * length(b)) FROM t"));
  struct rows a, b;
  bool row_a = true, row_b = true;
  assert_int_equal(store_query(alone, &a, NULL, "SELECT b FROM t ORDER BY k", NO_BINDS), RC_OK);
  assert_int_equal(store_query(f->store, &b, NULL, "SELECT b FROM t ORDER BY k", NO_BINDS), RC_OK);
  while (rows_next(&a, &row_a, NULL) == RC_OK && rows_next(&b, &row_b, NULL) == RC_OK && row_a && row_b) {
    size_t len_a, len_b;
    const void *bytes_a = rows_blob(&a, 0, &len_a), *bytes_b = rows_blob(&b, 0, &len_b);
    assert_int_equal(len_a, len_b);
    assert_memory_equal(bytes_a, bytes_b, len_a);
  }
  assert_true(row_a == row_b);
  rows_end(&a);
  rows_end(&b);
  store_close(alone);
  store_close(own);
}

/* Writes to the database fail; those to its log do not. */
static ssize_t write_no_database(int fd, const void *from, size_t len, off_t at) {
  char link[32], path[64] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t path_len = readlink(link, path, sizeof path - 1);
  const bool database = path_len > 0 && strcmp(path + path_len - 3, "ite") == 0;
  if (!database) return pwrite(fd, from, len, at);
  errno = ENOSPC;
  return -1;
}

/* A process of its own: opens the database, tells `ready`, waits for `go`, and copies a log whose pages cannot be
 * written.  A reader holds the end of the log, so SQLite neither syncs nor truncates the database; what it copies lies
 * together. */
static void copy_in_vain(const char *path, int ready, int go) {
  sqlite3_vfs *unix_vfs = sqlite3_vfs_find("unix");
  const char *name = unix_vfs->xGetSystemCall(unix_vfs, "pwrite64") ? "pwrite64" : "pwrite";
  struct store *writer, *own, *reader;
  int64_t rows = 0;
  int copied = 0;
  char byte = 0;
  bool fine = store_open(&writer, path, false, NULL) == RC_OK && store_open(&own, path, false, NULL) == RC_OK;
  fine = fine && store_open(&reader, path, true, NULL) == RC_OK;
  const char *const made =
      "CREATE TABLE t (b BLOB); INSERT INTO t VALUES (zeroblob(20000)); CREATE TABLE last (b BLOB)";
  fine = fine && store_script(writer, made, NULL) == RC_OK;
  fine = fine && store_script(reader, "BEGIN", NULL) == RC_OK;
  fine = fine && store_int(reader, &rows, NULL, "SELECT count(*) FROM t", NO_BINDS) == RC_OK && rows == 1;
  fine = fine && store_script(writer, "INSERT INTO last VALUES (x'00')", NULL) == RC_OK;
  fine = fine && write(ready, &byte, 1) == 1 && read(go, &byte, 1) == 1;
  if (!fine) _exit(EXIT_SUCCESS);
  unix_vfs->xSetSystemCall(unix_vfs, name, (sqlite3_syscall_ptr)write_no_database);
  store_checkpoint(own, &copied, NULL);
  _exit(EXIT_SUCCESS);
}

/* Another process has the database open all the time, so what SQLite counted as copied would stay counted. */
static void a_process_ends_before_a_page_that_it_lost_is_counted(void **state) {
  const struct fixture *f = *state;
  char path[64], alone_path[64], byte = 0;
  int ready[2], go[2], status = 0, copied = 0;
  struct store *s, *alone;
  snprintf(path, sizeof path, "%s/other.sqlite", f->dir);
  snprintf(alone_path, sizeof alone_path, "%s/alone.sqlite", f->dir);
  assert_int_equal(pipe(ready), 0);
  assert_int_equal(pipe(go), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) copy_in_vain(path, ready[1], go[0]);
  close(ready[1]);
  close(go[0]);
  assert_int_equal(read(ready[0], &byte, 1), 1);
  assert_int_equal(store_open(&s, path, false, NULL), RC_OK);
  assert_int_equal(count(s, "SELECT count(*) FROM last"), 1);
  assert_int_equal(write(go[1], &byte, 1), 1);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
  close(ready[0]);
  close(go[1]);
  assert_int_equal(store_checkpoint(s, &copied, NULL), RC_OK);
  assert_true(copied > 5);
  copy_file(path, alone_path); /* without its log */
  assert_int_equal(store_open(&alone, alone_path, false, NULL), RC_OK);
  assert_int_equal(count(alone, "SELECT sum(length(b)) FROM t"), 20000);
  assert_int_equal(count(alone, "SELECT count(*) FROM last"), 1);
  assert_whole(alone);
  store_close(alone);
  store_close(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(pages_are_copied_whole_and_in_their_places, setup, teardown),
      cmocka_unit_test_setup_teardown(a_commit_is_in_the_log_when_it_returns, setup, teardown),
      cmocka_unit_test_setup_teardown(a_spilled_transaction_is_read_back_and_undone, setup, teardown),
      cmocka_unit_test_setup_teardown(the_log_begins_anew_under_a_writer_that_never_stops, setup, teardown),
      cmocka_unit_test_setup_teardown(the_writer_copies_the_last_pages, setup, teardown),
      cmocka_unit_test_setup_teardown(a_reader_keeps_the_log_only_while_it_reads, setup, teardown),
      cmocka_unit_test_setup_teardown(a_process_ends_before_a_page_that_it_lost_is_counted, setup, teardown),
  };
  return cmocka_run_group_tests_name("coordinator/checkpoints", tests, NULL, NULL);
}
