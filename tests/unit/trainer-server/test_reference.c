/* A batch may bring the log-probabilities of the run's reference, which a pass elsewhere computed: the gradient, the
 * sums and the weights are then those of a trainer that computes them itself, bit for bit.  And version 0 of a run with
 * a KL term is served as long as the run lasts, so that others can compute them. */
#include "tests/unit/trainer-server/support.h"

#include "services/trainer-server/engine/gradient_unit.h"

enum { ROUNDS = 3, GROUPS = 3 };

static struct arena arena;

/* What computes passes: a learner without room for a backward pass. */
struct elsewhere {
  struct parts parts;
  struct learner *learner;
};

static void elsewhere_make(struct elsewhere *x, const char *model_dir) {
  struct err err = {0};
  parts_make(&x->parts, model_dir);
  const struct learner_options options = {.chunk_tokens = CHUNK, .forward_only = true};
  assert_rc(RC_OK, learner_create(&x->learner, x->parts.model, &options, &err), err);
}

static void elsewhere_free(struct elsewhere *x) {
  learner_free(x->learner);
  parts_free(&x->parts);
}

/* The group brings its log-probabilities under w. */
static void bring(struct elsewhere *x, const struct weights *w, struct batch_group *group, float temperature) {
  const struct unit_policies policies = {.current = w};
  struct batch_group bare = *group;
  struct unit unit;
  struct err err = {0};
  bare.samples = arena_alloc(&arena, group->sample_count, sizeof *bare.samples);
  memcpy(bare.samples, group->samples, group->sample_count * sizeof *bare.samples);
  bare.has_reference = false;
  for (size_t i = 0; i < bare.sample_count; i++) bare.samples[i].behaviour.count = 0;
  assert_rc(RC_OK, unit_prepare(&unit, x->parts.model, &policies, &bare, &arena, &err), err);
  assert_rc(RC_OK, learner_logprobs(x->learner, w, unit.samples, unit.count, temperature, unit.logprob, NULL, &err),
            err);
  group->has_reference = true;
  for (size_t i = 0; i < group->sample_count; i++) group->samples[i].reference = unit.results[i].logprobs;
}

static struct weights *other_weights(const struct parts *p, uint32_t seed) {
  struct weights *w;
  struct err err = {0};
  float *masters = calloc(p->model->params.elements, sizeof *masters);
  assert_rc(RC_OK, weights_create(&w, p->model, false, &err), err);
  masters_random(p->model, masters, seed, NULL);
  weights_from_masters(w, masters);
  free(masters);
  return w;
}

/* ---- one unit ---- */

struct computed {
  float *grads;
  struct unit_result result;
};

static void compute(struct elsewhere *x, struct learner *l, const struct unit_policies *policies,
                    const struct batch_group *group, struct timeline *t, struct computed *out) {
  static const struct unit_config config = {
      .temperature = 0.8f,
      .loss = {.kind = LOSS_DECOUPLED_PPO, .clip_low = 0.2f, .clip_high = 0.2f, .kl_coefficient = 0.5f}};
  struct unit unit;
  struct err err = {0};
  out->grads = calloc(x->parts.model->params.elements, sizeof *out->grads);
  assert_rc(RC_OK, unit_prepare(&unit, x->parts.model, policies, group, &arena, &err), err);
  assert_rc(RC_OK, unit_compute(l, policies, &config, &unit, out->grads, &out->result, t, &err), err);
}

static bool same_stats(const struct unit_result *a, const struct unit_result *b) {
  return memcmp(&a->stats, &b->stats, sizeof a->stats) == 0 && a->entropy_sum == b->entropy_sum;
}

/* Under a first step's policies, after an inner step, and with a record of several versions.  The weights that are
 * given as the reference beside what was brought are others: they must not be looked at. */
static void a_unit_is_the_same_whoever_computed_its_reference(void **state) {
  (void)state;
  struct elsewhere x;
  struct learner *l;
  struct timeline timeline;
  char dir[PATH], model[PATH + 16];
  struct err err = {0};
  folder_make(dir);
  snprintf(model, sizeof model, "%s/model", dir);
  elsewhere_make(&x, model);
  timeline_begin(&timeline, clock_monotonic_us());
  assert_rc(RC_OK, learner_create(&l, x.parts.model, &(struct learner_options){.chunk_tokens = CHUNK}, &err), err);
  struct weights *reference = other_weights(&x.parts, 8), *behaviour = other_weights(&x.parts, 9);
  const size_t bytes = x.parts.model->params.elements * sizeof(float);
  for (int kind = 0; kind < 3; kind++) {
    struct batch_group own = group_make(&arena, "r1.0.0", 9, 3), brought = group_make(&arena, "r1.0.0", 9, 3);
    own.samples[4].segments[0].loss_mask = brought.samples[4].segments[0].loss_mask = false; /* trains on no token */
    bring(&x, reference, &brought, 0.8f);
    struct unit_policies policies = {.current = x.parts.weights,
                                     .behaviour = kind == 1 ? behaviour : NULL,
                                     .recorded = kind == 2,
                                     .reference = reference};
    for (size_t i = 0; kind == 2 && i < own.sample_count; i++) /* any record will do */
      own.samples[i].behaviour = brought.samples[i].behaviour = brought.samples[i].reference;
    struct computed a, b, c;
    compute(&x, l, &policies, &own, &timeline, &a);
    policies.reference = x.parts.weights;
    compute(&x, l, &policies, &brought, &timeline, &b);
    assert_memory_equal(a.grads, b.grads, bytes);
    assert_true(same_stats(&a.result, &b.result) && a.result.stats.kl_reference > 0);
    brought.samples[2].reference.items[1] -= 0.0625f;
    compute(&x, l, &policies, &brought, &timeline, &c);
    assert_memory_not_equal(a.grads, c.grads, bytes);
    free(a.grads);
    free(b.grads);
    free(c.grads);
  }
  weights_free(reference);
  weights_free(behaviour);
  learner_free(l);
  elsewhere_free(&x);
  folder_remove(dir);
}

/* ---- whole runs ---- */

static struct open_run the_run(const char *name, enum update_rule update) {
  struct open_run run = run_request(name);
  run.start.from = START_MODEL;
  run.training.kl_coefficient = 0.25;
  run.training.update = update;
  run.training.temperature = 0.8;
  return run;
}

static bool brings(int which, int v, int g) { return which == 1 || (which == 2 && (v + g) % 2 == 0); }

/* None, all, or some groups bring their reference; the trainer is started again in the middle. */
static void a_run_is_the_same_whoever_computed_its_reference(void **state) {
  (void)state;
  struct elsewhere x;
  struct digest digests[3][ROUNDS];
  for (int update = UPDATE_STRICT; update <= UPDATE_INFLIGHT; update += UPDATE_INFLIGHT - UPDATE_STRICT) {
    for (int which = 0; which < 3; which++) {
      struct rig g;
      struct open_run_answer opened;
      const struct open_run run = the_run("r1", (enum update_rule)update);
      struct batch_group groups[ROUNDS][GROUPS];
      rig_make(&g, "");
      elsewhere_make(&x, g.model_dir);
      rounds_make(&arena, ROUNDS, GROUPS, groups, 40);
      rig_start(&g);
      rig_open(&g, &run, &opened);
      for (int v = 0; v < ROUNDS; v++) {
        for (int k = 0; k < GROUPS; k++) {
          for (size_t i = 0; update == UPDATE_INFLIGHT && i < groups[v][k].sample_count; i++) {
            struct batch_sample *s = &groups[v][k].samples[i];
            s->behaviour.count = wire_segments_trained(s->segments, s->segment_count);
            s->behaviour.items = arena_alloc(&arena, s->behaviour.count, sizeof *s->behaviour.items);
            for (size_t t = 0; t < s->behaviour.count; t++) s->behaviour.items[t] = -0.5f * (float)(1 + (t + i) % 5);
          }
          if (brings(which, v, k)) bring(&x, x.parts.weights, &groups[v][k], 0.8f);
        }
        if (v == 2) rig_restart(&g);
        digests[which][v] = rig_round(&g, "r1", v, groups[v], GROUPS);
        assert_true(digest_equal(&digests[which][v], &digests[0][v]));
      }
      assert_false(digest_equal(&digests[which][0], &digests[which][1]));
      elsewhere_free(&x);
      rig_end(&g);
    }
  }
}

/* The sums that a batch answers with, and what it answers, are the same too; one wrong bit is another step. */
static void one_bit_of_a_reference_changes_the_step(void **state) {
  (void)state;
  struct digest digests[3];
  for (int which = 0; which < 3; which++) {
    struct rig g;
    struct elsewhere x;
    struct open_run_answer opened;
    const struct open_run run = the_run("r1", UPDATE_STRICT);
    struct batch_group groups[2][GROUPS];
    rig_make(&g, "");
    elsewhere_make(&x, g.model_dir);
    rounds_make(&arena, 2, GROUPS, groups, 50);
    rig_start(&g);
    rig_open(&g, &run, &opened);
    rig_round(&g, "r1", 0, groups[0], GROUPS); /* version 0 is its own reference */
    for (int k = 0; which > 0 && k < GROUPS; k++) bring(&x, x.parts.weights, &groups[1][k], 0.8f);
    if (which == 2) {
      uint32_t bits;
      memcpy(&bits, groups[1][1].samples[0].reference.items, sizeof bits);
      bits ^= 1u << 20;
      memcpy(groups[1][1].samples[0].reference.items, &bits, sizeof bits);
    }
    digests[which] = rig_round(&g, "r1", 1, groups[1], GROUPS);
    elsewhere_free(&x);
    rig_end(&g);
  }
  assert_true(digest_equal(&digests[0], &digests[1]));
  assert_false(digest_equal(&digests[0], &digests[2]));
}

static enum rc submit(struct rig *g, const char *run, const char *id, struct batch_group *group, struct err *err) {
  const struct submit_batch m = {
      .batch_id = id, .run = run, .epoch = 3, .fence = 5, .groups = group, .group_count = 1};
  return trainer_submit_batch(&g->client, &m, WAIT_MS, err);
}

static void a_reference_goes_with_a_kl_term_and_makes_no_other_batch(void **state) {
  (void)state;
  struct rig g;
  struct elsewhere x;
  struct open_run_answer opened;
  struct err err = {0};
  const struct open_run plain = run_request("r1"), kl = the_run("r2", UPDATE_STRICT);
  struct batch_group group = group_make(&arena, "r.0.0", 3, 5);
  rig_make(&g, "");
  elsewhere_make(&x, g.model_dir);
  rig_start(&g);
  rig_open(&g, &plain, &opened);
  bring(&x, x.parts.weights, &group, 0.8f);
  assert_rc(RC_INVALID, submit(&g, "r1", "b", &group, &err), err);
  assert_string_equal(err.field, "groups[0].reference");
  assert_non_null(strstr(err.message, "kl_coefficient"));
  rig_open(&g, &kl, &opened);
  group.has_reference = false; /* it was not there in time; when the batch is sent again, it is */
  struct batch_group bare = group_make(&arena, "r.0.0", 3, 5);
  assert_rc(RC_OK, submit(&g, "r2", "b", &bare, &err), err);
  group.has_reference = true;
  assert_rc(RC_OK, submit(&g, "r2", "b", &group, &err), err);
  group.samples[1].tokens.items[0] ^= 1;
  assert_rc(RC_CONFLICT, submit(&g, "r2", "b", &group, &err), err);
  elsewhere_free(&x);
  rig_end(&g);
}

/* ---- the weights ---- */

static void expect_version_0(struct rig *g, const char *path, const struct digest *digest) {
  struct http_answer a = call_raw(g, "GET", path, NULL, 0);
  struct parts parts;
  struct st_file *file;
  struct digest loaded;
  struct err err = {0};
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, digest);
  assert_int_equal(a.status, 200);
  assert_true(a.is_bytes);
  assert_string_equal(a.digest_header, hex);
  parts_make(&parts, g->model_dir);
  masters_random(parts.model, parts.masters, 99, NULL);
  weights_from_masters(parts.weights, parts.masters);
  assert_rc(RC_OK, st_open_memory(&file, a.body.data, a.body.len, &err), err);
  assert_string_equal(st_metadata(file, "leasehold.version"), "0");
  assert_rc(RC_OK, weights_from_safetensors(parts.weights, file, &err), err);
  assert_rc(RC_OK, weights_digest(&loaded, parts.weights, &err), err);
  assert_true(digest_equal(&loaded, digest));
  st_close(file);
  parts_free(&parts);
  http_answer_free(&a);
}

static void version_0_is_served_while_a_run_needs_it(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  const struct open_run plain = run_request("r1"), kl = the_run("r2", UPDATE_STRICT);
  struct open_run evaluation = run_request("r3");
  struct batch_group groups[2][GROUPS];
  rounds_make(&arena, 2, GROUPS, groups, 60);
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &plain, &opened);
  rig_round(&g, "r1", 0, groups[0], GROUPS);
  expect(&g, "GET", "/v1/weights/0?run=r1", NULL, 409, "\"field\":\"version\"");
  rig_open(&g, &kl, &opened);
  expect_version_0(&g, "/v1/weights/0?run=r2", &opened.digest);
  for (int v = 0; v < 2; v++) {
    rig_round(&g, "r2", v, groups[v], GROUPS);
    expect_version_0(&g, "/v1/weights/0?run=r2", &opened.digest);
    expect_version_0(&g, "/v1/weights/0", &opened.digest);
  }
  expect(&g, "GET", "/v1/weights/1?run=r2", NULL, 409, "\"field\":\"version\"");
  expect(&g, "GET", "/v1/weights/0?run=r1", NULL, 404, "\"field\":\"run\"");
  rig_restart(&g);
  expect_version_0(&g, "/v1/weights/0?run=r2", &opened.digest);
  evaluation.training.objective = "evaluate";
  evaluation.training.kl_coefficient = 0;
  rig_open(&g, &evaluation, &opened);
  expect(&g, "GET", "/v1/weights/0?run=r2", NULL, 404, "\"field\":\"run\"");
  rig_end(&g);
}

static int end(void **state) {
  (void)state;
  arena_free(&arena);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_unit_is_the_same_whoever_computed_its_reference),
      cmocka_unit_test(a_run_is_the_same_whoever_computed_its_reference),
      cmocka_unit_test(one_bit_of_a_reference_changes_the_step),
      cmocka_unit_test(a_reference_goes_with_a_kl_term_and_makes_no_other_batch),
      cmocka_unit_test(version_0_is_served_while_a_run_needs_it),
  };
  return cmocka_run_group_tests(tests, NULL, end);
}
