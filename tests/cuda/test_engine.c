/* The generation-server's engine over the device's table: continuous batching, forks, preemption and activation give a
 * sample the same tokens and log-probabilities whatever the shape of the engine, as they do on the CPU. */
#define RIG_TABLE(ops, pool, err) ops_cuda_create(ops, FORMAT_BF16, 0, EXACTNESS_INVARIANT, pool, err)
#include "common/model/cuda/ops_cuda.h"
#include "tests/unit/generation-server/engine_test.h"

enum { JOBS = 3, SAMPLES = 3, MAX_NEW = 20 };

static const int PROMPTS[JOBS] = {1, 16, 40};

static int64_t run_load(struct outcome *outcomes, int slots, int pages, int page_tokens, int chunk) {
  struct rig rig;
  int32_t prompt[64];
  rig_open(&rig, slots, pages, page_tokens, chunk);
  for (int j = 0; j < JOBS; j++) {
    struct decode_job_spec spec = spec_of(prompt, PROMPTS[j], j, SAMPLES, MAX_NEW);
    spec.raw_logprobs = j == 1;
    spec.top_count = j == 1 ? 2 : 0;
    if (j == 2) spec.sampling.top_k = 7;
    submit(&rig, &spec, &outcomes[j]);
  }
  run_until_idle(&rig);
  assert_pages_home(&rig);
  struct engine_counters n;
  struct err err;
  engine_read_counters(rig.engine, &n);
  if (engine_failure(rig.engine, &err) != RC_OK) fail_msg("%s", err.message);
  rig_close(&rig);
  return n.preemptions;
}

static void shapes_do_not_matter(void **state) {
  static struct outcome expected[JOBS], got[JOBS];
  (void)state;
  run_load(expected, 1, 20, 16, 200);
  assert_int_equal(expected[0].sample[0].count, MAX_NEW);
  run_load(got, 9, 60, 32, 17);
  for (int j = 0; j < JOBS; j++) assert_same_outcome(&expected[j], &got[j]);
  assert_true(run_load(got, 9, 8, 16, 9) > 0); /* pages for little more than one sequence */
  for (int j = 0; j < JOBS; j++) assert_same_outcome(&expected[j], &got[j]);
}

/* Samples that run on under other weights draw from these. */
static void activation_swaps_the_weights(void **state) {
  static struct outcome before, through;
  struct rig rig;
  int32_t prompt[16];
  (void)state;
  rig_open(&rig, 4, 20, 16, 64);
  const struct decode_job_spec spec = spec_of(prompt, 9, 1, 2, MAX_NEW);
  submit(&rig, &spec, &before);
  run_until_idle(&rig);
  submit(&rig, &spec, &through);
  for (int i = 0; i < 4; i++) engine_step(rig.engine);
  assert_int_equal(engine_activate(rig.engine, rig.weights[1], &rig.policy[1]), RC_OK);
  run_until_idle(&rig);
  for (int i = 0; i < 2; i++) {
    assert_memory_equal(through.sample[i].logprobs, before.sample[i].logprobs, 4 * sizeof(float));
    assert_memory_not_equal(through.sample[i].logprobs + 4, before.sample[i].logprobs + 4, 4 * sizeof(float));
    assert_int_equal(through.sample[i].versions[3], rig.policy[0].version);
    assert_int_equal(through.sample[i].versions[4], rig.policy[1].version);
  }
  rig_close(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(shapes_do_not_matter),
                                     cmocka_unit_test(activation_swaps_the_weights)};
  return cmocka_run_group_tests_name("the engine on a device", tests, NULL, NULL);
}
