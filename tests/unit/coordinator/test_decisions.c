/* The coordinator's pure decisions: dispatch, batching, expiry, filtering, shuffled rewards, ids, data paths,
 * comparison of log-probabilities. What would break: groups are served in another order, a lease spans groups, a batch
 * exceeds its budget, the control run learns, a dataset is read from outside the data directory, an inexact round is
 * called exact. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "services/coordinator/decide/clock_skew.h"
#include "services/coordinator/decide/batching.h"
#include "services/coordinator/decide/dispatch.h"
#include "services/coordinator/decide/expiry.h"
#include "services/coordinator/driver/batch_build.h"
#include "services/coordinator/rounds/group_seal.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/views/run_view.h"

static void plan_takes_lowest_groups_first_and_never_mixes_them(void **state) {
  (void)state;
  const struct waiting_sample w[] = {{0, 2, 0}, {0, 3, 4}, {1, 0, 0}, {1, 1, 0}, {1, 3, 0}, {2, 0, 0}};
  struct planned_lease p[8];
  int n = dispatch_plan(w, 6, 5, 0, p, 8);
  assert_int_equal(n, 3);
  assert_int_equal(p[0].group, 0);
  assert_int_equal(p[0].first, 2);
  assert_int_equal(p[0].count, 2);
  assert_int_equal(p[0].fence, 5); /* above the highest that any of its samples had */
  assert_int_equal(p[1].group, 1);
  assert_int_equal(p[1].count, 2);
  assert_int_equal(p[2].first, 3); /* a gap ends a lease */
  assert_int_equal(p[2].count, 1);
}

static void plan_respects_its_bounds(void **state) {
  (void)state;
  struct waiting_sample w[10];
  struct planned_lease p[8];
  for (int i = 0; i < 10; i++) w[i] = (struct waiting_sample){.group = 0, .sample = i};
  assert_int_equal(dispatch_plan(w, 10, 10, 4, p, 8), 3);
  assert_int_equal(p[0].count, 4);
  assert_int_equal(p[2].count, 2);
  assert_int_equal(dispatch_plan(w, 10, 10, 1, p, 8), 8); /* no more leases than asked for */
  assert_int_equal(dispatch_plan(w, 10, 0, 0, p, 8), 0);
  assert_int_equal(dispatch_plan(w, 0, 10, 0, p, 8), 0);
}

static void share_spreads_the_tail(void **state) {
  (void)state;
  assert_int_equal(dispatch_share(100, 2, 16, 0, 0), 16);
  assert_int_equal(dispatch_share(10, 2, 16, 0, 0), 5);
  assert_int_equal(dispatch_share(1, 4, 16, 0, 0), 1);
  assert_int_equal(dispatch_share(3, 0, 16, 0, 0), 3);
}

static void batches_hold_whole_groups_under_the_budget(void **state) {
  (void)state;
  const int64_t tokens[] = {40, 50, 20, 200, 10, 90, 1};
  assert_int_equal(batching_select(tokens, 7, 100), 2);
  assert_int_equal(batching_select(tokens + 3, 4, 100), 1); /* a group over the budget travels alone, whole */
  assert_int_equal(batching_select(tokens + 4, 3, 100), 2);
  assert_int_equal(batching_select(tokens, 7, INT64_MAX), 7);
  assert_int_equal(batching_select(tokens, 0, 100), 0);
}

static void a_batch_waits_for_groups_only_while_the_trainer_has_work(void **state) {
  (void)state;
  struct batch_need need = {.round_open = true, .groups_per_round = 64, .missing = INT_MAX};
  assert_int_equal(batching_worth(&need), 4); /* a sixteenth of the round, */
  need.groups_per_round = 33;
  assert_int_equal(batching_worth(&need), 3); /* rounded up */
  need.groups_per_round = 64;
  need.missing = 3;
  assert_int_equal(batching_worth(&need), 3);
  need.completes = true;
  assert_int_equal(batching_worth(&need), 1);
  need = (struct batch_need){.round_open = true, .trainer_idle = true, .groups_per_round = 64, .missing = INT_MAX};
  assert_int_equal(batching_worth(&need), 1);
  need = (struct batch_need){.groups_per_round = 64, .missing = INT_MAX}; /* the last groups of a round */
  assert_int_equal(batching_worth(&need), 1);
}

static void expiry_goes_by_the_time_passed_in(void **state) {
  (void)state;
  assert_false(expiry_worker_lost(1000, 500, 1500));
  assert_true(expiry_worker_lost(1000, 500, 1501));
  assert_int_equal(expiry_lease_deadline(7, 30), 37);
  assert_true(expiry_passed(37, 37));
  assert_false(expiry_passed(37, 36));
  assert_int_equal(expiry_sleep(5, 10, 100), 0);
  assert_int_equal(expiry_sleep(50, 10, 100), 40);
  assert_int_equal(expiry_sleep(INT64_MAX, 10, 100), 100);
  assert_int_equal(expiry_uncounted(150, true, 100), 0);
  assert_int_equal(expiry_uncounted(150, false, 100), 150);  /* nobody could work */
  assert_int_equal(expiry_uncounted(5100, true, 100), 5000); /* nobody could be heard */
}

static void a_workers_clock_is_known_by_its_quickest_message(void **state) {
  (void)state;
  const int64_t second = 1000000, hour = 3600 * second;
  int64_t known = clock_skew_learn(CLOCK_SKEW_UNKNOWN, 0, 50 * second);
  assert_int_equal(clock_skew_us(known), 0);             /* not told */
  known = clock_skew_learn(known, 2 * hour, 5 * second); /* three seconds on the way */
  known = clock_skew_learn(known, 2 * hour + 9 * second, 9 * second);
  known = clock_skew_learn(known, 2 * hour + 10 * second, 14 * second);
  assert_int_equal(clock_skew_us(known), 2 * hour);
  known = clock_skew_learn(known, 20 * second, 20 * second); /* it was set back */
  assert_int_equal(clock_skew_us(known), 0);
  known = clock_skew_learn(CLOCK_SKEW_UNKNOWN, 7 * second, 7 * second + 300000);
  assert_int_equal(clock_skew_us(known), 0); /* that is the way it took */
}

static void shuffled_rewards_are_a_permutation_that_depends_on_the_group(void **state) {
  (void)state;
  double a[8], b[8], sum = 0;
  int moved = 0, differs = 0;
  for (uint32_t group = 0; group < 8; group++) {
    for (int i = 0; i < 8; i++) a[i] = b[i] = i;
    rewards_shuffle(a, 8, 3, 1, group);
    rewards_shuffle(b, 8, 3, 1, group);
    assert_memory_equal(a, b, sizeof a);
    rewards_shuffle(b, 8, 4, 1, group);
    sum = 0;
    for (int i = 0; i < 8; i++) {
      sum += exp2(a[i]);
      moved += a[i] != i;
      differs += a[i] != b[i];
    }
    assert_true(sum == 255); /* each once */
  }
  assert_true(moved > 32 && differs > 32);
}

static void zero_advantages_are_filtered_only_on_request(void **state) {
  (void)state;
  struct run_config c = {.zero_advantage = FILTER_SHRINK};
  const float zero[] = {0, -0.0f, 0}, some[] = {0, 0, 0.5f};
  assert_non_null(group_filter_reason(&c, zero, 3));
  assert_null(group_filter_reason(&c, some, 3));
  c.zero_advantage = FILTER_KEEP;
  assert_null(group_filter_reason(&c, zero, 3));
}

static void evaluations_are_due_every_so_many_rounds_and_last(void **state) {
  (void)state;
  struct run_config c = {.rounds = 8, .evaluation = {.count = 1, .every_rounds = 3}, .training = {.objective = "grpo"}};
  const bool due[] = {true, false, false, true, false, false, true, true};
  for (int r = 0; r < 8; r++) assert_int_equal(round_evaluates(&c, r), due[r]);
  assert_false(round_evaluates(&c, 8));
  c.evaluation.after = true;
  assert_true(round_evaluates(&c, 8));
  c.evaluation.every_rounds = 0;
  for (int r = 0; r < 8; r++) assert_false(round_evaluates(&c, r));
  assert_true(round_evaluates(&c, 8));
  c.evaluation.before = true;
  for (int r = 0; r <= 8; r++) assert_int_equal(round_evaluates(&c, r), r == 0 || r == 8);
  c.evaluation.count = 0;
  assert_false(round_evaluates(&c, 0));
  c = (struct run_config){
      .rounds = 8, .evaluation = {.count = 1, .every_rounds = 3}, .training = {.objective = "cross_entropy"}};
  assert_false(round_evaluates(&c, 0));
}

static void publications_follow_the_objective(void **state) {
  (void)state;
  struct run_config c = {.rounds = 6, .publish_every = 4, .training = {.objective = "cross_entropy"}};
  const bool due[] = {false, false, false, true, false, true};
  for (int r = 0; r < 6; r++) assert_int_equal(run_publishes(&c, r), due[r]);
  c.publish_every = 0;
  assert_false(run_publishes(&c, 3));
  assert_true(run_publishes(&c, 5));
  c.training.objective = "grpo";
  assert_true(run_publishes(&c, 0));
}

static void eta_is_the_mean_of_done_rounds(void **state) {
  (void)state;
  assert_int_equal(run_eta_ms(10, 4, 400), 600);
  assert_int_equal(run_eta_ms(10, 10, 400), 0);
  assert_int_equal(run_eta_ms(10, 0, 0), -1);
}

static void ids_read_back_and_odd_ones_do_not_exist(void **state) {
  (void)state;
  int64_t run, round, group;
  const char *const odd[] = {"", "r", "7", "r07", "r-1", "r7x", "r 7", "r7.", "r9999999999999999999", "w3"};
  assert_string_equal(id_lease(7, 12, 3, 0, 4).text, "r7.12.3.0-3");
  assert_string_equal(id_batch(7, 12, 0).text, "r7.12.b0");
  assert_string_equal(id_sample(7, 12, 3, 1).text, "r7.12.3.1");
  assert_int_equal(id_parse_run(&run, "r7", NULL), RC_OK);
  assert_int_equal(run, 7);
  assert_int_equal(id_parse_run(&run, "r0", NULL), RC_OK);
  assert_int_equal(id_parse_round(&run, &round, "r7.12", NULL), RC_OK);
  assert_int_equal(round, 12);
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++)
    assert_int_equal(id_parse_run(&run, odd[i], NULL), RC_NOT_FOUND);
  assert_int_equal(id_parse_round(&run, &round, "r7.12.3", NULL), RC_NOT_FOUND);
  assert_int_equal(id_parse_group(&run, &round, &group, "group", "r7.12.3", NULL), RC_OK);
  assert_true(run == 7 && round == 12 && group == 3);
  struct err err = {0};
  assert_int_equal(id_parse_group(&run, &round, &group, "group", "r7.12", &err), RC_NOT_FOUND);
  assert_string_equal(err.message, "there is no group 'r7.12'; expected a name like r7.12.3");
  assert_int_equal(id_parse_group(&run, &round, &group, "group", "r7.12.3.0", NULL), RC_NOT_FOUND);
  assert_int_equal(id_parse_group(&run, &round, &group, "group", "w7.12.3", NULL), RC_NOT_FOUND);
  assert_int_equal(id_parse_worker(&run, "r3", NULL), RC_NOT_FOUND);
}

static void datasets_lie_inside_the_data_directory(void **state) {
  (void)state;
  char root[] = "/tmp/coordinator-paths-XXXXXX", data[64], path[128], out[LIMIT_PATH_MAX];
  struct err err;
  assert_non_null(mkdtemp(root));
  snprintf(data, sizeof data, "%s/data", root);
  snprintf(path, sizeof path, "%s/sub", data);
  assert_int_equal(file_make_dirs(path, &err), RC_OK);
  snprintf(path, sizeof path, "%s/sub/a.jsonl", data);
  assert_int_equal(file_write_atomic(path, "x", 1, &err), RC_OK);
  snprintf(path, sizeof path, "%s/secret", root);
  assert_int_equal(file_write_atomic(path, "x", 1, &err), RC_OK);
  snprintf(path, sizeof path, "%s/link", data);
  assert_int_equal(symlink("../secret", path), 0);
  assert_int_equal(data_path_resolve(out, sizeof out, data, "sub/a.jsonl", "dataset.path", &err), RC_OK);
  assert_int_equal(data_path_resolve(out, sizeof out, data, "./sub/a.jsonl", "dataset.path", &err), RC_OK);
  const char *const bad[] = {"",       "/etc/passwd", "..",      "../secret", "sub/../../secret",
                             "sub/..", "sub",         "missing", "link"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(data_path_resolve(out, sizeof out, data, bad[i], "dataset.path", &err), RC_INVALID);
    assert_string_equal(err.field, "dataset.path");
  }
  assert_int_equal(file_remove_tree(root, &err), RC_OK);
}

static void one_flipped_bit_of_a_logprob_is_seen(void **state) {
  (void)state;
  struct sample_segment segments[] = {{0, 1, true}, {1, 1, false}, {2, 1, true}};
  struct batch_sample sample = {.id = "r1.0.0.0", .segments = segments, .segment_count = 3};
  struct batch_group group = {.id = "r1.0.0", .samples = &sample, .sample_count = 1};
  float sampled[] = {-0.5f, -1.25f}, trained[] = {-0.5f, -1.25f};
  struct json_f32s behaviour = {sampled, 2};
  struct sample_logprobs answered = {.id = "r1.0.0.0", .logprobs = {trained, 2}};
  struct batch_status status = {.samples = &answered, .sample_count = 1};
  struct built_batch b = {.message = {.groups = &group, .group_count = 1}, .behaviour = &behaviour, .sample_count = 1};
  struct mismatch d;
  struct digest digest;
  struct arena arena = ARENA_INIT;
  assert_int_equal(logprobs_compare(&d, &b, &status, NULL), RC_OK);
  assert_int_equal(d.unequal, 0);
  logprobs_digest(&digest, &answered, 1);
  assert_true(logprobs_agree(&b, &digest, &arena));
  trained[1] = nextafterf(trained[1], 0);
  logprobs_digest(&digest, &answered, 1);
  assert_false(logprobs_agree(&b, &digest, &arena));
  arena_free(&arena);
  assert_int_equal(logprobs_compare(&d, &b, &status, NULL), RC_OK);
  assert_int_equal(d.unequal, 1);
  assert_true(d.max_abs > 0 && d.max_abs < 1e-6);
  assert_true(d.k1_sum == -d.max_abs); /* the sampler's less the trainer's */
  answered.logprobs.count = 1;         /* one token short */
  assert_int_equal(logprobs_compare(&d, &b, &status, NULL), RC_CORRUPT);
  answered.logprobs.count = 2;
  answered.id = "r1.0.0.1";
  assert_int_equal(logprobs_compare(&d, &b, &status, NULL), RC_CORRUPT);
  status.sample_count = 0;
  assert_int_equal(logprobs_compare(&d, &b, &status, NULL), RC_CORRUPT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plan_takes_lowest_groups_first_and_never_mixes_them),
      cmocka_unit_test(plan_respects_its_bounds),
      cmocka_unit_test(share_spreads_the_tail),
      cmocka_unit_test(batches_hold_whole_groups_under_the_budget),
      cmocka_unit_test(a_batch_waits_for_groups_only_while_the_trainer_has_work),
      cmocka_unit_test(expiry_goes_by_the_time_passed_in),
      cmocka_unit_test(a_workers_clock_is_known_by_its_quickest_message),
      cmocka_unit_test(shuffled_rewards_are_a_permutation_that_depends_on_the_group),
      cmocka_unit_test(zero_advantages_are_filtered_only_on_request),
      cmocka_unit_test(evaluations_are_due_every_so_many_rounds_and_last),
      cmocka_unit_test(publications_follow_the_objective),
      cmocka_unit_test(eta_is_the_mean_of_done_rounds),
      cmocka_unit_test(ids_read_back_and_odd_ones_do_not_exist),
      cmocka_unit_test(datasets_lie_inside_the_data_directory),
      cmocka_unit_test(one_flipped_bit_of_a_logprob_is_seen),
  };
  return cmocka_run_group_tests_name("coordinator/decisions", tests, NULL, NULL);
}
