/* How long a sample may be, from the dataset's line over the lease to the accepted result, over real HTTP.  What would
 * break: a lease that asks for more than its prompt's own limit; a result that is judged by another prompt's limit, or
 * by another one after a restart; a server that is kept from short prompts because a long one did not fit; a run that
 * is to ignore stop tokens and does not. */
#include "tests/unit/coordinator/fake_server.h"

#define RUN(sampling)                                                                                           \
  "{\"rounds\":1,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false," \
  "\"groups_per_round\":3,"                                                                                     \
  "\"samples_per_group\":2,\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8" sampling                     \
  "},\"training\":{\"objective\":\"grpo\"}}"
#define LINES                                                                                             \
  "{\"prompt\":\"0+0=\",\"answer\":\"0\",\"max_new_tokens\":4}\n{\"prompt\":\"1+0=\",\"answer\":\"1\"}\n" \
  "{\"prompt\":\"2+0=\",\"answer\":\"2\",\"max_new_tokens\":1}\n"

enum { GROUPS = 3 };
static const int32_t LIMITS[GROUPS] = {4, 8, 1}; /* of LINES */

/* The three groups' leases, in order. */
static void begin(struct fixture *f, struct fake_server *s, const char *run, struct lease_answer *out) {
  write_data(f, "train.jsonl", LINES);
  post_run(f, run);
  register_server(f, s, "gen-1");
  poll_leases(f, s, 64, out);
  assert_int_equal(out->lease_count, GROUPS);
}

static void put(struct fixture *f, const struct lease *l, const struct lease_result *r) {
  struct err err = {0};
  if (put_result(f, l, r, NULL, &err) != RC_OK) fail_msg("%s: %s: %s", l->id, err.field, err.message);
}

static void refused(struct fixture *f, const struct lease *l, const struct lease_result *r, const char *field) {
  struct err err = {0};
  const enum rc rc = put_result(f, l, r, NULL, &err);
  if (rc != RC_INVALID || strcmp(err.field, field) != 0)
    fail_msg("%s: expected %s to be refused, got %s, %s: %s", l->id, field, rc_name(rc), err.field, err.message);
}

static void a_lease_has_its_prompts_own_limit(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  begin(f, &s, RUN(",\"stop_token_ids\":[7]"), &a);
  for (int g = 0; g < GROUPS; g++) {
    assert_int_equal(a.leases[g].group_ordinal, g);
    assert_int_equal(a.leases[g].max_new_tokens, LIMITS[g]);
    assert_false(a.leases[g].ignore_eos);
    assert_int_equal(a.leases[g].stop_token_ids.count, 1);
    assert_int_equal(a.leases[g].stop_token_ids.items[0], 7);
  }
}

/* Two leases of one group, by the run's lease_samples_max. */
static void every_lease_of_a_group_has_the_limit(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  write_data(f, "train.jsonl", LINES);
  post_run(f,
           "{\"rounds\":1,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false,\"groups_"
           "per_round\":3,\"samples_per_group\":2,\"lease_samples_max\":1,\"sampling\":{\"max_new_tokens\":8}}");
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  assert_int_equal(a.lease_count, 2 * GROUPS);
  for (int i = 0; i < 2 * GROUPS; i++) assert_int_equal(a.leases[i].max_new_tokens, LIMITS[i / 2]);
}

static void a_result_is_judged_by_its_groups_limit(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  begin(f, &s, RUN(""), &a);
  for (int g = 0; g < GROUPS; g++) {
    const int32_t limit = LIMITS[g];
    struct lease_result r = make_result_of_length(f, &s, &a.leases[g], limit + 1, FINISH_LENGTH);
    refused(f, &a.leases[g], &r, "samples.token_ids");
    if (limit > 1) {
      r = make_result_of_length(f, &s, &a.leases[g], limit - 1, FINISH_LENGTH);
      refused(f, &a.leases[g], &r, "samples.finish");
    }
    r = make_result_of_length(f, &s, &a.leases[g], limit, FINISH_LENGTH);
    put(f, &a.leases[g], &r);
  }
  json_free(wait_state(f, "r1", "completed"));
}

/* The dataset is another one by then: what counts is what the round began with. */
static void a_restart_changes_no_limit(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  begin(f, &s, RUN(""), &a);
  coordinator_down(f);
  write_data(f, "train.jsonl",
             "{\"prompt\":\"0+0=\",\"answer\":\"0\"}\n{\"prompt\":\"1+0=\",\"answer\":\"1\",\"max_new_tokens\":2}\n"
             "{\"prompt\":\"2+0=\",\"answer\":\"2\",\"max_new_tokens\":5}\n");
  coordinator_up(f);
  register_trainer(f);
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  assert_int_equal(a.lease_count, GROUPS);
  for (int g = 0; g < GROUPS; g++) {
    assert_int_equal(a.leases[g].fence, 2);
    assert_int_equal(a.leases[g].max_new_tokens, LIMITS[g]);
    const struct lease_result r = make_result_of_length(f, &s, &a.leases[g], LIMITS[g], FINISH_LENGTH);
    put(f, &a.leases[g], &r);
  }
  json_free(wait_state(f, "r1", "completed"));
}

/* A lease goes back whole: a sample that has its prompt's length had ended, and is not sampled again. */
static void a_sample_handed_back_at_its_full_length_is_done(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  begin(f, &s, RUN(""), &a);
  struct lease_result r = make_result_of_length(f, &s, &a.leases[0], 4, FINISH_ABORT);
  r.handed_back = true;
  r.samples[1].token_ids.count = r.samples[1].logprobs.count = 3;
  r.samples[1].segments[0].count = r.samples[1].spans[0].count = 3;
  put(f, &a.leases[0], &r);
  assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE state = 2"), 1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE sample = 0 AND finish = 1 AND tokens = 4"), 1);
  poll_leases(f, &s, 64, &a);
  assert_int_equal(a.lease_count, 1);
  assert_string_equal(a.leases[0].id, "r1.0.0.1-1");
  assert_int_equal(a.leases[0].partials[0].token_ids.count, 3);
}

/* "<digit>+0=" has four tokens: the groups have 8, 12 and 5 positions. */
static void a_server_gets_what_is_shorter_than_what_it_refused(void **state) {
  struct fixture *f = *state;
  struct fake_server s, fresh;
  struct lease_answer a;
  struct err err = {0};
  begin(f, &s, RUN(""), &a);
  struct lease_result r[GROUPS];
  for (int g = 0; g < GROUPS; g++) {
    r[g] = make_result_of_length(f, &s, &a.leases[g], 1, FINISH_ABORT);
    r[g].handed_back = true;
    for (int i = 0; i < 2; i++) {
      r[g].samples[i].token_ids.count = r[g].samples[i].logprobs.count = 0;
      r[g].samples[i].segment_count = r[g].samples[i].span_count = 0;
    }
  }
  r[0].refused = "4 prompt tokens and 4 new tokens exceed this server's context of 7 tokens";
  for (int g = 0; g < GROUPS; g++) put(f, &a.leases[g], &r[g]);
  assert_int_equal(
      read_int(f,
               "SELECT count(*) FROM incidents WHERE kind = 'lease_refused' AND detail LIKE '% of 8 positions or %'"),
      1);
  assert_int_equal(poll_once(f, &s, 64, &a, &err), RC_OK);
  assert_int_equal(a.lease_count, 1);
  assert_int_equal(a.leases[0].group_ordinal, 2);
  register_server(f, &fresh, "gen-2");
  for (int g = 0; g < 2; g++) { /* a group a poll: they are shared out among two servers */
    poll_leases(f, &fresh, 64, &a);
    assert_int_equal(a.leases[0].group_ordinal, g);
  }
}

static void with_ignore_eos_every_sample_goes_on_to_its_length(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  begin(f, &s, RUN(",\"ignore_eos\":true"), &a);
  for (int g = 0; g < GROUPS; g++) {
    assert_true(a.leases[g].ignore_eos);
    assert_int_equal(a.leases[g].stop_token_ids.count, 0);
  }
  struct lease_result r = make_result_of_length(f, &s, &a.leases[0], 4, FINISH_STOP);
  r.samples[0].token_ids.items[3] = r.samples[1].token_ids.items[3] = EOS;
  refused(f, &a.leases[0], &r, "samples.finish");
  for (int g = 0; g < GROUPS; g++) {
    r = make_result_of_length(f, &s, &a.leases[g], LIMITS[g], FINISH_LENGTH);
    r.samples[0].token_ids.items[0] = EOS; /* and on it goes */
    r.samples[0].logprobs.items[0] = fake_logprob(EOS);
    put(f, &a.leases[g], &r);
  }
  json_free(wait_state(f, "r1", "completed"));
}

/* The evaluation's dataset has limits of its own. */
static void evaluation_prompts_have_limits_too(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  write_data(f, "validation.jsonl", "{\"prompt\":\"5+0=\",\"answer\":\"5\",\"max_new_tokens\":3}\n");
  write_data(f, "train.jsonl", LINES);
  post_run(f,
           "{\"rounds\":1,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false,\"groups_"
           "per_round\":1,"
           "\"samples_per_group\":2,\"sampling\":{\"max_new_tokens\":8},\"evaluation\":{\"path\":\"validation.jsonl\","
           "\"every_rounds\":1}}");
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  assert_int_equal(a.lease_count, 2);
  for (size_t i = 0; i < a.lease_count; i++)
    assert_int_equal(a.leases[i].max_new_tokens, a.leases[i].purpose == LEASE_EVALUATION ? 3 : 4);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_lease_has_its_prompts_own_limit),
      CASE(every_lease_of_a_group_has_the_limit),
      CASE(a_result_is_judged_by_its_groups_limit),
      CASE(a_restart_changes_no_limit),
      CASE(a_sample_handed_back_at_its_full_length_is_done),
      CASE(a_server_gets_what_is_shorter_than_what_it_refused),
      CASE(with_ignore_eos_every_sample_goes_on_to_its_length),
      CASE(evaluation_prompts_have_limits_too),
  };
  return cmocka_run_group_tests_name("coordinator/sample_lengths", tests, NULL, NULL);
}
