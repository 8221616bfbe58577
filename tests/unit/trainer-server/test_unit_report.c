/* Units are shared out by their number alone, and what came of one arrives at rank 0 bit for bit, or is refused. */
#include "tests/unit/trainer-server/support.h"

#include <math.h>

#include "services/trainer-server/ranks/unit_report.h"

enum { GROUPS = 4 };

static void test_units_take_turns(void **state) {
  (void)state;
  for (int ranks = 1; ranks <= 9; ranks++) {
    int count[9] = {0};
    for (size_t n = 0; n < 100; n++) count[unit_rank(n, ranks)]++;
    for (int r = 0; r < ranks; r++) assert_true(abs(count[r] - 100 / ranks) <= 1);
  }
  assert_int_equal(unit_rank(7, 1), 0);
  assert_int_equal(unit_rank(SIZE_MAX, 2), 1);
}

static void report_make(struct unit_report *r, const struct batch_group *g, struct arena *arena) {
  *r = (struct unit_report){
      .state = UNIT_DONE,
      .sample_count = g->sample_count,
      .stats = {.loss = 0.1 + 0.2, .entropy_sum = 1e-300, .tokens = 7, .samples = 4, .poisoned = true}};
  r->samples = arena_alloc(arena, g->sample_count, sizeof *r->samples);
  for (size_t s = 0; s < g->sample_count; s++) {
    float *values = arena_alloc(arena, s + 1, sizeof *values);
    float *entropies = arena_alloc(arena, s + 1, sizeof *entropies);
    for (size_t i = 0; i <= s; i++) values[i] = -1.0f / (float)(3 * s + i + 1);
    for (size_t i = 0; i <= s; i++) entropies[i] = 1.0f / (float)(5 * s + i + 1);
    values[0] = s == 1 ? -INFINITY : s == 2 ? NAN : values[0]; /* a token that the run's own cut leaves out */
    r->samples[s] = (struct sample_logprobs){
        .id = g->samples[s].id, .logprobs = {values, s + 1}, .entropies = {entropies, s + 1}};
  }
  r->refusals = arena_alloc(arena, 1, sizeof *r->refusals);
  r->refusal_count = 1;
  r->refusals[0] = (struct sample_refusal){g->samples[1].id, REFUSED_DRAWS, 3, 4, NAN, -1.0f / 3, 5, 6, 1.0 / 3};
}

static void assert_same(const struct unit_report *x, const struct unit_report *y) {
  const struct sample_refusal *a = x->refusals, *b = y->refusals;
  assert_true(x->refusal_count == 1 && y->refusal_count == 1);
  assert_string_equal(a->id, b->id);
  assert_true(a->reason == b->reason && a->position == b->position && a->token == b->token &&
              a->unequal == b->unequal && a->far == b->far && a->logprob == b->logprob && a->mismatch == b->mismatch);
  assert_true(isnan(a->token_logprob) && isnan(b->token_logprob));
  assert_int_equal(x->state, y->state);
  assert_true(x->stats.loss == y->stats.loss && x->stats.entropy_sum == y->stats.entropy_sum &&
              x->stats.tokens == y->stats.tokens && x->stats.poisoned == y->stats.poisoned);
  assert_int_equal(x->sample_count, y->sample_count);
  for (size_t s = 0; s < x->sample_count; s++) {
    assert_string_equal(x->samples[s].id, y->samples[s].id);
    assert_int_equal(x->samples[s].logprobs.count, y->samples[s].logprobs.count);
    assert_memory_equal(x->samples[s].logprobs.items, y->samples[s].logprobs.items,
                        x->samples[s].logprobs.count * sizeof(float));
    assert_int_equal(x->samples[s].entropies.count, y->samples[s].entropies.count);
    assert_memory_equal(x->samples[s].entropies.items, y->samples[s].entropies.items,
                        x->samples[s].entropies.count * sizeof(float));
  }
}

/* Units 1 and 3 of four were a rank's; the second of them failed. */
static void test_reports_arrive_as_they_left(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group groups[GROUPS];
  struct unit_report sent[GROUPS] = {{0}}, got[GROUPS] = {{0}};
  struct buf text = BUF_INIT;
  groups_make(&arena, groups, GROUPS, 1);
  report_make(&sent[1], &groups[1], &arena);
  sent[3].state = UNIT_FAILED;
  err_set(&sent[3].error, RC_NO_MEMORY, "samples", "no room for \"this\"\nunit");
  assert_rc(RC_OK, unit_reports_encode(sent, groups, GROUPS, &text, &err), err);
  assert_rc(RC_OK, unit_reports_decode(got, groups, GROUPS, text.data, text.len, &arena, &err), err);
  assert_int_equal(got[0].state, UNIT_ABSENT);
  assert_int_equal(got[2].state, UNIT_ABSENT);
  assert_same(&got[1], &sent[1]);
  assert_int_equal(got[3].state, UNIT_FAILED);
  assert_int_equal(got[3].error.rc, RC_NO_MEMORY);
  assert_string_equal(got[3].error.message, sent[3].error.message);
  buf_free(&text);
  arena_free(&arena);
}

static void refuse(struct batch_group *groups, const char *text, size_t len, const char *why) {
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct unit_report got[GROUPS] = {{0}};
  assert_rc(RC_INVALID, unit_reports_decode(got, groups, GROUPS, text, len, &arena, &err), err);
  if (!strstr(err.message, why)) fail_msg("expected \"%s\" in \"%s\"", why, err.message);
  arena_free(&arena);
}

static void test_what_no_rank_sent_is_refused(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct batch_group groups[GROUPS];
  struct unit_report sent[GROUPS] = {{0}};
  struct buf text = BUF_INIT;
  struct err err = {0};
  groups_make(&arena, groups, GROUPS, 1);
  report_make(&sent[2], &groups[2], &arena);
  assert_rc(RC_OK, unit_reports_encode(sent, groups, GROUPS, &text, &err), err);
  refuse(groups, text.data, text.len - 1, "ends early");
  refuse(groups, text.data, 7, "ends early");
  groups[2].id = "r1.0.9";
  refuse(groups, text.data, text.len, "this batch has no such unit");
  groups[2].id = "r1.0.2";
  size_t trained = 0;
  for (size_t s = 0; s < sent[2].sample_count; s++) trained += sent[2].samples[s].logprobs.count;
  text.data[text.len - (2 * trained) * sizeof(float)] ^= 1; /* another first log-probability; entropies come last */
  refuse(groups, text.data, text.len, "not those that were computed");
  buf_free(&text);
  arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_units_take_turns),
      cmocka_unit_test(test_reports_arrive_as_they_left),
      cmocka_unit_test(test_what_no_rank_sent_is_refused),
  };
  return cmocka_run_group_tests_name("trainer-server/unit_report", tests, NULL, NULL);
}
