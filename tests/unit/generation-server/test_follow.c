/* What another thread sees of samples while they are decoded, and what it can do: the engine's side of streaming. */
#include "tests/unit/generation-server/engine_test.h"

enum { MAX_NEW = 24, PROMPT = 12 };

static void count_wakes(void *context) { ++*(int *)context; }

static void tokens_are_shown_as_they_are_drawn(void **state) {
  (void)state;
  static struct outcome o;
  struct rig rig;
  int32_t prompt[PROMPT], seen[2][MAX_NEW] = {0};
  int wakes = 0, shown_before = 0;
  const struct follower follower = {count_wakes, &wakes};
  rig_open(&rig, 8, 64, 16, 64);
  const struct decode_job_spec spec = spec_of(prompt, PROMPT, 1, 2, MAX_NEW);
  struct decode_job *job = submit(&rig, &spec, &o);
  job->follower = &follower;
  for (int step = 1; step < MAX_NEW; step++) {
    assert_true(engine_step(rig.engine));
    const int shown = atomic_load(&job->samples[0].shown);
    assert_int_equal(shown, shown_before + 1);
    assert_int_equal(wakes, step); /* once a step, not once a token */
    for (int i = 0; i < 2; i++) {
      assert_int_equal(atomic_load(&job->samples[i].shown), shown);
      assert_false(atomic_load(&job->samples[i].over));
      seen[i][shown - 1] = job->samples[i].tokens[shown - 1];
    }
    shown_before = shown;
  }
  run_until_idle(&rig);
  for (int i = 0; i < 2; i++) assert_memory_equal(seen[i], o.sample[i].tokens, (MAX_NEW - 1) * sizeof(int32_t));
  rig_close(&rig);
}

/* What the follower sees once the job is over; the job is kept until the test has looked. */
static void keep_job(struct decode_job *job, void *context) { *(struct decode_job **)context = job; }

static void an_end_is_shown_whatever_its_reason(void **state) {
  (void)state;
  struct rig rig;
  struct err err;
  int32_t prompt[PROMPT];
  int wakes = 0;
  const struct follower follower = {count_wakes, &wakes};
  rig_open(&rig, 8, 64, 16, 64);
  for (int abandoned = 0; abandoned < 2; abandoned++) {
    const struct decode_job_spec spec = spec_of(prompt, PROMPT, 1, 2, 4);
    atomic_bool gone = false;
    struct decode_job *job, *ended = NULL;
    assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err), RC_OK);
    job->context = &ended;
    job->done = keep_job;
    job->follower = &follower;
    job->abandoned = &gone;
    assert_int_equal(engine_submit(rig.engine, job, &err), RC_OK);
    engine_step(rig.engine);
    engine_step(rig.engine);
    atomic_store(&gone, abandoned == 1);
    wakes = 0;
    run_until_idle(&rig);
    assert_ptr_equal(ended, job);
    assert_true(wakes > 0);
    for (int i = 0; i < 2; i++) {
      assert_true(atomic_load(&job->samples[i].over));
      assert_int_equal(atomic_load(&job->samples[i].shown), abandoned ? 2 : 4);
      assert_int_equal(job->samples[i].finish, abandoned ? FINISH_ABORT : FINISH_LENGTH);
    }
    decode_job_free(job);
  }
  assert_pages_home(&rig);
  rig_close(&rig);
}

/* The mark of a met stop text ends one sample before it computes anything more; the others do not notice. */
static void a_text_that_is_over_ends_its_sample_alone(void **state) {
  (void)state;
  static struct outcome whole, cut;
  struct rig rig;
  struct engine_counters before, after;
  int32_t prompt[PROMPT];
  rig_open(&rig, 8, 64, 16, 64);
  const struct decode_job_spec spec = spec_of(prompt, PROMPT, 4, 3, MAX_NEW);
  submit(&rig, &spec, &whole);
  run_until_idle(&rig);
  struct decode_job *job = submit(&rig, &spec, &cut);
  for (int i = 0; i < 6; i++) engine_step(rig.engine);
  atomic_store(&job->samples[1].text_over, true);
  engine_read_counters(rig.engine, &before);
  engine_step(rig.engine);
  engine_read_counters(rig.engine, &after);
  assert_int_equal(after.tokens_sampled - before.tokens_sampled, 2);
  run_until_idle(&rig);
  assert_int_equal(cut.end, DECODE_JOB_COMPLETE);
  assert_int_equal(cut.sample[1].count, 6);
  assert_int_equal(cut.sample[1].finish, FINISH_STOP);
  assert_memory_equal(cut.sample[1].tokens, whole.sample[1].tokens, 6 * sizeof(int32_t));
  for (int i = 0; i < 3; i += 2) {
    assert_int_equal(cut.sample[i].count, MAX_NEW);
    assert_memory_equal(cut.sample[i].tokens, whole.sample[i].tokens, MAX_NEW * sizeof(int32_t));
    assert_memory_equal(cut.sample[i].logprobs, whole.sample[i].logprobs, MAX_NEW * sizeof(float));
  }
  assert_pages_home(&rig);
  rig_close(&rig);
}

/* Alternatives are those of the raw distribution, likeliest first, and asking for them changes no token. */
static void raw_log_probabilities_are_kept_beside_the_tokens(void **state) {
  (void)state;
  enum { TOP = 5 };
  static struct outcome greedy, warm;
  struct rig rig;
  struct err err;
  int32_t prompt[PROMPT];
  rig_open(&rig, 8, 64, 16, 64);
  for (int is_warm = 0; is_warm < 2; is_warm++) {
    struct outcome *plain = is_warm ? &warm : &greedy;
    struct decode_job_spec spec = spec_of(prompt, PROMPT, 2, 1, MAX_NEW);
    spec.sampling.temperature = is_warm ? 0.5f : 0;
    submit(&rig, &spec, plain);
    run_until_idle(&rig);
    spec.raw_logprobs = true;
    spec.top_count = TOP;
    struct decode_job *job, *ended = NULL;
    assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err), RC_OK);
    job->context = &ended;
    job->done = keep_job;
    assert_int_equal(engine_submit(rig.engine, job, &err), RC_OK);
    run_until_idle(&rig);
    assert_ptr_equal(ended, job);
    const struct sample *s = job->samples;
    assert_memory_equal(s->tokens, plain->sample[0].tokens, MAX_NEW * sizeof(int32_t));
    for (int t = 0; t < MAX_NEW; t++) {
      const int32_t *top = s->top_tokens + t * TOP;
      const float *top_logprobs = s->top_logprobs + t * TOP;
      for (int k = 1; k < TOP; k++) assert_true(top_logprobs[k] <= top_logprobs[k - 1]);
      for (int k = 0; k < TOP; k++)
        if (top[k] == s->tokens[t]) assert_memory_equal(&top_logprobs[k], &s->logprobs[t], sizeof(float));
      if (!is_warm) assert_int_equal(top[0], s->tokens[t]);
    }
    /* greedy already gives the raw one; at a temperature plain sampling gives another */
    const bool same = memcmp(s->logprobs, plain->sample[0].logprobs, MAX_NEW * sizeof(float)) == 0;
    assert_true(same != (is_warm == 1));
    decode_job_free(job);
  }
  rig_close(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tokens_are_shown_as_they_are_drawn),
      cmocka_unit_test(an_end_is_shown_whatever_its_reason),
      cmocka_unit_test(a_text_that_is_over_ends_its_sample_alone),
      cmocka_unit_test(raw_log_probabilities_are_kept_beside_the_tokens),
  };
  return cmocka_run_group_tests_name("follow", tests, NULL, NULL);
}
