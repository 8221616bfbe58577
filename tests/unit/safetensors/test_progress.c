/* Progress: a short read is silent, a long one says now and then how far it is and how long it will take. */
#include "tests/unit/base/cm.h"

#include <string.h>

#include "common/safetensors/progress.h"

enum { GIB = 1 << 30 };

static void a_short_read_says_nothing(void **state) {
  (void)state;
  char line[PROGRESS_LINE_MAX] = "";
  struct progress p = {.what = "loading x", .all = 100, .begun_ms = 1000, .told_ms = 1000};
  assert_false(progress_at(line, &p, 60, 1000 + PROGRESS_MS - 1));
  assert_int_equal(p.done, 60);
  progress_add(NULL, 1); /* who has none need not ask */
}

static void a_long_read_says_how_far_it_is(void **state) {
  (void)state;
  char line[PROGRESS_LINE_MAX] = "";
  struct progress p = {.what = "loading x", .all = (size_t)10 * GIB, .begun_ms = 1000, .told_ms = 1000};
  assert_true(progress_at(line, &p, (size_t)2 * GIB, 5000));
  assert_string_equal(line, "loading x: 2.0 of 10.0 GiB, 0.50 GiB/s, 16 s to go");
  assert_false(progress_at(line, &p, GIB, 5000 + PROGRESS_MS - 1)); /* not again so soon */
  assert_true(progress_at(line, &p, GIB, 9000));
  assert_string_equal(line, "loading x: 4.0 of 10.0 GiB, 0.50 GiB/s, 12 s to go");
}

static void it_never_counts_beyond_the_whole(void **state) {
  (void)state;
  char line[PROGRESS_LINE_MAX] = "";
  struct progress p = {.what = "x", .all = 100, .begun_ms = 0, .told_ms = 0};
  assert_false(progress_at(line, &p, 0, 10 * PROGRESS_MS)); /* nothing is done: no speed can be told */
  assert_true(progress_at(line, &p, 70, 10 * PROGRESS_MS));
  assert_true(progress_at(line, &p, 70, 20 * PROGRESS_MS));
  assert_int_equal(p.done, 100);
  assert_non_null(strstr(line, " 0 s to go"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_short_read_says_nothing),
      cmocka_unit_test(a_long_read_says_how_far_it_is),
      cmocka_unit_test(it_never_counts_beyond_the_whole),
  };
  return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
