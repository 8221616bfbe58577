/* Evaluations of several sets, as runs make them.  What would break: a set judged by another's verifier or drawn at
 * another's temperature, an evaluation of the last version that never ends or trains, problems paired with others, the
 * best checkpoint given up. */
#include "services/coordinator/driver/next.h"
#include "tests/unit/coordinator/fake_server.h"

static const struct json *set_at(const struct json *run, size_t evaluation, size_t set) {
  return json_at(json_get(json_at(json_get(run, "evaluations"), evaluation), "sets"), set);
}

/* The fake server answers every second sample rightly: "#d" with the prompt's digit. */
#define SETS                                                                                                  \
  "},\"evaluation\":{\"every_rounds\":2,\"after\":true,\"samples\":2,\"sets\":[{\"name\":\"a\",\"path\":"     \
  "\"train.jsonl\",\"problems\":4,\"temperature\":0},{\"name\":\"b\",\"path\":\"train.jsonl\",\"samples\":3," \
  "\"verifier\":{\"kind\":\"length\",\"min\":1}}]}"

static void every_set_has_its_own_figures(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(3, SETS));
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(json_length(json_get(run, "history")), 3);
  assert_int_equal(get_int(run, "version", NULL), 3);
  assert_int_equal(f->trainer.steps, 3);
  assert_int_equal(json_length(json_get(run, "evaluations")), 3); /* rounds 0, 2 and behind the last */
  for (size_t e = 0; e < 3; e++) {
    const struct json *a = set_at(run, e, 0), *b = set_at(run, e, 1);
    assert_string_equal(json_string(json_get(a, "name"), NULL), "a");
    assert_int_equal(get_int(a, "problems", NULL), 4);
    assert_int_equal(get_int(a, "samples", NULL), 8);
    assert_true(json_number(json_get(a, "accuracy")) == 0.5);
    const struct json *pass = json_get(a, "pass_at");
    assert_int_equal(json_length(pass), 2);
    assert_true(json_number(json_get(json_at(pass, 0), "value")) == 0.5);
    assert_true(json_number(json_get(json_at(pass, 1), "value")) == 1);
    assert_int_equal(get_int(b, "problems", NULL), 10);
    assert_int_equal(get_int(b, "samples", NULL), 30);
    assert_true(json_number(json_get(b, "accuracy")) == 1); /* its own verifier */
    assert_int_equal(json_type_of(json_get(b, "majority")), JSON_NULL);
  }
  assert_int_equal(get_int(json_at(json_get(run, "evaluations"), 2), "version", NULL), 3);
  assert_int_equal(read_int(f, "SELECT count(*) FROM evaluation_items"), 3 * 14);
  json_free(run);
}

/* A round behind the last one has nothing for the trainer, also after a restart. */
static void the_driver_leaves_the_last_evaluation_alone(void **state) {
  (void)state;
  int64_t round;
  const struct run_config config = {.mode = MODE_PIPELINED, .rounds = 3};
  struct active_run a = {.found = true, .state = RUN_RUNNING, .rounds = 3, .has_version = true, .version = 3,
                         .has_round = true, .round = 3, .round_state = ROUND_OPEN, .unfinished = -1};
  assert_int_equal(next_work(&a, true, &config, &round), NEXT_NOTHING);
  assert_int_equal(next_again(&a, 3), -1);
  a.unfinished = 2; /* the last step's figures are still to come */
  assert_int_equal(next_work(&a, true, &config, &round), NEXT_STEP);
  assert_int_equal(round, 2);
  a = (struct active_run){.found = true, .state = RUN_RUNNING, .rounds = 3, .has_version = true, .version = 2,
                          .has_round = true, .round = 2, .round_state = ROUND_OPEN, .unfinished = -1};
  assert_int_equal(next_work(&a, true, &config, &round), NEXT_TRAIN);
  assert_int_equal(next_again(&a, 2), 2);
}

static void a_set_is_drawn_at_its_own_temperature(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, SETS));
  poll_leases(f, &s, 64, &a);
  int seen[2] = {0};
  for (size_t i = 0; i < a.lease_count; i++) {
    const struct lease *l = &a.leases[i];
    if (l->purpose != LEASE_EVALUATION) continue;
    const bool second = l->group_ordinal >= 8192 + 4;
    assert_true(l->temperature == (second ? 1.0f : 0.0f));
    assert_int_equal(l->sample_count, second ? 3 : 2);
    seen[second]++;
  }
  assert_true(seen[0] == 4 && seen[1] == 10);
}

static void serve_until(struct fixture *f, struct fake_server *s, const char *sql) {
  struct err err = {0};
  AWAIT(read_int(f, sql) > 0, "never: %s", sql) {
    struct lease_answer a;
    if (poll_once(f, s, 16, &a, &err) != RC_OK) fail_msg("%s", err.message);
    for (size_t i = 0; i < a.lease_count; i++) answer_lease(f, s, &a.leases[i]);
    if (a.lease_count == 0) a_moment_passes(f);
  }
}

/* Its coordinator dies while the last version is evaluated. */
static void the_last_evaluation_survives_a_restart(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, SETS));
  serve_until(f, &s, "SELECT count(*) FROM rounds WHERE closing = 1");
  coordinator_restart(f);
  register_server(f, &s, "gen-1");
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(json_length(json_get(run, "evaluations")), 2);
  assert_int_equal(json_length(json_get(run, "history")), 1);
  assert_int_equal(f->trainer.steps, 1);
  json_free(run);
}

/* Files of an evaluate run are its sets; the same name is told by its place. */
static void the_files_of_an_evaluate_run_are_its_sets(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  write_data(f, "more.v2.jsonl", "{\"prompt\":\"4+0=\",\"answer\":4}\n");
  post_run(
      f,
      "{\"dataset\":{\"sources\":[{\"path\":\"train.jsonl\"},{\"path\":\"more.v2.jsonl\"},{\"path\":\"train.jsonl\"}]},"
      "\"verify_samples\":false,\"groups_per_round\":0,\"samples_per_group\":2,\"sampling\":{\"temperature\":0,\"max_"
      "new_tokens\":8},\"training\":{\"objective\":\"evaluate\"}}");
  struct json *run = serve_run(f, &s, "r1", "completed");
  static const char *const names[] = {"train#1", "more", "train#3"};
  static const int problems[] = {10, 1, 10};
  for (size_t i = 0; i < 3; i++) {
    assert_string_equal(json_string(json_get(set_at(run, 0, i), "name"), NULL), names[i]);
    assert_int_equal(get_int(set_at(run, 0, i), "problems", NULL), problems[i]);
  }
  assert_int_equal(get_int(run, "result", "problems"), 21);
  json_free(run);
}

static void problems_are_paired_by_their_content(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct json *answer;
  register_server(f, &s, "gen-1");
  write_data(
      f, "other.jsonl",
      "{\"prompt\":\"x\",\"answer\":4}\n{\"prompt\":\"3+0=\",\"answer\":3}\n{\"prompt\":\"3+0=\",\"answer\":3}\n");
  post_run(f, GRPO(1, SETS));
  json_free(serve_run(f, &s, "r1", "completed"));
  post_run(f,
           "{\"dataset\":{\"path\":\"other.jsonl\"},\"verify_samples\":false,\"groups_per_round\":0,\"samples_per_"
           "group\":2,\"sampling\":{"
           "\"temperature\":0,\"max_new_tokens\":8},\"training\":{\"objective\":\"evaluate\"}}");
  json_free(serve_run(f, &s, "r2", "completed"));
  assert_int_equal(call(f, "GET", "/v1/compare?a=r1.1&b=r2&set=a&b_set=other&figure=pass@1", NULL, &answer), 200);
  assert_int_equal(get_int(answer, "problems", NULL), 1);
  assert_int_equal(get_int(answer, "a_alone", NULL), 3);
  assert_int_equal(get_int(answer, "b_alone", NULL), 2);
  assert_int_equal(get_int(answer, "equal", NULL), 1);
  assert_true(json_number(json_get(answer, "difference")) == 0 && json_number(json_get(answer, "p_value")) == 1);
  json_free(answer);
  assert_int_equal(call(f, "GET", "/v1/compare?a=r1.1&b=r1.0&set=b&figure=majority", NULL, &answer), 422);
  json_free(answer);
  assert_int_equal(call(f, "GET", "/v1/compare?a=r1.0&b=r1.1&resamples=1000000&set=b", NULL, &answer), 200);
  json_free(answer);
  assert_int_equal(call(f, "GET", "/v1/runs/r1/evaluation?round=1&set=b&from=8", NULL, &answer), 200);
  assert_int_equal(json_length(json_get(answer, "items")), 2);
  assert_int_equal(get_int(json_at(json_get(answer, "items"), 0), "line", NULL), 9);
  json_free(answer);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(every_set_has_its_own_figures),
      cmocka_unit_test(the_driver_leaves_the_last_evaluation_alone),
      CASE(a_set_is_drawn_at_its_own_temperature),
      CASE(the_last_evaluation_survives_a_restart),
      CASE(the_files_of_an_evaluate_run_are_its_sets),
      CASE(problems_are_paired_by_their_content),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
