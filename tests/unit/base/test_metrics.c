/* Metrics: text format, families, concurrent updates, the table's limit. */
#include "tests/unit/base/cm.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/metrics.h"

static int occurrences(const char *text, const char *needle) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, needle)); at++) n++;
  return n;
}

static void test_families_are_rendered_once(void **state) {
  (void)state;
  struct metric *a = metrics_register(METRIC_COUNTER, "t_leases_total", "kind=\"train\"", "Leases\nby \\ kind");
  metrics_register(METRIC_GAUGE, "t_other", "", "Between");
  struct metric *b = metrics_register(METRIC_COUNTER, "t_leases_total", "kind=\"eval\"", "Leases");
  assert_ptr_not_equal(a, b);
  assert_ptr_equal(a, metrics_register(METRIC_COUNTER, "t_leases_total", "kind=\"train\"", "again"));
  assert_null(metrics_register(METRIC_GAUGE, "t_leases_total", "", "another type"));
  metric_add(a, 2);
  metric_add(b, 0.25);
  struct buf out = BUF_INIT;
  metrics_render(&out);
  assert_non_null(strstr(out.data,
                         "# HELP t_leases_total Leases\\nby \\\\ kind\n# TYPE t_leases_total counter\n"
                         "t_leases_total{kind=\"train\"} 2\nt_leases_total{kind=\"eval\"} 0.25\n"));
  assert_int_equal(occurrences(out.data, "# TYPE t_leases_total"), 1);
  assert_non_null(strstr(out.data, "# TYPE t_other gauge\nt_other 0\n"));
  buf_free(&out);
}

static void test_values(void **state) {
  (void)state;
  struct metric *gauge = metrics_register(METRIC_GAUGE, "t_gauge", "", "g");
  struct metric *counter = metrics_register(METRIC_COUNTER, "t_counter_total", "", "c");
  metric_set(gauge, 5);
  metric_add(gauge, -7);
  assert_true(metric_value(gauge) == -2);
  metric_add(counter, 3);
  metric_add(counter, -1); /* a counter only grows */
  metric_add(counter, (double)NAN);
  assert_true(metric_value(counter) == 3);
  metric_set(gauge, (double)INFINITY);
  struct buf out = BUF_INIT;
  metrics_render(&out);
  assert_non_null(strstr(out.data, "\nt_gauge +Inf\n"));
  buf_free(&out);
  metric_add(NULL, 1);
  metric_set(NULL, 1);
}

/* Buckets are cumulative, a bound is in its own bucket, and what lies beyond the last bound is counted. */
static void test_a_histogram_counts_up_to_its_bounds(void **state) {
  (void)state;
  static const double bounds[] = {0.125, 0.5, 2};
  struct metric *m = metrics_register_histogram("t_pause", "kv=\"keep\"", "Pauses", bounds, 3);
  struct metric *plain = metrics_register_histogram("t_plain", "", "Plain", bounds, 1);
  assert_ptr_equal(m, metrics_register_histogram("t_pause", "kv=\"keep\"", "Pauses", bounds, 3));
  assert_null(metrics_register(METRIC_COUNTER, "t_pause", "", "another type"));
  static const double values[] = {0.5, 0.125, 0.25, 1.625, 2.5, -1};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) metric_observe(m, values[i]);
  metric_observe(m, (double)NAN);
  metric_observe(NULL, 1);
  metric_add(m, 7);
  metric_set(m, 7);
  metric_observe(metrics_register(METRIC_COUNTER, "t_no_histogram", "", "c"), 1);
  assert_true(metric_value(m) == 4);
  assert_true(metric_value(plain) == 0);
  struct buf out = BUF_INIT;
  metrics_render(&out);
  assert_non_null(strstr(out.data,
                         "# TYPE t_pause histogram\nt_pause_bucket{kv=\"keep\",le=\"0.125\"} 2\n"
                         "t_pause_bucket{kv=\"keep\",le=\"0.5\"} 4\nt_pause_bucket{kv=\"keep\",le=\"2\"} 5\n"
                         "t_pause_bucket{kv=\"keep\",le=\"+Inf\"} 6\nt_pause_sum{kv=\"keep\"} 4\n"
                         "t_pause_count{kv=\"keep\"} 6\n"));
  assert_non_null(strstr(out.data, "t_plain_bucket{le=\"0.125\"} 0\nt_plain_bucket{le=\"+Inf\"} 0\nt_plain_sum 0\n"));
  assert_non_null(strstr(out.data, "\nt_no_histogram 0\n"));
  buf_free(&out);
}

static void *add_many(void *metric) {
  for (int i = 0; i < 20000; i++) metric_add(metric, 1);
  return NULL;
}

static void test_no_update_is_lost(void **state) {
  (void)state;
  struct metric *m = metrics_register(METRIC_COUNTER, "t_many_total", "", "m");
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, add_many, m), 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  assert_true(metric_value(m) == 80000);
}

static void test_the_table_ends(void **state) { /* last: it fills the table */
  (void)state;
  int made = 0;
  for (int i = 0; i < 600; i++) {
    char labels[32];
    snprintf(labels, sizeof labels, "i=\"%d\"", i);
    if (metrics_register(METRIC_GAUGE, "t_full", labels, "f")) made++;
  }
  assert_in_range(made, 500, 512);
  assert_null(metrics_register(METRIC_GAUGE, "t_beyond", "", "b"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_families_are_rendered_once),
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_a_histogram_counts_up_to_its_bounds),
      cmocka_unit_test(test_no_update_is_lost),
      cmocka_unit_test(test_the_table_ends),
  };
  return cmocka_run_group_tests_name("base/metrics", tests, NULL, NULL);
}
