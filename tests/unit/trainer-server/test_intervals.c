/* What the trainer says about its time, over HTTP: every stretch under its cause, none missing, none twice, and the
 * figures of a batch are the sums of its stretches. */
#include "tests/unit/base/clock_ahead.h"
#include "tests/unit/trainer-server/peers.h"

enum { JITTER_US = 2000 }; /* two readings of two clocks, one after the other, on a busy machine */

static struct arena arena;

static int tear_down(void **state) {
  (void)state;
  arena_free(&arena);
  arena = (struct arena)ARENA_INIT;
  return 0;
}

static int64_t took(const struct interval *items, size_t count, enum interval_cause cause) {
  int64_t us = 0;
  for (size_t i = 0; i < count; i++) us += items[i].cause == cause ? items[i].end_us - items[i].begin_us : 0;
  return us;
}

/* The engine's lane, over all answers so far: where the last one ended. */
struct lane {
  int64_t begin_us, end_us;
};

static void lane_add(struct lane *lane, const struct interval *items, size_t count) {
  bool first = true;
  for (size_t i = 0; i < count; i++) {
    if (items[i].cause == CAUSE_PUSH) continue;
    assert_true(items[i].end_us > items[i].begin_us);
    const int64_t gap_us = items[i].begin_us - lane->end_us;
    if (lane->end_us == 0)
      lane->begin_us = items[i].begin_us;
    else if (first ? llabs(gap_us) > JITTER_US : gap_us != 0)
      fail_msg("%s begins %d us after the stretch before it ended", interval_cause_name(items[i].cause), (int)gap_us);
    lane->end_us = items[i].end_us;
    first = false;
  }
}

/* A round with waits of known length: before the first batch, between two, and before the step. */
static void every_stretch_has_its_cause(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct batch_group groups[3];
  struct batch_status first, second, repeat;
  struct step_status step;
  struct lane lane = {0};
  const int64_t before_us = clock_wall_us();
  rig_make(&g, "");
  rig_start(&g);
  time_passes(60);
  struct open_run run = run_request("r1");
  run.training.kl_coefficient = 0.5;
  rig_open(&g, &run, &answer);
  time_passes(80);
  groups_make(&arena, groups, 3, 1);
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 2, &first, &arena);
  time_passes(50);
  rig_batch(&g, "r1", "r1.0.b1", 0, groups + 2, 1, &second, &arena);
  time_passes(40);
  const struct submit_step m = step_request("r1", "r1.0", 0, groups, 3, &arena);
  rig_step(&g, &m, &step, &arena);
  const int64_t after_us = clock_wall_us();
  assert_true(first.state == JOB_DONE && second.state == JOB_DONE && step.state == JOB_DONE);

  assert_true(took(first.intervals, first.interval_count, CAUSE_IDLE) >= 55000);
  assert_true(took(first.intervals, first.interval_count, CAUSE_LOAD) > 0); /* restored, and opened a run */
  assert_true(took(first.intervals, first.interval_count, CAUSE_FILL) >= 75000);
  assert_int_equal(took(first.intervals, first.interval_count, CAUSE_STARVED), 0);
  assert_true(took(second.intervals, second.interval_count, CAUSE_STARVED) >= 45000);
  assert_int_equal(took(second.intervals, second.interval_count, CAUSE_FILL), 0);
  assert_true(took(step.intervals, step.interval_count, CAUSE_STARVED) >= 35000);
  assert_true(took(step.intervals, step.interval_count, CAUSE_STEP) >= step.step_us && step.step_us > 0);
  assert_int_equal(took(step.intervals, step.interval_count, CAUSE_CHECKPOINT), step.checkpoint_us);
  assert_true(step.checkpoint_us > 0);
  const struct interval *push = &step.intervals[step.interval_count - 1]; /* to nobody, and without a coordinator */
  assert_true(push->cause == CAUSE_PUSH && push->end_us - push->begin_us >= step.push_us);
  const struct batch_status *const batches[] = {&first, &second};
  for (int b = 0; b < 2; b++) {
    const struct batch_status *s = batches[b];
    assert_true(s->stats.logprob_us > 0 && s->stats.compute_us > 0);
    assert_int_equal(took(s->intervals, s->interval_count, CAUSE_LOGPROB), s->stats.logprob_us);
    assert_int_equal(took(s->intervals, s->interval_count, CAUSE_COMPUTE), s->stats.compute_us);
    lane_add(&lane, s->intervals, s->interval_count);
  }
  lane_add(&lane, step.intervals, step.interval_count);
  assert_true(lane.begin_us >= before_us - JITTER_US && lane.end_us <= after_us + JITTER_US);
  assert_true(lane.end_us - lane.begin_us >= 230000);

  struct err err = {0}; /* a repeated answer repeats them */
  assert_rc(RC_OK, trainer_batch_status(&g.client, "r1.0.b1", 0, true, &repeat, &arena, WAIT_MS, &err), err);
  assert_int_equal(repeat.interval_count, second.interval_count);
  assert_int_equal(repeat.intervals[0].begin_us, second.intervals[0].begin_us);
  rig_end(&g);
}

/* After the run's last step the engine waits for another run, not for this one's next groups; the time of a failed
 * batch is not lost, but comes with the next answer. */
static void the_last_step_ends_the_waiting(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct batch_group groups[1];
  struct batch_status batch;
  struct step_status step;
  rig_make(&g, "");
  rig_start(&g);
  struct open_run run = run_request("r1");
  rig_open(&g, &run, &answer);
  groups_make(&arena, groups, 1, 2);
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 1, &batch, &arena);
  rig_batch(&g, "r1", "r1.0.b1", 0, groups, 1, &batch, &arena);
  assert_true(batch.state == JOB_FAILED && batch.interval_count == 0);
  struct submit_step m = step_request("r1", "r1.0", 0, groups, 1, &arena);
  m.last = true;
  rig_step(&g, &m, &step, &arena);
  time_passes(60);
  run.run = "r2";
  rig_open(&g, &run, &answer);
  time_passes(30);
  rig_batch(&g, "r2", "r2.0.b0", 0, groups, 1, &batch, &arena);
  assert_true(took(batch.intervals, batch.interval_count, CAUSE_IDLE) >= 55000);
  assert_true(took(batch.intervals, batch.interval_count, CAUSE_LOAD) > 0);
  const int64_t fill_us = took(batch.intervals, batch.interval_count, CAUSE_FILL);
  assert_true(fill_us >= 28000);
  rig_end(&g);
}

/* A trainer that came back waits for the coordinator first, which may be gone itself, and from then on for groups. */
static void a_restored_trainer_is_idle_until_its_run_is_opened(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct batch_group groups[1];
  struct batch_status batch;
  const struct open_run run = run_request("r1");
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &run, &answer);
  rig_stop(&g);
  rig_start(&g);
  time_passes(120);
  rig_open(&g, &run, &answer);
  time_passes(40);
  groups_make(&arena, groups, 1, 2);
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, 1, &batch, &arena);
  const int64_t idle_us = took(batch.intervals, batch.interval_count, CAUSE_IDLE);
  const int64_t fill_us = took(batch.intervals, batch.interval_count, CAUSE_FILL);
  assert_true(idle_us >= 115000 && fill_us >= 38000);
  rig_end(&g);
}

/* More units than intervals fit, and units of several chunks: the sums stay exact. */
static void large_batches_keep_exact_sums(void **state) {
  (void)state;
  enum { MANY = 400 };
  struct rig g;
  struct open_run_answer answer;
  static struct batch_group groups[MANY];
  struct batch_status batch;
  struct lane lane = {0};
  rig_make(&g, "");
  rig_start(&g);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &answer);
  for (int i = 0; i < MANY; i++) {
    char id[32];
    snprintf(id, sizeof id, "r1.0.%d", i);
    groups[i] = group_make(&arena, id, i % 50 ? 1 : 30, (uint32_t)i);
  }
  rig_batch(&g, "r1", "r1.0.b0", 0, groups, MANY, &batch, &arena);
  if (batch.state != JOB_DONE) fail_msg("%s", batch.error.message);
  assert_true(batch.interval_count > 64 && batch.interval_count <= LIMIT_INTERVALS / 2);
  assert_int_equal(took(batch.intervals, batch.interval_count, CAUSE_LOGPROB), batch.stats.logprob_us);
  assert_int_equal(took(batch.intervals, batch.interval_count, CAUSE_COMPUTE), batch.stats.compute_us);
  lane_add(&lane, batch.intervals, batch.interval_count);
  struct http_answer a = call_raw(&g, "GET", "/metrics", NULL, 0);
  for (int c = 0; c < CAUSE_COUNT; c++) {
    char line[96];
    snprintf(line, sizeof line, "leasehold_trainer_seconds_total{cause=\"%s\"} ",
             interval_cause_name((enum interval_cause)c));
    assert_non_null(strstr(a.body.data, line));
  }
  http_answer_free(&a);
  rig_end(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(every_stretch_has_its_cause, tear_down),
      cmocka_unit_test_teardown(the_last_step_ends_the_waiting, tear_down),
      cmocka_unit_test_teardown(a_restored_trainer_is_idle_until_its_run_is_opened, tear_down),
      cmocka_unit_test_teardown(large_batches_keep_exact_sums, tear_down),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/intervals", tests, NULL, NULL);
}
