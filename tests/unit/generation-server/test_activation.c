/* What swaps of weights in mid-sample leave behind: every token says which version drew it, and whether all that it
 * attended to was of that version.  Where it says so, a pass over prompt and tokens under that version, computed here
 * from nothing, draws the same token with the same log-probability, bit for bit; where it does not, other bits come
 * out.  Swaps, preemptions and hand-backs come at random moments of seeded schedules. */
#include "common/model/network/forward.h"
#include "tests/unit/generation-server/engine_test.h"

enum {
  SETS = 4, /* version n has the weights of set n % SETS */
  PAGE = 16,
  LEASES = 6,
  SAMPLES = 3,
  MAX_NEW = 48,
  PROMPT_MAX = 60,
  FIRST_VERSION = 3,
  NO_LIMIT = 1000,
  COMPARED_MIN = 1000
};

/* --- versions --- */

struct stage {
  struct rig rig;
  struct weights *sets[SETS];
  struct digest digests[SETS];
  int64_t version; /* active, once the engine has stepped */
  int settled;     /* calls */

  /* The pass from nothing. */
  struct kv_cache *kv;
  struct workspace *ws;
  struct sampler *sampler;
  float *logits; /* [positions, V] */
};

static struct policy policy_of(const struct stage *st, int64_t version) {
  struct policy p = {.run = "r1", .version = version, .digest = st->digests[version % SETS]};
  return p;
}

static void activate(struct stage *st, int64_t version) {
  const struct policy p = policy_of(st, version);
  assert_int_equal(engine_activate(st->rig.engine, st->sets[version % SETS], &p), RC_OK);
  st->version = version;
}

static void note_settled(void *context) { ((struct stage *)context)->settled++; }

static void stage_open(struct stage *st, int slots, int pages, int chunk) {
  struct err err = {0};
  *st = (struct stage){0};
  rig_backend(&st->rig, 1);
  struct model *m = st->rig.model;
  for (int i = 0; i < SETS; i++) {
    rig_weights(&st->rig, 0, (uint64_t)(i + 1), i);
    st->sets[i] = st->rig.weights[0];
    st->digests[i] = st->rig.policy[0].digest;
  }
  st->rig.weights[0] = NULL;
  const struct engine_options o = {.model = m,
                                   .slots = slots,
                                   .pages = pages,
                                   .page_tokens = PAGE,
                                   .prefill_chunk = chunk,
                                   .samples_max = RIG_SAMPLES_MAX,
                                   .inbox_max = 256,
                                   .settled = note_settled,
                                   .context = st};
  if (engine_create(&st->rig.engine, &o, &err) != RC_OK) fail_msg("%s", err.message);
  const int pages_max = (m->context_max + PAGE - 1) / PAGE;
  assert_int_equal(kv_cache_create(&st->kv, m, pages_max, PAGE, &err), RC_OK);
  assert_int_equal(workspace_create(&st->ws, m, m->context_max, pages_max, &err), RC_OK);
  st->sampler = sampler_create(m->ops, m->config.vocabulary);
  st->logits = m->ops->alloc(m->ops, (size_t)m->context_max * (size_t)m->config.vocabulary * sizeof *st->logits);
  assert_non_null(st->sampler);
  assert_non_null(st->logits);
  activate(st, FIRST_VERSION);
}

static void stage_close(struct stage *st) {
  sampler_free(st->sampler);
  st->rig.ops->release(st->rig.ops, st->logits);
  workspace_free(st->ws);
  kv_cache_free(st->kv);
  if (st->rig.engine) engine_stop(st->rig.engine);
  engine_free(st->rig.engine);
  st->rig.engine = NULL;
  for (int i = 0; i < SETS; i++) weights_free(st->sets[i]);
  rig_close(&st->rig);
}

/* --- leases --- */

struct granted {
  struct lease lease;
  struct outcome outcome;
  int32_t prompt[PROMPT_MAX];
  struct partial_sample partials[SAMPLES];
  struct version_span spans[SAMPLES][OUTCOME_TOKENS_MAX];
};

static void grant(const struct stage *st, struct granted *g, int prompt_length, int salt, int64_t max_lag,
                  enum lease_kv kv) {
  *g = (struct granted){0};
  spec_of(g->prompt, prompt_length, salt, SAMPLES, MAX_NEW);
  g->lease = (struct lease){.id = "r1.0.9.0-2",
                            .fence = 5,
                            .run = "r1",
                            .group = "r1.0.9",
                            .purpose = LEASE_TRAINING,
                            .group_ordinal = salt,
                            .sample_count = SAMPLES,
                            .version_min = st->version,
                            .version_max = st->version + max_lag,
                            .kv = kv,
                            .weights_digest = st->digests[st->version % SETS],
                            .temperature = salt % 2 ? 0.7f : 0.05f, /* hardly a sample alike, or almost all */
                            .max_new_tokens = MAX_NEW,
                            .ignore_eos = true,
                            .seed = 11,
                            .prompt_ids = {g->prompt, (size_t)prompt_length}};
}

static struct decode_job *submit_granted(struct stage *st, struct granted *g) {
  struct err err = {0};
  struct decode_job *job;
  g->outcome = (struct outcome){0};
  if (decode_job_of_lease(&job, &g->lease, st->rig.model, NULL, engine_kv(st->rig.engine), &err) != RC_OK)
    fail_msg("%s", err.message);
  job->context = &g->outcome;
  job->done = keep_outcome;
  assert_int_equal(engine_submit(st->rig.engine, job, &err), RC_OK);
  return job;
}

/* The lease of what was handed back: its tokens and spans, valid from their oldest version on.  When the active version
 * is too far from that, they are dropped. */
static struct decode_job *continue_granted(struct stage *st, struct granted *g) {
  static struct granted last; /* the outcome is overwritten by the next holder's */
  last = *g;
  const struct outcome *o = &last.outcome;
  const int64_t max_lag = g->lease.version_max - g->lease.version_min;
  int64_t oldest = st->version;
  for (int i = 0; i < SAMPLES; i++)
    if (o->sample[i].count > 0 && o->sample[i].versions[0] < oldest) oldest = o->sample[i].versions[0];
  const bool kept = oldest + max_lag >= st->version;
  g->lease.version_min = kept ? oldest : st->version;
  g->lease.version_max = g->lease.version_min + max_lag;
  g->lease.weights_digest = st->digests[st->version % SETS];
  g->lease.partials = g->partials;
  g->lease.partial_count = kept ? SAMPLES : 0;
  for (int i = 0; i < SAMPLES; i++) {
    struct partial_sample *p = &g->partials[i];
    const size_t count = (size_t)o->sample[i].count;
    *p = (struct partial_sample){.sample = i,
                                 .token_ids = {last.outcome.sample[i].tokens, count},
                                 .logprobs = {last.outcome.sample[i].logprobs, count},
                                 .spans = g->spans[i]};
    for (size_t t = 0; t < count; t++) {
      const int64_t version = o->sample[i].versions[t];
      const bool fresh = o->sample[i].fresh[t];
      if (t == 0 || version != o->sample[i].versions[t - 1] || fresh != o->sample[i].fresh[t - 1])
        p->spans[p->span_count++] = (struct version_span){version, (int32_t)t, 0, fresh};
      p->spans[p->span_count - 1].count++;
    }
  }
  return submit_granted(st, g);
}

/* --- the pass from nothing --- */

/* What `version` would draw after each prefix of prompt and tokens. */
static void draw_from_nothing(struct stage *st, const struct granted *g, int sample, int64_t version,
                              struct draw draws[MAX_NEW]) {
  const int P = (int)g->lease.prompt_ids.count, count = g->outcome.sample[sample].count, T = P + count - 1;
  struct err err = {0};
  struct kv_sequence sequence;
  int32_t tokens[PROMPT_MAX + MAX_NEW], index[PROMPT_MAX + MAX_NEW] = {0}, position[PROMPT_MAX + MAX_NEW],
      pick[MAX_NEW];
  const struct sampling_params sampling = {.temperature = g->lease.temperature, .top_p = 1}, *params[MAX_NEW];
  memcpy(tokens, g->prompt, (size_t)P * sizeof *tokens);
  memcpy(tokens + P, g->outcome.sample[sample].tokens, (size_t)count * sizeof *tokens);
  for (int i = 0; i < T; i++) position[i] = i;
  assert_int_equal(kv_sequence_init(&sequence, st->kv, T, &err), RC_OK);
  assert_int_equal(kv_reserve(st->kv, &sequence, T), RC_OK);
  const struct rows rows = {.T = T,
                            .sequence = index,
                            .position = position,
                            .pages = sequence.pages,
                            .pages_per_sequence = sequence.page_count,
                            .sequences = 1};
  const void *hidden;
  forward_run(st->sets[version % SETS], &rows, tokens, st->kv, st->ws, NULL, &hidden);
  for (int t = 0; t < count; t++) {
    const struct rng_key key = {.seed = g->lease.seed,
                                .purpose = RNG_SAMPLE,
                                .group = (uint32_t)g->lease.group_ordinal,
                                .sample = (uint32_t)sample};
    uint32_t words[4];
    rng_words(words, &key, (uint32_t)(P + t));
    pick[t] = P - 1 + t;
    params[t] = &sampling;
    draws[t] = (struct draw){.row = t, .u = rng_uniform(words[0])};
  }
  forward_logits(st->sets[version % SETS], hidden, pick, count, st->ws, st->logits);
  sampler_draw(st->sampler, st->logits, params, draws, count);
  kv_sequence_release(st->kv, &sequence);
}

struct tally {
  int fresh, kept, kept_that_differ; /* tokens */
  int newest;                        /* of a sample's newest span, where it has several */
  int samples, crossed, continued, restarted;
  int64_t preemptions;
};

static bool same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

/* Every token against the version that it names. */
static void check_sample(struct stage *st, const struct granted *g, int sample, struct tally *n) {
  const int count = g->outcome.sample[sample].count;
  const int64_t *versions = g->outcome.sample[sample].versions;
  struct draw draws[MAX_NEW];
  int64_t drawn_with = -1;
  assert_int_equal(count, MAX_NEW);
  for (int t = 0; t < count; t++) {
    assert_true(versions[t] >= g->lease.version_min && versions[t] <= g->lease.version_max);
    assert_true(t == 0 || versions[t] >= versions[t - 1]);
    if (versions[t] != drawn_with) draw_from_nothing(st, g, sample, drawn_with = versions[t], draws);
    const bool same = same_bits(g->outcome.sample[sample].logprobs[t], draws[t].logprob) &&
                      g->outcome.sample[sample].tokens[t] == draws[t].token;
    if (g->outcome.sample[sample].fresh[t]) {
      if (!same)
        fail_msg("token %d of sample %d, said to be fresh: version %lld draws %d with %.9g, got %d with %.9g", t,
                 sample, (long long)versions[t], draws[t].token, (double)draws[t].logprob,
                 g->outcome.sample[sample].tokens[t], (double)g->outcome.sample[sample].logprobs[t]);
      n->fresh++;
      n->newest += versions[t] == versions[count - 1] && versions[t] != versions[0];
    } else {
      n->kept++;
      n->kept_that_differ += !same;
    }
  }
  n->samples++;
  n->crossed += versions[0] != versions[count - 1];
}

/* --- schedules --- */

static uint32_t next_random(uint64_t *x) {
  *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
  return (uint32_t)(*x >> 20);
}

/* Only samples in slots keep the engine from being settled: one that was preempted may wait for long. */
static void check_unsettled(const struct stage *st, struct decode_job *const *jobs, const struct granted *granted) {
  bool recomputing = false;
  for (int i = 0; i < LEASES; i++)
    for (int s = 0; s < SAMPLES && !granted[i].outcome.ended; s++)
      recomputing |= jobs[i]->samples[s].recomputing && jobs[i]->samples[s].slot >= 0;
  assert_int_equal(engine_settled(st->rig.engine), !recomputing);
}

/* Leases come and go on a pool that is too small for them, while versions are activated and all is handed back now and
 * then. */
static void run_schedule(uint64_t seed, enum lease_kv kv, struct tally *n) {
  static struct granted granted[LEASES];
  static struct stage st;
  struct decode_job *jobs[LEASES];
  uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  struct engine_counters counters;
  int salt = 0, left = 4 * LEASES;
  stage_open(&st, 9, 26, 24);
  engine_step(st.rig.engine);
  for (int i = 0; i < LEASES; i++) {
    grant(&st, &granted[i], 1 + (int)(next_random(&x) % PROMPT_MAX), salt++, NO_LIMIT, kv);
    jobs[i] = submit_granted(&st, &granted[i]);
  }
  for (int step = 0; left > 0; step++) {
    assert_true(step < RIG_STEPS_MAX);
    engine_step(st.rig.engine);
    check_unsettled(&st, jobs, granted);
    if (next_random(&x) % 25 == 0) activate(&st, st.version + 1 + next_random(&x) % 2);
    if (next_random(&x) % 70 == 0) engine_hand_back(st.rig.engine);
    for (int i = 0; i < LEASES; i++) {
      struct granted *g = &granted[i];
      if (!g->outcome.ended) continue;
      if (g->outcome.end == DECODE_JOB_HANDED_BACK) {
        n->continued++;
        jobs[i] = continue_granted(&st, g);
        n->restarted += g->lease.partial_count == 0;
        continue;
      }
      assert_int_equal(g->outcome.end, DECODE_JOB_COMPLETE);
      for (int s = 0; s < SAMPLES; s++) check_sample(&st, g, s, n);
      left--;
      grant(&st, g, 1 + (int)(next_random(&x) % PROMPT_MAX), salt++, next_random(&x) % 3 ? NO_LIMIT : 2, kv);
      jobs[i] = submit_granted(&st, g);
    }
  }
  engine_read_counters(st.rig.engine, &counters);
  n->preemptions += counters.preemptions;
  stage_close(&st);
}

/* With the keys and values computed again every token is its version's own, whatever was swapped, preempted and handed
 * back before it. */
static void recomputed_tokens_are_the_newest_versions_own(void **state) {
  (void)state;
  struct tally n = {0};
  for (uint64_t seed = 1; seed <= 4; seed++) run_schedule(seed, LEASE_KV_RECOMPUTE, &n);
  assert_int_equal(n.kept, 0);
  assert_int_equal(n.fresh, n.samples * MAX_NEW);
  assert_true(n.newest >= COMPARED_MIN);
  assert_true(n.crossed > n.samples / 4 && n.continued > 10 && n.restarted > 0 && n.preemptions > 10);
}

/* With the keys and values kept, tokens say truly whether an older version's are among what they attended to. */
static void kept_keys_and_values_show_in_the_tokens(void **state) {
  (void)state;
  struct tally n = {0};
  for (uint64_t seed = 11; seed <= 14; seed++) run_schedule(seed, LEASE_KV_KEEP, &n);
  assert_true(n.fresh >= COMPARED_MIN && n.kept >= COMPARED_MIN);
  assert_true(n.kept_that_differ > n.kept - n.kept / 20);
  assert_true(n.newest > 100); /* of samples that were preempted or continued under a newer version */
  assert_true(n.crossed > n.samples / 4 && n.continued > 10 && n.restarted > 0 && n.preemptions > 10);
}

/* A lease of one version is worth nothing under another: what it has goes back, all of it fresh, and what completes is
 * its version's own. */
static void a_lease_of_one_version_never_crosses(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  struct tally n = {0};
  int handed_back = 0;
  stage_open(&st, 9, 40, 24);
  engine_step(st.rig.engine);
  for (int round = 0; round < 12; round++) {
    grant(&st, &g, 10 + 4 * round, round, 0, round % 2 ? LEASE_KV_RECOMPUTE : LEASE_KV_KEEP);
    submit_granted(&st, &g);
    for (int i = 0; i < 3 * round; i++) engine_step(st.rig.engine);
    if (round % 3 == 0) activate(&st, st.version + 1);
    run_until_idle(&st.rig);
    if (g.outcome.end == DECODE_JOB_COMPLETE) {
      for (int s = 0; s < SAMPLES; s++) check_sample(&st, &g, s, &n);
      continue;
    }
    handed_back++;
    assert_int_equal(g.outcome.policy.version, g.lease.version_min); /* what voided it is a later one */
    for (int s = 0; s < SAMPLES; s++) {
      for (int t = 0; t < g.outcome.sample[s].count; t++) {
        assert_int_equal(g.outcome.sample[s].versions[t], g.lease.version_min);
        assert_true(g.outcome.sample[s].fresh[t]);
      }
    }
  }
  assert_int_equal(handed_back, 4);
  assert_int_equal(n.crossed, 0);
  assert_int_equal(n.kept, 0);
  assert_int_equal(n.samples, 8 * SAMPLES);
  stage_close(&st);
}

/* --- what a swap costs --- */

static struct engine_counters counters_of(const struct stage *st) {
  struct engine_counters n;
  engine_read_counters(st->rig.engine, &n);
  return n;
}

/* Kept keys and values cost no row: the sample's next token comes with the next step. */
static void keeping_computes_nothing_again(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  stage_open(&st, 8, 64, 64);
  engine_step(st.rig.engine);
  grant(&st, &g, 40, 1, NO_LIMIT, LEASE_KV_KEEP);
  submit_granted(&st, &g);
  for (int i = 0; i < 10; i++) engine_step(st.rig.engine);
  activate(&st, st.version + 1);
  assert_int_equal(counters_of(&st).pauses, 0);
  engine_step(st.rig.engine);
  assert_true(engine_settled(st.rig.engine));
  assert_int_equal(counters_of(&st).pauses, 1);
  run_until_idle(&st.rig);
  const struct engine_counters n = counters_of(&st);
  assert_int_equal(n.rows, 40 + SAMPLES * (MAX_NEW - 1));
  assert_int_equal(n.recomputed, 0);
  assert_int_equal(n.pauses, 1);
  for (int s = 0; s < SAMPLES; s++) {
    for (int t = 0; t < MAX_NEW; t++) {
      assert_int_equal(g.outcome.sample[s].versions[t], t < 10 ? FIRST_VERSION : FIRST_VERSION + 1);
      assert_int_equal(g.outcome.sample[s].fresh[t], t < 10);
    }
  }
  stage_close(&st);
}

/* A swap that no sample lives through pauses nobody, however long the engine rests before its next step. */
static void only_samples_that_go_on_are_paused(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  stage_open(&st, 8, 64, 64);
  engine_step(st.rig.engine);
  grant(&st, &g, 20, 1, NO_LIMIT, LEASE_KV_KEEP);
  submit_granted(&st, &g);
  run_until_idle(&st.rig);
  activate(&st, st.version + 1); /* at rest, and the next lease comes with it */
  submit_granted(&st, &g);
  run_until_idle(&st.rig);
  assert_int_equal(g.outcome.end, DECODE_JOB_COMPLETE);
  submit_granted(&st, &g);
  for (int i = 0; i < 5; i++) engine_step(st.rig.engine);
  activate(&st, st.version + 1); /* all goes back before the next step */
  engine_hand_back(st.rig.engine);
  run_until_idle(&st.rig);
  submit_granted(&st, &g);
  run_until_idle(&st.rig);
  assert_int_equal(g.outcome.end, DECODE_JOB_COMPLETE);
  grant(&st, &g, 20, 1, 0, LEASE_KV_KEEP);
  submit_granted(&st, &g);
  for (int i = 0; i < 5; i++) engine_step(st.rig.engine);
  activate(&st, st.version + 1); /* it voids the only lease */
  run_until_idle(&st.rig);
  assert_int_equal(g.outcome.end, DECODE_JOB_HANDED_BACK);
  assert_int_equal(counters_of(&st).pauses, 0);
  stage_close(&st);
}

/* Computed again: the prompt once for all samples of the group, in chunks, and each sample's own tokens; no token is
 * drawn twice.  A request beside them decodes on in every step.  Until each sample has a token the engine is not
 * settled. */
static void recomputing_is_a_prefill_of_the_group(void **state) {
  enum { P = 40, BEFORE = 10, CHUNK = 16 };
  (void)state;
  static struct stage st;
  static struct granted g;
  static struct outcome request;
  int32_t prompt[8];
  stage_open(&st, 8, 64, CHUNK);
  engine_step(st.rig.engine);
  const struct decode_job_spec spec = spec_of(prompt, 8, 3, 1, 100);
  submit(&st.rig, &spec, &request);
  engine_step(st.rig.engine);
  grant(&st, &g, P, 1, NO_LIMIT, LEASE_KV_RECOMPUTE);
  struct decode_job *job = submit_granted(&st, &g);
  while (job->samples[0].count < BEFORE) engine_step(st.rig.engine);
  activate(&st, st.version + 1);
  const struct engine_counters before = counters_of(&st);
  int steps = 0;
  do {
    engine_step(st.rig.engine);
    steps++;
  } while (!engine_settled(st.rig.engine));
  const struct engine_counters after = counters_of(&st);
  const int again = P + SAMPLES * BEFORE; /* the rows that draw each sample's next token among them */
  const int ahead = job->samples[0].count - BEFORE - 1 + job->samples[1].count - BEFORE - 1;
  assert_int_equal(after.rows - before.rows, again + ahead + steps);
  assert_true(steps >= (P + SAMPLES * BEFORE) / CHUNK);
  assert_int_equal(after.recomputed, SAMPLES * (P + BEFORE - 1));
  assert_int_equal(after.preemptions, 0);
  assert_int_equal(st.settled, 1);
  run_until_idle(&st.rig);
  assert_int_equal(counters_of(&st).tokens_sampled, SAMPLES * MAX_NEW + 100);
  struct tally n = {0};
  for (int s = 0; s < SAMPLES; s++) check_sample(&st, &g, s, &n);
  assert_int_equal(n.fresh, SAMPLES * MAX_NEW);
  for (int t = 0; t < 100; t++)
    assert_int_equal(request.sample[0].fresh[t], request.sample[0].versions[t] == FIRST_VERSION);
  assert_int_equal(st.settled, 1);
  stage_close(&st);
}

/* A prompt that is computed by halves when the weights are swapped is computed anew: no sample has a token yet, so none
 * need attend to older keys. */
static void a_half_computed_prompt_begins_again(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  struct tally n = {0};
  for (int chunks = 1; chunks <= 2; chunks++) {
    stage_open(&st, 8, 64, 16);
    engine_step(st.rig.engine);
    grant(&st, &g, 33, 1, NO_LIMIT, LEASE_KV_KEEP); /* after two chunks one position is left */
    submit_granted(&st, &g);
    for (int i = 0; i < chunks; i++) engine_step(st.rig.engine);
    activate(&st, st.version + 1);
    run_until_idle(&st.rig);
    for (int s = 0; s < SAMPLES; s++) {
      check_sample(&st, &g, s, &n);
      assert_int_equal(g.outcome.sample[s].versions[0], FIRST_VERSION + 1);
    }
    assert_int_equal(counters_of(&st).recomputed, 16 * chunks);
    stage_close(&st);
  }
  assert_int_equal(n.kept, 0);
}

/* Samples that wait for a slot hold the prompt's pages and their first token.  After a swap they compute the prompt
 * anew, once for as many as enter then, though the keys of those that run are kept. */
static void waiting_samples_begin_with_the_new_version(void **state) {
  enum { P = 40 };
  (void)state;
  static struct stage st;
  static struct granted g;
  struct tally n = {0};
  stage_open(&st, 1, 64, 64);
  engine_step(st.rig.engine);
  grant(&st, &g, P, 1, NO_LIMIT, LEASE_KV_KEEP);
  submit_granted(&st, &g);
  for (int i = 0; i < 5; i++) engine_step(st.rig.engine);
  activate(&st, st.version + 1);
  run_until_idle(&st.rig);
  for (int s = 0; s < SAMPLES; s++) {
    check_sample(&st, &g, s, &n);
    for (int t = 0; t < MAX_NEW; t++) {
      assert_int_equal(g.outcome.sample[s].versions[t], t < (s == 0 ? 5 : 1) ? FIRST_VERSION : FIRST_VERSION + 1);
      assert_int_equal(g.outcome.sample[s].fresh[t], s > 0 || t < 5);
    }
  }
  assert_int_equal(counters_of(&st).rows, 2 * P + SAMPLES * (MAX_NEW - 1));
  stage_close(&st);
}

/* One that has lost its prompt, and computes it by halves when the next version comes, begins once more. */
static void a_prompt_computed_anew_may_begin_again(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  struct tally n = {0};
  stage_open(&st, 2, 64, 16);
  engine_step(st.rig.engine);
  grant(&st, &g, 40, 1, NO_LIMIT, LEASE_KV_KEEP);
  struct decode_job *job = submit_granted(&st, &g);
  while (job->samples[0].count < 5) engine_step(st.rig.engine);
  activate(&st, st.version + 1); /* the third sample waits, and loses the prompt */
  while (job->samples[0].count < MAX_NEW) engine_step(st.rig.engine);
  for (int i = 0; i < 2; i++) engine_step(st.rig.engine);
  activate(&st, st.version + 1);
  assert_int_equal(counters_of(&st).recomputed, 0);
  engine_step(st.rig.engine);
  assert_int_equal(counters_of(&st).recomputed, 32);
  run_until_idle(&st.rig);
  for (int s = 0; s < SAMPLES; s++) check_sample(&st, &g, s, &n);
  for (int t = 1; t < MAX_NEW; t++) {
    assert_int_equal(g.outcome.sample[2].versions[t], FIRST_VERSION + 2);
    assert_true(g.outcome.sample[2].fresh[t]);
  }
  stage_close(&st);
}

/* --- which leases a version is for --- */

/* A lease of several versions is taken under any of them, whichever its digest names, but under no other run's version,
 * and not under weights older than the tokens that it brings. */
static void a_lease_of_several_versions_is_taken_under_each(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  stage_open(&st, 8, 64, 64);
  engine_step(st.rig.engine);
  grant(&st, &g, 20, 1, 2, LEASE_KV_KEEP);
  for (int ahead = 0; ahead <= 3; ahead++) {
    if (ahead > 0) activate(&st, FIRST_VERSION + ahead);
    submit_granted(&st, &g);
    run_until_idle(&st.rig);
    assert_int_equal(g.outcome.end, ahead <= 2 ? DECODE_JOB_COMPLETE : DECODE_JOB_HANDED_BACK);
  }
  grant(&st, &g, 20, 1, 2, LEASE_KV_KEEP);
  g.lease.run = "r2";
  submit_granted(&st, &g);
  run_until_idle(&st.rig);
  assert_int_equal(g.outcome.end, DECODE_JOB_HANDED_BACK);
  assert_int_equal(g.outcome.sample[0].count, 0);
  int32_t tokens[] = {7, 8, 9};
  float logprobs[] = {-1, -2, -3};
  struct version_span spans[] = {{st.version, 0, 1, true}, {st.version + 1, 1, 2, false}};
  struct partial_sample partial = {.sample = 1,
                                   .token_ids = {tokens, 3},
                                   .logprobs = {logprobs, 3},
                                   .spans = spans,
                                   .span_count = 2};
  grant(&st, &g, 20, 1, 2, LEASE_KV_KEEP);
  g.lease.partials = &partial;
  g.lease.partial_count = 1;
  submit_granted(&st, &g);
  run_until_idle(&st.rig);
  assert_int_equal(g.outcome.end, DECODE_JOB_HANDED_BACK);
  assert_int_equal(g.outcome.sample[1].count, 3);
  activate(&st, st.version + 1);
  submit_granted(&st, &g);
  run_until_idle(&st.rig);
  assert_int_equal(g.outcome.end, DECODE_JOB_COMPLETE);
  for (int t = 0; t < MAX_NEW; t++) {
    assert_int_equal(g.outcome.sample[1].versions[t], t < 1 ? st.version - 1 : st.version);
    assert_int_equal(g.outcome.sample[1].fresh[t], t < 1 || t >= 3);
  }
  stage_close(&st);
}

static void keep_job(struct decode_job *job, void *context) { *(struct decode_job **)context = job; }

/* What goes back names the weights that it was decoded with, not those that voided it, and the span of every token. */
static void what_goes_back_says_what_drew_it(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  struct decode_job *ended = NULL;
  struct lease_result result;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  stage_open(&st, 8, 64, 64);
  engine_step(st.rig.engine);
  grant(&st, &g, 20, 1, 1, LEASE_KV_KEEP);
  struct decode_job *job = submit_granted(&st, &g);
  job->done = keep_job;
  job->context = &ended;
  for (int i = 0; i < 4; i++) engine_step(st.rig.engine);
  activate(&st, FIRST_VERSION + 1);
  for (int i = 0; i < 3; i++) engine_step(st.rig.engine);
  activate(&st, FIRST_VERSION + 2);
  run_until_idle(&st.rig);
  assert_ptr_equal(ended, job);
  assert_int_equal(decode_job_result(&result, job, &arena, &err), RC_OK);
  assert_true(result.handed_back);
  assert_true(digest_equal(&result.loaded_digest, &st.digests[(FIRST_VERSION + 1) % SETS]));
  for (int s = 0; s < SAMPLES; s++) {
    assert_int_equal(result.samples[s].span_count, 2);
    const struct version_span expected[] = {{FIRST_VERSION, 0, 4, true}, {FIRST_VERSION + 1, 4, 3, false}};
    for (int i = 0; i < 2; i++) {
      const struct version_span *span = &result.samples[s].spans[i];
      assert_int_equal(span->version, expected[i].version);
      assert_int_equal(span->start, expected[i].start);
      assert_int_equal(span->count, expected[i].count);
      assert_int_equal(span->fresh, expected[i].fresh);
    }
  }
  decode_job_free(job);
  arena_free(&arena);
  stage_close(&st);
}

/* A lease that goes on where another server kept older keys: its next tokens are of the same version, and fresh. */
static void neighbours_of_one_version_stay_apart(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  struct decode_job *ended = NULL;
  struct lease_result result;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  int32_t tokens[] = {7, 8, 9};
  float logprobs[] = {-1, -2, -3};
  stage_open(&st, 8, 64, 64);
  engine_step(st.rig.engine);
  struct version_span spans[] = {{FIRST_VERSION, 0, 1, true}, {FIRST_VERSION, 1, 2, false}};
  struct partial_sample partial = {
      .token_ids = {tokens, 3}, .logprobs = {logprobs, 3}, .spans = spans, .span_count = 2};
  grant(&st, &g, 20, 1, NO_LIMIT, LEASE_KV_KEEP);
  g.lease.partials = &partial;
  g.lease.partial_count = 1;
  struct decode_job *job = submit_granted(&st, &g);
  job->done = keep_job;
  job->context = &ended;
  run_until_idle(&st.rig);
  assert_ptr_equal(ended, job);
  assert_int_equal(decode_job_result(&result, job, &arena, &err), RC_OK);
  assert_int_equal(result.samples[0].span_count, 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(result.samples[0].spans[i].fresh, i != 1);
    assert_int_equal(result.samples[0].spans[i].start, i == 2 ? 3 : i);
  }
  assert_int_equal(result.samples[1].span_count, 1);
  decode_job_free(job);
  arena_free(&arena);
  stage_close(&st);
}

static void lying_spans_are_refused(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  struct err err;
  struct decode_job *job;
  int32_t tokens[] = {7, 8, 9};
  float logprobs[] = {-1, -2, -3};
  stage_open(&st, 8, 64, 64);
  engine_step(st.rig.engine);
  grant(&st, &g, 20, 1, 2, LEASE_KV_KEEP);
  const int64_t v = st.version;
  const struct version_span lies[][2] = {
      {{v, 0, 1, true}, {v + 1, 1, 1, true}},     /* a token too few */
      {{v, 0, 1, true}, {v + 1, 1, 3, true}},     /* one too many */
      {{v, 0, 1, true}, {v + 1, 2, 2, true}},     /* a gap */
      {{v + 1, 0, 1, true}, {v, 1, 2, true}},     /* back to an older version */
      {{v - 1, 0, 1, true}, {v, 1, 2, true}},     /* older than the lease is valid for */
      {{v, 0, 1, true}, {v + 3, 1, 2, true}},     /* newer */
  };
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    struct version_span spans[2] = {lies[i][0], lies[i][1]};
    struct partial_sample partial = {
        .token_ids = {tokens, 3}, .logprobs = {logprobs, 3}, .spans = spans, .span_count = 2};
    g.lease.partials = &partial;
    g.lease.partial_count = 1;
    if (decode_job_of_lease(&job, &g.lease, st.rig.model, NULL, engine_kv(st.rig.engine), &err) != RC_INVALID)
      fail_msg("case %zu was accepted", i);
  }
  stage_close(&st);
}

/* The same weights under a newer number: a lease that is valid for it goes on, its keys and values are that
 * version's. */
static void another_name_for_the_same_weights_keeps_tokens_fresh(void **state) {
  (void)state;
  static struct stage st;
  static struct granted g;
  struct tally n = {0};
  stage_open(&st, 8, 64, 64);
  engine_step(st.rig.engine);
  grant(&st, &g, 20, 1, SETS, LEASE_KV_KEEP);
  submit_granted(&st, &g);
  for (int i = 0; i < 5; i++) engine_step(st.rig.engine);
  struct policy later = policy_of(&st, FIRST_VERSION + SETS);
  assert_int_equal(engine_relabel(st.rig.engine, &later), RC_OK);
  run_until_idle(&st.rig);
  for (int s = 0; s < SAMPLES; s++) {
    check_sample(&st, &g, s, &n);
    assert_int_equal(g.outcome.sample[s].versions[4], FIRST_VERSION);
    assert_int_equal(g.outcome.sample[s].versions[5], FIRST_VERSION + SETS);
  }
  assert_int_equal(n.fresh, SAMPLES * MAX_NEW);
  stage_close(&st);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(recomputed_tokens_are_the_newest_versions_own),
      cmocka_unit_test(kept_keys_and_values_show_in_the_tokens),
      cmocka_unit_test(a_lease_of_one_version_never_crosses),
      cmocka_unit_test(keeping_computes_nothing_again),
      cmocka_unit_test(only_samples_that_go_on_are_paused),
      cmocka_unit_test(recomputing_is_a_prefill_of_the_group),
      cmocka_unit_test(a_half_computed_prompt_begins_again),
      cmocka_unit_test(waiting_samples_begin_with_the_new_version),
      cmocka_unit_test(a_prompt_computed_anew_may_begin_again),
      cmocka_unit_test(a_lease_of_several_versions_is_taken_under_each),
      cmocka_unit_test(what_goes_back_says_what_drew_it),
      cmocka_unit_test(neighbours_of_one_version_stay_apart),
      cmocka_unit_test(lying_spans_are_refused),
      cmocka_unit_test(another_name_for_the_same_weights_keeps_tokens_fresh),
  };
  return cmocka_run_group_tests_name("generation-server/activation", tests, NULL, NULL);
}
