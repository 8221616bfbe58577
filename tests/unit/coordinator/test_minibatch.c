/* `update: minibatch` over real HTTP: which batches and steps the trainer is sent, in which order.  What would break: a
 * group is trained in another step when it completes at another time; a step is taken with a group missing, or twice; a
 * trainer that lost the round's steps is not sent all of them again. */
#include <string.h>

#include "services/coordinator/decide/states.h"
#include "tests/unit/coordinator/fake_server.h"

/* 5 groups x 4 samples of 3 tokens, in file order. */
#define STEPS_OF(groups, rest)                                                                                  \
  "{\"update\":\"minibatch\",\"groups_per_step\":" #groups                                                      \
  ",\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},"                                                  \
  "\"verify_samples\":false,\"groups_per_round\":5,\"samples_per_group\":4,\"seed\":3,\"sampling\":{\"max_new_" \
  "tokens\":8}," rest
#define RUN(rest) STEPS_OF(2, rest)

enum { GROUPS = 5 };

static bool order_is(struct fixture *f, const char *wanted, char now[FAKE_ORDER]) {
  fake_trainer_order(&f->trainer, now);
  return strcmp(now, wanted) == 0;
}

static void wait_order(struct fixture *f, const char *wanted) {
  char now[FAKE_ORDER];
  AWAIT(order_is(f, wanted, now), "the trainer took\n%s\nnot\n%s", now, wanted) a_moment_passes(f);
}

static void stays(struct fixture *f, const char *wanted) {
  char now[FAKE_ORDER];
  driver_has_looked(f);
  fake_trainer_order(&f->trainer, now);
  assert_string_equal(now, wanted);
}

static void begin(struct fixture *f, struct fake_server *s, const char *config, struct lease leases[GROUPS]) {
  register_server(f, s, "gen-1");
  post_run(f, config);
  collect_leases(f, s, leases, GROUPS);
}

static void answer(struct fixture *f, const struct fake_server *s, const struct lease *leases, const char *groups) {
  for (; *groups; groups++) answer_lease(f, s, &leases[*groups - '0']);
}

static double of_round(const struct json *run, const char *key) {
  return json_number(json_get(json_at(json_get(run, "history"), 0), key));
}

/* The remainder makes the version. */
static void groups_wait_until_it_is_known_that_they_are_of_the_next_step(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  begin(f, &s, RUN("\"rounds\":1}"), leases);
  answer(f, &s, leases, "432");
  stays(f, "");
  answer(f, &s, leases, "1");
  wait_order(f, "b0[1]");
  stays(f, "b0[1]");
  answer(f, &s, leases, "0");
  json_free(wait_state(f, "r1", "completed"));
  stays(f, "b0[1] b1[0] s0[0,1]/24 b2[2,3] s1[2,3]/24 b3[4] step[4]/12");
}

/* By the counts that the rounds keep of their batches, inner steps and sealed groups. */
static void nothing_is_undone(struct fixture *f) {
  assert_int_equal(read_int(f, "SELECT count(*) FROM rounds WHERE (jobs_undone, groups_sealed) <> (0, 0)"), 0);
}

static void in_sync_the_steps_are_the_same(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  begin(f, &s, RUN("\"mode\":\"sync\",\"rounds\":1,\"training\":{\"normalization\":\"samples\"}}"), leases);
  answer(f, &s, leases, "4031");
  stays(f, "");
  answer(f, &s, leases, "2");
  json_free(wait_state(f, "r1", "completed"));
  stays(f, "b0[0,1] s0[0,1]/8 b1[2,3] s1[2,3]/8 b2[4] step[4]/4");
}

/* Group 0 is replaced by 5, which comes last, and group 3 by none.  Nothing is left for the round's own step. */
static void filtered_groups_are_in_no_step_and_refills_come_last(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS], more;
  begin(f, &s, RUN("\"filter\":{\"zero_advantage\":\"refill\",\"refill_max\":1},\"rounds\":1}"), leases);
  answer(f, &s, leases, "2");
  stays(f, ""); /* it may be the third */
  answer_lease_alike(f, &s, &leases[0], false);
  wait_order(f, "b0[2]");
  answer_lease_alike(f, &s, &leases[3], false);
  collect_leases(f, &s, &more, 1);
  answer_lease(f, &s, &more);
  stays(f, "b0[2]");
  answer(f, &s, leases, "1");
  wait_order(f, "b0[2] b1[1] s0[1,2]/24 b2[5]"); /* with 4 open it is of the second step either way */
  answer(f, &s, leases, "4");
  struct json *run = wait_state(f, "r1", "completed");
  stays(f, "b0[2] b1[1] s0[1,2]/24 b2[5] b3[4] s1[4,5]/24 step[]/0");
  assert_true(of_round(run, "steps") == 2);
  json_free(run);
}

/* The last open group is filtered after all others were batched: what was part of a step may be all that is left. */
static void a_step_that_cannot_be_filled_is_the_rounds_last(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  begin(f, &s, RUN("\"filter\":{\"zero_advantage\":\"shrink\"},\"rounds\":1}"), leases);
  answer_lease_alike(f, &s, &leases[1], false);
  answer(f, &s, leases, "2");
  wait_order(f, "b0[2]");
  answer(f, &s, leases, "03");
  wait_order(f, "b0[2] b1[0] s0[0,2]/24 b2[3]");
  answer_lease_alike(f, &s, &leases[4], false);
  json_free(wait_state(f, "r1", "completed"));
  stays(f, "b0[2] b1[0] s0[0,2]/24 b2[3] step[3]/12");
}

static void masked_tokens_are_in_no_denominator(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  begin(f, &s, RUN("\"mode\":\"sync\",\"rounds\":1}"), leases);
  for (int i = 0; i < GROUPS; i++) {
    struct lease_result r = make_result(f, &s, &leases[i]);
    struct sample_segment cut[] = {{.start = 0, .count = 1, .loss_mask = false},
                                   {.start = 1, .count = 2, .loss_mask = true}};
    if (i == 1 || i == 4) {
      r.samples[3].segments = cut;
      r.samples[3].segment_count = 2;
    }
    assert_int_equal(put_result(f, &leases[i], &r, NULL, NULL), RC_OK);
  }
  json_free(wait_state(f, "r1", "completed"));
  stays(f, "b0[0,1] s0[0,1]/23 b1[2,3] s1[2,3]/24 b2[4] step[4]/11");
}

static void a_rounds_own_step_waits_until_its_inner_steps_are_taken(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  f->trainer.slow_steps = true;
  begin(f, &s, STEPS_OF(5, "\"mode\":\"sync\",\"rounds\":1}"), leases);
  answer(f, &s, leases, "01234");
  wait_order(f, "b0[0,1] b1[2,3] b2[4] s0[0,1,2,3,4]/60");
  AWAIT(read_int(f, "SELECT total(done) FROM batches") == 3, "the batches' answers are not stored") a_moment_passes(f);
  stays(f, "b0[0,1] b1[2,3] b2[4] s0[0,1,2,3,4]/60");
  assert_int_equal(read_int(f, "SELECT state FROM rounds"), ROUND_TRAINING);
  fake_trainer_finish_steps(&f->trainer);
  json_free(wait_state(f, "r1", "completed"));
  stays(f, "b0[0,1] b1[2,3] b2[4] s0[0,1,2,3,4]/60 step[]/0");
  assert_int_equal(read_int(f, "SELECT count(*) FROM inner_steps WHERE done = 0"), 0);
  nothing_is_undone(f);
}

static void a_round_tells_how_far_the_policy_moved(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  begin(f, &s, RUN("\"mode\":\"sync\",\"rounds\":1}"), leases);
  answer(f, &s, leases, "01234");
  struct json *run = wait_state(f, "r1", "completed");
  assert_true(of_round(run, "steps") == 3);
  assert_true(of_round(run, "clip_fraction") == 2.0 / 60);
  assert_true(of_round(run, "ess") == (24 + 45.0) * (24 + 45) / (60 * (24 + 2 * 36)));
  assert_true(of_round(run, "kl_new_old") == 36.0 / 4 / 60);
  assert_true(of_round(run, "mean_abs_diff_new_old") == 36.0 / 8 / 60);
  assert_true(of_round(run, "loss") == 3.0 / 60);
  assert_true(read_metric(f, "leasehold_round_ess") == (24 + 45.0) * (24 + 45) / (60 * (24 + 2 * 36)));
  json_free(run);
}

/* ---- somebody is lost ---- */

static void until_the_second_step(struct fixture *f, struct fake_server *s, struct lease leases[GROUPS]) {
  begin(f, s, RUN("\"rounds\":1}"), leases);
  f->trainer.order[0] = '\0';
  answer(f, s, leases, "1");
  wait_order(f, "b0[1]");
  answer(f, s, leases, "0");
  wait_order(f, "b0[1] b1[0] s0[0,1]/24");
  answer(f, s, leases, "2");
  wait_order(f, "b0[1] b1[0] s0[0,1]/24 b2[2]");
  AWAIT(read_int(f, "SELECT total(done) FROM inner_steps") == 1, "the step's answer is not stored") a_moment_passes(f);
}

static void a_trainer_that_lost_the_rounds_steps_is_sent_them_again(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  until_the_second_step(f, &s, leases);
  fake_trainer_forget(&f->trainer, false);
  register_trainer(f);
  wait_order(f, "b0[1] b1[0] s0[0,1]/24 b2[2] b0[1] b1[0] s0[0,1]/24 b2[2]");
  answer(f, &s, leases, "34");
  struct json *run = wait_state(f, "r1", "completed");
  stays(f, "b0[1] b1[0] s0[0,1]/24 b2[2] b0[1] b1[0] s0[0,1]/24 b2[2] b3[3] s1[2,3]/24 b4[4] step[4]/12");
  assert_int_equal(get_int(run, "totals", "trained_tokens"), 60);
  assert_true(of_round(run, "kl_new_old") == 36.0 / 4 / 60);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents"), 0);
  nothing_is_undone(f);
  json_free(run);
}

static void other_weights_after_a_step_that_is_taken_again_are_told(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  until_the_second_step(f, &s, leases);
  fake_trainer_forget(&f->trainer, false);
  f->trainer.other_steps = true;
  register_trainer(f);
  answer(f, &s, leases, "34");
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'nondeterminism' AND subject = 'r1.0.s0'"),
                   1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents"), 1);
}

static void a_coordinator_that_comes_back_takes_no_step_twice(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  until_the_second_step(f, &s, leases);
  coordinator_restart(f);
  register_server(f, &s, "gen-1");
  struct json *run = serve_run(f, &s, "r1", "completed");
  char order[FAKE_ORDER];
  fake_trainer_order(&f->trainer, order);
  assert_non_null(strstr(order, "b0[1] b1[0] s0[0,1]/24 b2[2] b3["));
  assert_non_null(strstr(order, " s1[2,3]/24 b"));
  assert_non_null(strstr(order, "[4] step[4]/12"));
  assert_int_equal(get_int(run, "totals", "trained_tokens"), 60);
  json_free(run);
}

#define ROUND "b0[0,1] s0[0,1]/24 b1[2,3] s1[2,3]/24 b2[4] step[4]/12"

/* Two rounds; the trainer loses the first in the second. */
static void a_replay_repeats_batches_and_steps_in_their_order(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  begin(f, &s, RUN("\"mode\":\"sync\",\"rounds\":2}"), leases);
  answer(f, &s, leases, "01234");
  collect_leases(f, &s, leases, GROUPS);
  stays(f, ROUND);
  fake_trainer_forget(&f->trainer, false);
  register_trainer(f);
  wait_order(f, ROUND " " ROUND);
  answer(f, &s, leases, "01234");
  json_free(wait_state(f, "r1", "completed"));
  stays(f, ROUND " " ROUND " " ROUND);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents"), 0);
}

static void a_replayed_step_with_other_weights_is_named(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  begin(f, &s, RUN("\"mode\":\"sync\",\"rounds\":2}"), leases);
  answer(f, &s, leases, "01234");
  collect_leases(f, &s, leases, GROUPS);
  fake_trainer_forget(&f->trainer, false);
  f->trainer.other_steps = true;
  register_trainer(f);
  json_free(wait_held(f, "r1", "replaying step r1.0.s0 gave digest"));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(groups_wait_until_it_is_known_that_they_are_of_the_next_step),
      CASE(in_sync_the_steps_are_the_same),
      CASE(filtered_groups_are_in_no_step_and_refills_come_last),
      CASE(a_step_that_cannot_be_filled_is_the_rounds_last),
      CASE(masked_tokens_are_in_no_denominator),
      CASE(a_rounds_own_step_waits_until_its_inner_steps_are_taken),
      CASE(a_round_tells_how_far_the_policy_moved),
      CASE(a_trainer_that_lost_the_rounds_steps_is_sent_them_again),
      CASE(other_weights_after_a_step_that_is_taken_again_are_told),
      CASE(a_coordinator_that_comes_back_takes_no_step_twice),
      CASE(a_replay_repeats_batches_and_steps_in_their_order),
      CASE(a_replayed_step_with_other_weights_is_named),
  };
  return cmocka_run_group_tests_name("coordinator/minibatch", tests, NULL, NULL);
}
