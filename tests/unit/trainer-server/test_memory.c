/* What does not fit is refused where it is asked for, with numbers: a trainer at its start, a frozen reference when a
 * run that needs one is opened; and the trainer goes on without that run. */
#include "services/trainer-server/engine/memory.h"
#include "tests/unit/trainer-server/support.h"

static size_t planned(const struct rig *g) {
  struct parts parts;
  struct memory_plan plan;
  parts_make(&parts, g->model_dir);
  trainer_memory_plan(&plan, parts.model, &g->options);
  parts_free(&parts);
  return memory_plan_total(&plan);
}

static void test_a_bound_below_the_plan_refuses_the_start(void **state) {
  (void)state;
  struct rig g;
  struct err err = {0};
  rig_make(&g, "");
  g.options.memory_max = (int64_t)planned(&g) - 1;
  assert_int_equal(rig_try_start(&g, &err), RC_NO_MEMORY);
  assert_string_equal(err.field, "memory-max");
  assert_non_null(strstr(err.message, "the trainer needs"));
  assert_non_null(strstr(err.message, "optimizer"));
  g.trainer = NULL;
  rig_end(&g);
}

/* The refusal says what would help, and --fit does it. */
static void test_a_refusal_says_what_would_fit_and_fit_does_it(void **state) {
  (void)state;
  struct rig g;
  struct err err = {0};
  rig_make(&g, "");
  g.options.push_changes = true;
  g.options.memory_max = (int64_t)planned(&g) - 1;
  assert_int_equal(rig_try_start(&g, &err), RC_NO_MEMORY);
  assert_non_null(strstr(err.message, "it would fit with --push-changes false"));
  assert_non_null(strstr(err.message, "--fit chooses so"));
  assert_non_null(strstr(err.message, "; beside that, --optimizer-moments 8bit takes "));
  g.options.fit = true;
  rig_start(&g);
  rig_stop(&g);
  g.options.memory_max = 1000; /* nothing helps */
  assert_int_equal(rig_try_start(&g, &err), RC_NO_MEMORY);
  g.trainer = NULL;
  rig_end(&g);
}

/* Six bytes a parameter and what blocks need; neither the advice nor --fit speaks of what is chosen already. */
static void test_moments_in_8_bits_need_less(void **state) {
  (void)state;
  struct rig g;
  struct parts parts;
  struct err err = {0};
  rig_make(&g, "");
  const size_t whole = planned(&g);
  g.options.moments8 = true;
  parts_make(&parts, g.model_dir);
  const size_t elements = parts.model->params.elements, blocks = moment_blocks(&parts.model->params);
  parts_free(&parts);
  const size_t less = whole - planned(&g);
  assert_true(less <= 6 * elements - 8 * blocks && less + 512 >= 6 * elements - 8 * blocks);
  g.options.memory_max = 1000;
  assert_int_equal(rig_try_start(&g, &err), RC_NO_MEMORY);
  assert_non_null(strstr(err.message, "optimizer with 8-bit moments "));
  assert_null(strstr(err.message, "--optimizer-moments"));
  g.trainer = NULL;
  rig_end(&g);
}

static void test_a_reference_that_does_not_fit_refuses_the_run(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  rig_make(&g, "");
  g.options.memory_max = (int64_t)planned(&g);
  rig_start(&g);
  struct open_run run = run_request("r1");
  run.training.kl_coefficient = 0.5;
  assert_int_equal(trainer_open_run(&g.client, &run, &answer, &arena, WAIT_MS, &err), RC_NO_MEMORY);
  assert_non_null(strstr(err.message, "reference"));
  assert_non_null(strstr(err.message, "--memory-max"));
  run = run_request("r2");
  rig_open(&g, &run, &answer);
  assert_int_equal(answer.version, 0);
  arena_free(&arena);
  rig_end(&g);
}

/* A run with inner steps keeps the weights of its behaviour policy: as much as a reference, and with a KL term both.
 * What start plans for, and what a strict run needs, are as ever. */
static void test_a_behaviour_policy_that_does_not_fit_refuses_the_run(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct parts parts;
  rig_make(&g, "");
  parts_make(&parts, g.model_dir);
  const size_t copy = weights_bytes(parts.model, false);
  parts_free(&parts);
  const size_t bounds[] = {planned(&g), planned(&g) + copy, planned(&g) + 2 * copy};
  for (int copies = 0; copies < 3; copies++) {
    g.options.memory_max = (int64_t)bounds[copies];
    rig_start(&g);
    for (int needed = 0; needed < 3; needed++) {
      struct err err = {0};
      struct check_run_answer checked;
      const char *names[] = {"strict", "minibatch", "both"};
      char name[32];
      snprintf(name, sizeof name, "%s-%d", names[needed], copies);
      struct open_run run = run_request(name);
      run.training.update = needed > 0 ? UPDATE_MINIBATCH : UPDATE_STRICT;
      run.training.kl_coefficient = needed > 1 ? 0.5 : 0;
      const struct check_run check = {.training = run.training};
      const enum rc foreseen = trainer_ask_run(&g.client, &check, &checked, &arena, WAIT_MS, &err);
      assert_int_equal(foreseen, needed <= copies ? RC_OK : RC_INVALID);
      if (foreseen) assert_string_equal(err.field, "training.update");
      if (foreseen) assert_non_null(strstr(err.message, "behaviour policy"));
      const enum rc opened = trainer_open_run(&g.client, &run, &answer, &arena, WAIT_MS, &err);
      assert_int_equal(opened, needed <= copies ? RC_OK : RC_NO_MEMORY);
      if (opened) assert_non_null(strstr(err.message, "--memory-max"));
    }
    rig_stop(&g);
  }
  arena_free(&arena);
  rig_end(&g);
}

/* Versions that are being pushed while later ones are made: two at most, planned for when such a run is opened. */
static void test_versions_being_pushed_that_do_not_fit_refuse_the_run(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct parts parts;
  rig_make(&g, "");
  parts_make(&parts, g.model_dir);
  const size_t versions = 3 * model_file_bytes(parts.model), copy = weights_bytes(parts.model, false);
  parts_free(&parts);
  const size_t bounds[] = {planned(&g) + versions - 1, planned(&g) + versions, planned(&g) + versions + copy};
  for (int room = 0; room < 3; room++) {
    g.options.memory_max = (int64_t)bounds[room];
    rig_start(&g);
    for (int needed = 1; needed < 3; needed++) {
      struct err err = {0};
      struct check_run_answer checked;
      char name[32];
      snprintf(name, sizeof name, "%d-%d", needed, room);
      struct open_run run = run_request(name);
      run.training.update = UPDATE_INFLIGHT;
      run.training.kl_coefficient = needed > 1 ? 0.5 : 0;
      const struct check_run check = {.training = run.training};
      const enum rc foreseen = trainer_ask_run(&g.client, &check, &checked, &arena, WAIT_MS, &err);
      assert_int_equal(foreseen, needed <= room ? RC_OK : RC_INVALID);
      if (foreseen) assert_string_equal(err.field, "training.update");
      if (foreseen) assert_non_null(strstr(err.message, "versions being pushed"));
      const enum rc opened = trainer_open_run(&g.client, &run, &answer, &arena, WAIT_MS, &err);
      assert_int_equal(opened, needed <= room ? RC_OK : RC_NO_MEMORY);
    }
    rig_stop(&g);
  }
  arena_free(&arena);
  rig_end(&g);
}

/* Each of several ranks plans for its own shard of masters and moments.  This model is one block of the norm: the
 * second of two ranks has it all, the first nothing. */
static void test_ranks_share_the_optimizer(void **state) {
  (void)state;
  struct rig g;
  struct comm first = {.rank = 0, .size = 2}, second = {.rank = 1, .size = 2};
  struct parts parts;
  rig_make(&g, "");
  parts_make(&parts, g.model_dir);
  const size_t n = parts.model->params.elements, alone = planned(&g);
  assert_true(n < SHARD_BLOCK);
  g.options.ranks.comm = &second;
  assert_int_equal(planned(&g), alone);
  g.options.ranks.comm = &first;
  assert_true(planned(&g) <= alone - n * 12 && planned(&g) >= alone - n * 12 - 3 * 64);
  parts_free(&parts);
  folder_remove(g.dir);
}

/* Options move the parts that they should, and no other. */
static void test_parts_follow_the_options(void **state) {
  (void)state;
  struct rig g;
  rig_make(&g, "");
  const size_t as_it_is = planned(&g);
  g.options.recompute_activations = true;
  assert_true(planned(&g) < as_it_is);
  g.options.recompute_activations = false;
  g.options.chunk_tokens = 8 * CHUNK;
  assert_true(planned(&g) > as_it_is);
  g.options.memory_max = 1;
  g.options.chunk_tokens = CHUNK;
  assert_int_equal(planned(&g), as_it_is);
  rig_end(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_bound_below_the_plan_refuses_the_start),
      cmocka_unit_test(test_moments_in_8_bits_need_less),
      cmocka_unit_test(test_a_refusal_says_what_would_fit_and_fit_does_it),
      cmocka_unit_test(test_a_reference_that_does_not_fit_refuses_the_run),
      cmocka_unit_test(test_a_behaviour_policy_that_does_not_fit_refuses_the_run),
      cmocka_unit_test(test_versions_being_pushed_that_do_not_fit_refuse_the_run),
      cmocka_unit_test(test_ranks_share_the_optimizer),
      cmocka_unit_test(test_parts_follow_the_options),
  };
  return cmocka_run_group_tests_name("trainer-server/memory", tests, NULL, NULL);
}
