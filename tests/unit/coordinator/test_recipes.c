/* Recipes: what each name becomes, what is given beside it, what is refused; and whole steps by each of them against
 * tests/golden/recipes.txt, which make_recipe_vectors.py computed from the papers' formulas, in decimal, by
 * differences. */
#include "tests/unit/base/cm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/decide/overlong.h"
#include "services/coordinator/rounds/group_seal.h"
#include "services/coordinator/run/recipe.h"
#include "services/coordinator/run/run_context.h"
#include "tests/unit/coordinator/parsed_run.h"

#define RUN(recipe, more) \
  "{\"recipe\":\"" recipe "\",\"dataset\":{\"path\":\"a\"},\"sampling\":{\"max_new_tokens\":100}" more "}"

#define TEACHER "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* ---- names ---- */

static void a_name_becomes_fields_that_are_shown(void **state) {
  (void)state;
  static const struct {
    const char *text, *shown[6];
  } cases[] = {
      {RUN("grpo", ""),
       {"\"recipe\":\"grpo\"", "\"kind\":\"group\"", "\"objective\":\"grpo\"",
        "\"kl_coefficient\":0.04,\"normalization\":\"sequences\""}},
      {RUN("dr_grpo", ""),
       {"\"kind\":\"group_centered\"", "\"kl_coefficient\":0,\"length_max\":100,\"normalization\":\"length\""}},
      {RUN("dapo", ""),
       {"\"clip_high\":0.28", "\"overlong\":{\"buffer\":20}", "\"zero_advantage\":\"refill\"",
        "\"normalization\":\"tokens\""}},
      {RUN("rloo", ""),
       {"\"kind\":\"leave_one_out\"", "\"objective\":\"reinforce\"",
        "\"kl_coefficient\":0.05,\"kl_estimator\":\"k1\",\"kl_in\":\"reward\",\"advantage\":\"leave_one_out\"",
        "\"normalization\":\"samples\""}},
      {RUN("reinforce++", ""), {"\"mode\":\"sync\"", "\"kind\":\"batch\"", "\"objective\":\"grpo\""}},
      {RUN("reinforce++_baseline", ""),
       {"\"mode\":\"sync\"", "\"kind\":\"batch_centered\"", "\"kl_coefficient\":0.001,\"kl_estimator\":\"k2\""}},
      {RUN("gspo", ""), {"\"objective\":\"gspo\"", "\"clip_low\":0.0003,\"clip_high\":0.0004"}},
      {RUN("cispo", ""), {"\"objective\":\"cispo\"", "\"clip_low\":1,\"clip_high\":4"}},
      {RUN("sft", ""), {"\"mode\":\"sync\"", "\"objective\":\"cross_entropy\"", "\"lr\":2e-05"}},
      {RUN("distill", ",\"training\":{\"teacher\":\"" TEACHER "\"}"),
       {"\"objective\":\"reinforce\"", "\"kl_coefficient\":1,\"kl_estimator\":\"k2\",\"teacher\":\"0123",
        "\"kind\":\"none\""}},
      /* what is given beside it wins */
      {RUN("grpo", ",\"training\":{\"kl_coefficient\":0,\"lr\":0.5}"),
       {"\"kl_coefficient\":0,", "\"lr\":0.5", "\"normalization\":\"sequences\""}},
      {RUN("dapo", ",\"overlong\":{\"buffer\":7},\"filter\":{\"zero_advantage\":\"keep\"}"),
       {"\"overlong\":{\"buffer\":7}", "\"zero_advantage\":\"keep\""}},
      {RUN("rloo", ",\"training\":{\"kl_in\":\"loss\"}"), {"\"kl_estimator\":\"k1\",\"normalization\""}},
      {RUN("cispo", ",\"mode\":\"inflight\""),
       {"\"mode\":\"inflight\"", "\"kind\":\"group\"", "\"objective\":\"cispo\""}},
      {RUN("grpo", ",\"training\":{\"kl_target\":0.5,\"reference_every\":4,\"entropy_coefficient\":0.01}"),
       {"\"kl_target\":0.5,\"kl_horizon\":10000,\"reference_every\":4,\"entropy_coefficient\":0.01"}},
      {RUN("grpo", ",\"mask_truncated\":true"), {"\"mask_truncated\":true"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct parsed p, again = {0};
    struct buf out = BUF_INIT, repeated = BUF_INIT;
    struct json_writer w;
    if (parse(&p, cases[i].text)->rc != RC_OK) fail_msg("%s: %s: %s", cases[i].text, p.err.field, p.err.message);
    json_writer_init(&w, &out);
    run_config_write(&p.config, &w);
    for (int k = 0; cases[i].shown[k]; k++)
      if (!strstr(out.data, cases[i].shown[k]))
        fail_msg("%s: %s is not in %s", cases[i].text, cases[i].shown[k], out.data);
    /* what is stored reads back to itself, whatever the recipe would say of what was left out */
    assert_int_equal(run_config_parse_stored(&again.config, out.data, out.len, &again.arena, &again.err), RC_OK);
    json_writer_init(&w, &repeated);
    run_config_write(&again.config, &w);
    assert_string_equal(repeated.data, out.data);
    buf_free(&out);
    buf_free(&repeated);
    parsed_free(&p);
    parsed_free(&again);
  }
}

/* DAPO's penalty can be switched off. */
/* Every field, as the head of recipe.c says it, and as the papers that it names. */
static void the_table_is_the_papers(void **state) {
  (void)state;
  static const struct recipe expected[] = {
      {.name = "grpo",
       .objective = "grpo",
       .normalization = "sequences",
       .clip_low = 0.2,
       .clip_high = 0.2,
       .advantage = ADVANTAGE_GROUP,
       .kl_coefficient = 0.04,
       .kl_estimator = "k3"},
      {.name = "dr_grpo",
       .objective = "grpo",
       .normalization = "length",
       .clip_low = 0.2,
       .clip_high = 0.2,
       .advantage = ADVANTAGE_GROUP_CENTERED,
       .kl_estimator = "k3"},
      {.name = "dapo",
       .objective = "grpo",
       .normalization = "tokens",
       .clip_low = 0.2,
       .clip_high = 0.28,
       .advantage = ADVANTAGE_GROUP,
       .kl_estimator = "k3",
       .refills = true,
       .overlong_share = 5},
      {.name = "rloo",
       .objective = "reinforce",
       .normalization = "samples",
       .clip_low = 0.2,
       .clip_high = 4,
       .advantage = ADVANTAGE_LEAVE_ONE_OUT,
       .kl_coefficient = 0.05,
       .kl_estimator = "k1",
       .kl_in = "reward"},
      {.name = "reinforce++",
       .objective = "grpo",
       .normalization = "tokens",
       .clip_low = 0.2,
       .clip_high = 0.2,
       .advantage = ADVANTAGE_BATCH,
       .kl_estimator = "k3",
       .whole_round = true},
      {.name = "reinforce++_baseline",
       .objective = "grpo",
       .normalization = "tokens",
       .clip_low = 0.2,
       .clip_high = 0.2,
       .advantage = ADVANTAGE_BATCH_CENTERED,
       .kl_coefficient = 0.001,
       .kl_estimator = "k2",
       .whole_round = true},
      {.name = "gspo",
       .objective = "gspo",
       .normalization = "sequences",
       .clip_low = 3e-4,
       .clip_high = 4e-4,
       .advantage = ADVANTAGE_GROUP,
       .kl_estimator = "k3"},
      {.name = "cispo",
       .objective = "cispo",
       .normalization = "tokens",
       .clip_low = 1,
       .clip_high = 4,
       .advantage = ADVANTAGE_GROUP,
       .kl_estimator = "k3"},
      {.name = "sft",
       .objective = "cross_entropy",
       .normalization = "tokens",
       .clip_low = 0.2,
       .clip_high = 0.2,
       .advantage = ADVANTAGE_GROUP,
       .kl_estimator = "k3",
       .lr = 2e-5},
      {.name = "distill",
       .objective = "reinforce",
       .normalization = "tokens",
       .clip_low = 0.2,
       .clip_high = 4,
       .advantage = ADVANTAGE_GROUP_CENTERED,
       .kl_coefficient = 1,
       .kl_estimator = "k2",
       .teaches = true},
  };
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
    const struct recipe *e = &expected[i], *r = NULL;
    struct err err = {0};
    assert_int_equal(recipe_find(&r, e->name, &err), RC_OK);
    assert_string_equal(r->name, e->name);
    assert_string_equal(r->objective, e->objective);
    assert_string_equal(r->normalization, e->normalization);
    assert_true(r->clip_low == e->clip_low && r->clip_high == e->clip_high && r->kl_coefficient == e->kl_coefficient &&
                r->lr == e->lr);
    assert_int_equal(r->advantage, e->advantage);
    assert_string_equal(r->kl_estimator, e->kl_estimator);
    assert_string_equal(r->kl_in, e->kl_in ? e->kl_in : "loss");
    assert_true(r->whole_round == e->whole_round && r->refills == e->refills && r->teaches == e->teaches);
    assert_int_equal(r->overlong_share, e->overlong_share);
  }
}

static void a_penalty_given_as_none_is_none(void **state) {
  (void)state;
  struct parsed p;
  assert_int_equal(parse(&p, RUN("dapo", ",\"overlong\":{\"buffer\":0}"))->rc, RC_OK);
  assert_int_equal(p.config.overlong_buffer, 0);
  parsed_free(&p);
}

/* A run that an earlier coordinator took goes on as it began; what a later one may ask for is not guessed. */
static void stored_configurations_of_other_versions_go_on_or_say_whose_they_are(void **state) {
  (void)state;
  static const char filtered[] = RUN("distill", ",\"training\":{\"teacher\":\"" TEACHER "\"}");
  struct parsed p, again = {0};
  struct buf out = BUF_INIT;
  struct json_writer w;
  assert_int_equal(parse(&p, filtered)->rc, RC_OK);
  p.config.zero_advantage = FILTER_REFILL; /* no longer taken when it is posted */
  json_writer_init(&w, &out);
  run_config_write(&p.config, &w);
  assert_int_equal(run_config_parse_stored(&again.config, out.data, out.len, &again.arena, &again.err), RC_OK);
  assert_int_equal(again.config.zero_advantage, FILTER_REFILL);
  parsed_free(&again);
  again = (struct parsed){0};
  buf_clear(&out);
  buf_puts(&out, "{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"warmth\":1}}");
  assert_int_equal(run_config_parse_stored(&again.config, out.data, out.len, &again.arena, &again.err), RC_INVALID);
  assert_non_null(strstr(again.err.message, "of a coordinator of another version: sampling.warmth: unknown field"));
  parsed_free(&again);
  buf_free(&out);
  parsed_free(&p);
}

static void what_cannot_be_honoured_is_refused_by_name(void **state) {
  (void)state;
  static const struct {
    const char *text, *field, *says;
  } cases[] = {
      {RUN("ppo", ""), "recipe", "needs a critic"},
      {RUN("grop", ""), "recipe",
       "expected one of grpo, dr_grpo, dapo, rloo, reinforce++, reinforce++_baseline, gspo, cispo, sft, distill, got "
       "'grop'"},
      {RUN("reinforce++", ",\"mode\":\"pipelined\""), "mode", "set mode 'sync', got 'pipelined'"},
      {RUN("reinforce++_baseline", ",\"mode\":\"inflight\""), "mode", "set mode 'sync', got 'inflight'"},
      {RUN("reinforce++", ",\"filter\":{\"zero_advantage\":\"shrink\"}"), "filter.zero_advantage",
       "set 'keep', got 'shrink'"},
      {RUN("reinforce++", ",\"training\":{\"kl_in\":\"reward\",\"kl_coefficient\":0.1}"), "advantage.kind",
       "'leave_one_out' or 'group_centered', got 'batch'"},
      {RUN("grpo", ",\"training\":{\"kl_in\":\"reward\"}"), "advantage.kind", "got 'group'"},
      {RUN("grpo", ",\"training\":{\"kl_estimator\":\"k4\"}"), "training.kl_estimator", "\"k3\", \"k1\", \"k2\""},
      {RUN("grpo", ",\"training\":{\"kl_in\":\"value\"}"), "training.kl_in", "\"loss\", \"reward\""},
      {RUN("sft", ",\"training\":{\"kl_in\":\"reward\"}"), "training.kl_in", "has no rewards"},
      {RUN("dapo", ",\"training\":{\"kl_target\":0.1}"), "training.kl_target", "is for a KL term"},
      {RUN("grpo", ",\"training\":{\"kl_horizon\":5}"), "training.kl_horizon", "is for `kl_target`"},
      {RUN("grpo", ",\"training\":{\"checkpoint_every\":3,\"reference_every\":4}"), "training.reference_every",
       "a multiple of checkpoint_every (3), got 4"},
      {RUN("distill", ""), "training.teacher", "needs a teacher"},
      {RUN("distill", ",\"training\":{\"teacher\":\"" TEACHER "\"},\"filter\":{\"zero_advantage\":\"refill\"}"),
       "filter.zero_advantage", "every group would be left out"},
      {RUN("grpo", ",\"training\":{\"teacher\":\"abc\"}"), "training.teacher", "64 hexadecimal digits"},
      {RUN("dapo", ",\"training\":{\"teacher\":\"" TEACHER "\"}"), "training.teacher", "is for a KL term"},
      {RUN("grpo", ",\"training\":{\"teacher\":\"" TEACHER "\",\"reference_every\":2}"), "training.reference_every",
       "which stays"},
      {RUN("sft", ",\"update\":\"minibatch\",\"groups_per_step\":2"), "update",
       "takes update 'strict', got 'minibatch'"},
      {RUN("sft", ",\"mode\":\"inflight\""), "mode", "leave `mode` out"},
      {RUN("grpo", ",\"training\":{\"normalization\":\"tokens\",\"length_max\":5}"), "training.length_max",
       "divides by no length"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct parsed p;
    parse(&p, cases[i].text);
    if (p.rc != RC_INVALID || strcmp(p.err.field, cases[i].field) != 0 || !strstr(p.err.message, cases[i].says))
      fail_msg("%s: %s, field %s: %s", cases[i].text, rc_name(p.rc), p.err.field, p.err.message);
    parsed_free(&p);
  }
}

/* ---- formulas ---- */

enum { SAMPLES_MAX = 12, TOKENS_MAX = 16, UNIT = 1024 };

struct sample {
  double reward;
  int tokens;
  float new[TOKENS_MAX], old[TOKENS_MAX], reference[TOKENS_MAX], got[TOKENS_MAX];
  double derivative[TOKENS_MAX];
};

struct step {
  char recipe[32];
  int longest, groups, each;
  double loss;
  struct sample samples[SAMPLES_MAX];
};

static bool step_read(struct step *s, FILE *file) {
  const int fields = fscanf(file, " step %31s %d %d %d %lf", s->recipe, &s->longest, &s->groups, &s->each, &s->loss);
  if (fields == EOF) return false;
  assert_int_equal(fields, 5);
  assert_in_range(s->groups * s->each, 1, SAMPLES_MAX);
  for (int i = 0; i < s->groups * s->each; i++) {
    struct sample *a = &s->samples[i];
    int reward;
    assert_int_equal(fscanf(file, " sample %d %d", &reward, &a->tokens), 2);
    assert_in_range(a->tokens, 1, TOKENS_MAX);
    a->reward = (double)reward / UNIT;
    for (int t = 0; t < a->tokens; t++) {
      int at[3];
      assert_int_equal(fscanf(file, " token %d %d %d %lf", &at[0], &at[1], &at[2], &a->derivative[t]), 4);
      a->new[t] = (float)at[0] / UNIT, a->old[t] = (float)at[1] / UNIT, a->reference[t] = (float)at[2] / UNIT;
    }
  }
  return true;
}

static struct loss_config loss_of(const struct run_config *c) {
  const struct training_config *t = &c->training;
  struct loss_config loss = {.clip_low = (float)t->clip_low,
                             .clip_high = (float)t->clip_high,
                             .kl_coefficient = (float)t->kl_coefficient,
                             .kl_in_reward = strcmp(t->kl_in, "reward") == 0,
                             .length_max = t->length_max};
  assert_int_equal(loss_kind_parse(&loss.kind, t->objective, NULL), RC_OK);
  assert_int_equal(loss_normalization_parse(&loss.normalization, t->normalization, NULL), RC_OK);
  assert_int_equal(kl_estimator_parse(&loss.kl_estimator, t->kl_estimator, NULL), RC_OK);
  return loss;
}

/* As group_seal.c, round_advantages.c and the trainer's gradient_unit.c do it; dropped[group]. */
static void advantages(const struct step *s, const struct run_config *c, float *out, bool *dropped) {
  const struct loss_config loss = loss_of(c);
  int64_t tokens[SAMPLES_MAX];
  for (int g = 0; g < s->groups; g++) {
    const struct sample *group = &s->samples[g * s->each];
    double shaped[SAMPLES_MAX], kl[SAMPLES_MAX] = {0};
    float *of_group = out + g * s->each;
    for (int i = 0; i < s->each; i++) {
      tokens[g * s->each + i] = group[i].tokens;
      shaped[i] = group[i].reward + overlong_penalty(group[i].tokens, s->longest, c->overlong_buffer);
      for (int t = 0; t < group[i].tokens; t++)
        kl[i] += kl_estimate(loss.kl_estimator, (double)group[i].old[t], (double)group[i].reference[t], NULL);
    }
    advantages_of(c->advantage, shaped, s->each, c->advantage_epsilon, of_group);
    dropped[g] = group_filter_reason(c, of_group, s->each) != NULL;
    if (loss.kl_in_reward) advantages_less_kl(c->advantage, kl, s->each, (double)loss.kl_coefficient, of_group);
  }
  if (c->advantage == ADVANTAGE_BATCH || c->advantage == ADVANTAGE_BATCH_CENTERED)
    advantages_standardize(out, tokens, s->groups * s->each, c->advantage_epsilon);
}

static void near(const struct step *s, int number, const char *what, double got, double expected) {
  if (!(fabs(got - expected) <= 1e-6 * (1 + fabs(expected))))
    fail_msg("step %d, %s: %s is %.12g, expected %.12g", number, s->recipe, what, got, expected);
}

static void step_check(struct step *s, int number) {
  char text[128];
  struct parsed p;
  struct loss_stats stats = {0};
  float advantage[SAMPLES_MAX];
  bool dropped[SAMPLES_MAX];
  int tokens = 0, samples = 0;
  snprintf(text, sizeof text, "{\"recipe\":\"%s\",\"dataset\":{\"path\":\"a\"},\"sampling\":{\"max_new_tokens\":%d}}",
           s->recipe, s->longest);
  if (parse(&p, text)->rc != RC_OK) fail_msg("%s: %s", text, p.err.message);
  const struct loss_config loss = loss_of(&p.config);
  advantages(s, &p.config, advantage, dropped);
  for (int i = 0; i < s->groups * s->each; i++) {
    struct sample *a = &s->samples[i];
    memset(a->got, 0, sizeof a->got);
    if (dropped[i / s->each]) continue;
    loss_sequence(&loss, a->tokens, a->new, a->old, NULL, loss.kl_coefficient != 0 ? a->reference : NULL, advantage[i],
                  a->got, &stats);
    tokens += a->tokens;
    samples++;
  }
  const double denominator = run_counts_tokens(&p.config) ? tokens : samples;
  near(s, number, "the loss", stats.loss / denominator, s->loss);
  for (int i = 0; i < s->groups * s->each; i++) {
    for (int t = 0; t < s->samples[i].tokens; t++)
      near(s, number, "a derivative", (double)s->samples[i].got[t] / denominator, s->samples[i].derivative[t]);
  }
  parsed_free(&p);
}

static void steps_are_those_of_the_papers(void **state) {
  (void)state;
  static const char *const recipes[] = {"grpo", "dr_grpo", "dapo", "rloo", "reinforce++", "reinforce++_baseline",
                                        "gspo", "cispo",   "sft"};
  int of[9] = {0}, number = 0;
  static struct step s;
  FILE *file = fopen("tests/golden/recipes.txt", "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "#%*[^\n]"), 0);
  for (; step_read(&s, file); number++) {
    step_check(&s, number);
    for (int k = 0; k < 9; k++) of[k] += strcmp(s.recipe, recipes[k]) == 0;
  }
  fclose(file);
  for (int k = 0; k < 9; k++)
    if (of[k] < 6) fail_msg("%s: %d steps", recipes[k], of[k]);
}

/* Of equal advantages nothing is learned, and tokens, not samples, make the mean. */
static void a_round_is_standardized_over_its_tokens(void **state) {
  (void)state;
  float equal[3] = {0.5f, 0.5f, 0.5f}, two[2] = {1, 0}, masked[2] = {1, 0};
  advantages_standardize(equal, (int64_t[]){4, 1, 2}, 3, 1e-4);
  assert_true(equal[0] == 0 && equal[1] == 0 && equal[2] == 0);
  advantages_standardize(two, (int64_t[]){3, 1}, 2, 0);
  assert_true(fabs((double)two[0] - 0.25 / sqrt(0.1875)) < 1e-7 && fabs((double)two[1] + 0.75 / sqrt(0.1875)) < 1e-7);
  advantages_standardize(masked, (int64_t[]){0, 0}, 2, 0);
  assert_true(masked[0] == 0 && masked[1] == 0);
  float beside[4] = {0, 1, 1, 1}; /* a sample that is not trained on deviates from those that are */
  advantages_standardize(beside, (int64_t[]){0, 3, 1, 2}, 4, 0);
  for (int i = 0; i < 4; i++)
    if (beside[i] != 0) fail_msg("sample %d has %g", i, (double)beside[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_name_becomes_fields_that_are_shown),
      cmocka_unit_test(the_table_is_the_papers),
      cmocka_unit_test(a_penalty_given_as_none_is_none),
      cmocka_unit_test(stored_configurations_of_other_versions_go_on_or_say_whose_they_are),
      cmocka_unit_test(what_cannot_be_honoured_is_refused_by_name),
      cmocka_unit_test(steps_are_those_of_the_papers),
      cmocka_unit_test(a_round_is_standardized_over_its_tokens),
  };
  return cmocka_run_group_tests_name("coordinator/recipes", tests, NULL, NULL);
}
