/* Samples of a prompt that have drawn the same tokens share the rows of their next one.  What each of them gets is what
 * it gets alone, and the rows that are computed are as many as there are different beginnings. */
#include "services/generation-server/engine/branches.h"
#include "tests/unit/generation-server/engine_test.h"

enum { SAMPLES = 8, JOBS = 4, MAX_NEW = 24 };

static int64_t shared_rows(const struct rig *r) {
  struct engine_counters n;
  engine_read_counters(r->engine, &n);
  return n.rows_shared;
}

static struct decode_job_spec cool_spec(int32_t *prompt, int length, int salt, float temperature) {
  struct decode_job_spec spec = spec_of(prompt, length, salt, SAMPLES, MAX_NEW);
  spec.sampling.temperature = temperature;
  return spec;
}

/* Different beginnings of 1 .. count - 1 tokens among the outcome's samples: the rows that have to be computed, where
 * all samples go side by side. */
static int64_t beginnings(const struct outcome *o) {
  int64_t count = 0;
  for (int i = 0; i < o->samples; i++) {
    for (int32_t n = 1; n < o->sample[i].count; n++) {
      bool known = false;
      for (int j = 0; j < i && !known; j++)
        known = o->sample[j].count > n &&
                memcmp(o->sample[j].tokens, o->sample[i].tokens, (size_t)n * sizeof(int32_t)) == 0;
      count += !known;
    }
  }
  return count;
}

static int64_t drawn(const struct outcome *o) {
  int64_t count = 0;
  for (int i = 0; i < o->samples; i++) count += o->sample[i].count;
  return count;
}

/* Greedy samples never part: seven of eight rows are the first one's. */
static void equal_samples_cost_one(void **state) {
  (void)state;
  static struct outcome o;
  struct rig rig;
  int32_t prompt[64];
  struct engine_counters n;
  rig_open(&rig, SAMPLES, 64, 16, 256);
  const struct decode_job_spec spec = cool_spec(prompt, 50, 1, 0);
  submit(&rig, &spec, &o);
  run_until_idle(&rig);
  engine_read_counters(rig.engine, &n);
  assert_int_equal(n.rows, 50 + SAMPLES * (MAX_NEW - 1));
  assert_int_equal(n.rows_shared, (SAMPLES - 1) * (MAX_NEW - 1));
  rig_close(&rig);
}

/* Some part early and some late; each temperature has both kinds. */
static void what_is_shared_is_what_is_equal(void **state) {
  (void)state;
  static struct outcome group, alone;
  struct rig rig;
  int32_t prompt[64];
  static const float temperatures[] = {0.05f, 0.1f, 0.2f, 0.4f};
  for (size_t t = 0; t < sizeof temperatures / sizeof temperatures[0]; t++) {
    for (int salt = 0; salt < 6; salt++) {
      rig_open(&rig, SAMPLES, 64, 16, 64);
      struct decode_job_spec spec = cool_spec(prompt, 9 + 7 * salt, salt, temperatures[t]);
      submit(&rig, &spec, &group);
      run_until_idle(&rig);
      assert_int_equal(shared_rows(&rig), drawn(&group) - SAMPLES - beginnings(&group));
      if (t < 2) assert_true(shared_rows(&rig) > 0);
      spec.sample_count = 1;
      for (int i = 0; i < SAMPLES; i++) {
        spec.sample_first = i;
        submit(&rig, &spec, &alone);
        run_until_idle(&rig);
        assert_int_equal(alone.sample[0].count, group.sample[i].count);
        assert_memory_equal(alone.sample[0].tokens, group.sample[i].tokens, (size_t)group.sample[i].count * 4);
        assert_memory_equal(alone.sample[0].logprobs, group.sample[i].logprobs, (size_t)group.sample[i].count * 4);
      }
      assert_pages_home(&rig);
      rig_close(&rig);
    }
  }
}

/* Where samples wait, lose their pages and come back out of step, fewer rows are shared, and the same is drawn. */
static void out_of_step_the_same_is_drawn(void **state) {
  (void)state;
  static struct outcome expected[JOBS], got[JOBS];
  static const struct {
    int slots, pages, chunk;
  } shapes[] = {{1, 64, 200}, {32, 400, 256}, {5, 60, 17}, {16, 12, 40}, {24, 16, 3}};
  int64_t preemptions = 0, shared = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    struct rig rig;
    struct engine_counters n;
    int32_t prompt[64];
    rig_open(&rig, shapes[i].slots, shapes[i].pages, 16, shapes[i].chunk);
    for (int j = 0; j < JOBS; j++) {
      const struct decode_job_spec spec = cool_spec(prompt, 3 + 13 * j, j, 0.1f);
      submit(&rig, &spec, i == 0 ? &expected[j] : &got[j]);
    }
    run_until_idle(&rig);
    engine_read_counters(rig.engine, &n);
    if (i == 0) assert_int_equal(n.rows_shared, 0);
    for (int j = 0; j < JOBS && i > 0; j++) assert_same_outcome(&expected[j], &got[j]);
    preemptions += n.preemptions;
    shared += n.rows_shared;
    assert_pages_home(&rig);
    rig_close(&rig);
  }
  assert_true(preemptions > 5);
  assert_true(shared > 100);
}

/* Weights are swapped while keys and values of the old ones stay: samples that had a row in common go on having one,
 * and draw what each of them draws alone when the swap comes after as many tokens. */
static void samples_in_step_stay_so_over_a_swap(void **state) {
  (void)state;
  static struct outcome got[2];
  int64_t shared[2];
  int32_t prompt[64];
  for (int together = 0; together < 2; together++) {
    struct rig rig;
    rig_open(&rig, SAMPLES, 64, 16, 64);
    struct decode_job_spec spec = cool_spec(prompt, 20, 1, 0.02f);
    spec.sample_count = together ? SAMPLES : 1;
    spec.sample_first = together ? 0 : SAMPLES / 2;
    submit(&rig, &spec, &got[together]);
    for (int i = 0; i < MAX_NEW / 2; i++) engine_step(rig.engine);
    const int64_t before = shared_rows(&rig);
    assert_int_equal(engine_activate(rig.engine, rig.weights[1], &rig.policy[1]), RC_OK);
    run_until_idle(&rig);
    shared[together] = shared_rows(&rig) - before;
    assert_true(before > 0 || !together);
    assert_false(got[together].sample[0].fresh[MAX_NEW - 1]);
    rig_close(&rig);
  }
  assert_memory_equal(got[1].sample[SAMPLES / 2].tokens, got[0].sample[0].tokens, MAX_NEW * sizeof(int32_t));
  assert_memory_equal(got[1].sample[SAMPLES / 2].logprobs, got[0].sample[0].logprobs, MAX_NEW * sizeof(float));
  assert_int_equal(shared[0], 0);
  assert_true(shared[1] > MAX_NEW / 2);
}

static void draw(struct sample *s, int32_t token) {
  s->tokens[s->count++] = token;
  branch_grow(s);
}

static void a_head_that_lags_is_left(void **state) {
  (void)state;
  struct rig rig;
  struct err err = {0};
  struct decode_job *job;
  int32_t prompt[8];
  rig_open(&rig, SAMPLES, 64, 16, 64);
  const struct decode_job_spec spec = spec_of(prompt, 8, 1, 4, 4);
  assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err), RC_OK);
  struct sample *s = job->samples;
  s[3].tokens[s[3].count++] = 7; /* from an earlier holder */
  branches_begin(job);
  assert_ptr_equal(s[1].head, &s[0]);
  assert_ptr_equal(s[3].head, &s[3]);
  draw(&s[1], 0); /* its head has no token yet: it may get another one */
  assert_ptr_equal(s[1].head, &s[1]);
  draw(&s[0], 5);
  assert_ptr_equal(s[0].head, &s[0]);
  draw(&s[2], 0);
  assert_ptr_equal(s[2].head, &s[1]);
  draw(&s[1], 3);
  draw(&s[2], 4);
  assert_ptr_equal(s[2].head, &s[2]);
  decode_job_free(job);
  rig_close(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_samples_cost_one),
      cmocka_unit_test(what_is_shared_is_what_is_equal),
      cmocka_unit_test(out_of_step_the_same_is_drawn),
      cmocka_unit_test(samples_in_step_stay_so_over_a_swap),
      cmocka_unit_test(a_head_that_lags_is_left),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
