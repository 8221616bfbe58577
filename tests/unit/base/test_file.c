/* Files, clocks and log lines: ceilings, replacement as a whole, removal, one line per message. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

static char root[] = "/tmp/leasehold-base-XXXXXX";

static const char *in_root(const char *name) {
  static char path[4][256];
  static int turn;
  char *p = path[turn++ % 4];
  snprintf(p, sizeof path[0], "%s/%s", root, name);
  return p;
}

static int make_root(void **state) {
  (void)state;
  return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
  (void)state;
  return file_remove_tree(root, NULL) == RC_OK && !file_exists(root) ? 0 : -1;
}

static void test_write_then_read(void **state) {
  (void)state;
  struct err err;
  struct buf b = BUF_INIT;
  char *big = malloc(300000);
  memset(big, 'x', 300000);
  assert_int_equal(file_write_atomic(in_root("f"), big, 300000, &err), RC_OK);
  assert_int_equal(file_write_atomic(in_root("f"), "old", 3, &err), RC_OK);
  assert_int_equal(file_write_atomic(in_root("g"), big, 300000, &err), RC_OK);
  assert_false(file_exists(in_root("f.tmp")));
  buf_puts(&b, "before ");
  assert_int_equal(file_read(&b, in_root("f"), 3, &err), RC_OK);
  assert_string_equal(b.data, "before old");
  assert_int_equal(file_read(&b, in_root("g"), 299999, &err), RC_TOO_LARGE);
  assert_string_equal(b.data, "before old");
  buf_clear(&b);
  assert_int_equal(file_read(&b, in_root("g"), 300000, &err), RC_OK);
  assert_int_equal(b.len, 300000);
  assert_memory_equal(b.data, big, 300000);
  buf_clear(&b);
  assert_int_equal(file_read(&b, "/dev/zero", 100000, &err), RC_TOO_LARGE); /* no size to look at beforehand */
  buf_free(&b);
  free(big);
}

static void test_errors_are_named(void **state) {
  (void)state;
  struct err err;
  struct buf b = BUF_INIT;
  assert_int_equal(file_read(&b, in_root("absent"), 10, &err), RC_NOT_FOUND);
  assert_non_null(strstr(err.message, "absent: No such file"));
  assert_int_equal(file_read(&b, root, 10, &err), RC_IO);
  assert_int_equal(file_write_atomic(in_root("no/such/folder"), "x", 1, &err), RC_NOT_FOUND);
  assert_int_equal(file_rename_durable(in_root("absent"), in_root("z"), &err), RC_NOT_FOUND);
  assert_int_equal(file_sync_dir(in_root("absent"), &err), RC_NOT_FOUND);
  char longer[2000];
  memset(longer, 'a', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  assert_int_equal(file_write_atomic(longer, "x", 1, &err), RC_TOO_LARGE);
  assert_int_equal(file_make_dirs(longer, &err), RC_INVALID);
  buf_free(&b);
}

/* What a disk gives depends on the machine; that it is measured in the folder, and nothing is left there, does not. */
static void test_a_disk_is_measured_where_it_is_asked_about(void **state) {
  (void)state;
  struct err err;
  struct disk_speed speed;
  const char *dir = in_root("disk");
  assert_int_equal(file_make_dirs(dir, &err), RC_OK);
  assert_int_equal(file_disk_speed(&speed, dir, &err), RC_OK);
  assert_true(speed.write_bytes_per_s > 0);
  assert_true(speed.sync_us_median > 0 && speed.sync_us_median <= speed.sync_us_most);
  assert_int_equal(rmdir(dir), 0); /* it is empty */
  assert_int_equal(file_disk_speed(&speed, dir, &err), RC_IO);
  assert_non_null(strstr(err.message, "No such file"));
}

static void test_folders(void **state) {
  (void)state;
  struct err err;
  assert_int_equal(file_make_dirs(in_root("a/b//c/"), &err), RC_OK);
  assert_int_equal(file_make_dirs(in_root("a/b/c"), &err), RC_OK);
  assert_int_equal(file_write_atomic(in_root("a/b/c/file"), "x", 1, &err), RC_OK);
  assert_int_equal(file_make_dirs(in_root("a/b/c/file"), &err), RC_IO);
  assert_int_equal(file_make_dirs(in_root("a/b/c/file/d"), &err), RC_IO);
  assert_int_equal(symlink(root, in_root("a/link")), 0); /* must be removed, not followed */
  assert_int_equal(file_rename_durable(in_root("a"), in_root("moved"), &err), RC_OK);
  assert_true(file_exists(in_root("moved/b/c/file")));
  assert_int_equal(file_write_atomic(in_root("survivor"), "x", 1, &err), RC_OK);
  assert_int_equal(file_remove_tree(in_root("moved"), &err), RC_OK);
  assert_false(file_exists(in_root("moved")));
  assert_true(file_exists(in_root("survivor")));
  assert_int_equal(file_remove_tree(in_root("moved"), &err), RC_OK); /* gone is gone */
}

/* What was synced, in order: this program's fsync takes the place of the library's. */
static char synced[8][256];
static int synced_count;

int fsync(int fd) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  char *path = synced[synced_count++ % 8];
  const ssize_t n = readlink(link, path, sizeof synced[0] - 1);
  path[n > 0 ? n : 0] = '\0';
  return (int)syscall(SYS_fsync, fd);
}

static bool was_synced(const char *path) {
  for (int i = 0; i < synced_count; i++)
    if (strcmp(synced[i], path) == 0) return true;
  return false;
}

static void test_a_folder_is_synced_with_all_its_files(void **state) {
  (void)state;
  struct err err;
  assert_int_equal(file_make_dirs(in_root("together/deeper"), &err), RC_OK);
  synced_count = 0;
  assert_int_equal(file_write(in_root("together/one"), "x", 1, &err), RC_OK);
  assert_int_equal(file_write(in_root("together/two"), "", 0, &err), RC_OK);
  assert_int_equal(file_write(in_root("together/deeper/three"), "x", 1, &err), RC_OK);
  assert_int_equal(synced_count, 0);
  assert_int_equal(file_sync_folder(in_root("together"), &err), RC_OK);
  assert_int_equal(synced_count, 3);
  assert_true(was_synced(in_root("together/one")) && was_synced(in_root("together/two")));
  assert_string_equal(synced[2], in_root("together")); /* names after what they lead to */
  assert_int_equal(file_write(in_root("no/such/folder"), "x", 1, &err), RC_NOT_FOUND);
  assert_int_equal(file_sync_folder(in_root("absent"), &err), RC_NOT_FOUND);
}

static void test_dangerous_removals_are_refused(void **state) {
  (void)state;
  static const char *const paths[] = {"", "/", "//", ".", "..", "../.."};
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
    assert_int_equal(file_remove_tree(paths[i], NULL), RC_INVALID);
}

static void test_clock_deadline(void **state) {
  (void)state;
  const int64_t now = clock_monotonic_ms();
  const struct timespec t = clock_deadline_in(1999);
  const int64_t then = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
  assert_in_range(then - now, 1998, 2999);
  assert_true(t.tv_nsec < 1000000000);
  clock_sleep_ms(2);
  assert_true(clock_monotonic_ms() - now >= 1);
  assert_true(clock_wall_ms() > 1600000000000);
}

/* A peer's newline must not forge a second line; a long message is cut. */
static void test_one_line_per_message(void **state) {
  (void)state;
  struct buf b = BUF_INIT;
  fflush(stderr);
  const int saved = dup(STDERR_FILENO);
  FILE *file = fopen(in_root("log"), "w");
  dup2(fileno(file), STDERR_FILENO);
  log_init("tester", LOG_INFO);
  log_debug("hidden");
  log_info("hello %d\n2026 error forged", 5);
  log_warn("%6000d", 1);
  dup2(saved, STDERR_FILENO);
  close(saved);
  fclose(file);
  assert_int_equal(file_read(&b, in_root("log"), 100000, NULL), RC_OK);
  int lines = 0;
  for (size_t i = 0; i < b.len; i++) lines += b.data[i] == '\n';
  assert_int_equal(lines, 2);
  assert_int_equal(b.data[b.len - 1], '\n');
  assert_memory_equal(b.data + 23, "Z info tester hello 5?2026 error forged\n", 40);
  assert_int_equal(b.data[4], '-');
  assert_int_equal(b.data[19], '.');
  buf_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_write_then_read), cmocka_unit_test(test_errors_are_named),
      cmocka_unit_test(test_a_disk_is_measured_where_it_is_asked_about),
      cmocka_unit_test(test_folders),         cmocka_unit_test(test_a_folder_is_synced_with_all_its_files),
      cmocka_unit_test(test_clock_deadline),  cmocka_unit_test(test_dangerous_removals_are_refused),
      cmocka_unit_test(test_one_line_per_message),
  };
  return cmocka_run_group_tests_name("base/file", tests, make_root, remove_root);
}
