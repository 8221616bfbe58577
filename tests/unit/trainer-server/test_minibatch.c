/* Several optimizer steps a round.  What would break: ratios against other log-probabilities than those of the policy
 * that sampled; weights that depend on the order of groups within a step; a batch or a step taken out of its turn;
 * inner steps that a restart, a repeat or another run leaves a trace of. */
#include "common/model/learning/backward.h"
#include "common/model/network/elementary.h"
#include "services/trainer-server/engine/run_config.h"
#include "tests/unit/trainer-server/support.h"

enum { ROUNDS = 2, GROUPS = 5, PER_STEP = 2, INNER = GROUPS / PER_STEP, STEPS = INNER + 1 };

static struct arena arena;
static struct batch_group groups[ROUNDS][GROUPS];

/* A high rate, so that ratios leave the clip range. */
static struct open_run the_run(const char *run) {
  struct open_run m = run_request(run);
  m.start.from = START_MODEL;
  m.training.update = UPDATE_MINIBATCH;
  m.training.lr = 0.05;
  m.training.schedule = "cosine";
  m.training.total_steps = 3 * ROUNDS * STEPS;
  return m;
}

static int set_up(void **state) {
  rounds_make(&arena, ROUNDS, GROUPS, groups, 80);
  return rig_set_up(state);
}

static int tear_down(void **state) {
  arena_free(&arena);
  arena = (struct arena)ARENA_INIT;
  return rig_tear_down(state);
}

static struct digest begin(struct rig *g, const struct open_run *run, int64_t version) {
  struct open_run_answer answer;
  rig_open(g, run, &answer);
  assert_int_equal(answer.version, version);
  return answer.digest;
}

/* --- by hand: the learner and the optimizer, no trainer --- */

struct hand {
  struct parts parts;
  struct learner *learner;
  struct optimizer *optimizer;
  struct weights *behaviour;
  float *gradient;
};

struct hand_unit {
  double ratio_sum, ratio_squares, kl, difference;
  int tokens, clipped;
  float old[128];
};

struct hand_step {
  struct step_result result;
  struct digest digest;
};

static void hand_make(struct hand *h, const struct rig *g, const struct training_config *c) {
  struct err err = {0};
  struct unit_config unit;
  struct optimizer_config o;
  assert_rc(RC_OK, run_config_map(c, &unit, &o, &err), err);
  parts_make(&h->parts, g->model_dir);
  assert_rc(RC_OK, learner_create(&h->learner, h->parts.model, &(struct learner_options){.chunk_tokens = CHUNK}, &err),
            err);
  assert_rc(RC_OK, optimizer_create(&h->optimizer, h->parts.model, &o, &err), err);
  assert_rc(RC_OK, weights_create(&h->behaviour, h->parts.model, false, &err), err);
  weights_to_masters(h->parts.weights, optimizer_masters(h->optimizer));
  h->gradient = calloc(h->parts.model->params.elements, sizeof *h->gradient);
}

static void hand_free(struct hand *h) {
  free(h->gradient);
  weights_free(h->behaviour);
  optimizer_free(h->optimizer);
  learner_free(h->learner);
  parts_free(&h->parts);
}

struct clip {
  struct hand_unit *unit;
  const float *advantage;
};

/* PPO's clip of w = exp(new - old) to [0.8, 1.2], token by token. */
static void clip_gradient(void *context, int first, int count, const float *logprob, float *dlogprob) {
  struct clip *c = context;
  const double low = 1 - (double)0.2f, high = 1 + (double)0.2f;
  for (int i = 0; i < count; i++) {
    const double gap = (double)logprob[i] - (double)c->unit->old[first + i], w = elementary_exp(gap);
    const double A = (double)c->advantage[first + i], bounded = w < low ? low : w > high ? high : w;
    dlogprob[i] = w * A <= bounded * A ? (float)-(w * A) : 0;
    c->unit->ratio_sum += w;
    c->unit->ratio_squares += w * w;
    c->unit->kl += w - gap - 1;
    c->unit->difference += gap < 0 ? -gap : gap;
    c->unit->clipped += w < low || w > high;
  }
  c->unit->tokens += count;
}

static void hand_unit(struct hand *h, const struct batch_group *g, struct hand_unit *out) {
  struct train_sample samples[8];
  float advantage[128];
  struct err err = {0};
  int n = 0;
  *out = (struct hand_unit){0};
  for (size_t i = 0; i < g->sample_count; i++) {
    const struct batch_sample *s = &g->samples[i];
    uint8_t *scored = arena_alloc(&arena, s->tokens.count, 1);
    for (size_t t = (size_t)s->prompt_length; t < s->tokens.count; t++) scored[t] = 1, advantage[n++] = s->advantage;
    samples[i] = (struct train_sample){.tokens = s->tokens.items, .length = (int)s->tokens.count, .scored = scored};
  }
  struct clip clip = {out, advantage};
  const int count = (int)g->sample_count;
  memset(h->gradient, 0, h->parts.model->params.elements * sizeof *h->gradient);
  assert_rc(RC_OK, learner_logprobs(h->learner, h->behaviour, samples, count, 1, out->old, NULL, &err), err);
  assert_rc(
      RC_OK,
      learner_gradients(h->learner, h->parts.weights, samples, count, 1, clip_gradient, &clip, h->gradient, NULL, &err),
      err);
  assert_true(optimizer_add_unit(h->optimizer, h->gradient));
}

static void hand_round(struct hand *h, const struct batch_group *g, struct hand_unit *units, struct hand_step *steps) {
  struct err err = {0};
  weights_from_masters(h->behaviour, optimizer_masters(h->optimizer));
  for (int s = 0; s < STEPS; s++) {
    double tokens = 0;
    for (int i = s * PER_STEP; i < (s + 1) * PER_STEP && i < GROUPS; i++) {
      hand_unit(h, &g[i], &units[i]);
      tokens += units[i].tokens;
    }
    optimizer_step(h->optimizer, tokens, &steps[s].result);
    weights_from_masters(h->parts.weights, optimizer_masters(h->optimizer));
    assert_rc(RC_OK, weights_digest(&steps[s].digest, h->parts.weights, &err), err);
  }
}

/* --- by the trainer --- */

static void send_batch(struct rig *g, const char *run, const char *id, int64_t version, int after,
                       struct batch_group *some, size_t count, struct batch_status *out) {
  struct err err = {0};
  const struct submit_batch m = {.batch_id = id,
                                 .run = run,
                                 .epoch = 3,
                                 .fence = 5,
                                 .version = version,
                                 .after_steps = after,
                                 .groups = some,
                                 .group_count = count};
  assert_rc(RC_OK, trainer_submit_batch(&g->client, &m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_batch_status(&g->client, id, WAIT_MS / 2, true, out, &arena, WAIT_MS, &err), err);
}

static struct submit_step step_after(const char *run, const char *id, int64_t version, int after, bool inner,
                                     const struct batch_group *some, size_t count) {
  struct submit_step m = step_request(run, id, version, some, count, &arena);
  m.inner = inner;
  m.after_steps = after;
  return m;
}

static const char *name_of(const char *run, int64_t version, const char *letter, int n) {
  char text[LIMIT_NAME_MAX];
  snprintf(text, sizeof text, n < 0 ? "%s.%d" : "%s.%d.%s%d", run, (int)version, letter, n);
  return arena_strdup(&arena, text);
}

/* Groups [first, first + count) in this order, one a batch. */
static void play_groups(struct rig *g, const char *run, int v, int after, int first, int count, bool backwards) {
  for (int i = 0; i < count; i++) {
    const int at = first + (backwards ? count - 1 - i : i);
    struct batch_status status;
    send_batch(g, run, name_of(run, v, "b", at), v, after, &groups[v][at], 1, &status);
    if (status.state != JOB_DONE) fail_msg("batch of group %d: %s", at, status.error.message);
  }
}

static struct step_status play_step(struct rig *g, const char *run, int v, int s, int count) {
  struct step_status out;
  const bool inner = s < INNER;
  const struct submit_step m =
      step_after(run, name_of(run, v, "s", inner ? s : -1), v, s, inner, &groups[v][s * PER_STEP], (size_t)count);
  rig_step(g, &m, &out, &arena);
  if (out.state != JOB_DONE) fail_msg("step %d of round %d: %s", s, v, out.error.message);
  assert_int_equal(out.version, inner ? v : v + 1);
  return out;
}

static int members(int s) { return s < INNER ? PER_STEP : GROUPS - INNER * PER_STEP; }

/* Steps [from, STEPS) of a round. */
static void play_round(struct rig *g, const char *run, int v, int from, struct digest *digests) {
  for (int s = from; s < STEPS; s++) {
    play_groups(g, run, v, s, s * PER_STEP, members(s), false);
    digests[s] = play_step(g, run, v, s, members(s)).digest;
  }
}

static void straight(struct rig *g, struct digest digests[ROUNDS][STEPS]) {
  const struct open_run run = the_run("straight");
  begin(g, &run, 0);
  for (int v = 0; v < ROUNDS; v++) play_round(g, "straight", v, 0, digests[v]);
}

static void assert_equal(const struct digest *a, const struct digest *b, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!digest_equal(&a[i], &b[i])) fail_msg("step %zu made other weights", i);
}

static void refuse_step(struct rig *g, const struct submit_step *m, const char *field) {
  struct step_status out;
  rig_step(g, m, &out, &arena);
  if (out.state != JOB_FAILED || out.error.rc != RC_CONFLICT || strcmp(out.error.field, field) != 0)
    fail_msg("step %s: expected a conflict of %s, got state %d: %s %s", m->step_id, field, out.state, out.error.field,
             out.error.message);
}

static void refuse_batch(struct rig *g, const char *run, int64_t version, int after, struct batch_group *group) {
  struct batch_status out;
  send_batch(g, run, "refused", version, after, group, 1, &out);
  if (out.state != JOB_FAILED || out.error.rc != RC_CONFLICT || strcmp(out.error.field, "after_steps") != 0)
    fail_msg("a batch after %d steps: expected a conflict, got state %d: %s", after, out.state, out.error.message);
}

/* --- the tests --- */

/* Log-probabilities, sums, norms, rates and weights of two rounds of three steps are those of the learner and the
 * optimizer called by hand, bit for bit: two inner steps of two groups, and the fifth group. */
static void a_round_of_steps_equals_one_by_hand(void **state) {
  struct rig *g = *state;
  const struct open_run run = the_run("r1");
  struct hand hand;
  double ratios = 0, tokens = 0;
  int clipped = 0;
  hand_make(&hand, g, &run.training);
  begin(g, &run, 0);
  for (int v = 0; v < ROUNDS; v++) {
    struct hand_unit units[GROUPS];
    struct hand_step steps[STEPS];
    hand_round(&hand, groups[v], units, steps);
    for (int at = 0; at < GROUPS; at++) {
      struct batch_status got;
      const int s = at / PER_STEP;
      if (s > 0 && at % PER_STEP == 0) {
        const struct step_status step = play_step(g, "r1", v, s - 1, PER_STEP);
        assert_true(digest_equal(&step.digest, &steps[s - 1].digest) && !step.skipped);
        assert_true(step.grad_norm == steps[s - 1].result.grad_norm && step.lr == steps[s - 1].result.lr);
      }
      send_batch(g, "r1", name_of("r1", v, "b", at), v, s, &groups[v][at], 1, &got);
      if (got.state != JOB_DONE) fail_msg("group %d: %s", at, got.error.message);
      const struct hand_unit *want = &units[at];
      const float *old = want->old;
      for (size_t i = 0; i < got.sample_count; old += got.samples[i++].logprobs.count)
        assert_memory_equal(got.samples[i].logprobs.items, old, got.samples[i].logprobs.count * sizeof *old);
      assert_int_equal(old - want->old, want->tokens);
      assert_int_equal(got.stats.clipped, want->clipped);
      assert_true(got.stats.ratio_sum == want->ratio_sum && got.stats.ratio_squares == want->ratio_squares);
      assert_true(got.stats.kl_new_old == want->kl && got.stats.difference_new_old == want->difference);
      if (s == 0) assert_true(want->ratio_sum == want->tokens && want->difference == 0);
      if (s > 0) clipped += want->clipped, ratios += want->ratio_squares, tokens += want->tokens;
    }
    const struct step_status last = play_step(g, "r1", v, INNER, members(INNER));
    assert_true(digest_equal(&last.digest, &steps[INNER].digest));
    assert_true(last.grad_norm == steps[INNER].result.grad_norm && last.lr == steps[INNER].result.lr);
  }
  assert_true(clipped > 0 && clipped < tokens && ratios != tokens); /* else the clip would not have been tried */
  hand_free(&hand);
}

static void the_order_of_groups_within_a_step_leaves_no_trace(void **state) {
  struct rig *g = *state;
  struct digest want[ROUNDS][STEPS], got[ROUNDS][STEPS];
  straight(g, want);
  struct open_run run = the_run("backwards");
  begin(g, &run, 0);
  for (int v = 0; v < ROUNDS; v++) {
    for (int s = 0; s < STEPS; s++) {
      play_groups(g, "backwards", v, s, s * PER_STEP, members(s), true);
      got[v][s] = play_step(g, "backwards", v, s, members(s)).digest;
    }
  }
  assert_equal(got[0], want[0], (size_t)ROUNDS * STEPS);
  run = the_run("at-once");
  begin(g, &run, 0);
  for (int s = 0; s < STEPS; s++) {
    struct batch_status status;
    send_batch(g, "at-once", name_of("at-once", 0, "b", s), 0, s, &groups[0][s * PER_STEP], (size_t)members(s),
               &status);
    got[0][s] = play_step(g, "at-once", 0, s, members(s)).digest;
  }
  assert_equal(got[0], want[0], STEPS);
  run = the_run("exchanged"); /* which step a group is in matters */
  begin(g, &run, 0);
  struct batch_group exchanged[PER_STEP] = {groups[0][0], groups[0][2]};
  struct batch_status status;
  struct step_status step;
  send_batch(g, "exchanged", "b0", 0, 0, exchanged, PER_STEP, &status);
  const struct submit_step m = step_after("exchanged", "s0", 0, 0, true, exchanged, PER_STEP);
  rig_step(g, &m, &step, &arena);
  assert_false(digest_equal(&step.digest, &want[0][0]));
}

/* What is out of turn is a conflict, and leaves no trace in what is in turn. */
static void only_what_is_next_is_taken(void **state) {
  struct rig *g = *state;
  struct digest want[ROUNDS][STEPS], got[STEPS];
  straight(g, want);
  const struct open_run run = the_run("r1");
  begin(g, &run, 0);
  refuse_batch(g, "r1", 0, 1, &groups[0][0]);
  struct submit_step m = step_after("r1", "early", 0, 1, false, NULL, 0);
  refuse_step(g, &m, "after_steps");
  play_groups(g, "r1", 0, 0, 0, PER_STEP, false);
  m = step_after("r1", "later", 0, 1, true, groups[0], PER_STEP);
  refuse_step(g, &m, "after_steps");
  m = step_after("r1", "less", 0, 0, true, groups[0], PER_STEP - 1);
  refuse_step(g, &m, "groups");
  m = step_after("r1", "other", 0, 0, true, groups[0] + 1, PER_STEP);
  refuse_step(g, &m, "groups");
  m = step_after("r1", "share", 0, 0, true, groups[0], PER_STEP);
  m.denominator++;
  refuse_step(g, &m, "denominator");
  got[0] = play_step(g, "r1", 0, 0, PER_STEP).digest;
  refuse_batch(g, "r1", 0, 0, &groups[0][2]);
  refuse_batch(g, "r1", 0, 2, &groups[0][2]);
  play_groups(g, "r1", 0, 1, PER_STEP, PER_STEP, false);
  m = step_after("r1", "again", 0, 0, true, groups[0] + PER_STEP, PER_STEP);
  refuse_step(g, &m, "after_steps");
  m = step_after("r1", "r1.0", 0, 0, false, groups[0] + PER_STEP, PER_STEP);
  refuse_step(g, &m, "after_steps");
  got[1] = play_step(g, "r1", 0, 1, PER_STEP).digest;
  play_groups(g, "r1", 0, INNER, INNER * PER_STEP, members(INNER), false);
  got[INNER] = play_step(g, "r1", 0, INNER, members(INNER)).digest;
  assert_equal(got, want[0], STEPS);
}

static void a_strict_run_takes_no_inner_steps(void **state) {
  struct rig *g = *state;
  struct open_run run = the_run("r1");
  run.training.update = UPDATE_STRICT;
  begin(g, &run, 0);
  play_groups(g, "r1", 0, 0, 0, GROUPS, false);
  refuse_batch(g, "r1", 0, 1, &groups[1][0]);
  struct submit_step m = step_after("r1", "r1.0.s0", 0, 0, true, groups[0], GROUPS);
  refuse_step(g, &m, "inner");
  m = step_after("r1", "r1.0", 0, 0, false, groups[0], GROUPS);
  m.denominator *= 2; /* is taken as it comes */
  struct step_status step;
  rig_step(g, &m, &step, &arena);
  assert_int_equal(step.state, JOB_DONE);
}

/* Repeats of inner steps and of their batches find what was recorded, before and after the version. */
static void a_repeated_inner_step_answers_what_it_did(void **state) {
  struct rig *g = *state;
  struct err err = {0};
  struct digest got[STEPS];
  const struct open_run run = the_run("r1");
  begin(g, &run, 0);
  play_groups(g, "r1", 0, 0, 0, PER_STEP, false);
  const struct step_status first = play_step(g, "r1", 0, 0, PER_STEP);
  play_groups(g, "r1", 0, 0, 0, PER_STEP, false);
  struct step_status again = play_step(g, "r1", 0, 0, PER_STEP);
  assert_true(digest_equal(&again.digest, &first.digest) && again.grad_norm == first.grad_norm);
  play_round(g, "r1", 0, 1, got);
  again = play_step(g, "r1", 0, 0, PER_STEP);
  assert_true(digest_equal(&again.digest, &first.digest) && again.grad_norm == first.grad_norm);
  assert_false(digest_equal(&again.digest, &got[1]));
  struct submit_step m = step_after("r1", "r1.0.s0", 0, 0, true, groups[0], PER_STEP);
  m.denominator++;
  assert_rc(RC_CONFLICT, trainer_submit_step(&g->client, &m, WAIT_MS, &err), err);
  m = step_after("r1", "r1.0.s7", 0, 0, true, groups[0], PER_STEP);
  assert_rc(RC_CONFLICT, trainer_submit_step(&g->client, &m, WAIT_MS, &err), err);
}

/* A process takes its inner steps with it: the round begins again, from the version that is durable. */
static void a_restart_within_a_round_begins_it_again(void **state) {
  struct rig *g = *state;
  struct digest want[ROUNDS][STEPS], got[STEPS];
  struct open_run_answer answer;
  straight(g, want);
  for (int every = 1; every <= 2; every++) {
    struct open_run run = the_run(every == 1 ? "r1" : "r2");
    run.training.checkpoint_every = every;
    begin(g, &run, 0);
    play_round(g, run.run, 0, 0, got);
    play_groups(g, run.run, 1, 0, 0, PER_STEP, false);
    play_step(g, run.run, 1, 0, PER_STEP);
    play_groups(g, run.run, 1, 1, PER_STEP, 1, false);
    rig_restart(g);
    run.current_version = 1;
    rig_open(g, &run, &answer);
    assert_int_equal(answer.version, every == 1 ? 1 : 0);
    assert_int_equal(answer.replaying, every == 2);
    refuse_batch(g, run.run, answer.version, 1, &groups[answer.version][0]);
    for (int v = (int)answer.version; v < ROUNDS; v++) {
      play_round(g, run.run, v, 0, got);
      assert_equal(got, want[v], STEPS);
    }
  }
}

static int64_t optimizer_steps(const struct rig *g, const char *run, int version) {
  char path[PATH + 64];
  struct err err = {0};
  struct buf bytes = BUF_INIT;
  struct json *root = NULL;
  snprintf(path, sizeof path, "%s/%s/v%d/trainer_state.json", g->state_dir, run, version);
  assert_rc(RC_OK, file_read(&bytes, path, 1 << 20, &err), err);
  assert_rc(RC_OK, json_parse(&root, bytes.data, bytes.len, 0, &err), err);
  const int64_t steps = json_int(json_get(root, "optimizer_steps"));
  json_free(root);
  buf_free(&bytes);
  return steps;
}

/* A round whose groups all went into inner steps: its own step makes the version, and is none of the optimizer's. */
static void a_round_may_end_without_groups(void **state) {
  struct rig *g = *state;
  struct digest want[ROUNDS][STEPS];
  straight(g, want);
  const struct open_run run = the_run("r1");
  const struct digest begun = begin(g, &run, 0);
  struct step_status inner[INNER];
  for (int s = 0; s < INNER; s++) {
    play_groups(g, "r1", 0, s, s * PER_STEP, PER_STEP, false);
    inner[s] = play_step(g, "r1", 0, s, PER_STEP);
    assert_true(digest_equal(&inner[s].digest, &want[0][s]));
  }
  const struct step_status own = play_step(g, "r1", 0, INNER, 0);
  assert_true(digest_equal(&own.digest, &inner[INNER - 1].digest) && !own.skipped);
  assert_true(own.grad_norm == inner[INNER - 1].grad_norm && own.lr == inner[INNER - 1].lr);
  assert_int_equal(optimizer_steps(g, "r1", 1), INNER);
  const struct submit_step none = step_after("r1", "r1.1", 1, 0, false, NULL, 0); /* neither kind of step */
  struct step_status empty;
  rig_step(g, &none, &empty, &arena);
  assert_true(empty.state == JOB_DONE && empty.skipped && digest_equal(&empty.digest, &own.digest));
  assert_false(digest_equal(&own.digest, &begun));
  assert_int_equal(optimizer_steps(g, "r1", 2), INNER);
}

/* One inner step over all groups is the strict round's step. */
static void the_first_inner_step_is_a_strict_one(void **state) {
  struct rig *g = *state;
  struct open_run run = the_run("r1");
  run.training.update = UPDATE_STRICT;
  begin(g, &run, 0);
  const struct digest strict = rig_round(g, "r1", 0, groups[0], GROUPS);
  run = the_run("r2");
  begin(g, &run, 0);
  struct step_status inner, own;
  play_groups(g, "r2", 0, 0, 0, GROUPS, false);
  struct submit_step m = step_after("r2", "r2.0.s0", 0, 0, true, groups[0], GROUPS);
  rig_step(g, &m, &inner, &arena);
  m = step_after("r2", "r2.0", 0, 1, false, NULL, 0);
  rig_step(g, &m, &own, &arena);
  assert_true(digest_equal(&inner.digest, &strict) && digest_equal(&own.digest, &strict));
}

/* A poisoned inner step is one that changes nothing; only a round in which nothing changed is skipped. */
static void a_poisoned_inner_step_is_counted_and_skipped(void **state) {
  struct rig *g = *state;
  struct open_run run = the_run("r1");
  const struct digest begun = begin(g, &run, 0);
  struct batch_group poisoned = groups[0][0];
  poisoned.samples = arena_alloc(&arena, poisoned.sample_count, sizeof *poisoned.samples);
  memcpy(poisoned.samples, groups[0][0].samples, poisoned.sample_count * sizeof *poisoned.samples);
  poisoned.samples[1].advantage = 3e38f;
  for (int round = 0; round < 2; round++) {
    struct batch_status batch;
    struct step_status step;
    struct submit_step m = step_after("r1", name_of("r1", round, "s", 0), round, 0, true, &poisoned, 1);
    send_batch(g, "r1", name_of("r1", round, "b", 0), round, 0, &poisoned, 1, &batch);
    assert_true(batch.stats.poisoned);
    rig_step(g, &m, &step, &arena);
    assert_true(step.state == JOB_DONE && step.skipped && digest_equal(&step.digest, &begun));
    if (round == 1) { /* nothing has changed yet: the policy that sampled is the current one */
      send_batch(g, "r1", "r1.1.b1", 1, 1, &groups[0][1], 1, &batch);
      assert_true(batch.stats.ratio_sum == (double)batch.stats.tokens && batch.stats.difference_new_old == 0);
      m = step_after("r1", "r1.1.s1", 1, 1, true, &groups[0][1], 1);
      rig_step(g, &m, &step, &arena);
      assert_true(step.state == JOB_DONE && !step.skipped);
    }
    m = step_after("r1", name_of("r1", round, "", -1), round, round + 1, false, NULL, 0);
    struct step_status own;
    rig_step(g, &m, &own, &arena);
    assert_true(own.state == JOB_DONE && own.skipped == (round == 0) && digest_equal(&own.digest, &step.digest));
  }
}

/* "current" is the version that everybody has seen. */
static void another_run_begins_with_the_version_not_with_its_inner_steps(void **state) {
  struct rig *g = *state;
  struct digest got[STEPS];
  struct open_run run = the_run("r1");
  begin(g, &run, 0);
  play_round(g, "r1", 0, 0, got);
  play_groups(g, "r1", 1, 0, 0, PER_STEP, false);
  const struct step_status inner = play_step(g, "r1", 1, 0, PER_STEP);
  run = the_run("r2");
  run.start.from = START_CURRENT;
  const struct digest begun = begin(g, &run, 0);
  assert_true(digest_equal(&begun, &got[INNER]) && !digest_equal(&begun, &inner.digest));
  refuse_batch(g, "r2", 0, 1, &groups[0][0]);
  play_groups(g, "r2", 0, 0, 0, PER_STEP, false);
}

/* An inner step is the timeline's `step`, and the wait for the next batch of the round is no new fill. */
static void an_inner_step_is_told_as_a_step(void **state) {
  struct rig *g = *state;
  const struct open_run run = the_run("r1");
  begin(g, &run, 0);
  play_groups(g, "r1", 0, 0, 0, PER_STEP, false);
  const struct step_status step = play_step(g, "r1", 0, 0, PER_STEP);
  int64_t stepped_us = 0;
  for (size_t i = 0; i < step.interval_count; i++)
    if (step.intervals[i].cause == CAUSE_STEP) stepped_us += step.intervals[i].end_us - step.intervals[i].begin_us;
  assert_true(step.step_us > 0 && stepped_us >= step.step_us && step.checkpoint_us == 0);
  struct batch_status batch;
  send_batch(g, "r1", "r1.0.b9", 0, 1, &groups[0][PER_STEP], 1, &batch);
  int starved = 0;
  for (size_t i = 0; i < batch.interval_count; i++) {
    assert_int_not_equal(batch.intervals[i].cause, CAUSE_FILL);
    starved += batch.intervals[i].cause == CAUSE_STARVED;
  }
  assert_true(starved > 0 && batch.stats.logprob_us > 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(a_round_of_steps_equals_one_by_hand),
      TEST(the_order_of_groups_within_a_step_leaves_no_trace),
      TEST(only_what_is_next_is_taken),
      TEST(a_strict_run_takes_no_inner_steps),
      TEST(a_repeated_inner_step_answers_what_it_did),
      TEST(a_restart_within_a_round_begins_it_again),
      TEST(a_round_may_end_without_groups),
      TEST(the_first_inner_step_is_a_strict_one),
      TEST(a_poisoned_inner_step_is_counted_and_skipped),
      TEST(another_run_begins_with_the_version_not_with_its_inner_steps),
      TEST(an_inner_step_is_told_as_a_step),
  };
#undef TEST
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/minibatch", tests, NULL, NULL);
}
