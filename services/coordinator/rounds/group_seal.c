/* Verifies finished samples, and with a group's last one computes advantages and digest and closes the group. */
#include "services/coordinator/rounds/group_seal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/philox.h"
#include "services/coordinator/decide/overlong.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/rounds/remote_rewards.h"
#include "services/coordinator/records/evaluation_results.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/records/round_sums.h"
#include "services/coordinator/rounds/stream.h"
#include "services/coordinator/pool/pool.h"

void rewards_shuffle(double *rewards, int n, uint64_t seed, uint32_t round, uint32_t group) {
  const struct rng_key key = {.seed = seed, .purpose = RNG_REWARD, .round = round, .group = group};
  for (int i = n - 1; i > 0; i--) {
    uint64_t j = rng_below(&key, (uint32_t)i, (uint64_t)i + 1);
    double held = rewards[i];
    rewards[i] = rewards[j];
    rewards[j] = held;
  }
}

const char *group_filter_reason(const struct run_config *config, const float *advantages, int n) {
  if (config->zero_advantage == FILTER_KEEP) return NULL;
  for (int i = 0; i < n; i++) {
    if (advantages[i] != 0) return NULL;
  }
  return "all advantages are zero";
}

/* ---- one sample ---- */

/* Ids that the tokenizer does not know (padding of the model's vocabulary) have no text. */
static enum rc text_of(const struct tokenizer *t, const int32_t *ids, size_t count, struct arena *arena,
                       struct done_sample *s, struct err *err) {
  struct buf text = BUF_INIT;
  if (tokenizer_decode(t, ids, count, true, &text, NULL) != RC_OK) {
    buf_clear(&text);
    for (size_t i = 0; i < count; i++) tokenizer_decode(t, &ids[i], 1, true, &text, NULL);
  }
  enum rc rc = buf_check(&text, err);
  s->text_len = text.len;
  s->text = arena_strndup(arena, text.data ? text.data : "", text.len);
  buf_free(&text);
  return rc == RC_OK && !s->text ? err_set(err, RC_NO_MEMORY, NULL, "a sample's text was refused memory") : rc;
}

enum rc group_verify(const struct run_context *x, const struct group_head *g, struct arena *arena,
                     struct done_sample *s, struct err *err) {
  const struct sample_result *r = s->result;
  if (r->digest)
    s->digest = *r->digest;
  else
    sample_result_digest(&s->digest, r);
  for (size_t i = 0; i < r->span_count; i++) {
    if (i == 0 || r->spans[i].version < s->version_first) s->version_first = r->spans[i].version;
    if (i == 0 || r->spans[i].version > s->version_last) s->version_last = r->spans[i].version;
  }
  const enum rc rc = text_of(x->tokenizer, r->token_ids.items, r->token_ids.count, arena, s, err);
  const struct reward_input input = {s->text,          s->text_len, g->answer, g->extra, (int64_t)r->token_ids.count,
                                     g->max_new_tokens};
  if (rc == RC_OK) reward_judge(run_rule(&x->config, g->set), &input, &s->verdict);
  return rc;
}

/* What the terms gave for a sample; nothing where the rule is one verifier, whose value is the reward. */
static struct bind values_bind(const struct reward_rule *rule, const double *values) {
  return rule->is_sum ? b_blob(values, (size_t)rule->count * sizeof *values) : b_null();
}

/* What a sample earned.  advantage NULL: it is not known yet. */
struct earned {
  double reward;
  const double *values; /* of the rule's terms */
  const float *advantage;
};

static enum rc sample_store(struct core *c, const struct group_head *g, int64_t fence, const struct done_sample *s,
                            const struct earned *e, struct err *err) {
  const bool judged = g->purpose == LEASE_EVALUATION;
  const struct reward_rule *rule = run_rule(&c->context->config, g->set);
  enum rc rc = store_exec(
      c->store, err,
      "UPDATE samples SET state = ?5, tokens = ?6, finish = ?7, digest = ?8, version_first = ?9, version_last = ?10, "
      "reward = ?11, advantage = ?12, well_formed = ?13, detail = ?14, passed = ?17, vote = ?18, term_values = ?19"
      " WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample = ?4 AND state = ?15 AND fence = ?16",
      BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(s->result->sample), b_int(SAMPLE_DONE),
            b_int((int64_t)s->result->token_ids.count), b_int((int64_t)s->result->finish), b_digest(&s->digest),
            b_int(s->version_first), b_int(s->version_last), b_real(e->reward),
            e->advantage ? b_real((double)*e->advantage) : b_null(), b_int(s->verdict.well_formed),
            b_text(s->verdict.detail), b_int(SAMPLE_LEASED), b_int(fence), judged ? b_int(s->verdict.passed) : b_null(),
            judged ? b_int((int64_t)s->verdict.vote) : b_null(), values_bind(rule, e->values)));
  if (rc == RC_OK && store_changes(c->store) != 1) {
    rc = err_set(err, RC_CONFLICT, "fence", "sample %s is not leased with fence %" PRId64,
                 id_sample(g->run, g->round, g->ordinal, s->result->sample).text, fence);
  }
  return rc;
}

/* ---- the group ---- */

enum rc group_read(struct core *c, int64_t run, int64_t round, int64_t ordinal, struct group_head *out,
                   struct arena *arena, struct err *err) {
  struct rows q;
  bool row = false;
  *out = (struct group_head){.run = run, .round = round, .ordinal = ordinal};
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT state, purpose, sample_count, samples_open, leased_ms, answer, extra, "
      "max_new_tokens, evaluation_set, dataset_index FROM groups WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
      BINDS(b_int(run), b_int(round), b_int(ordinal)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    out->state = (enum group_state)rows_int(&q, 0);
    out->purpose = (enum lease_purpose)rows_int(&q, 1);
    out->count = (int)rows_int(&q, 2);
    out->open = (int)rows_int(&q, 3);
    out->leased_ms = rows_int(&q, 4);
    out->answer = arena_strdup(arena, rows_text(&q, 5, NULL));
    out->extra = arena_strdup(arena, rows_text(&q, 6, NULL));
    out->max_new_tokens = (int)rows_int(&q, 7);
    out->set = rows_null(&q, 8) ? -1 : (int)rows_int(&q, 8);
    out->prompt = rows_int(&q, 9);
  }
  rows_end(&q);
  if (rc != RC_OK) return rc;
  if (!row) return err_set(err, RC_CORRUPT, NULL, "group %s does not exist", id_group(run, round, ordinal).text);
  return out->answer && out->extra ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "a group was refused memory");
}

/* All samples of a complete group, in order. */
struct sealing {
  const struct group_head *head;
  const struct reward_rule *rule;
  int64_t tokens, well_formed;
  int64_t version_first, version_last; /* of all samples */
  double *rewards;        /* [count] the verifier's */
  double *values;         /* [count][rule->count] what its terms gave */
  double *shaped;         /* [count] those that become advantages */
  float *advantages;      /* [count] */
  struct digest *digests; /* [count] of what was accepted */
  int32_t *lengths;       /* [count] in tokens */
  float *known;           /* [count] the advantages that are stored with what was judged; NaN: not yet */
  bool *has;              /* [count] */
};

static enum rc sealing_missing(const struct sealing *g, int found, struct err *err) {
  return err_set(err, RC_CORRUPT, NULL, "group %s has %d of %d rollouts",
                 id_group(g->head->run, g->head->round, g->head->ordinal).text, found, g->head->count);
}

static double *sealing_values(const struct sealing *g, int64_t sample) { return g->values + sample * g->rule->count; }

/* As they were stored; NaN where an older coordinator stored none. */
static void sealing_values_read(struct sealing *g, int64_t sample, const struct rows *q, int column) {
  size_t len;
  const void *bytes = rows_blob(q, column, &len);
  double *values = sealing_values(g, sample);
  for (int i = 0; i < g->rule->count; i++) values[i] = NAN;
  if (len == (size_t)g->rule->count * sizeof *values) memcpy(values, bytes, len);
}

static void sealing_count(struct sealing *g, int64_t well_formed, int64_t version_first, int64_t version_last) {
  g->well_formed += well_formed;
  if (version_first < g->version_first) g->version_first = version_first;
  if (version_last > g->version_last) g->version_last = version_last;
}

/* Those that came with earlier leases. */
static enum rc sealing_read(struct core *c, struct sealing *g, int *found, struct err *err) {
  const struct group_head *h = g->head;
  struct rows q;
  bool row;
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT sample, reward, digest, tokens, well_formed, version_first, version_last, term_values, "
      "advantage FROM samples WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND state = ?4 ORDER BY sample",
      BINDS(b_int(h->run), b_int(h->round), b_int(h->ordinal), b_int(SAMPLE_DONE)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t i = rows_int(&q, 0);
    if (i < 0 || i >= h->count || g->has[i]) continue; /* the caller counts */
    g->has[i] = true;
    g->rewards[i] = rows_real(&q, 1);
    rows_digest(&q, 2, &g->digests[i]);
    g->lengths[i] = (int32_t)rows_int(&q, 3);
    sealing_values_read(g, i, &q, 7);
    if (!rows_null(&q, 8)) g->known[i] = (float)rows_real(&q, 8);
    sealing_count(g, rows_int(&q, 4), rows_int(&q, 5), rows_int(&q, 6));
    g->tokens += g->lengths[i];
    ++*found;
  }
  rows_end(&q);
  return rc;
}

static enum rc sealing_gather(struct core *c, struct sealing *g, const struct done_sample *done, int count,
                              struct arena *arena, struct err *err) {
  const size_t n = (size_t)g->head->count;
  int found = 0;
  g->rewards = arena_alloc(arena, n, sizeof *g->rewards);
  g->values = arena_alloc(arena, n * (size_t)g->rule->count, sizeof *g->values);
  g->shaped = arena_alloc(arena, n, sizeof *g->shaped);
  g->advantages = arena_alloc(arena, n, sizeof *g->advantages);
  g->digests = arena_alloc(arena, n, sizeof *g->digests);
  g->lengths = arena_alloc(arena, n, sizeof *g->lengths);
  g->known = arena_alloc(arena, n, sizeof *g->known);
  g->has = arena_alloc(arena, n, sizeof *g->has);
  if (!g->rewards || !g->values || !g->shaped || !g->advantages || !g->digests || !g->lengths || !g->known || !g->has)
    return err_set(err, RC_NO_MEMORY, NULL, "a group of %zu samples was refused memory", n);
  for (size_t i = 0; i < n; i++) g->known[i] = NAN;
  for (int i = 0; i < count; i++) {
    const int32_t at = done[i].result->sample;
    if (at < 0 || at >= g->head->count || g->has[at]) return sealing_missing(g, found, err);
    g->has[at] = true;
    g->rewards[at] = done[i].verdict.reward;
    memcpy(sealing_values(g, at), done[i].verdict.values, (size_t)g->rule->count * sizeof *g->values);
    g->digests[at] = done[i].digest;
    g->lengths[at] = (int32_t)done[i].result->token_ids.count;
    sealing_count(g, done[i].verdict.well_formed, done[i].version_first, done[i].version_last);
    g->tokens += g->lengths[at];
    found++;
  }
  enum rc rc = found < g->head->count ? sealing_read(c, g, &found, err) : RC_OK;
  return rc == RC_OK && found != g->head->count ? sealing_missing(g, found, err) : rc;
}

/* Over tokens and log-probabilities (through the samples' digests) and rewards. */
static void group_digest(struct digest *out, const struct sealing *g) {
  const struct group_head *h = g->head;
  struct digest_state d;
  digest_begin(&d);
  digest_update_text(&d, id_group(h->run, h->round, h->ordinal).text);
  digest_update_u32(&d, (uint32_t)h->count);
  for (int i = 0; i < h->count; i++) {
    uint64_t bits;
    memcpy(&bits, &g->rewards[i], sizeof bits);
    digest_update(&d, g->digests[i].bytes, DIGEST_BYTES);
    digest_update_u64(&d, bits);
  }
  digest_end(out, &d);
}

static enum rc samples_store(struct core *c, const struct sealing *g, int64_t fence, const struct done_sample *done,
                             int count, struct err *err) {
  const struct group_head *h = g->head;
  enum rc rc = RC_OK;
  for (int i = 0; i < count && rc == RC_OK; i++) {
    const int32_t at = done[i].result->sample;
    rc = sample_store(c, h, fence, &done[i],
                      &(struct earned){g->rewards[at], sealing_values(g, at), &g->advantages[at]}, err);
    g->has[at] = false; /* stored */
  }
  for (int i = 0; i < h->count && rc == RC_OK; i++) {
    if (!g->has[i] || g->known[i] == g->advantages[i]) continue;
    rc =
        store_exec(c->store, err,
                   "UPDATE samples SET reward = ?5, advantage = ?6, term_values = ?7 WHERE run = ?1 AND round = ?2 AND "
                   "group_ordinal = ?3 AND sample = ?4",
                   BINDS(b_int(h->run), b_int(h->round), b_int(h->ordinal), b_int(i), b_real(g->rewards[i]),
                         b_real((double)g->advantages[i]), values_bind(g->rule, sealing_values(g, i))));
  }
  return rc;
}

/* *open: groups of the round that still are. */
static enum rc group_close(struct core *c, const struct sealing *g, enum group_state state, const char *reason,
                           const struct digest *digest, int64_t *open, struct err *err) {
  const struct group_head *h = g->head;
  enum rc rc = state_check(MACHINE_GROUP, (int)h->state, (int)state, id_group(h->run, h->round, h->ordinal).text, err);
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE groups SET state = ?4, reason = ?5, digest = ?6, tokens = ?7, sealed_ms = ?8, samples_open "
                    "= 0, done_samples = sample_count, done_tokens = ?7, version_first = ?9 WHERE run = ?1 AND round = "
                    "?2 AND ordinal = ?3",
                    BINDS(b_int(h->run), b_int(h->round), b_int(h->ordinal), b_int((int64_t)state), b_text(reason),
                          b_digest(digest), b_int(g->tokens), b_int(c->wall_ms), b_int(g->version_first)));
  }
  struct closed_group closed = {.run = h->run,
                                .round = h->round,
                                .counts_for = h->round,
                                .stream = c->context->config.mode == MODE_INFLIGHT,
                                .purpose = h->purpose,
                                .state = state,
                                .samples = h->count,
                                .well_formed = g->well_formed,
                                .tokens = g->tokens,
                                .version_first = g->version_first,
                                .version_last = g->version_last};
  for (int i = 0; i < h->count; i++) closed.rewards += g->rewards[i];
  if (rc == RC_OK && h->purpose == LEASE_TRAINING) rc = stream_round(c, h->run, h->round, &closed.counts_for, err);
  if (rc == RC_OK) rc = round_sums_group(c, &closed, err);
  if (rc == RC_OK) waiting_closed(&c->pool->waiting, h->run, h->round, h->ordinal);
  if (rc == RC_OK && state == GROUP_FILTERED && c->context->config.zero_advantage == FILTER_REFILL && !closed.stream)
    rc = round_refill(c, h->run, h->round, h->ordinal, err); /* opens a group, so before the round's are counted */
  if (rc == RC_OK)
    rc = store_int(c->store, open, err, "SELECT groups_open FROM rounds WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(h->run), b_int(h->round)));
  return rc;
}

void group_advantages(const struct run_config *config, const struct scored_group *g, double *rewards, double *shaped,
                      float *advantages) {
  for (int i = 0; i < g->count; i++)
    shaped[i] = rewards[i] + overlong_penalty(g->lengths[i], g->max_new_tokens, config->overlong_buffer);
  if (config->shuffle_rewards) {
    rewards_shuffle(rewards, g->count, config->seed, (uint32_t)g->round, (uint32_t)g->ordinal);
    rewards_shuffle(shaped, g->count, config->seed, (uint32_t)g->round, (uint32_t)g->ordinal);
  }
  advantages_of(config->advantage, shaped, g->count, config->advantage_epsilon, advantages);
}

static void sealing_advantages(const struct run_config *config, struct sealing *g) {
  const struct group_head *h = g->head;
  const struct scored_group scored = {h->round, h->ordinal, h->count, h->max_new_tokens, g->lengths};
  group_advantages(config, &scored, g->rewards, g->shaped, g->advantages);
}

static void latency_note(struct core *c, const struct group_head *h) {
  if (h->leased_ms && c->wall_ms > h->leased_ms)
    rate_note(&c->pool->rates.latency, (double)(c->wall_ms - h->leased_ms) / 1000, 1, c->now_ms);
}

/* By which the rounds to come are planned. */
static void lengths_note(struct core *c, const struct sealing *g) {
  const struct group_head *h = g->head;
  pace_note_group(&c->pool->pace, h->run, g->lengths, h->count);
  prompt_lengths_note(&c->pool->prompt_lengths, h->run, h->prompt, (double)g->tokens / h->count, c->now_ms);
}

static enum rc group_seal(struct core *c, const struct group_head *h, int64_t fence, const struct done_sample *done,
                          int count, struct arena *arena, struct err *err) {
  const struct run_config *config = &c->context->config;
  const struct reward_rule *rule = run_rule(config, h->set);
  struct sealing g = {.head = h, .rule = rule, .version_first = INT64_MAX, .version_last = INT64_MIN};
  struct digest digest;
  enum group_state state = GROUP_EVALUATED;
  const char *reason = NULL;
  int64_t open = -1;
  const bool remote = reward_remote_terms(rule) > 0;
  enum rc rc = sealing_gather(c, &g, done, count, arena, err);
  if (rc == RC_OK && remote)
    rc = remote_rewards_add(c, &(struct reward_group){h->run, h->round, h->ordinal}, rule, g.rewards,
                            rule->is_sum ? g.values : NULL, h->count, err);
  if (rc == RC_OK && h->purpose == LEASE_TRAINING) {
    sealing_advantages(config, &g);
    reason = group_filter_reason(config, g.advantages, h->count);
    state = reason ? GROUP_FILTERED : GROUP_SEALED;
  }
  if (rc == RC_OK) group_digest(&digest, &g);
  if (rc == RC_OK) rc = samples_store(c, &g, fence, done, count, err);
  if (rc == RC_OK && h->purpose == LEASE_EVALUATION)
    rc = evaluation_item_store(c, &(struct evaluated_group){h->run, h->round, h->ordinal, h->set}, err);
  if (rc == RC_OK) rc = group_close(c, &g, state, reason, &digest, &open, err);
  const struct stream_group closed = {h->run, h->round, h->ordinal, .dropped = state == GROUP_FILTERED};
  if (rc == RC_OK && config->mode == MODE_INFLIGHT)
    rc = stream_closed(c, &closed, err);
  else if (rc == RC_OK && open == 0)
    rc = round_generated(c, h->run, h->round, err);
  if (rc == RC_OK && closed.dropped && config->mode == MODE_INFLIGHT) rc = stream_filtered(c, h->run, err);
  if (rc != RC_OK) return rc;
  if (done) latency_note(c, h); /* else it has waited for judges or for its check, and samplers are not slow because
                                 * they are */
  rate_note(&c->pool->rates.tokens, (double)g.tokens, h->count, c->now_ms);
  if (h->purpose == LEASE_TRAINING) lengths_note(c, &g);
  if (config->frontier == FRONTIER_GATE || c->pool->pace.plan.bounded) c->samples_due = true; /* more may begin now */
  const bool trainable = state == GROUP_SEALED || (state == GROUP_FILTERED && config->groups_per_step);
  if (state == GROUP_SEALED && c->pool->preprocessing > 0 && run_has_reference(config)) c->passes_due = true;
  if (trainable && config->mode != MODE_SYNC) c->sealed++; /* filtered: one behind it may belong to the step now */
  return RC_OK;
}

/* Is a group whose samples are all in to be checked?  Not where a check could decide nothing: where none of those who
 * drew it, or not the trainer, promises equal bits, and what is inexact is marked anyway. */
static enum rc group_is_checked(struct core *c, const struct group_head *g, bool *out, struct err *err) {
  const struct run_config *config = &c->context->config;
  int trainers = 0, promising = 0, others = 0;
  *out = g->purpose == LEASE_TRAINING && run_checks_groups(config);
  if (!*out || config->on_inexact != INEXACT_MARK) return RC_OK;
  for (int i = 0; i < c->pool->worker_count; i++) {
    const struct live_worker *w = &c->pool->workers[i];
    trainers += w->kind == WORKER_TRAINER;
    promising += w->kind == WORKER_TRAINER && w->exactness == WORKER_INVARIANT;
    others += w->kind == WORKER_GENERATION && w->exactness != WORKER_INVARIANT;
  }
  *out = trainers == 0 || promising > 0;
  if (!*out || others == 0) return RC_OK;
  int64_t found = 0;
  const enum rc rc =
      store_int(c->store, &found, err,
                "SELECT EXISTS (SELECT 1 FROM leases l INDEXED BY leases_group JOIN workers w ON w.id = l.worker "
                "WHERE l.run = ?1 AND l.round = ?2 AND l.group_ordinal = ?3 AND w.exactness = ?4)",
                BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(WORKER_INVARIANT)));
  *out = found;
  return rc;
}

/* Do all its rewards come with its samples, so that they and its advantages are known once the last one is in? */
static bool is_judged_here(const struct core *c, const struct reward_rule *rule) {
  return reward_remote_terms(rule) == 0 && !c->context->config.shuffle_rewards;
}

/* For a complete group that waits for its check: the values with which it will be sealed if it passes. */
static enum rc advantages_expected(struct core *c, const struct group_head *h, const struct done_sample *done,
                                   int count, const float **out, struct arena *arena, struct err *err) {
  struct sealing g = {.head = h, .rule = run_rule(&c->context->config, h->set)};
  const enum rc rc = sealing_gather(c, &g, done, count, arena, err);
  if (rc != RC_OK) return rc;
  sealing_advantages(&c->context->config, &g);
  *out = g.advantages;
  return RC_OK;
}

enum rc group_accept(struct core *c, const struct group_head *g, int64_t fence, const struct done_sample *done,
                     int count, struct arena *arena, struct err *err) {
  const struct reward_rule *rule = run_rule(&c->context->config, g->set);
  const bool remote = reward_remote_terms(rule) > 0, all_in = count == g->open;
  bool checked = false;
  const float *advantages = NULL;
  int64_t tokens = 0;
  if (count == 0) return RC_OK;
  enum rc rc = all_in ? group_is_checked(c, g, &checked, err) : RC_OK;
  if (rc != RC_OK) return rc;
  c->checks_due |= checked || (all_in && c->context->config.mode == MODE_SYNC);
  if (all_in && !remote && !checked) return group_seal(c, g, fence, done, count, arena, err);
  if (checked && is_judged_here(c, rule)) rc = advantages_expected(c, g, done, count, &advantages, arena, err);
  for (int i = 0; i < count && rc == RC_OK; i++) {
    const float *advantage = advantages ? &advantages[done[i].result->sample] : NULL;
    rc = sample_store(c, g, fence, &done[i],
                      &(struct earned){done[i].verdict.reward, done[i].verdict.values, advantage}, err);
    if (rc == RC_OK && remote)
      rc = remote_rewards_await(c, &(struct reward_group){g->run, g->round, g->ordinal}, done[i].result->sample, rule,
                                err);
    tokens += (int64_t)done[i].result->token_ids.count;
  }
  if (rc != RC_OK) return rc;
  waiting_done(&c->pool->waiting, g->run, g->round, g->ordinal, count, tokens);
  if (all_in) { /* its rewards, or its check, are waited for; for dispatch it is over */
    waiting_closed(&c->pool->waiting, g->run, g->round, g->ordinal);
    c->samples_due = true;
    latency_note(c, g);
  }
  return store_exec(c->store, err,
                    "UPDATE groups SET samples_open = samples_open - ?4, done_samples = done_samples + ?4, done_tokens "
                    "= done_tokens + ?5, unchecked = ?6 WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
                    BINDS(b_int(g->run), b_int(g->round), b_int(g->ordinal), b_int(count), b_int(tokens),
                          b_int(checked)));
}

enum rc group_seal_when_judged(struct core *c, int64_t run, int64_t round, int64_t ordinal, struct arena *arena,
                               struct err *err) {
  const struct reward_group of = {run, round, ordinal};
  struct group_head head;
  int64_t open = 0;
  enum rc rc = remote_rewards_open(c, &of, &open, err);
  if (rc != RC_OK || open > 0) return rc;
  rc = group_read(c, run, round, ordinal, &head, arena, err);
  if (rc != RC_OK || head.state != GROUP_OPEN) return rc;
  return group_seal(c, &head, 0, NULL, 0, arena, err);
}
