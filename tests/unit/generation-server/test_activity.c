/* What a server says it did must add up to its time.  What would break: a moment that is told twice or not at all, a
 * cause that loses time to another when intervals are merged, an unbounded log while the coordinator is away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "services/generation-server/engine/activity.h"
#include "tests/unit/base/clock_ahead.h"

enum { MS = 1000 };

static const enum interval_cause CAUSES[] = {CAUSE_COMPUTE, CAUSE_LOAD, CAUSE_STARVED, CAUSE_IDLE};

static uint64_t random_next(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static void check_whole(const struct interval_log *log, int64_t from_us, int64_t until_us) {
  assert_true(log->count <= ACTIVITY_KEPT);
  for (size_t i = 0; i < log->count; i++) {
    assert_true(log->items[i].end_us > log->items[i].begin_us);
    assert_int_equal(log->items[i].begin_us, i ? log->items[i - 1].end_us : from_us);
    if (i) assert_int_not_equal(log->items[i].cause, log->items[i - 1].cause);
  }
  if (log->count) assert_int_equal(log->items[log->count - 1].end_us, until_us);
}

static void check_sums(const struct interval_log *log, const int64_t expected_us[CAUSE_COUNT]) {
  int64_t us[CAUSE_COUNT] = {0};
  for (size_t i = 0; i < log->count; i++) us[log->items[i].cause] += log->items[i].end_us - log->items[i].begin_us;
  for (int c = 0; c < CAUSE_COUNT; c++) assert_int_equal(us[c], expected_us[c]);
}

static void merging_changes_no_sum(void **state) {
  (void)state;
  uint64_t seed = 7;
  for (int round = 0; round < 200; round++) {
    struct interval_log log = {.count = 0};
    int64_t us[CAUSE_COUNT] = {0}, now = 1000000;
    const int causes = 2 + round % 3, longest = round % 2 ? 3 * MS : 40 * MS;
    for (int i = 0; i < 2000; i++) {
      const enum interval_cause cause = CAUSES[random_next(&seed) % (unsigned)causes];
      const int64_t length = (int64_t)(random_next(&seed) % (unsigned)longest);
      interval_log_add(&log, cause, now, now + length);
      now += length;
      us[cause] += length;
    }
    check_whole(&log, 1000000, now);
    check_sums(&log, us);
  }
}

static void short_gaps_are_gathered(void **state) {
  (void)state;
  struct interval_log log = {.count = 0};
  int64_t now = 0;
  for (int i = 0; i < 12; i++) {
    interval_log_add(&log, CAUSE_COMPUTE, now, now + 9500);
    interval_log_add(&log, CAUSE_STARVED, now + 9500, now + 10000);
    now += 10000;
  }
  /* three gaps of half a millisecond are one of a millisecond and a half; the fourth makes it worth showing */
  const int64_t us[CAUSE_COUNT] = {[CAUSE_COMPUTE] = 12 * 9500, [CAUSE_STARVED] = 12 * 500};
  check_sums(&log, us);
  assert_int_equal(log.count, 6);
  assert_int_equal(log.items[0].end_us, 4 * 9500);
  assert_int_equal(log.items[1].end_us, 4 * 9500 + 4 * 500);
  /* a longer gap stands where it was */
  interval_log_add(&log, CAUSE_COMPUTE, now, now + 5000);
  interval_log_add(&log, CAUSE_STARVED, now + 5000, now + 8000);
  interval_log_add(&log, CAUSE_COMPUTE, now + 8000, now + 9000);
  assert_int_equal(log.items[log.count - 2].begin_us, now + 5000);
  assert_int_equal(log.items[log.count - 1].begin_us, now + 8000);
}

static void a_full_log_merges_its_shortest_neighbours(void **state) {
  (void)state;
  struct interval_log log = {.count = 0};
  int64_t now = 0;
  for (int i = 0; i < ACTIVITY_KEPT / 2; i++) { /* pairs of 100 and 50 ms, one of them short */
    const int64_t unit = i == 40 ? 6 * MS : 100 * MS;
    interval_log_add(&log, CAUSE_COMPUTE, now, now + unit);
    interval_log_add(&log, CAUSE_STARVED, now + unit, now + unit + unit / 2);
    now += unit + unit / 2;
  }
  assert_int_equal(log.count, ACTIVITY_KEPT);
  const struct interval before = log.items[20], after = log.items[120];
  interval_log_add(&log, CAUSE_LOAD, now, now + 1);
  assert_int_equal(log.count, ACTIVITY_KEPT - 1); /* two pairs became one, and one was added */
  assert_memory_equal(&log.items[20], &before, sizeof before);
  assert_memory_equal(&log.items[118], &after, sizeof after); /* only the short ones have moved */
  check_whole(&log, 0, now + 1);
}

static void what_is_told_is_forgotten_up_to_there(void **state) {
  (void)state;
  struct interval_log log = {.count = 0};
  interval_log_add(&log, CAUSE_IDLE, 0, 10 * MS);
  interval_log_add(&log, CAUSE_COMPUTE, 10 * MS, 30 * MS);
  interval_log_drop(&log, 20 * MS);
  check_whole(&log, 20 * MS, 30 * MS);
  assert_int_equal(log.count, 1);
  interval_log_drop(&log, 30 * MS);
  assert_int_equal(log.count, 0);
}

/* ---- causes ---- */

static void every_moment_has_the_cause_that_counts_most(void **state) {
  (void)state;
  struct activity *a;
  struct activity_report r;
  int64_t us[CAUSE_COUNT];
  struct err err;
  assert_int_equal(activity_create(&a, &err), RC_OK);
  const int64_t t = clock_monotonic_us() + 1000 * MS;
  activity_take(a, &r, t); /* idle until here */
  assert_int_equal(r.count, 1);
  assert_int_equal(r.items[0].cause, CAUSE_IDLE);
  activity_told(a, r.until_us);
  activity_set_at(a, ACTIVITY_LOADING, true, t + 10 * MS);    /* idle for 10 */
  activity_set_at(a, ACTIVITY_ACTIVE, true, t + 20 * MS);     /* no change: the weights are what it waits for */
  activity_set_at(a, ACTIVITY_LOADING, false, t + 40 * MS);   /* load for 30 */
  activity_set_at(a, ACTIVITY_COMPUTING, true, t + 45 * MS);  /* starved for 5 */
  activity_set_at(a, ACTIVITY_LOADING, true, t + 50 * MS);    /* no change: it decodes */
  activity_set_at(a, ACTIVITY_COMPUTING, false, t + 75 * MS); /* compute for 30 */
  activity_set_at(a, ACTIVITY_LOADING, false, t + 79 * MS);   /* load for 4 */
  activity_set_at(a, ACTIVITY_ACTIVE, false, t + 99 * MS);    /* starved for 20 */
  activity_take(a, &r, t + 100 * MS);
  static const struct {
    enum interval_cause cause;
    int ms;
  } expected[] = {{CAUSE_IDLE, 10}, {CAUSE_LOAD, 30},    {CAUSE_STARVED, 5}, {CAUSE_COMPUTE, 30},
                  {CAUSE_LOAD, 4},  {CAUSE_STARVED, 20}, {CAUSE_IDLE, 1}};
  assert_int_equal(r.count, sizeof expected / sizeof expected[0]);
  for (size_t i = 0; i < r.count; i++) {
    assert_int_equal(r.items[i].cause, expected[i].cause);
    assert_int_equal(r.items[i].end_us - r.items[i].begin_us, expected[i].ms * MS);
  }
  activity_sums(a, us, t + 110 * MS);
  assert_int_equal(us[CAUSE_COMPUTE], 30 * MS);
  assert_int_equal(us[CAUSE_LOAD], 34 * MS);
  assert_int_equal(us[CAUSE_STARVED], 25 * MS);
  activity_free(a);
}

static void a_leased_sample_means_that_a_run_is_active(void **state) {
  (void)state;
  struct activity *a;
  struct activity_report r;
  struct err err;
  assert_int_equal(activity_create(&a, &err), RC_OK);
  const int64_t t = clock_monotonic_us();
  activity_set_at(a, ACTIVITY_COMPUTING, true, t + 10 * MS);
  activity_set_at(a, ACTIVITY_COMPUTING, false, t + 20 * MS);
  activity_take(a, &r, t + 30 * MS);
  assert_int_equal(r.count, 3);
  assert_int_equal(r.items[2].cause, CAUSE_STARVED);
  activity_free(a);
  activity_set(NULL, ACTIVITY_COMPUTING, true); /* an engine without a record */
}

static void times_are_wall_clock(void **state) {
  (void)state;
  struct activity *a;
  struct activity_report r;
  struct err err;
  assert_int_equal(activity_create(&a, &err), RC_OK);
  time_passes(3);
  activity_take(a, &r, clock_monotonic_us());
  const int64_t late_us = clock_wall_us() - r.sent_us;
  assert_true(late_us >= -100 * MS && late_us < 1000 * MS);
  assert_int_equal(r.items[r.count - 1].end_us, r.sent_us);
  activity_free(a);
}

/* The receiver's rule: what lies before the end of what it has is a repeat. */
static void receive(const struct activity_report *r, int64_t *stored_us, int64_t us[CAUSE_COUNT]) {
  for (size_t i = 0; i < r->count; i++) {
    const int64_t begin_us = r->items[i].begin_us > *stored_us ? r->items[i].begin_us : *stored_us;
    if (r->items[i].end_us > begin_us) us[r->items[i].cause] += r->items[i].end_us - begin_us;
  }
  if (r->count && r->items[r->count - 1].end_us > *stored_us) *stored_us = r->items[r->count - 1].end_us;
}

/* Heartbeats get lost on their way there, and answers on their way back. */
static void nothing_is_told_twice_or_lost(void **state) {
  (void)state;
  struct activity *a;
  struct activity_report r;
  struct err err;
  uint64_t seed = 11;
  int64_t us[CAUSE_COUNT] = {0}, truth_us[CAUSE_COUNT], stored_us = 0;
  assert_int_equal(activity_create(&a, &err), RC_OK);
  int64_t now = clock_monotonic_us();
  for (int beat = 0; beat < 400; beat++) {
    for (int i = 0; i < 150; i++) { /* a few beats in a row that are lost fill the log */
      now += (int64_t)(random_next(&seed) % 4000);
      activity_set_at(a, (enum activity_flag)(1 << random_next(&seed) % 3), random_next(&seed) % 2, now);
    }
    activity_take(a, &r, now);
    const unsigned fate = (unsigned)(random_next(&seed) % 4);
    if (fate != 0 || beat == 399) receive(&r, &stored_us, us);
    if (fate > 1 || beat == 399) activity_told(a, r.until_us);
  }
  activity_sums(a, truth_us, now);
  for (int c = 0; c < CAUSE_COUNT; c++) assert_int_equal(us[c], truth_us[c]);
  activity_take(a, &r, now);
  assert_int_equal(r.count, 0);
  activity_free(a);
}

static void *toggler(void *argument) {
  struct activity *a = argument;
  for (int i = 0; i < 20000; i++) activity_set(a, ACTIVITY_COMPUTING, i % 2 == 0);
  return NULL;
}

static void threads_may_set_and_take_at_once(void **state) {
  (void)state;
  struct activity *a;
  struct activity_report r;
  struct err err;
  pthread_t thread;
  int64_t us[CAUSE_COUNT] = {0}, truth_us[CAUSE_COUNT], stored_us = 0;
  assert_int_equal(activity_create(&a, &err), RC_OK);
  assert_int_equal(pthread_create(&thread, NULL, toggler, a), 0);
  for (int i = 0; i < 200; i++) {
    activity_set(a, ACTIVITY_LOADING, i % 2 == 0);
    activity_take(a, &r, clock_monotonic_us());
    receive(&r, &stored_us, us);
    activity_told(a, r.until_us);
  }
  pthread_join(thread, NULL);
  activity_take(a, &r, clock_monotonic_us());
  receive(&r, &stored_us, us);
  activity_sums(a, truth_us, r.until_us);
  for (int c = 0; c < CAUSE_COUNT; c++) assert_int_equal(us[c], truth_us[c]);
  activity_free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(merging_changes_no_sum),
      cmocka_unit_test(short_gaps_are_gathered),
      cmocka_unit_test(a_full_log_merges_its_shortest_neighbours),
      cmocka_unit_test(what_is_told_is_forgotten_up_to_there),
      cmocka_unit_test(every_moment_has_the_cause_that_counts_most),
      cmocka_unit_test(a_leased_sample_means_that_a_run_is_active),
      cmocka_unit_test(times_are_wall_clock),
      cmocka_unit_test(nothing_is_told_twice_or_lost),
      cmocka_unit_test(threads_may_set_and_take_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
