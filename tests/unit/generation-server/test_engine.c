/* The engine's promise: what a sample gets does not depend on slots, page sizes, chunks, neighbours, preemption,
 * forks or being continued elsewhere. Every comparison is of token ids and of the bits of the log-probabilities. */
#include <math.h>

#include "tests/unit/generation-server/engine_test.h"

enum { JOBS = 5, SAMPLES = 4, MAX_NEW = 24 };

static const int PROMPTS[JOBS] = {1, 16, 33, 47, 90};

/* Runs the standard load on an engine of the given shape. */
static int64_t run_load(struct outcome *outcomes, int slots, int pages, int page_tokens, int chunk) {
  struct rig rig;
  int32_t prompt[LIMIT_SLOTS];
  rig_open(&rig, slots, pages, page_tokens, chunk);
  for (int j = 0; j < JOBS; j++) {
    const struct decode_job_spec spec = spec_of(prompt, PROMPTS[j], j, SAMPLES, MAX_NEW);
    submit(&rig, &spec, &outcomes[j]);
  }
  run_until_idle(&rig);
  assert_pages_home(&rig);
  struct engine_counters n;
  engine_read_counters(rig.engine, &n);
  int64_t sampled = 0;
  for (int j = 0; j < JOBS; j++)
    for (int i = 0; i < outcomes[j].samples; i++) sampled += outcomes[j].sample[i].count;
  assert_int_equal(n.tokens_sampled, sampled); /* preemption never samples a token twice */
  rig_close(&rig);
  return n.preemptions;
}

static void reference(struct outcome *outcomes) { assert_int_equal(run_load(outcomes, 1, 40, 16, 200), 0); }

static void shapes_do_not_matter(void **state) {
  (void)state;
  static struct outcome expected[JOBS], got[JOBS];
  static const struct {
    int slots, pages, page_tokens, chunk;
  } shapes[] = {
      {32, 400, 16, 256}, {7, 100, 32, 64}, {3, 60, 64, 17}, {32, 400, 48, 1}, {20, 200, 16, 5}, {2, 40, 160, 33},
  };
  reference(expected);
  assert_int_equal(expected[0].sample[0].count, MAX_NEW);
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    run_load(got, shapes[i].slots, shapes[i].pages, shapes[i].page_tokens, shapes[i].chunk);
    for (int j = 0; j < JOBS; j++) assert_same_outcome(&expected[j], &got[j]);
  }
}

/* A pool that holds little more than one sequence: samples lose their pages again and again. */
static void preemption_loses_nothing(void **state) {
  (void)state;
  static struct outcome expected[JOBS], got[JOBS];
  reference(expected);
  int64_t preemptions = 0;
  static const int pools[] = {8, 9, 11, 14, 20};
  for (size_t i = 0; i < sizeof pools / sizeof pools[0]; i++) {
    preemptions += run_load(got, 16, pools[i], 16, 40);
    for (int j = 0; j < JOBS; j++) assert_same_outcome(&expected[j], &got[j]);
  }
  assert_true(preemptions > 10);
}

/* A group's samples share the prompt; each alone, with its own prompt, must give the same. */
static void forks_equal_separate_samples(void **state) {
  (void)state;
  static struct outcome group, alone[SAMPLES];
  struct rig rig;
  int32_t prompt[64];
  for (int length = 15; length <= 33; length += 9) {
    rig_open(&rig, 8, 64, 16, 20);
    struct decode_job_spec spec = spec_of(prompt, length, 7, SAMPLES, MAX_NEW);
    submit(&rig, &spec, &group);
    run_until_idle(&rig);
    for (int i = 0; i < SAMPLES; i++) {
      spec.sample_first = i;
      spec.sample_count = 1;
      submit(&rig, &spec, &alone[i]);
    }
    run_until_idle(&rig);
    for (int i = 0; i < SAMPLES; i++) {
      assert_int_equal(alone[i].sample[0].count, group.sample[i].count);
      assert_memory_equal(alone[i].sample[0].tokens, group.sample[i].tokens,
                          (size_t)group.sample[i].count * sizeof(int32_t));
      assert_memory_equal(alone[i].sample[0].logprobs, group.sample[i].logprobs,
                          (size_t)group.sample[i].count * sizeof(float));
    }
    assert_memory_not_equal(group.sample[0].tokens, group.sample[1].tokens, MAX_NEW * sizeof(int32_t));
    assert_pages_home(&rig);
    rig_close(&rig);
  }
}

/* The prompt of a group is computed once, whatever the number of samples. */
static void a_group_computes_its_prompt_once(void **state) {
  (void)state;
  static struct outcome o;
  struct rig rig;
  int32_t prompt[64];
  struct engine_counters n;
  rig_open(&rig, 8, 64, 16, 256);
  const struct decode_job_spec spec = spec_of(prompt, 50, 1, 8, 2);
  submit(&rig, &spec, &o);
  run_until_idle(&rig);
  engine_read_counters(rig.engine, &n);
  assert_int_equal(n.rows, 50 + 8);
  rig_close(&rig);
}

/* What a step costs by its rows is told of steps that only decode: here one of eight rows, then two of three. */
static void decode_steps_are_measured_by_their_rows(void **state) {
  (void)state;
  static struct outcome o;
  struct rig rig;
  int32_t prompt[64];
  struct engine_counters n;
  rig_open(&rig, 8, 64, 16, 256);
  const struct decode_job_spec eight = spec_of(prompt, 50, 1, 8, 2), three = spec_of(prompt, 50, 1, 3, 3);
  submit(&rig, &eight, &o);
  run_until_idle(&rig);
  submit(&rig, &three, &o);
  run_until_idle(&rig);
  engine_read_counters(rig.engine, &n);
  assert_int_equal(n.steps, 2 + 3);
  for (int i = 0; i < WIRE_STEP_SLOTS; i++) {
    const int64_t steps = i == 3 ? 1 : i == 2 ? 2 : 0;
    assert_int_equal(n.by_rows[i].steps, steps);
    assert_int_equal(n.by_rows[i].rows, i == 3 ? 8 : i == 2 ? 6 : 0);
    assert_true(n.by_rows[i].us >= 0 && (steps || n.by_rows[i].us == 0));
  }
  rig_close(&rig);
}

static void stop_tokens_end_a_sample(void **state) {
  (void)state;
  static struct outcome full, cut;
  struct rig rig;
  int32_t prompt[8];
  rig_open(&rig, 4, 64, 16, 64);
  struct decode_job_spec spec = spec_of(prompt, 8, 3, 2, MAX_NEW);
  submit(&rig, &spec, &full);
  run_until_idle(&rig);
  const int32_t stop = full.sample[0].tokens[5];
  int first = 0;
  while (full.sample[0].tokens[first] != stop) first++;
  spec.stop = &stop;
  spec.stop_count = 1;
  submit(&rig, &spec, &cut);
  run_until_idle(&rig);
  assert_int_equal(cut.sample[0].finish, FINISH_STOP);
  assert_int_equal(cut.sample[0].count, first + 1); /* the stop token included */
  assert_memory_equal(cut.sample[0].tokens, full.sample[0].tokens, (size_t)(first + 1) * sizeof(int32_t));
  rig_close(&rig);
}

static void greedy_takes_the_likeliest_and_ignores_the_seed(void **state) {
  (void)state;
  static struct outcome a, b;
  struct rig rig;
  int32_t prompt[8];
  rig_open(&rig, 4, 64, 16, 64);
  struct decode_job_spec spec = spec_of(prompt, 8, 3, 1, MAX_NEW);
  spec.sampling.temperature = 0;
  submit(&rig, &spec, &a);
  spec.key.seed = 43;
  submit(&rig, &spec, &b);
  run_until_idle(&rig);
  assert_same_outcome(&a, &b);
  rig_close(&rig);
}

/* --- leases --- */

static struct lease lease_of(const struct rig *r, int32_t *prompt, int samples) {
  const struct decode_job_spec spec = spec_of(prompt, 20, 9, samples, MAX_NEW);
  return (struct lease){.id = "r1.0.9.0-3",
                        .fence = 5,
                        .run = "r1",
                        .group = "r1.0.9",
                        .purpose = LEASE_TRAINING,
                        .round = 0,
                        .group_ordinal = 9,
                        .sample_count = samples,
                        .version_min = 3,
                        .version_max = 3,
                        .weights_digest = r->policy[0].digest,
                        .temperature = 0.7f,
                        .max_new_tokens = MAX_NEW,
                        .seed = 11,
                        .prompt_ids = {prompt, (size_t)spec.prompt_count}};
}

static void submit_lease(struct rig *r, const struct lease *lease, struct outcome *o) {
  struct err err = {0};
  struct decode_job *job;
  memset(o, 0, sizeof *o);
  if (decode_job_of_lease(&job, lease, r->model, NULL, engine_kv(r->engine), &err) != RC_OK)
    fail_msg("%s", err.message);
  job->context = o;
  job->done = keep_outcome;
  assert_int_equal(engine_submit(r->engine, job, &err), RC_OK);
}

/* Handed back after a few tokens, continued on another server: the same sample as without the move. */
static void handed_back_tokens_are_continued(void **state) {
  (void)state;
  static struct outcome whole, half, rest;
  struct rig rig;
  int32_t prompt[32];
  for (int steps = 1; steps <= 24; steps += 5) {
    rig_open(&rig, 8, 64, 16, 8);
    struct lease lease = lease_of(&rig, prompt, 3);
    submit_lease(&rig, &lease, &whole);
    run_until_idle(&rig);
    submit_lease(&rig, &lease, &half);
    for (int i = 0; i < steps; i++) engine_step(rig.engine);
    engine_hand_back(rig.engine);
    run_until_idle(&rig);
    assert_int_equal(half.end, DECODE_JOB_HANDED_BACK);
    assert_pages_home(&rig);
    struct partial_sample partials[3];
    for (int i = 0; i < 3; i++)
      partials[i] = (struct partial_sample){.sample = i,
                                            .token_ids = {half.sample[i].tokens, (size_t)half.sample[i].count},
                                            .logprobs = {half.sample[i].logprobs, (size_t)half.sample[i].count}};
    lease.partials = partials;
    lease.partial_count = 3;
    submit_lease(&rig, &lease, &rest);
    run_until_idle(&rig);
    assert_same_outcome(&whole, &rest);
    rig_close(&rig);
  }
}

/* A finished sample that comes back as a partial is finished at once, also when it is the only one left to do. */
static void finished_partials_need_no_work(void **state) {
  (void)state;
  static struct outcome whole, again;
  struct rig rig;
  int32_t prompt[32];
  struct engine_counters before, after;
  rig_open(&rig, 8, 64, 16, 8);
  struct lease lease = lease_of(&rig, prompt, 2);
  submit_lease(&rig, &lease, &whole);
  run_until_idle(&rig);
  struct partial_sample partials[2];
  for (int i = 0; i < 2; i++)
    partials[i] = (struct partial_sample){.sample = i,
                                          .token_ids = {whole.sample[i].tokens, (size_t)whole.sample[i].count},
                                          .logprobs = {whole.sample[i].logprobs, (size_t)whole.sample[i].count}};
  lease.partials = partials;
  lease.partial_count = 2;
  engine_read_counters(rig.engine, &before);
  submit_lease(&rig, &lease, &again);
  run_until_idle(&rig);
  engine_read_counters(rig.engine, &after);
  assert_same_outcome(&whole, &again);
  assert_int_equal(after.rows, before.rows);
  rig_close(&rig);
}

static void lying_partials_are_refused(void **state) {
  (void)state;
  struct rig rig;
  struct err err;
  struct decode_job *job;
  int32_t prompt[32], ids[] = {1, 61};
  float logprobs[] = {-1, -1};
  rig_open(&rig, 8, 64, 16, 8);
  struct lease lease = lease_of(&rig, prompt, 2);
  struct partial_sample partials[2] = {{.sample = 2, .token_ids = {ids, 1}, .logprobs = {logprobs, 1}}};
  lease.partials = partials;
  lease.partial_count = 1;
  assert_int_equal(decode_job_of_lease(&job, &lease, rig.model, NULL, engine_kv(rig.engine), &err),
                   RC_INVALID); /* not one of the lease's */
  partials[0].sample = 1;
  partials[0].token_ids.count = 2;
  assert_int_equal(decode_job_of_lease(&job, &lease, rig.model, NULL, engine_kv(rig.engine), &err),
                   RC_INVALID); /* one log-probability too few */
  partials[0].logprobs.count = 2;
  assert_int_equal(decode_job_of_lease(&job, &lease, rig.model, NULL, engine_kv(rig.engine), &err),
                   RC_INVALID); /* id outside the vocabulary */
  partials[0].token_ids.count = partials[0].logprobs.count = 1;
  partials[1] = partials[0];
  lease.partial_count = 2;
  assert_int_equal(decode_job_of_lease(&job, &lease, rig.model, NULL, engine_kv(rig.engine), &err),
                   RC_INVALID); /* twice */
  rig_close(&rig);
}

/* A draw of a lease with cuts is of what is kept, whoever is decoded beside it; its log-probability is renormalized.
 * Where one token is kept it is the likeliest, with log-probability 0. */
static void leases_draw_from_what_a_cut_keeps(void **state) {
  (void)state;
  static struct outcome alone, beside, other, greedy, one;
  struct rig rig;
  int32_t prompt[32];
  rig_open(&rig, 1, 64, 16, 8);
  struct lease lease = lease_of(&rig, prompt, OUTCOME_SAMPLES_MAX), uncut = lease;
  lease.cut = (struct sampling_cut){.top_k = 30, .top_p = 0.8};
  submit_lease(&rig, &lease, &alone);
  run_until_idle(&rig);
  rig_close(&rig);
  rig_open(&rig, 8, 64, 16, 8);
  submit_lease(&rig, &uncut, &other);
  submit_lease(&rig, &lease, &beside);
  lease.cut = (struct sampling_cut){.top_k = 1};
  submit_lease(&rig, &lease, &one);
  lease.purpose = LEASE_EVALUATION;
  lease.temperature = 0;
  submit_lease(&rig, &lease, &greedy);
  run_until_idle(&rig);
  assert_same_outcome(&alone, &beside);
  assert_int_equal(one.sample[0].count, greedy.sample[0].count);
  assert_memory_equal(one.sample[0].tokens, greedy.sample[0].tokens, (size_t)one.sample[0].count * sizeof(int32_t));
  for (int i = 0; i < one.sample[0].count; i++) assert_true(one.sample[0].logprobs[i] == 0);
  assert_true(greedy.sample[0].logprobs[0] < 0);
  int same = 0; /* the first draws are of one distribution: the same token then has a higher log-probability */
  for (int i = 0; i < OUTCOME_SAMPLES_MAX; i++) {
    if (alone.sample[i].tokens[0] != other.sample[i].tokens[0]) continue;
    assert_true(alone.sample[i].logprobs[0] > other.sample[i].logprobs[0]);
    same++;
  }
  assert_true(same > 0);
  rig_close(&rig);
}

/* Where the text of a sample completes a stop text first, across tokens; 0: nowhere. */
static int32_t stop_in(const struct tokenizer *t, const int32_t *tokens, int32_t count, const char *stop) {
  struct buf text = BUF_INIT;
  int32_t end = 0;
  for (int32_t i = 0; i < count && end == 0; i++) {
    assert_int_equal(tokenizer_decode_more(t, &tokens[i], 1, true, &text, NULL), RC_OK);
    if (text.len > 0 && strstr(text.data, stop)) end = i + 1;
  }
  buf_free(&text);
  return end;
}

/* A lease's sample ends with the token that completes a stop text, also when an earlier holder had begun the text. */
static void a_stop_text_ends_a_lease_s_sample(void **state) {
  (void)state;
  static struct outcome whole, stopped, resumed;
  struct rig rig;
  struct tokenizer *t = NULL;
  struct err err = {0};
  struct decode_job *job;
  int32_t prompt[32];
  char stop[3] = {0};
  rig_open(&rig, 8, 64, 16, 8);
  if (tokenizer_load(&t, "deploy/demo/model/tokenizer.json", &err) != RC_OK) fail_msg("%s", err.message);
  struct lease lease = lease_of(&rig, prompt, 1);
  submit_lease(&rig, &lease, &whole);
  run_until_idle(&rig);
  const int32_t *tokens = whole.sample[0].tokens;
  int32_t end = 0;
  for (int32_t at = 10; end == 0; at++) { /* two tokens of one byte each, where they first stand side by side */
    size_t first, second;
    assert_in_range(at, 10, whole.sample[0].count - 3);
    const char *a = tokenizer_token_text(t, tokens[at], true, &first),
               *b = tokenizer_token_text(t, tokens[at + 1], true, &second);
    if (first != 1 || second != 1 || !*a || !*b) continue;
    stop[0] = *a;
    stop[1] = *b;
    end = stop_in(t, tokens, whole.sample[0].count, stop);
  }
  const char *stops[] = {"never seen", stop};
  lease.stop = (struct stop_strings){stops, 2};
  assert_int_equal(decode_job_of_lease(&job, &lease, rig.model, NULL, engine_kv(rig.engine), &err), RC_INVALID);
  assert_string_equal(err.field, "stop");
  struct partial_sample partial = {.token_ids = {whole.sample[0].tokens, (size_t)end - 1},
                                   .logprobs = {whole.sample[0].logprobs, (size_t)end - 1}};
  for (int resume = 0; resume < 2; resume++) {
    struct outcome *o = resume ? &resumed : &stopped;
    memset(o, 0, sizeof *o);
    assert_int_equal(decode_job_of_lease(&job, &lease, rig.model, t, engine_kv(rig.engine), &err), RC_OK);
    job->context = o;
    job->done = keep_outcome;
    assert_int_equal(engine_submit(rig.engine, job, &err), RC_OK);
    run_until_idle(&rig);
    assert_int_equal(o->sample[0].count, end);
    assert_int_equal(o->sample[0].finish, FINISH_STOP);
    assert_memory_equal(o->sample[0].tokens, tokens, (size_t)end * sizeof *tokens);
    lease.partials = &partial;
    lease.partial_count = 1;
  }
  partial.token_ids.count = partial.logprobs.count = (size_t)end; /* ended: nothing is left to do */
  assert_int_equal(decode_job_of_lease(&job, &lease, rig.model, t, engine_kv(rig.engine), &err), RC_OK);
  assert_int_equal(job->samples[0].state, DECODE_DONE);
  assert_int_equal(job->samples[0].finish, FINISH_STOP);
  decode_job_free(job);
  partial.token_ids.count = partial.logprobs.count = (size_t)end + 1;
  assert_int_equal(decode_job_of_lease(&job, &lease, rig.model, t, engine_kv(rig.engine), &err), RC_INVALID);
  tokenizer_free(t);
  rig_close(&rig);
}

static void a_lease_on_other_weights_goes_back(void **state) {
  (void)state;
  static struct outcome o;
  struct rig rig;
  int32_t prompt[32];
  rig_open(&rig, 8, 64, 16, 8);
  struct lease lease = lease_of(&rig, prompt, 2);
  lease.weights_digest = rig.policy[1].digest;
  submit_lease(&rig, &lease, &o);
  run_until_idle(&rig);
  assert_int_equal(o.end, DECODE_JOB_HANDED_BACK);
  assert_int_equal(o.sample[0].count, 0);
  lease.weights_digest = rig.policy[0].digest;
  lease.version_min = lease.version_max = 4;
  submit_lease(&rig, &lease, &o);
  run_until_idle(&rig);
  assert_int_equal(o.end, DECODE_JOB_HANDED_BACK);
  rig_close(&rig);
}

static void explode(const struct rig *rig, struct weights *w) {
  const size_t elements = rig->model->params.elements;
  float *masters = rig->ops->alloc(rig->ops, elements * sizeof *masters);
  assert_non_null(masters);
  for (size_t i = 0; i < elements; i++) masters[i] = NAN;
  weights_from_masters(w, masters);
  rig->ops->release(rig->ops, masters);
}

/* Its lease went on to the end, and its result was refused, again and again. */
static void a_lease_ends_with_the_first_step_that_draws_what_is_not_finite(void **state) {
  (void)state;
  static struct outcome o, plain, after;
  struct rig rig;
  int32_t prompt[32], plain_prompt[32];
  rig_open(&rig, 8, 64, 16, 64);
  explode(&rig, rig.weights[0]);
  struct lease lease = lease_of(&rig, prompt, 3);
  const struct decode_job_spec spec = spec_of(plain_prompt, 12, 2, 2, MAX_NEW);
  submit_lease(&rig, &lease, &o);
  submit(&rig, &spec, &plain);
  run_until_idle(&rig);
  assert_int_equal(o.end, DECODE_JOB_HANDED_BACK);
  assert_true(o.nonfinite);
  assert_int_equal(o.nonfinite_version, 3);
  for (int i = 0; i < 3; i++) assert_true(o.sample[i].count <= 1);
  assert_int_equal(plain.end, DECODE_JOB_COMPLETE); /* a client may look */
  assert_false(plain.nonfinite);
  lease.weights_digest = rig.policy[1].digest;
  lease.version_min = lease.version_max = 4;
  assert_int_equal(engine_activate(rig.engine, rig.weights[1], &rig.policy[1]), RC_OK);
  submit_lease(&rig, &lease, &after);
  run_until_idle(&rig);
  assert_int_equal(after.end, DECODE_JOB_COMPLETE);
  assert_false(after.nonfinite);
  assert_pages_home(&rig);
  rig_close(&rig);
}

/* --- activation --- */

static void activation_voids_leases_and_lets_requests_run_through(void **state) {
  (void)state;
  static struct outcome lease_outcome, plain, old_only, allowed;
  struct rig rig;
  int32_t prompt[32], plain_prompt[32];
  rig_open(&rig, 16, 64, 16, 64);
  const struct decode_job_spec spec = spec_of(plain_prompt, 12, 2, 2, MAX_NEW);
  submit(&rig, &spec, &old_only);
  run_until_idle(&rig);
  struct lease lease = lease_of(&rig, prompt, 2);
  submit_lease(&rig, &lease, &lease_outcome);
  lease.version_max = 4;
  submit_lease(&rig, &lease, &allowed);
  submit(&rig, &spec, &plain);
  for (int i = 0; i < 6; i++) engine_step(rig.engine);
  assert_int_equal(engine_activate(rig.engine, rig.weights[1], &rig.policy[1]), RC_OK);
  run_until_idle(&rig);
  assert_int_equal(lease_outcome.end, DECODE_JOB_HANDED_BACK);
  assert_int_equal(allowed.end, DECODE_JOB_COMPLETE);
  assert_int_equal(plain.end, DECODE_JOB_COMPLETE);
  for (int i = 0; i < 2; i++) {
    assert_memory_equal(plain.sample[i].tokens, old_only.sample[i].tokens, 6 * sizeof(int32_t));
    for (int t = 0; t < MAX_NEW; t++) assert_int_equal(plain.sample[i].versions[t], t < 6 ? 3 : 4);
    assert_memory_not_equal(plain.sample[i].logprobs, old_only.sample[i].logprobs, MAX_NEW * sizeof(float));
  }
  assert_int_equal(plain.policy.version, 4);
  assert_true(digest_equal(&plain.policy.digest, &rig.policy[1].digest));
  assert_pages_home(&rig);
  rig_close(&rig);
}

/* The same weights may become another version (a skipped step, another run): nothing is swapped, leases of the old
 * one are void. */
static void relabelling_changes_the_version_only(void **state) {
  (void)state;
  static struct outcome o;
  struct rig rig;
  int32_t prompt[32];
  struct policy now;
  rig_open(&rig, 16, 64, 16, 64);
  const struct lease lease = lease_of(&rig, prompt, 2);
  submit_lease(&rig, &lease, &o);
  engine_step(rig.engine);
  struct policy policy = rig.policy[0];
  policy.version = 9;
  engine_relabel(rig.engine, &policy);
  run_until_idle(&rig);
  assert_int_equal(o.end, DECODE_JOB_HANDED_BACK);
  assert_true(engine_policy(rig.engine, &now));
  assert_int_equal(now.version, 9);
  policy.digest = rig.policy[1].digest; /* not what is active: too late, ignored */
  policy.version = 10;
  engine_relabel(rig.engine, &policy);
  run_until_idle(&rig);
  engine_policy(rig.engine, &now);
  assert_int_equal(now.version, 9);
  rig_close(&rig);
}

/* Version 3 of the next run is not version 3 of this one: tokens of both must not meet in one sample. */
static void a_like_numbered_version_of_another_run_voids_leases(void **state) {
  (void)state;
  static struct outcome o;
  struct rig rig;
  int32_t prompt[32];
  rig_open(&rig, 16, 64, 16, 64);
  const struct lease lease = lease_of(&rig, prompt, 2);
  submit_lease(&rig, &lease, &o);
  for (int i = 0; i < 4; i++) engine_step(rig.engine);
  struct policy policy = rig.policy[1];
  policy.version = rig.policy[0].version;
  snprintf(policy.run, sizeof policy.run, "r2");
  assert_int_equal(engine_activate(rig.engine, rig.weights[1], &policy), RC_OK);
  run_until_idle(&rig);
  assert_int_equal(o.end, DECODE_JOB_HANDED_BACK);
  assert_true(o.sample[0].count > 0 && o.sample[0].count < MAX_NEW);
  rig_close(&rig);
}

/* A peer may hang up before the engine has heard of its request: the mark waits for it. */
static void abandoned_requests_are_dropped_whenever_they_are_marked(void **state) {
  (void)state;
  static struct outcome early, late;
  atomic_bool gone_early = true, gone_late = false;
  struct rig rig;
  int32_t prompt[32];
  rig_open(&rig, 2, 64, 16, 8);
  const struct decode_job_spec spec = spec_of(prompt, 12, 1, 3, MAX_NEW);
  submit(&rig, &spec, &early)->abandoned = &gone_early;
  submit(&rig, &spec, &late)->abandoned = &gone_late;
  for (int i = 0; i < 5; i++) engine_step(rig.engine);
  assert_true(early.ended && !late.ended);
  assert_int_equal(early.end, DECODE_JOB_DROPPED);
  assert_int_equal(early.sample[0].count, 0);
  atomic_store(&gone_late, true);
  engine_step(rig.engine);
  assert_true(late.ended);
  assert_int_equal(late.end, DECODE_JOB_DROPPED);
  run_until_idle(&rig);
  assert_pages_home(&rig);
  rig_close(&rig);
}

static void cancelling_gives_everything_back(void **state) {
  (void)state;
  static struct outcome o, other;
  struct rig rig;
  int32_t prompt[32];
  rig_open(&rig, 2, 64, 16, 8);
  struct lease lease = lease_of(&rig, prompt, 3);
  submit_lease(&rig, &lease, &o);
  lease.id = "other";
  submit_lease(&rig, &lease, &other);
  for (int i = 0; i < 6; i++) engine_step(rig.engine);
  engine_cancel(rig.engine, "r1.0.9.0-3", 4); /* an older fence: not this one */
  engine_step(rig.engine);
  assert_false(o.ended);
  engine_cancel(rig.engine, "r1.0.9.0-3", 5);
  engine_step(rig.engine);
  assert_true(o.ended);
  assert_int_equal(o.end, DECODE_JOB_DROPPED);
  run_until_idle(&rig);
  assert_int_equal(other.end, DECODE_JOB_COMPLETE);
  assert_pages_home(&rig);
  rig_close(&rig);
}

/* Weights that have exploded computed a part of a prompt, and the request was dropped before a token was drawn from it:
 * their NaN stayed behind what the next sample wrote to the same pages, and 0 x NaN is NaN. */
static void what_was_dropped_within_its_prompt_leaves_no_nan(void **state) {
  (void)state;
  static struct outcome before, dropped, after;
  struct rig rig;
  int32_t prompt[64];
  rig_open(&rig, 4, 64, 16, 40);
  explode(&rig, rig.weights[1]);
  const struct decode_job_spec next = spec_of(prompt, 20, 3, 2, 8);
  submit(&rig, &next, &before);
  run_until_idle(&rig);
  assert_int_equal(engine_activate(rig.engine, rig.weights[1], &rig.policy[1]), RC_OK);
  const struct decode_job_spec within = spec_of(prompt, 60, 5, 1, 8);
  submit(&rig, &within, &dropped);
  assert_true(engine_step(rig.engine)); /* the prompt's first 40 tokens */
  engine_cancel(rig.engine, "gen", 0);
  run_until_idle(&rig);
  assert_int_equal(dropped.end, DECODE_JOB_DROPPED);
  assert_int_equal(dropped.sample[0].count, 0);
  assert_int_equal(engine_activate(rig.engine, rig.weights[0], &rig.policy[0]), RC_OK);
  const struct decode_job_spec again = spec_of(prompt, 20, 3, 2, 8);
  submit(&rig, &again, &after);
  run_until_idle(&rig);
  assert_same_outcome(&before, &after);
  assert_pages_home(&rig);
  rig_close(&rig);
}

static void what_can_never_fit_is_refused_with_numbers(void **state) {
  (void)state;
  struct rig rig;
  struct err err;
  struct decode_job *job;
  int32_t prompt[200];
  rig_open(&rig, 2, 4, 16, 8);
  struct decode_job_spec spec = spec_of(prompt, 40, 1, 1, 24);
  assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err),
                   RC_OK); /* 64 positions, 4 pages */
  decode_job_free(job);
  spec.max_new = 25;
  assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err), RC_INVALID);
  assert_non_null(strstr(err.message, "5 KV pages"));
  spec.max_new = 121;
  assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err), RC_INVALID);
  assert_non_null(strstr(err.message, "160"));
  prompt[3] = 61;
  spec.max_new = 2;
  assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err), RC_INVALID);
  assert_non_null(strstr(err.message, "61"));
  spec.prompt_count = 0;
  assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err), RC_INVALID);
  rig_close(&rig);
}

static void stopping_ends_every_job(void **state) {
  (void)state;
  static struct outcome running, unread;
  struct rig rig;
  struct err err;
  int32_t prompt[32];
  rig_open(&rig, 2, 64, 16, 8);
  const struct decode_job_spec spec = spec_of(prompt, 30, 1, 3, 100);
  submit(&rig, &spec, &running);
  for (int i = 0; i < 8; i++) engine_step(rig.engine);
  submit(&rig, &spec, &unread);
  engine_stop(rig.engine);
  assert_int_equal(running.end, DECODE_JOB_DROPPED);
  assert_int_equal(unread.end, DECODE_JOB_DROPPED);
  struct decode_job *job;
  assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err), RC_OK);
  assert_int_equal(engine_submit(rig.engine, job, &err), RC_UNAVAILABLE);
  decode_job_free(job);
  rig_close(&rig);
}

static int holds_left; /* questions after which the device has failed */

static enum rc failing_status(const struct ops *ops, struct err *err) {
  (void)ops;
  if (holds_left-- > 0) return RC_OK;
  return err_set(err, RC_INTERNAL, NULL, "cuda:0: lost while attending");
}

/* What was drawn since is not taken; leases go back with the tokens from before, requests are dropped, and nothing is
 * taken any more. */
static void a_failed_device_ends_everything(void **state) {
  (void)state;
  static struct outcome request, leased, later;
  struct engine_counters before, after;
  struct rig rig;
  struct err err = {0};
  int32_t prompt[40];
  rig_open(&rig, 8, 100, 16, 64);
  const struct decode_job_spec spec = spec_of(prompt, 20, 1, 2, MAX_NEW);
  submit(&rig, &spec, &request);
  const struct lease lease = lease_of(&rig, prompt, 2);
  submit_lease(&rig, &lease, &leased);
  holds_left = 5;
  rig.ops->status = failing_status;
  assert_int_equal(engine_failure(rig.engine, &err), RC_OK);
  run_until_idle(&rig);
  assert_int_equal(engine_failure(rig.engine, &err), RC_INTERNAL);
  assert_string_equal(err.message, "cuda:0: lost while attending");
  assert_int_equal(request.end, DECODE_JOB_DROPPED);
  assert_int_equal(leased.end, DECODE_JOB_HANDED_BACK);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(leased.sample[i].count, 5); /* one for each time that the device held */
    assert_int_equal(request.sample[i].count, 5);
  }
  assert_pages_home(&rig);
  engine_read_counters(rig.engine, &before);
  assert_int_equal(before.tokens_sampled, 20);
  submit_lease(&rig, &lease, &later);
  run_until_idle(&rig);
  assert_int_equal(later.end, DECODE_JOB_HANDED_BACK);
  engine_read_counters(rig.engine, &after);
  assert_int_equal(after.steps, before.steps);
  rig_close(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shapes_do_not_matter),
      cmocka_unit_test(preemption_loses_nothing),
      cmocka_unit_test(forks_equal_separate_samples),
      cmocka_unit_test(a_group_computes_its_prompt_once),
      cmocka_unit_test(decode_steps_are_measured_by_their_rows),
      cmocka_unit_test(stop_tokens_end_a_sample),
      cmocka_unit_test(greedy_takes_the_likeliest_and_ignores_the_seed),
      cmocka_unit_test(handed_back_tokens_are_continued),
      cmocka_unit_test(finished_partials_need_no_work),
      cmocka_unit_test(lying_partials_are_refused),
      cmocka_unit_test(leases_draw_from_what_a_cut_keeps),
      cmocka_unit_test(a_stop_text_ends_a_lease_s_sample),
      cmocka_unit_test(a_lease_on_other_weights_goes_back),
      cmocka_unit_test(a_lease_ends_with_the_first_step_that_draws_what_is_not_finite),
      cmocka_unit_test(activation_voids_leases_and_lets_requests_run_through),
      cmocka_unit_test(relabelling_changes_the_version_only),
      cmocka_unit_test(a_like_numbered_version_of_another_run_voids_leases),
      cmocka_unit_test(abandoned_requests_are_dropped_whenever_they_are_marked),
      cmocka_unit_test(cancelling_gives_everything_back),
      cmocka_unit_test(what_was_dropped_within_its_prompt_leaves_no_nan),
      cmocka_unit_test(what_can_never_fit_is_refused_with_numbers),
      cmocka_unit_test(stopping_ends_every_job),
      cmocka_unit_test(a_failed_device_ends_everything),
  };
  return cmocka_run_group_tests_name("generation engine", tests, NULL, NULL);
}
