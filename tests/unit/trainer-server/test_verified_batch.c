/* Batches that are verified, by a whole trainer-server.  What would break: a sample that its version would not have
 * drawn is in the sums; one that it drew is refused; a refused group leaves something in the sums, or takes others with
 * it. */
#include "tests/unit/trainer-server/support.h"

enum { GROUPS = 3, SAMPLES = 4, ROUND = 5 };

static struct arena arena;
static struct batch_group groups[GROUPS];

static const struct batch_verify VERIFY = {
    .wanted = true, .seed = 11, .mismatch_most = 2, .draws_near = 0.25, .draws_most = 0.5};

static struct open_run inflight(const char *name) {
  struct open_run run = run_request(name);
  run.start.from = START_MODEL;
  run.training.update = UPDATE_INFLIGHT;
  run.training.objective = "reinforce";
  run.training.clip_high = 4;
  run.training.normalization = "samples";
  return run;
}

static void ask(struct rig *g, const struct submit_batch *m, struct batch_status *out) {
  struct err err = {0};
  assert_rc(RC_OK, trainer_submit_batch(&g->client, m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_batch_status(&g->client, m->batch_id, WAIT_MS / 2, true, out, &arena, WAIT_MS, &err), err);
  if (out->state != JOB_DONE) fail_msg("%s: %s", m->batch_id, out->error.message);
}

/* What version 0 draws with its log-probabilities, by checks of a strict run. */
static void draw(struct rig *g) {
  struct batch_status found;
  char id[64];
  int n = 0;
  do {
    snprintf(id, sizeof id, "c.%d", n++);
    const struct submit_batch m = {.batch_id = arena_strdup(&arena, id),
                                   .run = "r1",
                                   .epoch = 3,
                                   .fence = 5,
                                   .check = {.wanted = true, .seed = VERIFY.seed, .round = ROUND},
                                   .groups = groups,
                                   .group_count = GROUPS};
    ask(g, &m, &found);
    for (size_t k = 0; k < found.difference_count; k++) {
      const struct draw_difference *d = &found.differences[k];
      for (int i = 0; i < GROUPS * SAMPLES; i++) {
        struct batch_sample *s = &groups[i / SAMPLES].samples[i % SAMPLES];
        if (strcmp(s->id, d->id) == 0) s->tokens.items[s->prompt_length + d->position] = d->token;
      }
    }
  } while (found.difference_count > 0);
  for (int i = 0; i < GROUPS * SAMPLES; i++) {
    struct batch_sample *s = &groups[i / SAMPLES].samples[i % SAMPLES];
    s->behaviour = found.samples[i].logprobs;
    s->exact_from = 0;
  }
}

static int begin(void **state, bool lean) {
  static struct rig g;
  struct open_run run = run_request("r1");
  const struct open_run in_flight = inflight("r2");
  struct open_run_answer answer;
  rig_make(&g, "");
  g.options.lean = lean;
  rig_start(&g);
  run.start.from = START_MODEL;
  groups_make(&arena, groups, GROUPS, 80);
  for (int i = 0; i < GROUPS; i++) {
    groups[i].ordinal = i;
    groups[i].round = ROUND;
  }
  rig_open(&g, &run, &answer);
  draw(&g);
  rig_open(&g, &in_flight, &answer);
  *state = &g;
  return 0;
}
static int set_up(void **state) { return begin(state, false); }
static int set_up_lean(void **state) { return begin(state, true); }

static int tear_down(void **state) {
  arena_free(&arena);
  arena = (struct arena)ARENA_INIT;
  return rig_tear_down(state);
}

static void verify(struct rig *g, const char *id, size_t count, struct batch_status *out) {
  const struct submit_batch m = {.batch_id = id,
                                 .run = "r2",
                                 .epoch = 3,
                                 .fence = 5,
                                 .verify = VERIFY,
                                 .groups = groups,
                                 .group_count = count};
  ask(g, &m, out);
}

/* The version that a step over these groups makes. */
static struct digest stepped(struct rig *g, const struct batch_group *of, size_t count) {
  struct submit_step m = step_request("r2", "r2.0", 0, of, count, &arena);
  struct step_status status;
  struct err err = {0};
  m.denominator = (double)count * SAMPLES;
  assert_rc(RC_OK, trainer_submit_step(&g->client, &m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_step_status(&g->client, "r2.0", WAIT_MS / 2, &status, &arena, WAIT_MS, &err), err);
  if (status.state != JOB_DONE) fail_msg("%s", status.error.message);
  return status.digest;
}

/* By a trainer that verifies nothing, over groups without the second one where `without`. */
static struct digest unverified(bool without) {
  struct rig g;
  const struct open_run run = inflight("r2");
  struct open_run_answer answer;
  struct batch_status status;
  struct batch_group of[GROUPS] = {groups[0], without ? groups[2] : groups[1], groups[2]};
  const size_t count = without ? 2 : GROUPS;
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &run, &answer);
  const struct submit_batch m = {
      .batch_id = "b", .run = "r2", .epoch = 3, .fence = 5, .groups = of, .group_count = count};
  ask(&g, &m, &status);
  const struct digest digest = stepped(&g, of, count);
  rig_end(&g);
  return digest;
}

static void what_the_version_drew_is_in_the_step_with_the_same_bits(void **state) {
  struct batch_status status;
  const struct digest expected = unverified(false);
  verify(*state, "b", GROUPS, &status);
  assert_int_equal(status.refusal_count, 0);
  assert_int_equal(status.sample_count, GROUPS * SAMPLES);
  const struct digest digest = stepped(*state, groups, GROUPS);
  assert_true(digest_equal(&digest, &expected));
}

static void a_refused_group_stays_out_of_the_step(void **state) {
  struct batch_status status;
  struct batch_sample *wrong = &groups[1].samples[2];
  int32_t *token = &wrong->tokens.items[wrong->prompt_length];
  const int32_t due = *token;
  const struct digest expected = unverified(true);
  *token = due == 0;
  verify(*state, "b", GROUPS, &status);
  assert_int_equal(status.refusal_count, 1);
  const struct sample_refusal *r = &status.refusals[0];
  assert_string_equal(r->id, wrong->id);
  assert_true(r->reason == REFUSED_TOKEN && r->position == 0 && r->token == due);
  assert_int_equal(status.sample_count, (GROUPS - 1) * SAMPLES);
  assert_string_equal(status.samples[SAMPLES].id, groups[2].samples[0].id);
  assert_int_equal(status.stats.samples, (GROUPS - 1) * SAMPLES);
  assert_true(status.stats.ratio_sum == (double)status.stats.tokens); /* of those that are left each ratio is 1 */
  struct batch_group left[] = {groups[0], groups[2]};
  const struct digest digest = stepped(*state, left, 2);
  assert_true(digest_equal(&digest, &expected));
}

static void one_bit_of_a_log_probability_refuses_and_older_tokens_are_free_of_it(void **state) {
  struct batch_status status;
  struct batch_sample *wrong = &groups[0].samples[1];
  float *last = &wrong->behaviour.items[wrong->behaviour.count - 1];
  *last = *last * 1.0000002f;
  wrong->exact_from = (int32_t)wrong->behaviour.count;
  verify(*state, "older", 1, &status);
  assert_int_equal(status.refusal_count, 0);
  struct open_run_answer answer;
  const struct open_run again = inflight("r3");
  rig_open(*state, &again, &answer);
  wrong->exact_from = 1;
  const struct submit_batch m = {
      .batch_id = "b", .run = "r3", .epoch = 3, .fence = 5, .verify = VERIFY, .groups = groups, .group_count = 1};
  ask(*state, &m, &status);
  assert_int_equal(status.refusal_count, 1);
  assert_true(status.refusals[0].reason == REFUSED_LOGPROB && status.refusals[0].unequal == 1);
  assert_int_equal(status.refusals[0].position, (int)wrong->behaviour.count - 1);
  assert_int_equal(status.sample_count, 0);
}

/* Another round's uniforms draw other tokens, and a group that is refused is no group of the step. */
static void the_uniforms_are_those_of_the_groups_own_round(void **state) {
  struct batch_status status;
  groups[2].round = ROUND + 1;
  verify(*state, "b", GROUPS, &status);
  assert_true(status.refusal_count > 0);
  for (size_t i = 0; i < status.refusal_count; i++) assert_memory_equal(status.refusals[i].id, "r1.0.2.", 7);
  struct submit_step m = step_request("r2", "r2.0", 0, groups, GROUPS, &arena);
  struct step_status stepped_status;
  struct err err = {0};
  m.denominator = GROUPS * SAMPLES;
  struct rig *g = *state;
  assert_rc(RC_OK, trainer_submit_step(&g->client, &m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_step_status(&g->client, "r2.0", WAIT_MS / 2, &stepped_status, &arena, WAIT_MS, &err), err);
  assert_int_equal(stepped_status.state, JOB_FAILED);
  assert_non_null(strstr(stepped_status.error.message, "names 3 groups, 2 were accumulated"));
}

static void only_batches_of_a_run_in_flight_are_verified(void **state) {
  struct rig *g = *state;
  struct open_run_answer answer;
  struct err err = {0};
  struct open_run run = run_request("r4");
  rig_open(g, &run, &answer);
  for (size_t i = 0; i < SAMPLES; i++) groups[0].samples[i].behaviour.count = 0;
  const struct submit_batch m = {
      .batch_id = "b", .run = "r4", .epoch = 3, .fence = 5, .verify = VERIFY, .groups = groups, .group_count = 1};
  assert_rc(RC_INVALID, trainer_submit_batch(&g->client, &m, WAIT_MS, &err), err);
  assert_string_equal(err.field, "verify");
}

int main(void) {
#define T(name, begins) cmocka_unit_test_setup_teardown(name, begins, tear_down)
  const struct CMUnitTest tests[] = {
      T(what_the_version_drew_is_in_the_step_with_the_same_bits, set_up),
      T(what_the_version_drew_is_in_the_step_with_the_same_bits, set_up_lean),
      T(a_refused_group_stays_out_of_the_step, set_up),
      T(a_refused_group_stays_out_of_the_step, set_up_lean),
      T(one_bit_of_a_log_probability_refuses_and_older_tokens_are_free_of_it, set_up),
      T(the_uniforms_are_those_of_the_groups_own_round, set_up),
      T(only_batches_of_a_run_in_flight_are_verified, set_up),
  };
  return cmocka_run_group_tests_name("trainer-server/verified_batch", tests, NULL, NULL);
}
