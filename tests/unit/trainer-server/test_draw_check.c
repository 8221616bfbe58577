/* Checks by a whole trainer-server.  What would break: a sample that the version would not have drawn and that passes;
 * a group that is refused and has left its gradient in the sums; one that was taken ahead and is in them twice, or has
 * other bits than one that came in its batch. */
#include "tests/unit/trainer-server/support.h"

enum { GROUPS = 3, SAMPLES = 4 };

static struct arena arena;
static struct batch_group groups[GROUPS];

static const struct draw_check WANTED = {.wanted = true, .seed = 11, .round = 0};

static void check(struct rig *g, const char *id, struct batch_group *of, size_t count, struct batch_status *out) {
  struct err err = {0};
  const struct submit_batch m = {
      .batch_id = id, .run = "r1", .epoch = 3, .fence = 5, .check = WANTED, .groups = of, .group_count = count};
  assert_rc(RC_OK, trainer_submit_batch(&g->client, &m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_batch_status(&g->client, id, WAIT_MS / 2, true, out, &arena, WAIT_MS, &err), err);
  if (out->state != JOB_DONE) fail_msg("check %s: %s", id, out->error.message);
}

/* Corrected where they differ, until they are what version 0 draws. */
static void correct(struct rig *g, const char *prefix) {
  struct batch_status found;
  char id[64];
  int n = 0;
  do {
    snprintf(id, sizeof id, "%s.%d", prefix, n++);
    check(g, id, groups, GROUPS, &found);
    for (size_t k = 0; k < found.difference_count; k++) {
      const struct draw_difference *d = &found.differences[k];
      for (int i = 0; i < GROUPS * SAMPLES; i++) {
        struct batch_sample *s = &groups[i / SAMPLES].samples[i % SAMPLES];
        if (strcmp(s->id, d->id) == 0) s->tokens.items[s->prompt_length + d->position] = d->token;
      }
    }
  } while (found.difference_count > 0);
  assert_true(n > 1);
}

static int set_up(void **state) {
  struct open_run run = run_request("r1");
  struct open_run_answer answer;
  run.start.from = START_MODEL;
  groups_make(&arena, groups, GROUPS, 80);
  for (int i = 0; i < GROUPS; i++) groups[i].ordinal = i;
  const int rc = rig_set_up(state);
  rig_open(*state, &run, &answer);
  correct(*state, "c");
  return rc;
}

static int tear_down(void **state) {
  arena_free(&arena);
  arena = (struct arena)ARENA_INIT;
  return rig_tear_down(state);
}

/* Of a trainer that has checked nothing, over the same groups. */
static struct digest digest_without_checks(size_t count) {
  struct rig g;
  struct open_run run = run_request("r1");
  struct open_run_answer answer;
  run.start.from = START_MODEL;
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &run, &answer);
  const struct digest digest = rig_round(&g, "r1", 0, groups, count);
  rig_end(&g);
  return digest;
}

static void a_check_leaves_nothing_behind(void **state) {
  const struct digest expected = digest_without_checks(GROUPS), digest = rig_round(*state, "r1", 0, groups, GROUPS);
  assert_true(digest_equal(&digest, &expected));
}

/* Two hold and go ahead, one does not and comes again; each is in the step once, with the bits that it would have
 * had. */
static void groups_that_go_ahead_are_in_the_step_once(void **state) {
  struct rig *g = *state;
  struct batch_status found, again;
  struct batch_sample *wrong = &groups[1].samples[2];
  int32_t *token = &wrong->tokens.items[wrong->prompt_length];
  const int32_t due = *token;
  const struct digest expected = digest_without_checks(GROUPS);
  for (int i = 0; i < GROUPS; i++) groups[i].ahead = true;
  *token = due == 0;
  check(g, "c.ahead", groups, GROUPS, &found);
  assert_int_equal(found.difference_count, 1);
  assert_string_equal(found.differences[0].id, wrong->id);
  assert_true(found.differences[0].position == 0 && found.differences[0].token == due);
  *token = due;
  check(g, "c.again", groups, GROUPS, &again);
  assert_int_equal(again.difference_count, 0);
  const struct digest digest = rig_round(g, "r1", 0, groups, GROUPS);
  assert_true(digest_equal(&digest, &expected));
}

/* The coordinator refuses it: a worker has lied about log-probabilities, though not about tokens.  It was in the sums
 * all the same, and when it failed before it was drawn again, each step was refused: it named one group too few. */
static void a_group_of_which_other_log_probabilities_were_recorded_does_not_go_ahead(void **state) {
  struct rig *g = *state;
  struct batch_status found, told;
  check(g, "c.own", groups, GROUPS, &found);
  for (int i = 0; i < GROUPS; i++) {
    groups[i].ahead = true;
    logprobs_digest(&groups[i].recorded_sha256, found.samples + i * SAMPLES, SAMPLES);
  }
  groups[1].recorded_sha256.bytes[0] ^= 1;
  check(g, "c.ahead", groups, GROUPS, &told);
  assert_int_equal(told.difference_count, 0);
  groups[1] = groups[2]; /* the middle one fails, and the step has the others */
  const struct digest digest = rig_round(g, "r1", 0, groups, GROUPS - 1);
  const struct digest expected = digest_without_checks(GROUPS - 1);
  assert_true(digest_equal(&digest, &expected));
}

static void a_group_that_went_ahead_is_answered_as_it_was(void **state) {
  struct rig *g = *state;
  struct batch_status found, batch;
  for (int i = 0; i < GROUPS; i++) groups[i].ahead = true;
  check(g, "c.ahead", groups, GROUPS, &found);
  rig_batch(g, "r1", "r1.0.b0", 0, groups, GROUPS, &batch, &arena);
  assert_int_equal(batch.state, JOB_DONE);
  assert_int_equal(batch.sample_count, found.sample_count);
  assert_true(digest_equal(&batch.logprobs_sha256, &found.logprobs_sha256));
  assert_true(batch.stats.loss == found.stats.loss && batch.stats.tokens == found.stats.tokens &&
              batch.stats.tokens > 0);
}

/* Its gradient cannot be taken out of the sums any more. */
static void other_advantages_than_those_that_went_ahead_are_refused(void **state) {
  struct rig *g = *state;
  struct batch_status found, batch;
  groups[0].ahead = true;
  check(g, "c.ahead", groups, 1, &found);
  groups[0].samples[0].advantage += 0.5f;
  rig_batch(g, "r1", "r1.0.b0", 0, groups, 1, &batch, &arena);
  assert_int_equal(batch.state, JOB_FAILED);
  assert_non_null(strstr(batch.error.message, "was taken ahead of its batch with other samples or advantages"));
}

/* A check needs log-probabilities and draws alone, so what came for the KL term is left aside. */
static void a_group_may_bring_its_reference(void **state) {
  struct rig *g = *state;
  struct open_run run = run_request("r2");
  struct open_run_answer answer;
  struct batch_status without, with;
  struct err err = {0};
  run.start.from = START_MODEL;
  run.training.kl_coefficient = 0.5;
  rig_open(g, &run, &answer);
  struct submit_batch m = {.batch_id = "r2.c0",
                           .run = "r2",
                           .epoch = 3,
                           .fence = 5,
                           .check = {.wanted = true, .seed = run.seed},
                           .groups = groups,
                           .group_count = GROUPS};
  assert_rc(RC_OK, trainer_submit_batch(&g->client, &m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_batch_status(&g->client, m.batch_id, WAIT_MS / 2, true, &without, &arena, WAIT_MS, &err),
            err);
  for (int i = 0; i < GROUPS * SAMPLES; i++) {
    struct batch_sample *s = &groups[i / SAMPLES].samples[i % SAMPLES];
    const size_t trained = wire_segments_trained(s->segments, s->segment_count);
    s->reference = (struct json_f32s){arena_alloc(&arena, trained + 1, sizeof(float)), trained};
    for (size_t k = 0; k < trained; k++) s->reference.items[k] = -1;
    groups[i / SAMPLES].has_reference = true;
  }
  m.batch_id = "r2.c1";
  assert_rc(RC_OK, trainer_submit_batch(&g->client, &m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_batch_status(&g->client, m.batch_id, WAIT_MS / 2, true, &with, &arena, WAIT_MS, &err), err);
  if (with.state != JOB_DONE) fail_msg("%s", with.error.message);
  assert_true(digest_equal(&with.logprobs_sha256, &without.logprobs_sha256));
  assert_int_equal(with.difference_count, without.difference_count);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_check_leaves_nothing_behind, set_up, tear_down),
      cmocka_unit_test_setup_teardown(groups_that_go_ahead_are_in_the_step_once, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_group_of_which_other_log_probabilities_were_recorded_does_not_go_ahead, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(a_group_that_went_ahead_is_answered_as_it_was, set_up, tear_down),
      cmocka_unit_test_setup_teardown(other_advantages_than_those_that_went_ahead_are_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_group_may_bring_its_reference, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("trainer-server/draw_check", tests, NULL, NULL);
}
