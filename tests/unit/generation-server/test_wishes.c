/* What plain requests may ask of the engine beyond tokens: log-probabilities of their prompt, changed logits,
 * pauses. */
#include "tests/unit/generation-server/engine_test.h"

enum { P = 40, K = 3 };

/* Of a job that has ended. */
static float judged[P];
static int32_t top_tokens[P * K];
static float top_logprobs[P * K];

static void keep_judged(struct decode_job *job, void *context) {
  memcpy(judged, job->prompt_logprobs, sizeof judged);
  memcpy(top_tokens, job->prompt_top_tokens, sizeof top_tokens);
  memcpy(top_logprobs, job->prompt_top_logprobs, sizeof top_logprobs);
  keep_outcome(job, context);
}

static void judge(struct rig *r, const struct decode_job_spec *spec, struct outcome *o) {
  submit(r, spec, o)->done = keep_judged;
  run_until_idle(r);
  assert_true(o->ended);
}

/* A prompt's tokens are judged as when they were drawn, bit for bit, whatever the chunks and the preemptions. */
static void a_prompt_is_judged_as_it_was_drawn(void **state) {
  (void)state;
  static const int shapes[][3] = {{4, 64, 8}, {2, 64, 3}, {4, 64, 64}, {3, 9, 5}}; /* slots, pages, chunk */
  int32_t prompt[P], whole[P];
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    struct rig rig;
    struct outcome drawn, again, beside;
    rig_open(&rig, shapes[i][0], shapes[i][1], 16, shapes[i][2]);
    struct decode_job_spec spec = spec_of(prompt, 10, 1, 1, P - 10);
    spec.raw_logprobs = true;
    submit(&rig, &spec, &drawn);
    run_until_idle(&rig);
    memcpy(whole, prompt, 10 * sizeof *whole);
    memcpy(whole + 10, drawn.sample[0].tokens, (P - 10) * sizeof *whole);
    struct decode_job_spec judging = spec;
    judging.prompt = whole;
    judging.prompt_count = P;
    judging.max_new = 4;
    judging.sample_count = 2;
    judging.prompt_logprobs = true;
    judging.top_count = K;
    int32_t other[60];
    const struct decode_job_spec busy = spec_of(other, 60, 7, 2, 60);
    submit(&rig, &busy, &beside);
    judge(&rig, &judging, &again);
    assert_true(judged[0] != judged[0]);
    assert_memory_equal(judged + 10, drawn.sample[0].logprobs, (P - 10) * sizeof *judged);
    for (int at = 1; at < P; at++) {
      assert_true(judged[at] <= top_logprobs[at * K] && top_logprobs[at * K] >= top_logprobs[at * K + 1]);
      for (int k = 0; k < K; k++)
        if (top_tokens[at * K + k] == whole[at]) assert_true(top_logprobs[at * K + k] == judged[at]);
    }
    struct outcome plain; /* and what is drawn behind it is the same as without */
    judging.prompt_logprobs = false;
    judging.top_count = 0;
    submit(&rig, &judging, &plain);
    run_until_idle(&rig);
    assert_same_outcome(&plain, &again);
    assert_pages_home(&rig);
    rig_close(&rig);
  }
}

/* Alone or beside others, in every step with plain draws before and behind it. */
static void changed_logits_do_not_depend_on_the_others(void **state) {
  (void)state;
  const struct token_bias biases[] = {{5, 3}, {6, -4}};
  const struct logit_changes changes = {
      .biases = biases, .bias_count = 2, .repetition = 1.2f, .frequency = 0.4f, .presence = 0.3f};
  struct outcome alone, among, others[2];
  int32_t prompt[12], other[2][12];
  struct rig rig;
  struct decode_job_spec spec = spec_of(prompt, 12, 3, 3, 30);
  spec.changes = &changes;
  rig_open(&rig, 8, 64, 16, 8);
  submit(&rig, &spec, &alone);
  run_until_idle(&rig);
  struct decode_job_spec plain = spec_of(other[0], 12, 4, 2, 30);
  submit(&rig, &plain, &others[0]);
  submit(&rig, &spec, &among);
  plain = spec_of(other[1], 12, 5, 2, 30);
  submit(&rig, &plain, &others[1]);
  run_until_idle(&rig);
  assert_same_outcome(&alone, &among);
  struct outcome unchanged;
  spec.changes = NULL;
  submit(&rig, &spec, &unchanged);
  run_until_idle(&rig);
  assert_memory_not_equal(unchanged.sample[0].tokens, alone.sample[0].tokens, 30 * sizeof(int32_t));
  rig_close(&rig);
}

static void no_stop_id_comes_before_min_new_tokens(void **state) {
  (void)state;
  int32_t prompt[12], stop[2 * LIMIT_STOP_TOKENS];
  struct rig rig;
  struct outcome o;
  struct decode_job_spec spec = spec_of(prompt, 12, 3, 8, 30);
  for (int i = 0; i < 2 * LIMIT_STOP_TOKENS; i++) stop[i] = i; /* half the vocabulary */
  spec.stop = stop;
  spec.stop_count = 2 * LIMIT_STOP_TOKENS;
  const struct logit_changes changes = {
      .repetition = 1, .barred = stop, .barred_count = spec.stop_count, .min_new = 9};
  spec.changes = &changes;
  rig_open(&rig, 8, 64, 16, 8);
  submit(&rig, &spec, &o);
  run_until_idle(&rig);
  int stopped = 0;
  for (int i = 0; i < 8; i++) {
    assert_true(o.sample[i].count > 9);
    for (int t = 0; t < 9; t++) assert_true(o.sample[i].tokens[t] >= 2 * LIMIT_STOP_TOKENS);
    stopped += o.sample[i].finish == FINISH_STOP;
  }
  assert_true(stopped > 4);
  rig_close(&rig);
}

/* --- pauses --- */

static void steps(struct rig *r, int count) {
  for (int i = 0; i < count; i++) engine_step(r->engine);
}

/* A paused request ends as one that was not paused; nothing is computed meanwhile. */
static void a_pause_changes_no_token(void **state) {
  (void)state;
  int32_t prompt[20], later_prompt[9];
  struct rig rig;
  struct outcome expected, expected_later;
  rig_open(&rig, 4, 64, 16, 8);
  const struct decode_job_spec spec = spec_of(prompt, 20, 2, 3, 40), later_spec = spec_of(later_prompt, 9, 5, 2, 10);
  submit(&rig, &spec, &expected);
  submit(&rig, &later_spec, &expected_later);
  run_until_idle(&rig);
  for (int at = 1; at < 14; at += 4) { /* in the prompt, and in the answer */
    struct outcome o, later;
    struct engine_counters before, after;
    submit(&rig, &spec, &o);
    steps(&rig, at);
    assert_int_equal(engine_pause(rig.engine, ENGINE_PAUSE_KEEP), RC_OK);
    engine_step(rig.engine);
    assert_true(engine_paused(rig.engine));
    engine_read_counters(rig.engine, &before);
    submit(&rig, &later_spec, &later);
    steps(&rig, 20);
    engine_read_counters(rig.engine, &after);
    assert_int_equal(after.steps, before.steps);
    assert_true(after.slots_busy > 0);
    assert_false(o.ended || later.ended);
    assert_int_equal(engine_resume(rig.engine), RC_OK);
    run_until_idle(&rig);
    assert_same_outcome(&o, &expected);
    assert_same_outcome(&later, &expected_later);
    assert_pages_home(&rig);
  }
  rig_close(&rig);
}

static void a_pause_that_aborts_gives_back_what_there_is(void **state) {
  (void)state;
  int32_t prompt[20];
  struct rig rig;
  struct outcome expected, o;
  rig_open(&rig, 4, 64, 16, 32);
  const struct decode_job_spec spec = spec_of(prompt, 20, 2, 3, 40);
  submit(&rig, &spec, &expected);
  run_until_idle(&rig);
  submit(&rig, &spec, &o);
  steps(&rig, 8);
  assert_int_equal(engine_pause(rig.engine, ENGINE_PAUSE_ABORT), RC_OK);
  engine_step(rig.engine);
  assert_true(o.ended);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(o.sample[i].finish, FINISH_ABORT);
    assert_int_equal(o.sample[i].count, 8);
    assert_memory_equal(o.sample[i].tokens, expected.sample[i].tokens, 8 * sizeof(int32_t));
  }
  assert_pages_home(&rig);
  rig_close(&rig);
}

/* One slot for two samples: the one that waits shares the pages of their prompt. */
static void a_pause_that_retracts_leaves_no_keys_and_values(void **state) {
  (void)state;
  int32_t prompt[20];
  struct rig rig;
  struct outcome expected, o;
  rig_open(&rig, 1, 64, 16, 32);
  const struct decode_job_spec spec = spec_of(prompt, 20, 2, 2, 40);
  submit(&rig, &spec, &expected);
  run_until_idle(&rig);
  for (int at = 1; at < 8; at += 3) {
    submit(&rig, &spec, &o);
    steps(&rig, at);
    assert_int_equal(engine_pause(rig.engine, ENGINE_PAUSE_RETRACT), RC_OK);
    engine_step(rig.engine);
    struct engine_counters n;
    engine_read_counters(rig.engine, &n);
    assert_true(n.pages_free == n.pages_total && n.samples_waiting == 2 && !o.ended);
    assert_int_equal(engine_resume(rig.engine), RC_OK);
    run_until_idle(&rig);
    assert_same_outcome(&o, &expected);
  }
  rig_close(&rig);
}

/* New weights are taken while the engine rests; keys and values are kept, and each token says so. */
static void weights_change_during_a_pause(void **state) {
  (void)state;
  int32_t prompt[20];
  struct rig rig;
  struct outcome o;
  rig_open(&rig, 4, 64, 16, 32);
  const struct decode_job_spec spec = spec_of(prompt, 20, 2, 2, 20);
  submit(&rig, &spec, &o);
  steps(&rig, 8);
  engine_pause(rig.engine, ENGINE_PAUSE_KEEP);
  engine_activate(rig.engine, rig.weights[1], &rig.policy[1]);
  steps(&rig, 3);
  assert_int_equal(o.ended, false);
  engine_resume(rig.engine);
  run_until_idle(&rig);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(o.sample[i].versions[7], 3);
    assert_int_equal(o.sample[i].versions[8], 4);
    assert_true(o.sample[i].fresh[7] && !o.sample[i].fresh[19]);
  }
  rig_close(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_prompt_is_judged_as_it_was_drawn),
      cmocka_unit_test(changed_logits_do_not_depend_on_the_others),
      cmocka_unit_test(no_stop_id_comes_before_min_new_tokens),
      cmocka_unit_test(a_pause_changes_no_token),
      cmocka_unit_test(a_pause_that_retracts_leaves_no_keys_and_values),
      cmocka_unit_test(a_pause_that_aborts_gives_back_what_there_is),
      cmocka_unit_test(weights_change_during_a_pause),
  };
  return cmocka_run_group_tests_name("generation wishes", tests, NULL, NULL);
}
