/* The engine's record: no gap, no overlap, and every microsecond under its cause, however much of it there is. */
#include "tests/unit/trainer-server/support.h"

#include "services/trainer-server/engine/timeline.h"

static struct timeline timeline;
static struct interval *taken;
static size_t count;
static struct arena arena;

static int set_up(void **state) {
  (void)state;
  timeline_begin(&timeline, 1000);
  arena = (struct arena)ARENA_INIT;
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  arena_free(&arena);
  return 0;
}

static void check(size_t i, enum interval_cause cause, int64_t begin_us, int64_t end_us) {
  assert_true(i < count);
  const struct interval *at = &taken[i];
  if (at->cause != cause || at->begin_us != begin_us || at->end_us != end_us)
    fail_msg("stretch %zu: expected %s %d to %d, got %s %d to %d", i, interval_cause_name(cause), (int)begin_us,
             (int)end_us, interval_cause_name(at->cause), (int)at->begin_us, (int)at->end_us);
}

static void stretches_follow_each_other(void **state) {
  (void)state;
  assert_int_equal(timeline_mark(&timeline, CAUSE_FILL, 1500), 500);
  assert_int_equal(timeline_mark(&timeline, CAUSE_FILL, 1600), 100); /* one stretch with the one before */
  assert_int_equal(timeline_mark(&timeline, CAUSE_LOGPROB, 1600), 0);
  assert_int_equal(timeline_mark(&timeline, CAUSE_LOGPROB, 1550), 0); /* an estimate that came out too early */
  assert_int_equal(timeline_mark(&timeline, CAUSE_COMPUTE, 1700), 100);
  timeline_take(&timeline, &taken, &count, 0, 1000000, &arena);
  assert_int_equal(count, 2);
  check(0, CAUSE_FILL, 1001000, 1001600);
  check(1, CAUSE_COMPUTE, 1001600, 1001700);
  timeline_take(&timeline, &taken, &count, 0, 0, &arena); /* once handed out it is gone */
  assert_int_equal(count, 0);
  timeline_mark(&timeline, CAUSE_COMPUTE, 1800); /* and what follows begins where it ended */
  timeline_take(&timeline, &taken, &count, 1, 0, &arena);
  assert_int_equal(count, 1);
  check(0, CAUSE_COMPUTE, 1700, 1800);
  taken[1] = taken[0]; /* room for one more */
}

/* What a refused hand-over would lose would be missing from the account for ever. */
static void refused_memory_keeps_the_record(void **state) {
  (void)state;
  timeline_mark(&timeline, CAUSE_STEP, 1010);
  timeline_take(&timeline, &taken, &count, SIZE_MAX / 4, 0, &arena);
  assert_null(taken);
  assert_int_equal(count, 0);
  timeline_take(&timeline, &taken, &count, 0, 0, &arena);
  assert_int_equal(count, 1);
  check(0, CAUSE_STEP, 1000, 1010);
}

/* Far more stretches than fit: as many as allowed are left, without gap or overlap, each cause with its exact sum, and
 * each moment not far from where it was. */
static void neighbours_are_merged_when_there_are_too_many(void **state) {
  (void)state;
  enum { MARKS = 100000 };
  for (int way = 0; way < 2; way++) {
    int64_t now_us = 1000, sums[CAUSE_COUNT] = {0}, merged[CAUSE_COUNT] = {0};
    uint32_t random = 5;
    timeline_begin(&timeline, now_us);
    for (int i = 0; i < MARKS; i++) {
      enum interval_cause cause = i % 2 ? CAUSE_COMPUTE : CAUSE_LOGPROB;
      if (way) cause = (enum interval_cause)(mix(&random) % CAUSE_COUNT);
      const int64_t took_us = 1 + mix(&random) % 50;
      now_us += took_us;
      sums[cause] += took_us;
      timeline_mark(&timeline, cause, now_us);
      assert_true(timeline.count <= TIMELINE_MAX);
    }
    timeline_take(&timeline, &taken, &count, 0, 0, &arena);
    assert_true(count > TIMELINE_MAX / 8 && count <= LIMIT_INTERVALS / 2);
    int64_t at_us = 1000;
    for (size_t i = 0; i < count; i++) {
      assert_true(taken[i].begin_us == at_us && taken[i].end_us > at_us);
      at_us = taken[i].end_us;
      merged[taken[i].cause] += taken[i].end_us - taken[i].begin_us;
    }
    assert_true(at_us == now_us);
    for (int c = 0; c < CAUSE_COUNT; c++) assert_true(merged[c] == sums[c]);
  }
}

static void every_cause_has_its_counter(void **state) {
  (void)state;
  struct buf before = BUF_INIT;
  char line[128];
  metrics_render(&before);
  for (int c = 0; c < CAUSE_COUNT; c++) {
    const double had = metric_value(timeline.seconds[c]);
    timeline_mark(&timeline, (enum interval_cause)c, timeline.at_us + 250000);
    assert_true(metric_value(timeline.seconds[c]) > had + 0.24 && metric_value(timeline.seconds[c]) < had + 0.26);
    snprintf(line, sizeof line, "leasehold_trainer_seconds_total{cause=\"%s\"}",
             interval_cause_name((enum interval_cause)c));
    assert_non_null(strstr(before.data, line));
  }
  buf_free(&before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(stretches_follow_each_other, set_up, tear_down),
      cmocka_unit_test_setup_teardown(refused_memory_keeps_the_record, set_up, tear_down),
      cmocka_unit_test_setup_teardown(neighbours_are_merged_when_there_are_too_many, set_up, tear_down),
      cmocka_unit_test_setup_teardown(every_cause_has_its_counter, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("trainer-server/timeline", tests, NULL, NULL);
}
