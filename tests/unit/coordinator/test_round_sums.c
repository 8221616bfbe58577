/* A round's sums, group by group, and the means made of them.  What would break: a mean over failed groups or over
 * evaluation samples, a group of stale tokens that nobody counts.  That the sums are what a scan of the rows gives, in
 * any order of transitions, is test_transitions.c's. */
#include "tests/unit/base/cm.h"

#include "services/coordinator/records/round_sums.h"
#include "tests/unit/coordinator/counted_store.h"

enum { RUN = 1, ROUND = 4, VERSION = 9 };

static double real(const char *sql) {
  struct rows q;
  struct err err = {0};
  bool row = false;
  must(store_query(core.store, &q, &err, sql, NO_BINDS), &err);
  must(rows_next(&q, &row, &err), &err);
  assert_true(row && !rows_null(&q, 0));
  const double value = rows_real(&q, 0);
  rows_end(&q);
  return value;
}

static int setup(void **state) {
  (void)state;
  if (counted_store_open() != RC_OK) return 1;
  run_sql(
      "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, created_ms) VALUES "
      "(1, 'x', 2, 1, 'grpo', '{}', x'00', 100, '1', 0)");
  run_sql(
      "INSERT INTO versions (run, version, state, digest, published, step, created_ms) VALUES (1, 9, 1, x'00', 1, "
      "'', 0)");
  run_sql(
      "INSERT INTO rounds (run, round, state, version, opened_ms, groups_open) VALUES (1, 4, 0, 9, 500, 7), "
      "(1, 5, 0, 9, 500, 7)");
  return 0;
}

static int teardown(void **state) {
  (void)state;
  store_close(core.store);
  return 0;
}

static void add(enum lease_purpose purpose, enum group_state as, int64_t samples, int64_t well_formed, int64_t tokens,
                double rewards) {
  const struct closed_group g = {.run = RUN,
                                 .round = ROUND,
                                 .counts_for = ROUND,
                                 .purpose = purpose,
                                 .state = as,
                                 .samples = samples,
                                 .well_formed = well_formed,
                                 .tokens = tokens,
                                 .rewards = rewards,
                                 .version_first = VERSION,
                                 .version_last = VERSION};
  struct err err = {0};
  must(round_sums_group(&core, &g, &err), &err);
  core.wall_ms++;
}

static void means(bool evaluates) {
  struct err err = {0};
  must(round_sums_means(&core, RUN, ROUND, evaluates, &err), &err);
  must(round_sums_evaluation(&core, RUN, ROUND, &err), &err);
}

static void means_are_over_the_training_groups_that_are_in(void **state) {
  (void)state;
  add(LEASE_TRAINING, GROUP_SEALED, 4, 3, 40, 1);
  add(LEASE_EVALUATION, GROUP_EVALUATED, 8, 8, 800, 8);
  add(LEASE_TRAINING, GROUP_FILTERED, 4, 4, 10, 4);
  means(false);
  assert_true(real("SELECT reward_mean FROM rounds WHERE round = 4") == 5.0 / 8);
  assert_true(real("SELECT well_formed_mean FROM rounds WHERE round = 4") == 7.0 / 8);
  assert_true(real("SELECT completion_tokens_mean FROM rounds WHERE round = 4") == 50.0 / 8);
  assert_int_equal(number("SELECT sampled_tokens FROM rounds WHERE round = 4"), 850);
  assert_int_equal(number("SELECT groups_open FROM rounds WHERE round = 4"), 4);
  assert_int_equal(number("SELECT groups_trained FROM rounds WHERE round = 4"), 1);
  assert_int_equal(number("SELECT groups_filtered FROM rounds WHERE round = 4"), 1);
  assert_int_equal(number("SELECT groups_sealed FROM rounds WHERE round = 4"), 1);
  assert_int_equal(number("SELECT first_sealed_ms FROM rounds WHERE round = 4"), 1000);
  assert_int_equal(number("SELECT generated_ms FROM rounds WHERE round = 4"), 1003);
  assert_int_equal(number("SELECT groups_open FROM rounds WHERE round = 5"), 7);
}

static void the_evaluation_groups_are_a_row_of_their_own(void **state) {
  (void)state;
  add(LEASE_TRAINING, GROUP_SEALED, 4, 4, 40, 0);
  add(LEASE_EVALUATION, GROUP_EVALUATED, 8, 7, 80, 5);
  add(LEASE_EVALUATION, GROUP_EVALUATED, 8, 8, 90, 1);
  means(false);
  assert_int_equal(number("SELECT count(*) FROM evaluations WHERE run = 1 AND round = 4 AND version = 9 AND problems = "
                          "2 AND samples = 16 AND at_ms = 1003"),
                   1);
  assert_true(real("SELECT accuracy FROM evaluations") == 6.0 / 16);
  assert_true(real("SELECT well_formed FROM evaluations") == 15.0 / 16);
  assert_true(real("SELECT reward_mean FROM rounds WHERE round = 4") == 0);
}

static void a_run_that_evaluates_has_the_means_of_its_evaluation(void **state) {
  (void)state;
  add(LEASE_EVALUATION, GROUP_EVALUATED, 8, 7, 80, 5);
  means(true);
  assert_true(real("SELECT reward_mean FROM rounds WHERE round = 4") == 5.0 / 8);
  assert_true(real("SELECT well_formed_mean FROM rounds WHERE round = 4") == 7.0 / 8);
  assert_true(real("SELECT completion_tokens_mean FROM rounds WHERE round = 4") == 10);
}

static void a_round_without_samples_has_no_means_and_no_evaluation(void **state) {
  (void)state;
  means(false);
  assert_int_equal(number("SELECT reward_mean IS NULL AND well_formed_mean IS NULL AND completion_tokens_mean IS NULL "
                          "FROM rounds WHERE round = 4"),
                   1);
  assert_int_equal(number("SELECT count(*) FROM evaluations"), 0);
}

static void groups_with_tokens_of_another_version_are_counted(void **state) {
  (void)state;
  static const struct {
    enum lease_purpose purpose;
    enum group_state as;
    int64_t first, last, stale;
  } cases[] = {
      {LEASE_TRAINING, GROUP_SEALED, VERSION, VERSION, 0},
      {LEASE_TRAINING, GROUP_SEALED, VERSION - 1, VERSION, 1},
      {LEASE_TRAINING, GROUP_SEALED, VERSION, VERSION + 1, 2},
      {LEASE_TRAINING, GROUP_SEALED, VERSION - 1, VERSION - 1, 3},
      {LEASE_TRAINING, GROUP_FILTERED, VERSION - 1, VERSION, 3}, /* is not trained on */
      {LEASE_EVALUATION, GROUP_EVALUATED, VERSION - 1, VERSION, 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct closed_group g = {.run = RUN,
                                   .round = ROUND,
                                   .counts_for = ROUND,
                                   .purpose = cases[i].purpose,
                                   .state = cases[i].as,
                                   .samples = 1,
                                   .version_first = cases[i].first,
                                   .version_last = cases[i].last};
    struct err err = {0};
    must(round_sums_group(&core, &g, &err), &err);
    assert_int_equal(number("SELECT groups_stale FROM rounds WHERE round = 4"), cases[i].stale);
  }
}

/* In flight it waits for no batch of its own and may be of any version.  Complete it counts for the round whose step
 * takes it, dropped for the one that is being filled. */
static void a_group_of_a_stream_counts_where_it_is_taken(void **state) {
  (void)state;
  struct err err = {0};
  struct closed_group g = {.run = RUN,
                           .round = ROUND,
                           .counts_for = ROUND + 1,
                           .stream = true,
                           .purpose = LEASE_TRAINING,
                           .state = GROUP_SEALED,
                           .samples = 4,
                           .tokens = 40,
                           .rewards = 3,
                           .version_first = VERSION - 1,
                           .version_last = VERSION};
  must(round_sums_group(&core, &g, &err), &err);
  assert_int_equal(number("SELECT groups_open FROM rounds WHERE round = 4"), 6);
  assert_int_equal(number("SELECT groups_open FROM rounds WHERE round = 5"), 7);
  assert_int_equal(number("SELECT training_samples FROM rounds WHERE round = 4"), 0);
  assert_int_equal(number("SELECT training_samples FROM rounds WHERE round = 5"), 0);
  assert_int_equal(number("SELECT groups_sealed + groups_trained + groups_stale FROM rounds WHERE round = 5"), 0);
  assert_int_equal(number("SELECT sampled_tokens FROM rounds WHERE round = 5"), 40);
  g.state = GROUP_FILTERED;
  must(round_sums_group(&core, &g, &err), &err);
  assert_int_equal(number("SELECT training_samples FROM rounds WHERE round = 5"), 4);
  run_sql(
      "INSERT INTO groups (run, round, ordinal, state, purpose, dataset_index, sample_count, samples_open, batch, "
      "trained_in, prompt_ids, prompt, answer, extra) VALUES (1, 4, 0, 2, 0, 0, 2, 0, 1, 5, x'', '', '', ''), "
      "(1, 4, 1, 2, 0, 0, 1, 0, 2, 5, x'', '', '', '')");
  run_sql(
      "INSERT INTO samples (run, round, group_ordinal, sample, state, tokens, reward, well_formed) VALUES "
      "(1, 4, 0, 0, 2, 7, 1, 1), (1, 4, 0, 1, 2, 5, 0, 1), (1, 4, 1, 0, 2, 100, 1, 1)");
  must(round_sums_taken(&core, RUN, ROUND + 1, 1, &err), &err);
  assert_int_equal(number("SELECT training_samples FROM rounds WHERE round = 5"), 6);
  assert_int_equal(number("SELECT training_well_formed FROM rounds WHERE round = 5"), 2);
  assert_int_equal(number("SELECT training_tokens FROM rounds WHERE round = 5"), 52);
  assert_true(real("SELECT training_rewards FROM rounds WHERE round = 5") == 4);
}

static int64_t instructions_of_taken(void) {
  struct err err = {0};
  count_begin();
  must(round_sums_taken(&core, RUN, ROUND, 1, &err), &err);
  return count_end();
}

static void what_a_step_took_is_found_without_a_look_at_earlier_samples(void **state) {
  (void)state;
  run_sql(
      "INSERT INTO groups (run, round, ordinal, state, purpose, dataset_index, sample_count, samples_open, batch, "
      "trained_in, prompt_ids, prompt, answer, extra) VALUES (1, 4, 0, 2, 0, 0, 1, 0, 1, 4, x'', '', '', '')");
  run_sql("INSERT INTO samples (run, round, group_ordinal, sample, state) VALUES (1, 4, 0, 0, 2)");
  const int64_t alone = instructions_of_taken();
  assert_true(alone > 0);
  run_sql(
      "INSERT INTO groups (run, round, ordinal, state, purpose, dataset_index, sample_count, samples_open, batch, "
      "trained_in, prompt_ids, prompt, answer, extra) WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM "
      "n "
      "WHERE i < 1000) SELECT 1, 4, i, 2, 0, 0, 1, 0, 1, 3, x'', '', '', '' FROM n");
  run_sql(
      "INSERT INTO samples (run, round, group_ordinal, sample, state) SELECT 1, 4, ordinal, 0, 2 FROM groups WHERE "
      "ordinal > 0");
  assert_true(instructions_of_taken() < 2 * alone);
}

static void what_is_undone_is_jobs_and_groups_without_one(void **state) {
  (void)state;
  struct err err = {0};
  int64_t undone = -1;
  must(round_sums_undone(core.store, RUN, ROUND, &undone, &err), &err);
  assert_int_equal(undone, 0);
  add(LEASE_TRAINING, GROUP_SEALED, 4, 4, 40, 0);
  must(round_sums_undone(core.store, RUN, ROUND, &undone, &err), &err);
  assert_int_equal(undone, 1);
  run_sql("UPDATE rounds SET jobs_undone = 2 WHERE round = 4");
  must(round_sums_undone(core.store, RUN, ROUND, &undone, &err), &err);
  assert_int_equal(undone, 3);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(means_are_over_the_training_groups_that_are_in),
      CASE(the_evaluation_groups_are_a_row_of_their_own),
      CASE(a_run_that_evaluates_has_the_means_of_its_evaluation),
      CASE(a_round_without_samples_has_no_means_and_no_evaluation),
      CASE(groups_with_tokens_of_another_version_are_counted),
      CASE(a_group_of_a_stream_counts_where_it_is_taken),
      CASE(what_a_step_took_is_found_without_a_look_at_earlier_samples),
      CASE(what_is_undone_is_jobs_and_groups_without_one),
  };
  return cmocka_run_group_tests_name("coordinator/round_sums", tests, NULL, NULL);
}
