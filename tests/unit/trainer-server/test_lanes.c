/* Units side by side: the same weights and answers as one after another, and the time of the clock, not of all threads;
 * and how many there are is chosen by the size of a unit and by memory. */
#include "services/trainer-server/engine/memory.h"
#include "tests/unit/trainer-server/support.h"

enum { ROUNDS = 3, GROUPS = 12, THREADS = 3 };

static struct arena arena;
static struct batch_group groups[ROUNDS][GROUPS];

struct played {
  struct digest digests[ROUNDS];
  struct batch_status batch; /* of the first round */
};

/* Memory for no more than so many lanes. */
static void bound_lanes(struct rig *g, int lanes) {
  struct parts parts;
  struct memory_plan plan;
  parts_make(&parts, g->model_dir);
  g->options.lanes = lanes;
  trainer_memory_plan(&plan, parts.model, &g->options);
  const size_t threads = (size_t)g->options.threads - 1; /* beside the one of these parts */
  g->options.memory_max = 2 * (int64_t)(memory_plan_total(&plan) + threads * parts.model->ops->scratch_bytes);
  parts_free(&parts);
}

static void play(struct played *out, int threads, int lanes) {
  struct rig g;
  struct open_run_answer answer;
  struct open_run run = run_request("r1");
  run.training.kl_coefficient = 0.5; /* log-probabilities of a reference as well */
  rig_make(&g, "");
  g.options.threads = threads;
  if (lanes < threads) bound_lanes(&g, lanes);
  rig_start(&g);
  rig_open(&g, &run, &answer);
  for (int v = 0; v < ROUNDS; v++) {
    const int64_t begun_us = clock_monotonic_us();
    out->digests[v] = rig_round(&g, "r1", v, groups[v], GROUPS);
    if (v > 0) continue;
    struct err err = {0};
    assert_rc(RC_OK, trainer_batch_status(&g.client, "r1.0.b0", WAIT_MS / 2, true, &out->batch, &arena, WAIT_MS, &err),
              err);
    const struct batch_stats *s = &out->batch.stats;
    assert_true(s->logprob_us + s->compute_us > 0); /* no log-probabilities where other threads had every unit */
    assert_true(s->logprob_us + s->compute_us <= clock_monotonic_us() - begun_us);
  }
  rig_end(&g);
}

static void played_alike(const struct played *one, const struct played *other) {
  for (int v = 0; v < ROUNDS; v++) assert_true(digest_equal(&one->digests[v], &other->digests[v]));
  assert_int_equal(one->batch.sample_count, other->batch.sample_count);
  assert_true(one->batch.stats.loss == other->batch.stats.loss);
  assert_true(one->batch.stats.entropy_sum == other->batch.stats.entropy_sum);
  for (size_t i = 0; i < one->batch.sample_count; i++) {
    const struct sample_logprobs *a = &one->batch.samples[i], *b = &other->batch.samples[i];
    assert_string_equal(a->id, b->id);
    assert_int_equal(a->logprobs.count, b->logprobs.count);
    assert_memory_equal(a->logprobs.items, b->logprobs.items, a->logprobs.count * sizeof *a->logprobs.items);
  }
}

/* Also with fewer lanes than threads, which come to the lanes by chance: a thread's number is no lane's. */
static void test_the_same_weights_and_answers(void **state) {
  (void)state;
  struct played one, three, fewer;
  for (int v = 0; v < ROUNDS; v++) groups_make(&arena, groups[v], GROUPS, (uint32_t)v + 170);
  play(&one, 1, 1);
  play(&three, THREADS, THREADS);
  played_alike(&one, &three);
  for (int i = 0; i < 5; i++) {
    play(&fewer, THREADS, 2);
    played_alike(&one, &fewer);
  }
  arena_free(&arena);
}

static int lanes(const struct rig *g, const struct parts *parts) {
  struct trainer_options options = g->options;
  memory_choose_lanes(&options, parts->model, trainer_memory_plan);
  return options.lanes;
}

/* One a thread for small units, as many as fit into half of the room; one for large units. */
static void test_how_many(void **state) {
  (void)state;
  struct rig g;
  struct parts parts;
  struct memory_plan plan;
  rig_make(&g, "");
  parts_make(&parts, g.model_dir);
  g.options.threads = 1;
  assert_int_equal(lanes(&g, &parts), 1);
  g.options.threads = 4;
  assert_int_equal(lanes(&g, &parts), 4);
  g.options.lanes = 2;
  trainer_memory_plan(&plan, parts.model, &g.options);
  g.options.memory_max = 2 * (int64_t)memory_plan_total(&plan);
  assert_int_equal(lanes(&g, &parts), 2);
  g.options.memory_max -= 2;
  assert_int_equal(lanes(&g, &parts), 1);
  g.options.memory_max = 0;
  g.options.threads = 2;
  parts.model->params.parameters = (size_t)(0x1p36 / 6 / CHUNK);
  assert_int_equal(lanes(&g, &parts), 2);
  parts.model->params.parameters++;
  assert_int_equal(lanes(&g, &parts), 1);
  parts_free(&parts);
  rig_end(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_same_weights_and_answers),
      cmocka_unit_test(test_how_many),
  };
  return cmocka_run_group_tests_name("trainer-server/lanes", tests, NULL, NULL);
}
