/* Evaluations of several sets.  What would break: a biased estimate, an interval that claims certainty, a majority that
 * depends on the order of the samples, a set judged by another's verifier or drawn at another's temperature, an evaluation
 * of the last version that never ends or trains, problems paired with others, the best checkpoint given up. */
#include <math.h>

#include "services/coordinator/driver/next.h"
#include "services/coordinator/evaluation/bootstrap.h"
#include "services/coordinator/evaluation/interval.h"
#include "services/coordinator/evaluation/majority.h"
#include "services/coordinator/evaluation/pass_at_k.h"
#include "tests/unit/coordinator/fake_server.h"

static void near(double a, double b) {
  if (!(fabs(a - b) <= 1e-12)) print_error("%.17g is not %.17g\n", a, b);
  assert_true(fabs(a - b) <= 1e-12);
}

static void pass_at_k_is_the_share_of_the_subsets(void **state) {
  (void)state;
  near(pass_at_k(5, 2, 1), 0.4);
  near(pass_at_k(5, 2, 2), 0.7); /* 1 - 3/10 */
  near(pass_at_k(5, 2, 3), 0.9);
  near(pass_at_k(5, 2, 4), 1);
  near(pass_at_k(5, 0, 5), 0);
  near(pass_at_k(5, 1, 5), 1);
  near(pass_at_k(1, 1, 1), 1);
  near(pass_at_k(1024, 1, 512), 0.5);
}

static void ks_are_the_powers_of_two_and_all(void **state) {
  (void)state;
  int64_t ks[PASS_KS_MAX];
  assert_int_equal(pass_ks(1, ks), 1);
  assert_int_equal(ks[0], 1);
  assert_int_equal(pass_ks(6, ks), 4);
  assert_true(ks[0] == 1 && ks[1] == 2 && ks[2] == 4 && ks[3] == 6);
  assert_int_equal(pass_ks(8, ks), 4);
  assert_int_equal(ks[3], 8);
  assert_int_equal(pass_ks(1024, ks), 11);
  assert_true(pass_k_shown(6, 6) && pass_k_shown(6, 4) && !pass_k_shown(6, 3) && !pass_k_shown(6, 8) && !pass_k_shown(6, 0));
}

static void a_majority_knows_no_order(void **state) {
  (void)state;
  static const struct {
    struct vote votes[6];
    int count;
    double value;
  } cases[] = {
      {{{7, true}, {9, false}, {8, true}}, 3, 1},                            /* two ways to write what is right */
      {{{9, false}, {7, true}, {9, false}}, 3, 0},                           /* outvoted */
      {{{9, false}, {7, true}}, 2, 0.5},                                     /* a draw of two */
      {{{9, false}, {7, true}, {8, false}}, 3, 1.0 / 3},                     /* of three */
      {{{0, false}, {0, false}, {7, true}}, 3, 1},                           /* who has no answer does not vote */
      {{{0, false}, {0, false}}, 2, 0},
      {{{9, false}, {8, false}, {9, false}, {8, false}, {7, true}, {7, true}}, 6, 1.0 / 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    for (int turn = 0; turn < cases[i].count; turn++) {
      struct vote votes[6];
      for (int k = 0; k < cases[i].count; k++) votes[k] = cases[i].votes[(k + turn) % cases[i].count];
      near(majority_value(votes, cases[i].count), cases[i].value);
    }
  }
}

/* Wilson's for zeros and ones; narrower where values vary less, and never without width unless many draws stand behind it. */
static void an_interval_is_wilsons(void **state) {
  (void)state;
  struct item_sums ones = {0}, mixed = {0}, halves = {0};
  for (int i = 0; i < 10; i++) item_sums_add(&ones, 1);
  struct figure f = figure_of(&ones, 10);
  near(f.value, 1);
  near(f.high, 1);
  near(f.low, 0.7224672001371107);
  for (int i = 0; i < 10; i++) item_sums_add(&mixed, i < 4);
  f = figure_of(&mixed, 10);
  near(f.value, 0.4);
  near(f.low, 0.16818032970623617);
  near(f.high, 0.6873262302663417);
  const struct figure same = figure_of(&mixed, 80); /* zeros and ones are single draws, whatever is claimed */
  near(same.low, f.low);
  for (int i = 0; i < 10; i++) item_sums_add(&halves, 0.5);
  f = figure_of(&halves, 80);
  assert_true(f.low > 0.39 && f.high < 0.61 && f.low < 0.4); /* as 80 draws */
  assert_true(isnan(figure_of(&(struct item_sums){0}, 0).value));
}

static void a_bootstrap_repeats_itself(void **state) {
  (void)state;
  enum { N = 40, RESAMPLES = 2000 };
  double differences[N], means[RESAMPLES];
  for (int i = 0; i < N; i++) differences[i] = i % 4 == 0;
  const struct bootstrap b = bootstrap_paired(differences, N, 3, means, RESAMPLES);
  const struct bootstrap again = bootstrap_paired(differences, N, 3, means, RESAMPLES);
  assert_memory_equal(&b, &again, sizeof b);
  near(b.difference, 0.25);
  assert_true(b.low >= 0.1 && b.low <= 0.15 && b.high >= 0.35 && b.high <= 0.425);
  near(b.p_value, 2.0 / (RESAMPLES + 1));
  assert_true(bootstrap_paired(differences, N, 4, means, RESAMPLES).low != 0 && means[0] > 0);
  for (int i = 0; i < N; i++) differences[i] = 0;
  near(bootstrap_paired(differences, N, 3, means, 100).p_value, 1);
  differences[0] = -1;
  assert_true(bootstrap_paired(differences, 1, 3, means, 100).high == -1);
}

/* ---- runs ---- */

static const struct json *set_at(const struct json *run, size_t evaluation, size_t set) {
  return json_at(json_get(json_at(json_get(run, "evaluations"), evaluation), "sets"), set);
}

/* The fake server answers every second sample rightly: "#d" with the prompt's digit. */
#define SETS                                                                                                            \
  "},\"evaluation\":{\"every_rounds\":2,\"after\":true,\"samples\":2,\"sets\":[{\"name\":\"a\",\"path\":"               \
  "\"train.jsonl\",\"problems\":4,\"temperature\":0},{\"name\":\"b\",\"path\":\"train.jsonl\",\"samples\":3,"           \
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
  post_run(f,
           "{\"dataset\":{\"sources\":[{\"path\":\"train.jsonl\"},{\"path\":\"more.v2.jsonl\"},{\"path\":\"train.jsonl\"}]},"
           "\"groups_per_round\":0,\"samples_per_group\":2,\"sampling\":{\"temperature\":0,\"max_new_tokens\":8},"
           "\"training\":{\"objective\":\"evaluate\"}}");
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
  write_data(f, "other.jsonl", "{\"prompt\":\"x\",\"answer\":4}\n{\"prompt\":\"3+0=\",\"answer\":3}\n{\"prompt\":\"3+0=\",\"answer\":3}\n");
  post_run(f, GRPO(1, SETS));
  json_free(serve_run(f, &s, "r1", "completed"));
  post_run(f,
           "{\"dataset\":{\"path\":\"other.jsonl\"},\"groups_per_round\":0,\"samples_per_group\":2,\"sampling\":{"
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
      cmocka_unit_test(pass_at_k_is_the_share_of_the_subsets),
      cmocka_unit_test(ks_are_the_powers_of_two_and_all),
      cmocka_unit_test(a_majority_knows_no_order),
      cmocka_unit_test(an_interval_is_wilsons),
      cmocka_unit_test(a_bootstrap_repeats_itself),
      CASE(every_set_has_its_own_figures),
      cmocka_unit_test(the_driver_leaves_the_last_evaluation_alone),
      CASE(a_set_is_drawn_at_its_own_temperature),
      CASE(the_last_evaluation_survives_a_restart),
      CASE(the_files_of_an_evaluate_run_are_its_sets),
      CASE(problems_are_paired_by_their_content),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
