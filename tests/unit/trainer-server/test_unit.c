/* A gradient unit is exactly what the learner gives for its samples, and nothing that the learner could not take
 * reaches it. */
#include <math.h>

#include "tests/unit/trainer-server/support.h"

#include "common/model/network/elementary.h"
#include "services/trainer-server/engine/gradient_unit.h"
#include "services/trainer-server/engine/run_config.h"

static char dir[PATH];
static struct parts parts;
static struct learner *learner;
static struct timeline timeline;
static struct unit_policies current; /* a unit before the round's first step */

static int set_up(void **state) {
  (void)state;
  char model[PATH + 16];
  struct err err = {0};
  folder_make(dir);
  snprintf(model, sizeof model, "%s/model", dir);
  parts_make(&parts, model);
  current = (struct unit_policies){.current = parts.weights};
  assert_rc(RC_OK, learner_create(&learner, parts.model, &(struct learner_options){.chunk_tokens = CHUNK}, &err), err);
  timeline_begin(&timeline, clock_monotonic_us());
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  learner_free(learner);
  parts_free(&parts);
  folder_remove(dir);
  return 0;
}

static const struct unit_config grpo = {.temperature = 0.8f,
                                        .loss = {.kind = LOSS_PPO, .clip_low = 0.2f, .clip_high = 0.2f}};

struct direct {
  const float *advantage;
  int at;
};

/* d(-A w)/d new at w = 1, token by token. */
static void direct_gradient(void *context, int first, int count, const float *logprob, float *dlogprob) {
  struct direct *d = context;
  (void)first;
  (void)logprob;
  for (int i = 0; i < count; i++) dlogprob[i] = -d->advantage[d->at++];
}

static enum rc compute(const struct unit_policies *policies, const struct unit_config *config,
                       const struct batch_group *group, float *grads, struct unit_result *out, struct timeline *t,
                       struct arena *arena, struct err *err) {
  struct unit unit;
  const enum rc rc = unit_prepare(&unit, parts.model, policies, group, arena, err);
  return rc == RC_OK ? unit_compute(learner, policies, config, &unit, grads, out, t, err) : rc;
}

static size_t draw(const struct batch_group *group, const struct unit_key *key, struct unit_draws *draws,
                   struct unit *unit, struct arena *arena) {
  struct unit_result out;
  struct err err = {0};
  assert_rc(RC_OK, unit_prepare(unit, parts.model, &current, group, arena, &err), err);
  assert_rc(RC_OK, unit_draws_prepare(draws, unit, key, arena, &err), err);
  assert_rc(RC_OK, unit_draw(learner, parts.weights, &grpo, unit, draws, &out, &timeline, &err), err);
  unit_draws_compare(draws, unit, group);
  return draws->difference_count;
}

/* Corrected where it differs, token after token, a group becomes what the version draws; then its log-probabilities are
 * the draws', bit for bit.  From there one token that is another one is found where it stands, and one key that is
 * another one too. */
static void a_check_finds_the_first_token_that_would_not_have_been_drawn(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct batch_group group = group_make(&arena, "r1.3.2", 4, 3);
  struct unit_key key = {.seed = 17, .round = 3, .ordinal = 2};
  struct unit_draws d;
  struct unit unit;
  size_t before = SIZE_MAX;
  for (size_t left; (left = draw(&group, &key, &d, &unit, &arena)) > 0;) {
    size_t at = 0;
    for (size_t k = 0; k < left; k++) {
      while (strcmp(group.samples[at].id, d.differences[k].id) != 0) at++;
      struct batch_sample *s = &group.samples[at];
      s->tokens.items[s->prompt_length + d.differences[k].position] = d.differences[k].token;
      before = at;
    }
  }
  assert_true(before != SIZE_MAX); /* what the fixture holds was not drawn */
  assert_memory_equal(d.draws.logprob, unit.logprob, sizeof(float)); /* the first sample's first */
  int scored = 0;
  for (int i = 0; i < unit.count; i++) scored += unit.scored[i].count;
  assert_memory_equal(d.draws.logprob, unit.logprob, (size_t)scored * sizeof(float));
  for (size_t i = 0; i < group.sample_count; i++) {
    const struct batch_sample *s = &group.samples[i];
    const int last = (int)s->tokens.count - 1;
    const int32_t due = s->tokens.items[last];
    s->tokens.items[last] = due == 0;
    assert_int_equal(draw(&group, &key, &d, &unit, &arena), 1);
    assert_string_equal(d.differences[0].id, s->id);
    assert_int_equal(d.differences[0].position, last - s->prompt_length);
    assert_int_equal(d.differences[0].token, due);
    s->tokens.items[last] = due;
  }
  key.round = 4;
  assert_true(draw(&group, &key, &d, &unit, &arena) > 0);
  key.round = 3;
  key.ordinal = 3;
  assert_true(draw(&group, &key, &d, &unit, &arena) > 0);
  key.ordinal = 2;
  assert_int_equal(draw(&group, &key, &d, &unit, &arena), 0);
  arena_free(&arena);
}

/* At temperatures at which many tokens take nearly all of the probability: what is told of a token without asking is
 * what asking draws.  No uniform at all is nearer than 0, so there each one is asked for. */
static void a_token_that_is_sure_is_the_one_that_is_drawn(void **state) {
  (void)state;
  static const float temperatures[] = {0.8f, 0.05f, 0.01f};
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct unit_result out;
  int sure = 0;
  for (size_t k = 0; k < 3; k++) {
    struct unit_config config = grpo;
    struct batch_group group = group_make(&arena, "r1.3.2", 16, 5);
    config.temperature = temperatures[k];
    for (int64_t round = 0; round < 8; round++) {
      const struct unit_key key = {.seed = 17, .round = round, .ordinal = 2};
      struct unit unit;
      struct unit_draws told, asked;
      assert_rc(RC_OK, unit_prepare(&unit, parts.model, &current, &group, &arena, &err), err);
      assert_rc(RC_OK, unit_draws_prepare(&told, &unit, &key, &arena, &err), err);
      assert_rc(RC_OK, unit_draws_prepare(&asked, &unit, &key, &arena, &err), err);
      for (size_t i = 0; i < group.sample_count; i++) group.samples[i].exact_from = CONTEXT;
      assert_rc(RC_OK, unit_draws_verify(&asked, &unit, &group, 0, &arena, &err), err);
      assert_rc(RC_OK, unit_draw(learner, parts.weights, &config, &unit, &told, &out, &timeline, &err), err);
      assert_rc(RC_OK, unit_draw(learner, parts.weights, &config, &unit, &asked, &out, &timeline, &err), err);
      const int scored = unit.scored[unit.count - 1].first + unit.scored[unit.count - 1].count;
      assert_memory_equal(told.draws.token, asked.draws.low, (size_t)scored * sizeof(int32_t));
      assert_memory_equal(told.draws.token, asked.draws.high, (size_t)scored * sizeof(int32_t));
      for (int t = 0; t < scored; t++) sure += unit.logprob[t] > -0.01f;
      for (size_t i = 0; i < group.sample_count; i++) { /* towards what is drawn, which is likely */
        struct batch_sample *s = &group.samples[i];
        s->tokens.items[s->prompt_length] = told.draws.token[unit.scored[i].first];
      }
    }
  }
  assert_true(sure > 100);
  arena_free(&arena);
}

/* A unit's log-probabilities and gradient equal, bit for bit, the learner's own over the same samples, several chunks
 * included. */
static void unit_equals_the_learner(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group group = group_make(&arena, "r1.0.0", 9, 3);
  struct batch_sample *split = &group.samples[2]; /* tool output in the middle: not trained on */
  const int32_t n = split->segments[0].count;
  split->segments = arena_alloc(&arena, 3, sizeof *split->segments);
  split->segments[0] = (struct sample_segment){.start = 0, .count = 1, .loss_mask = true};
  split->segments[1] = (struct sample_segment){.start = 1, .count = n - 1, .loss_mask = false};
  split->segment_count = 2;
  group.samples[5].segments[0].loss_mask = false; /* nothing of it is trained on */

  struct train_sample samples[9];
  float advantage[128];
  int total = 0;
  for (int i = 0; i < 9; i++) {
    const struct batch_sample *s = &group.samples[i];
    uint8_t *scored = arena_alloc(&arena, s->tokens.count, 1);
    for (size_t g = 0; g < s->segment_count; g++) {
      for (int k = 0; s->segments[g].loss_mask && k < s->segments[g].count; k++) {
        scored[s->prompt_length + s->segments[g].start + k] = 1;
        advantage[total++] = s->advantage;
      }
    }
    samples[i] = (struct train_sample){.tokens = s->tokens.items, .length = (int)s->tokens.count, .scored = scored};
  }
  const size_t elements = parts.model->params.elements;
  float *want = calloc(elements, sizeof *want), *have = calloc(elements, sizeof *have), logprob[128];
  struct direct d = {advantage, 0};
  assert_rc(RC_OK,
            learner_gradients(learner, parts.weights, samples, 9, 0.8f, direct_gradient, &d, want, logprob, &err), err);
  assert_int_equal(d.at, total);
  const double entropy = learner_entropy_sum(learner);

  struct unit_result unit;
  const int64_t begun_us = timeline.at_us;
  assert_rc(RC_OK, compute(&current, &grpo, &group, have, &unit, &timeline, &arena, &err), err);
  assert_memory_equal(have, want, elements * sizeof *want);
  assert_true(unit.logprob_us > 0 && unit.compute_us > 0);
  assert_int_equal(unit.logprob_us + unit.compute_us, timeline.at_us - begun_us); /* the sum is the whole */
  int at = 0;
  for (int i = 0; i < 9; i++) {
    assert_string_equal(unit.samples[i].id, group.samples[i].id);
    for (size_t k = 0; k < unit.samples[i].logprobs.count; k++)
      assert_memory_equal(&unit.samples[i].logprobs.items[k], &logprob[at++], sizeof(float));
  }
  assert_int_equal(at, total);
  assert_int_equal(unit.samples[2].logprobs.count, 1);
  assert_int_equal(unit.samples[5].logprobs.count, 0);
  assert_int_equal(unit.stats.tokens, total);
  assert_true(unit.stats.ratio_sum == (double)total); /* on-policy: every ratio is exactly 1 */
  assert_true(unit.entropy_sum == entropy && entropy > 0);
  double norm = 0;
  for (size_t i = 0; i < elements; i++) norm += (double)have[i] * (double)have[i];
  assert_true(norm > 0);
  free(want);
  free(have);
  arena_free(&arena);
}

/* A unit of many chunks: only the first one's forward can be measured, and the others' must not swallow the backward
 * passes between them, which cost more. */
static void forward_and_backward_are_told_apart(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group group = group_make(&arena, "r1.0.0", 60, 5);
  float *grads = calloc(parts.model->params.elements, sizeof *grads);
  bool apart = false;
  for (int i = 0; i < 20 && !apart; i++) { /* a busy machine may stop us in the middle of one */
    struct unit_result unit;
    assert_rc(RC_OK, compute(&current, &grpo, &group, grads, &unit, &timeline, &arena, &err), err);
    apart = unit.logprob_us > unit.compute_us / 20 && unit.logprob_us < unit.compute_us;
  }
  assert_true(apart);
  free(grads);
  arena_free(&arena);
}

/* With the policy as its own reference the KL term is zero and has no gradient; with another reference it has both. */
static void reference_enters_the_loss(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group group = group_make(&arena, "r1.0.0", 4, 9);
  const size_t elements = parts.model->params.elements;
  float *plain = calloc(elements, sizeof *plain), *same = calloc(elements, sizeof *same),
        *other = calloc(elements, sizeof *other);
  struct unit_config kl = grpo;
  kl.loss.kl_coefficient = 0.5f;
  struct unit_result unit;
  assert_rc(RC_OK, compute(&current, &grpo, &group, plain, &unit, &timeline, &arena, &err), err);
  assert_rc(RC_OK,
            compute(&(struct unit_policies){.current = parts.weights, .reference = parts.weights}, &kl, &group, same,
                    &unit, &timeline, &arena, &err),
            err);
  assert_true(unit.stats.kl_reference == 0);
  assert_memory_equal(plain, same, elements * sizeof *plain);

  struct weights *reference;
  float *masters = calloc(elements, sizeof *masters);
  assert_rc(RC_OK, weights_create(&reference, parts.model, false, &err), err);
  masters_random(parts.model, masters, 8, NULL);
  weights_from_masters(reference, masters);
  assert_rc(RC_OK,
            compute(&(struct unit_policies){.current = parts.weights, .reference = reference}, &kl, &group, other,
                    &unit, &timeline, &arena, &err),
            err);
  assert_true(unit.stats.kl_reference > 0);
  assert_memory_not_equal(plain, other, elements * sizeof *plain);
  weights_free(reference);
  free(masters);
  free(plain);
  free(same);
  free(other);
  arena_free(&arena);
}

static struct weights *other_weights(uint32_t seed);

/* With the KL term in the rewards the unit is the same as one whose advantages were made of the smaller rewards: here
 * by hand, of log-probabilities that were asked for before, whoever sampled. */
static void a_kl_term_in_the_rewards_is_in_the_advantages(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct weights *reference = other_weights(8), *behaviour = other_weights(9);
  struct batch_group group = group_make(&arena, "r1.0.0", 5, 4), by_hand = group_make(&arena, "r1.0.0", 5, 4);
  const size_t elements = parts.model->params.elements;
  float *have = calloc(elements, sizeof *have), *want = calloc(elements, sizeof *want);
  struct unit_config in_reward = grpo;
  in_reward.loss = (struct loss_config){.kind = LOSS_REINFORCE, .clip_high = 4, .kl_coefficient = 0.25f,
                                        .kl_estimator = KL_K1, .kl_in_reward = true};
  in_reward.advantage = ADVANTAGE_LEAVE_ONE_OUT;
  struct unit_config plain = in_reward;
  plain.loss.kl_coefficient = 0;
  for (int inner = 0; inner < 2; inner++) {
    const struct unit_policies policies = {
        .current = parts.weights, .reference = reference, .behaviour = inner ? behaviour : NULL};
    const struct unit_policies without = {.current = parts.weights, .behaviour = policies.behaviour};
    const struct weights *asked[2] = {inner ? behaviour : parts.weights, reference};
    struct unit_result unit;
    struct unit answers[2];
    double kl[5] = {0}, sum = 0;
    for (int k = 0; k < 2; k++) {
      struct unit *u = &answers[k];
      assert_rc(RC_OK, unit_prepare(u, parts.model, &current, &group, &arena, &err), err);
      assert_rc(RC_OK, learner_logprobs(learner, asked[k], u->samples, 5, 0.8f, u->logprob, NULL, &err), err);
    }
    for (int i = 0; i < 5; i++) {
      for (size_t t = 0; t < answers[0].results[i].logprobs.count; t++)
        kl[i] += (double)answers[0].results[i].logprobs.items[t] - (double)answers[1].results[i].logprobs.items[t];
      sum += kl[i];
    }
    for (int i = 0; i < 5; i++) /* r - 0.25 kl, less the mean of the others' */
      by_hand.samples[i].advantage = (float)((double)group.samples[i].advantage - 0.25 * (kl[i] - (sum - kl[i]) / 4));
    memset(have, 0, elements * sizeof *have);
    memset(want, 0, elements * sizeof *want);
    assert_rc(RC_OK, compute(&policies, &in_reward, &group, have, &unit, &timeline, &arena, &err), err);
    const double summed = unit.stats.kl_reference;
    assert_rc(RC_OK, compute(&without, &plain, &by_hand, want, &unit, &timeline, &arena, &err), err);
    double difference = 0, size = 0;
    for (size_t i = 0; i < elements; i++) {
      difference += ((double)have[i] - (double)want[i]) * ((double)have[i] - (double)want[i]);
      size += (double)want[i] * (double)want[i];
    }
    assert_true(size > 0 && difference <= 1e-12 * size);
    if (!inner) assert_true(fabs(summed - sum) < 1e-9); /* and the sum is shown */
  }
  weights_free(reference);
  weights_free(behaviour);
  free(have);
  free(want);
  arena_free(&arena);
}

/* A group whose samples were judged otherwise each time is computed again: the KL term is not in its rewards twice. */
static void a_unit_that_is_computed_again_has_the_same_gradient(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct weights *reference = other_weights(8);
  const struct batch_group group = group_make(&arena, "r1.0.0", 5, 4);
  const struct unit_policies policies = {.current = parts.weights, .reference = reference};
  const size_t elements = parts.model->params.elements;
  float *grads[2];
  struct unit_config config = grpo;
  config.loss = (struct loss_config){.kind = LOSS_REINFORCE, .clip_high = 4, .kl_coefficient = 0.25f,
                                     .kl_estimator = KL_K1, .kl_in_reward = true};
  config.advantage = ADVANTAGE_LEAVE_ONE_OUT;
  struct unit unit;
  assert_rc(RC_OK, unit_prepare(&unit, parts.model, &policies, &group, &arena, &err), err);
  for (int k = 0; k < 2; k++) {
    struct unit_result result;
    grads[k] = calloc(elements, sizeof **grads);
    assert_rc(RC_OK, unit_compute(learner, &policies, &config, &unit, grads[k], &result, &timeline, &err), err);
  }
  assert_memory_equal(grads[0], grads[1], elements * sizeof **grads);
  assert_memory_not_equal(unit.given, unit.advantages, 5 * sizeof *unit.given); /* there was something to add */
  weights_free(reference);
  free(grads[0]);
  free(grads[1]);
  arena_free(&arena);
}

/* With a teacher a group without its log-probabilities is refused: nobody here could compute them. */
static void a_group_of_a_taught_run_brings_its_reference(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct unit unit;
  struct batch_group group = group_make(&arena, "r1.0.0", 3, 4);
  const struct unit_policies taught = {.current = parts.weights, .taught = true};
  assert_rc(RC_INVALID, unit_prepare(&unit, parts.model, &taught, &group, &arena, &err), err);
  assert_string_equal(err.field, "reference");
  group.has_reference = true;
  for (int i = 0; i < 3; i++) {
    struct batch_sample *s = &group.samples[i];
    s->reference.count = wire_segments_trained(s->segments, s->segment_count);
    s->reference.items = arena_alloc(&arena, s->reference.count, sizeof *s->reference.items);
  }
  assert_rc(RC_OK, unit_prepare(&unit, parts.model, &taught, &group, &arena, &err), err);
  assert_true(unit.brought && unit.reference);
  arena_free(&arena);
}

/* An entropy term's value is in the loss, and it moves weights where nothing else does. */
static void an_entropy_term_enters_the_loss(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct batch_group group = group_make(&arena, "r1.0.0", 4, 9);
  const size_t elements = parts.model->params.elements;
  float *have = calloc(elements, sizeof *have);
  struct unit_config config = grpo;
  struct unit_result unit;
  double norm[3] = {0};
  for (int i = 0; i < 4; i++) group.samples[i].advantage = 0;
  for (int k = 0; k < 3; k++) { /* and none again, on the same learner */
    config.loss.entropy_coefficient = k == 1 ? 0.5f : 0;
    memset(have, 0, elements * sizeof *have);
    assert_rc(RC_OK, compute(&current, &config, &group, have, &unit, &timeline, &arena, &err), err);
    for (size_t i = 0; i < elements; i++) norm[k] += (double)have[i] * (double)have[i];
    assert_true(fabs(unit.stats.loss + (k == 1 ? 0.5 : 0) * unit.entropy_sum) < 1e-9);
  }
  assert_true(norm[0] == 0 && norm[1] > 0 && norm[2] == 0);
  free(have);
  arena_free(&arena);
}

static struct weights *other_weights(uint32_t seed) {
  struct weights *w;
  struct err err = {0};
  float *masters = calloc(parts.model->params.elements, sizeof *masters);
  assert_rc(RC_OK, weights_create(&w, parts.model, false, &err), err);
  masters_random(parts.model, masters, seed, NULL);
  for (size_t i = 0; i < parts.model->params.elements; i++)
    masters[i] = 0.75f * parts.masters[i] + 0.25f * masters[i]; /* near the current ones, as some steps before */
  weights_from_masters(w, masters);
  free(masters);
  return w;
}

struct weighted {
  const float *advantage, *old;
  double cap;
  int capped;
};

/* d/dn of -(min(exp(n - o), cap) held constant) exp(n - n) A: the proximal policy is the current one. */
static void weighted_gradient(void *context, int first, int count, const float *logprob, float *dlogprob) {
  struct weighted *w = context;
  for (int i = 0; i < count; i++) {
    double weight = elementary_exp((double)logprob[i] - (double)w->old[first + i]);
    if (weight > w->cap) weight = w->cap, w->capped++;
    dlogprob[i] = (float)(weight * -(double)w->advantage[first + i]);
  }
}

/* After an inner step: what is answered is the behaviour policy's, what is derived is the current one's, and the
 * importance weight between the two is a constant factor where the proximal policy is the current one. */
static void ratios_are_against_the_behaviour_policy(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct weights *behaviour = other_weights(8);
  const struct unit_policies policies = {.current = parts.weights, .behaviour = behaviour};
  const struct batch_group group = group_make(&arena, "r1.0.0", 9, 3);
  const size_t elements = parts.model->params.elements;
  float *want = calloc(elements, sizeof *want), *have = calloc(elements, sizeof *have), advantage[128], old[128];
  struct train_sample samples[9];
  int n = 0;
  for (int i = 0; i < 9; i++) {
    const struct batch_sample *s = &group.samples[i];
    uint8_t *scored = arena_alloc(&arena, s->tokens.count, 1);
    for (size_t t = (size_t)s->prompt_length; t < s->tokens.count; t++) scored[t] = 1, advantage[n++] = s->advantage;
    samples[i] = (struct train_sample){.tokens = s->tokens.items, .length = (int)s->tokens.count, .scored = scored};
  }
  assert_rc(RC_OK, learner_logprobs(learner, behaviour, samples, 9, 0.8f, old, NULL, &err), err);
  for (int capped = 0; capped < 2; capped++) {
    struct unit_config tis = grpo;
    tis.loss.kind = LOSS_DECOUPLED_PPO;
    tis.loss.importance_cap = capped ? 1.0625f : 0;
    struct weighted w = {advantage, old, capped ? 1.0625 : (double)INFINITY, 0};
    struct unit_result unit;
    memset(want, 0, elements * sizeof *want);
    memset(have, 0, elements * sizeof *have);
    assert_rc(RC_OK,
              learner_gradients(learner, parts.weights, samples, 9, 0.8f, weighted_gradient, &w, want, NULL, &err),
              err);
    assert_rc(RC_OK, compute(&policies, &tis, &group, have, &unit, &timeline, &arena, &err), err);
    assert_memory_equal(have, want, elements * sizeof *want);
    assert_int_equal(unit.stats.clipped, w.capped);
    assert_true(capped ? w.capped > 0 && w.capped < n : w.capped == 0);
    assert_true(unit.stats.difference_new_old > 0 && unit.stats.kl_new_old > 0);
    int at = 0;
    for (int i = 0; i < 9; at += (int)unit.samples[i++].logprobs.count)
      assert_memory_equal(unit.samples[i].logprobs.items, old + at, unit.samples[i].logprobs.count * sizeof *old);
    assert_int_equal(at, n);
  }
  weights_free(behaviour);
  free(want);
  free(have);
  arena_free(&arena);
}

/* Every sample of the group gets its part of old. */
static void behaviour_set(const struct batch_group *group, float *old) {
  for (size_t i = 0; i < group->sample_count; i++) {
    struct batch_sample *s = &group->samples[i];
    s->behaviour = (struct json_f32s){old, wire_segments_trained(s->segments, s->segment_count)};
    old += s->behaviour.count;
  }
}

/* In a run with update "inflight": the loss weighs by what the samplers recorded, in one forward pass, and what is
 * answered is the current policy's, whatever they recorded. */
static void recorded_behaviour_weighs_and_is_not_answered(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct weights *behaviour = other_weights(8);
  const struct unit_policies policies = {.current = parts.weights, .recorded = true};
  const struct batch_group group = group_make(&arena, "r1.0.0", 9, 3);
  const size_t elements = parts.model->params.elements;
  float *want = calloc(elements, sizeof *want), *have = calloc(elements, sizeof *have), advantage[128], old[128],
        own[128];
  struct train_sample samples[9];
  struct unit_config tis = grpo;
  struct unit_result unit;
  int n = 0;
  for (int i = 0; i < 9; i++) {
    const struct batch_sample *s = &group.samples[i];
    uint8_t *scored = arena_alloc(&arena, s->tokens.count, 1);
    for (size_t t = (size_t)s->prompt_length; t < s->tokens.count; t++) scored[t] = 1, advantage[n++] = s->advantage;
    samples[i] = (struct train_sample){.tokens = s->tokens.items, .length = (int)s->tokens.count, .scored = scored};
  }
  tis.loss.kind = LOSS_DECOUPLED_PPO;
  tis.loss.importance_cap = 1.0625f;
  assert_rc(RC_OK, learner_logprobs(learner, behaviour, samples, 9, 0.8f, old, NULL, &err), err);
  behaviour_set(&group, old);
  for (int other = 0; other < 2; other++) {
    for (int i = 0; other && i < n; i++) old[i] *= 0.875f;
    struct weighted w = {advantage, old, 1.0625, 0};
    double weights = 0, squares = 0;
    memset(want, 0, elements * sizeof *want);
    memset(have, 0, elements * sizeof *have);
    assert_rc(RC_OK,
              learner_gradients(learner, parts.weights, samples, 9, 0.8f, weighted_gradient, &w, want, own, &err), err);
    assert_rc(RC_OK, compute(&policies, &tis, &group, have, &unit, &timeline, &arena, &err), err);
    assert_memory_equal(have, want, elements * sizeof *want);
    assert_true(w.capped > 0 && w.capped < n && unit.stats.clipped == w.capped);
    for (int i = 0; i < n; i++) {
      const double weight = elementary_exp((double)own[i] - (double)old[i]);
      weights += weight, squares += weight * weight; /* without the cap */
    }
    assert_true(fabs(unit.stats.ratio_sum - weights) < 1e-9 && fabs(unit.stats.ratio_squares - squares) < 1e-9);
    assert_true(unit.stats.difference_new_old > 0 && unit.stats.kl_new_old > 0);
    int at = 0;
    for (int i = 0; i < 9; at += (int)unit.samples[i++].logprobs.count)
      assert_memory_equal(unit.samples[i].logprobs.items, own + at, unit.samples[i].logprobs.count * sizeof *own);
    assert_int_equal(at, n);
  }
  weights_free(behaviour);
  free(want);
  free(have);
  arena_free(&arena);
}

/* Where the samplers recorded what the trainer computes, as on-policy tokens do, a unit is that of a strict run, bit
 * for bit. */
static void recorded_behaviour_that_is_exact_changes_no_bit(void **state) {
  (void)state;
  static const enum loss_kind kinds[] = {LOSS_REINFORCE, LOSS_PPO, LOSS_GSPO, LOSS_CISPO, LOSS_DECOUPLED_PPO};
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  const struct unit_policies recorded = {.current = parts.weights, .recorded = true};
  const struct batch_group group = group_make(&arena, "r1.0.0", 9, 3);
  const size_t elements = parts.model->params.elements;
  float *want = calloc(elements, sizeof *want), *have = calloc(elements, sizeof *have);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    struct unit_config config = grpo;
    config.loss.kind = kinds[k];
    struct unit_result one, two;
    memset(want, 0, elements * sizeof *want);
    memset(have, 0, elements * sizeof *have);
    for (int i = 0; i < 9; i++) group.samples[i].behaviour.count = 0;
    assert_rc(RC_OK, compute(&current, &config, &group, want, &one, &timeline, &arena, &err), err);
    for (int i = 0; i < 9; i++) group.samples[i].behaviour = one.samples[i].logprobs;
    assert_rc(RC_OK, compute(&recorded, &config, &group, have, &two, &timeline, &arena, &err), err);
    assert_memory_equal(have, want, elements * sizeof *want);
    assert_memory_equal(&one.stats, &two.stats, sizeof one.stats);
  }
  free(want);
  free(have);
  arena_free(&arena);
}

static void behaviour_is_refused_unless_it_is_wanted(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  const struct batch_group group = group_make(&arena, "r1.0.0", 3, 4);
  float old[64] = {0};
  assert_rc(RC_OK, unit_check_behaviour(&group, false, &err), err);
  assert_rc(RC_INVALID, unit_check_behaviour(&group, true, &err), err);
  assert_string_equal(err.field, "samples[0].behaviour");
  behaviour_set(&group, old);
  assert_rc(RC_OK, unit_check_behaviour(&group, true, &err), err);
  assert_rc(RC_INVALID, unit_check_behaviour(&group, false, &err), err);
  assert_string_equal(err.field, "samples[0].behaviour");
  group.samples[2].behaviour.count--;
  assert_rc(RC_INVALID, unit_check_behaviour(&group, true, &err), err);
  assert_string_equal(err.field, "samples[2].behaviour");
  group.samples[2].segments[0].loss_mask = false; /* nothing of it is trained on */
  group.samples[2].behaviour.count = 0;
  assert_rc(RC_OK, unit_check_behaviour(&group, true, &err), err);
  arena_free(&arena);
}

/* A behaviour policy with the current weights, as after a step that changed nothing, gives the bits of none, whatever
 * the loss. */
static void the_same_weights_as_behaviour_policy_give_the_same_bits(void **state) {
  (void)state;
  static const enum loss_kind kinds[] = {LOSS_REINFORCE, LOSS_PPO, LOSS_GSPO, LOSS_CISPO, LOSS_DECOUPLED_PPO};
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  const struct unit_policies both = {.current = parts.weights, .behaviour = parts.weights};
  const struct batch_group group = group_make(&arena, "r1.0.0", 9, 3);
  const size_t elements = parts.model->params.elements;
  float *want = calloc(elements, sizeof *want), *have = calloc(elements, sizeof *have);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    struct unit_config config = grpo;
    config.loss.kind = kinds[k];
    struct unit_result one, two;
    memset(want, 0, elements * sizeof *want);
    memset(have, 0, elements * sizeof *have);
    assert_rc(RC_OK, compute(&current, &config, &group, want, &one, &timeline, &arena, &err), err);
    assert_rc(RC_OK, compute(&both, &config, &group, have, &two, &timeline, &arena, &err), err);
    assert_memory_equal(have, want, elements * sizeof *want);
    assert_memory_equal(&one.stats, &two.stats, sizeof one.stats);
    assert_true(one.entropy_sum == two.entropy_sum);
    for (int i = 0; i < 9; i++)
      assert_memory_equal(one.samples[i].logprobs.items, two.samples[i].logprobs.items,
                          one.samples[i].logprobs.count * sizeof(float));
  }
  free(want);
  free(have);
  arena_free(&arena);
}

/* The gradient of a unit does not depend on what the sums held before but by addition, and a refused unit leaves them
 * alone. */
static void refused_units_name_the_field_and_touch_nothing(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  const size_t elements = parts.model->params.elements;
  float *grads = calloc(elements, sizeof *grads), *zero = calloc(elements, sizeof *zero);
  struct unit_result unit;
  for (int fault = 0; fault < 8; fault++) {
    struct err err = {0};
    enum rc want = RC_INVALID;
    const char *field = "samples[1].segments";
    struct batch_group group = group_make(&arena, "r1.0.0", 3, 4);
    struct batch_sample *s = &group.samples[1];
    switch (fault) {
      case 0: s->tokens.items[s->tokens.count - 1] = VOCABULARY, field = "samples[1].tokens"; break;
      case 1: s->tokens.items[0] = -1, field = "samples[1].tokens"; break;
      case 2: s->segments[0].count--; break;   /* falls short */
      case 3: s->segments[0].count++; break;   /* overruns */
      case 4: s->segments[0].start = 1; break; /* a hole */
      case 5: s->segments[0].count = -1; break;
      case 6: s->prompt_length = 0, field = "samples[1].prompt_length"; break;
      default:
        want = RC_TOO_LARGE, field = "samples[1].tokens";
        s->tokens.items = arena_alloc(&arena, CONTEXT + 1, sizeof *s->tokens.items);
        s->tokens.count = CONTEXT + 1;
    }
    assert_rc(want, compute(&current, &grpo, &group, grads, &unit, &timeline, &arena, &err), err);
    assert_string_equal(err.field, field);
    assert_memory_equal(grads, zero, elements * sizeof *grads);
    assert_rc(want, unit_check(parts.model, CHUNK, &group, &err), err);
  }
  struct err err = {0};
  struct batch_group group = group_make(&arena, "r1.0.0", 3, 4);
  assert_rc(RC_OK, unit_check(parts.model, CHUNK, &group, &err), err);
  assert_rc(RC_TOO_LARGE, unit_check(parts.model, 4, &group, &err), err); /* above the run's chunks */
  free(grads);
  free(zero);
  arena_free(&arena);
}

/* Every objective that the wire lets through is a loss of the model's, with the bounds that were sent. */
static void a_configuration_becomes_its_loss(void **state) {
  (void)state;
  static const struct {
    const char *objective;
    enum loss_kind kind;
  } cases[] = {{"grpo", LOSS_PPO},
               {"ppo", LOSS_PPO},
               {"reinforce", LOSS_REINFORCE},
               {"gspo", LOSS_GSPO},
               {"cispo", LOSS_CISPO},
               {"decoupled_ppo", LOSS_DECOUPLED_PPO},
               {"tis", LOSS_DECOUPLED_PPO},
               {"cross_entropy", LOSS_CROSS_ENTROPY}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct training_config c;
    struct unit_config unit;
    struct optimizer_config optimizer;
    struct err err = {0};
    training_config_defaults(&c);
    c.objective = cases[i].objective;
    c.clip_low = 0.25, c.clip_high = 4, c.importance_cap = 2.5, c.kl_coefficient = 0.5;
    c.normalization = "sequences";
    assert_rc(RC_OK, run_config_map(&c, &unit, &optimizer, &err), err);
    assert_int_equal(unit.loss.kind, cases[i].kind);
    assert_true(unit.loss.clip_low == 0.25f && unit.loss.clip_high == 4 && unit.loss.importance_cap == 2.5f &&
                unit.loss.kl_coefficient == 0.5f && unit.loss.normalization == NORMALIZE_SEQUENCES);
    assert_true(unit.loss.kl_estimator == KL_K3 && !unit.loss.kl_in_reward && unit.loss.entropy_coefficient == 0);
  }
}

static void optional_terms_become_those_of_the_loss(void **state) {
  (void)state;
  struct training_config c;
  struct unit_config unit;
  struct optimizer_config optimizer;
  struct err err = {0};
  training_config_defaults(&c);
  c.kl_estimator = "k1", c.kl_in = "reward", c.advantage = "group_centered";
  c.entropy_coefficient = 0.25, c.normalization = "length", c.length_max = 40;
  assert_rc(RC_OK, run_config_map(&c, &unit, &optimizer, &err), err);
  assert_true(unit.loss.kl_estimator == KL_K1 && unit.loss.kl_in_reward && unit.advantage == ADVANTAGE_GROUP_CENTERED);
  assert_true(unit.loss.entropy_coefficient == 0.25f && unit.loss.normalization == NORMALIZE_LENGTH &&
              unit.loss.length_max == 40);
  c.advantage = "";
  assert_rc(RC_INVALID, run_config_map(&c, &unit, &optimizer, &err), err);
  assert_string_equal(err.field, "advantage");
  c.advantage = "leave_one_out", c.length_max = 0;
  assert_rc(RC_INVALID, run_config_map(&c, &unit, &optimizer, &err), err);
  assert_string_equal(err.field, "length_max");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unit_equals_the_learner),
      cmocka_unit_test(a_check_finds_the_first_token_that_would_not_have_been_drawn),
      cmocka_unit_test(a_token_that_is_sure_is_the_one_that_is_drawn),
      cmocka_unit_test(forward_and_backward_are_told_apart),
      cmocka_unit_test(reference_enters_the_loss),
      cmocka_unit_test(ratios_are_against_the_behaviour_policy),
      cmocka_unit_test(the_same_weights_as_behaviour_policy_give_the_same_bits),
      cmocka_unit_test(recorded_behaviour_weighs_and_is_not_answered),
      cmocka_unit_test(recorded_behaviour_that_is_exact_changes_no_bit),
      cmocka_unit_test(behaviour_is_refused_unless_it_is_wanted),
      cmocka_unit_test(refused_units_name_the_field_and_touch_nothing),
      cmocka_unit_test(a_configuration_becomes_its_loss),
      cmocka_unit_test(optional_terms_become_those_of_the_loss),
      cmocka_unit_test(a_kl_term_in_the_rewards_is_in_the_advantages),
      cmocka_unit_test(a_unit_that_is_computed_again_has_the_same_gradient),
      cmocka_unit_test(an_entropy_term_enters_the_loss),
      cmocka_unit_test(a_group_of_a_taught_run_brings_its_reference),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/unit", tests, set_up, tear_down);
}
