/* checks/judgement.h: which samples of a verified batch are refused, and for what. */
#include "services/trainer-server/checks/judgement.h"

#include <math.h>
#include <string.h>

#include "tests/unit/base/cm.h"

enum { TOKENS = 20 };

static const struct batch_verify BOUNDS = {.wanted = true, .mismatch_most = 2, .draws_near = 0.25, .draws_most = 0.5};

/* A sample as its version draws it, of which tests change something. */
struct sample {
  int32_t position[TOKENS], token[TOKENS], due[TOKENS], low[TOKENS], high[TOKENS];
  float due_logprob[TOKENS], recorded[TOKENS], own[TOKENS];
};

static struct judged_sample honest(struct sample *s, int exact_from) {
  for (int t = 0; t < TOKENS; t++) {
    s->position[t] = 2 * t; /* every second token is trained on */
    s->token[t] = s->due[t] = 10 + t;
    s->low[t] = 8 + t;
    s->high[t] = 12 + t;
    s->recorded[t] = s->own[t] = s->due_logprob[t] = -0.125f * (float)(t + 1);
  }
  return (struct judged_sample){.id = "r1.0.0.0",
                                .count = TOKENS,
                                .exact_from = exact_from,
                                .position = s->position,
                                .token = s->token,
                                .due = s->due,
                                .due_logprob = s->due_logprob,
                                .low = s->low,
                                .high = s->high,
                                .recorded = s->recorded,
                                .own = s->own};
}

static void what_the_version_draws_holds(void **state) {
  (void)state;
  struct sample s;
  struct sample_refusal r;
  for (int from = -1; from <= TOKENS; from++) {
    const struct judged_sample j = honest(&s, from);
    assert_false(judgement_refuses(&r, &BOUNDS, &j));
  }
}

static void one_exact_token_is_enough(void **state) {
  (void)state;
  struct sample s;
  struct sample_refusal r;
  for (int t = 0; t < TOKENS; t++) {
    const struct judged_sample j = honest(&s, 8);
    s.token[t] = 9 + t; /* near */
    s.own[t] = -7;
    s.recorded[t] = -7;
    assert_int_equal(judgement_refuses(&r, &BOUNDS, &j), t >= 8);
    if (t < 8) continue;
    assert_true(r.reason == REFUSED_TOKEN && r.position == 2 * t && r.token == 10 + t && r.far == 0 && r.unequal == 0);
    assert_true(r.token_logprob == s.due_logprob[t] && r.logprob == -7 && strcmp(r.id, "r1.0.0.0") == 0);
  }
}

static void one_bit_of_an_exact_log_probability_is_enough(void **state) {
  (void)state;
  struct sample s;
  struct sample_refusal r;
  for (int t = 0; t < TOKENS; t++) {
    const struct judged_sample j = honest(&s, 8);
    s.recorded[t] = nextafterf(s.recorded[t], 0);
    assert_int_equal(judgement_refuses(&r, &BOUNDS, &j), t >= 8);
    if (t >= 8) assert_true(r.reason == REFUSED_LOGPROB && r.position == 2 * t && r.unequal == 1 && r.far == 0);
  }
  const struct judged_sample j = honest(&s, 0);
  s.own[3] = NAN; /* equals nothing */
  assert_true(judgement_refuses(&r, &BOUNDS, &j) && r.reason == REFUSED_LOGPROB && isnan(r.logprob));
}

static void of_older_tokens_half_may_be_far_from_what_is_drawn(void **state) {
  (void)state;
  struct sample s;
  struct sample_refusal r;
  const struct judged_sample j = honest(&s, TOKENS);
  for (int t = 0; t < TOKENS; t++) s.token[t] = t % 2 ? s.low[t] : s.high[t]; /* others, and near */
  assert_false(judgement_refuses(&r, &BOUNDS, &j));
  for (int t = 1; t <= TOKENS / 2; t++) s.token[t] = t % 2 ? s.low[t] - 1 : s.high[t] + 1;
  assert_false(judgement_refuses(&r, &BOUNDS, &j));
  s.token[15]--;
  assert_true(judgement_refuses(&r, &BOUNDS, &j));
  assert_true(r.reason == REFUSED_DRAWS && r.far == 11 && r.position == 2 && r.token == 9 && isnan(r.token_logprob));
}

static void older_log_probabilities_may_be_off_by_the_bound_in_the_mean(void **state) {
  (void)state;
  struct sample s;
  struct sample_refusal r;
  const struct judged_sample j = honest(&s, TOKENS);
  for (int t = 0; t < TOKENS; t++) s.own[t] = s.recorded[t] - 2;
  assert_false(judgement_refuses(&r, &BOUNDS, &j));
  s.own[7] -= 0.5f;
  assert_true(judgement_refuses(&r, &BOUNDS, &j));
  assert_true(r.reason == REFUSED_MISMATCH && r.position == 14 && fabs(r.mismatch - 2.025) < 1e-6);
}

/* One token of a short sample may move far. */
static void a_short_sample_is_held_against_what_a_longer_one_could_be_off(void **state) {
  (void)state;
  struct sample s;
  struct sample_refusal r;
  struct judged_sample j = honest(&s, TOKENS);
  j.count = j.exact_from = 2;
  s.own[0] = s.recorded[0] - 16;
  s.own[1] = s.recorded[1] - 16;
  s.token[0] = s.token[1] = 1;
  assert_false(judgement_refuses(&r, &BOUNDS, &j));
  s.own[1] -= 1;
  assert_true(judgement_refuses(&r, &BOUNDS, &j) && r.reason == REFUSED_MISMATCH);
}

/* It has uniforms of its own, and what is expected of others' kernels. */
static void what_promises_nothing_is_held_against_one_bound_where_that_is_asked_for(void **state) {
  (void)state;
  struct sample s;
  struct sample_refusal r;
  struct batch_verify strict = BOUNDS;
  const struct judged_sample j = honest(&s, -1);
  strict.inexact_too = true;
  for (int t = 0; t < TOKENS; t++) s.token[t] = 1;
  assert_false(judgement_refuses(&r, &strict, &j));
  for (int t = 0; t < TOKENS; t++) s.own[t] = s.recorded[t] - 3;
  assert_false(judgement_refuses(&r, &BOUNDS, &j));
  assert_true(judgement_refuses(&r, &strict, &j) && r.reason == REFUSED_MISMATCH && r.far == 0 && r.token == 1);
}

static void a_token_that_is_cut_now_is_only_far_or_near(void **state) {
  (void)state;
  struct sample s;
  struct sample_refusal r;
  const struct judged_sample j = honest(&s, TOKENS);
  for (int t = 0; t <= TOKENS / 2; t++) {
    s.own[t] = -INFINITY;
    if (t > 0) s.token[t] = 1;
  }
  assert_false(judgement_refuses(&r, &BOUNDS, &j));
  s.token[0] = 1;
  assert_true(judgement_refuses(&r, &BOUNDS, &j) && r.reason == REFUSED_DRAWS && r.mismatch == 0);
}

static void two_judgements_are_the_same_to_the_bit(void **state) {
  (void)state;
  const struct sample_refusal a = {"r1.0.0.0", REFUSED_LOGPROB, 3, 4, -1, -2, 5, 6, 0.5};
  struct sample_refusal b[] = {a, a, a, a, a, a, a, a, a};
  assert_true(judgement_same(&a, &b[0]));
  b[0].id = "r1.0.0.1";
  b[1].reason = REFUSED_TOKEN;
  b[2].position++;
  b[3].token++;
  b[4].token_logprob = nextafterf(-1, 0);
  b[5].logprob = nextafterf(-2, 0);
  b[6].unequal++;
  b[7].far++;
  b[8].mismatch = nextafter(0.5, 1);
  for (size_t i = 0; i < sizeof b / sizeof b[0]; i++)
    if (judgement_same(&a, &b[i])) fail_msg("case %zu", i);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_the_version_draws_holds),
      cmocka_unit_test(one_exact_token_is_enough),
      cmocka_unit_test(one_bit_of_an_exact_log_probability_is_enough),
      cmocka_unit_test(of_older_tokens_half_may_be_far_from_what_is_drawn),
      cmocka_unit_test(older_log_probabilities_may_be_off_by_the_bound_in_the_mean),
      cmocka_unit_test(a_short_sample_is_held_against_what_a_longer_one_could_be_off),
      cmocka_unit_test(what_promises_nothing_is_held_against_one_bound_where_that_is_asked_for),
      cmocka_unit_test(a_token_that_is_cut_now_is_only_far_or_near),
      cmocka_unit_test(two_judgements_are_the_same_to_the_bit),
  };
  return cmocka_run_group_tests_name("trainer-server/judgement", tests, NULL, NULL);
}
