/* See group_seal.h. */
#include "services/coordinator/group_seal.h"

#include <string.h>

#include "common/base/philox.h"
#include "services/coordinator/ids.h"
#include "services/coordinator/round.h"
#include "services/coordinator/states.h"
#include "services/coordinator/verify.h"

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
  if (!config->filter_zero_advantage) return NULL;
  for (int i = 0; i < n; i++) {
    if (advantages[i] != 0) return NULL;
  }
  return "all advantages are zero";
}

struct sealing {
  int64_t run, round, group, tokens;
  enum lease_purpose purpose;
  int count;
  const char *answer, *extra;
  double *rewards;
  float *advantages;
  struct verdict *verdicts;
  struct digest *samples; /* digests of what was accepted */
};

/* Ids that the tokenizer does not know (padding of the model's vocabulary) have no text. */
static void text_of(const struct tokenizer *t, const int32_t *ids, size_t count, struct buf *out) {
  if (tokenizer_decode(t, ids, count, true, out, NULL) == RC_OK) return;
  buf_clear(out);
  for (size_t i = 0; i < count; i++) tokenizer_decode(t, &ids[i], 1, true, out, NULL);
}

static enum rc verify_samples(struct core *c, struct sealing *g, struct arena *arena, struct err *err) {
  struct rows q;
  bool row;
  struct buf *texts = arena_alloc(arena, (size_t)g->count, sizeof *texts);
  if (!texts) return err_set(err, RC_NO_MEMORY, NULL, "the texts of a group were refused memory");
  int n = 0;
  enum rc rc = store_query(c->store, &q, err,
                           "SELECT token_ids, digest FROM samples JOIN rollouts USING (run, round, group_ordinal, "
                           "sample) WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 ORDER BY sample",
                           BINDS(b_int(g->run), b_int(g->round), b_int(g->group)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && n < g->count) {
    size_t len;
    const void *bytes = rows_blob(&q, 0, &len);
    int32_t *ids = arena_alloc(arena, len / sizeof *ids + 1, sizeof *ids); /* SQLite's blobs are not aligned */
    if (!ids) {
      rc = err_set(err, RC_NO_MEMORY, NULL, "a completion of %zu bytes was refused memory", len);
      break;
    }
    memcpy(ids, bytes, len);
    text_of(c->context->tokenizer, ids, len / sizeof *ids, &texts[n]);
    rows_digest(&q, 1, &g->samples[n]);
    verify(c->context->config.verifier, texts[n].data ? texts[n].data : "", texts[n].len, g->answer, g->extra,
           &g->verdicts[n]);
    g->rewards[n] = g->verdicts[n].reward;
    g->tokens += (int64_t)(len / sizeof *ids);
    n++;
  }
  rows_end(&q);
  if (rc == RC_OK && n != g->count)
    rc = err_set(err, RC_CORRUPT, NULL, "group %s has %d of %d rollouts", id_group(g->run, g->round, g->group).text, n,
                 g->count);
  for (int i = 0; i < g->count; i++) {
    if (rc == RC_OK) {
      rc = store_exec(
          c->store, err,
          "UPDATE rollouts SET text = ?5 WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample = ?4",
          BINDS(b_int(g->run), b_int(g->round), b_int(g->group), b_int(i), b_blob(texts[i].data, texts[i].len)));
    }
    buf_free(&texts[i]);
  }
  return rc;
}

static enum rc store_outcome(struct core *c, const struct sealing *g, const struct digest *digest,
                             enum group_state state, const char *reason, struct err *err) {
  enum rc rc = RC_OK;
  for (int i = 0; i < g->count && rc == RC_OK; i++) {
    rc = store_exec(
        c->store, err,
        "UPDATE samples SET reward = ?5, advantage = ?6, well_formed = ?7, detail = ?8 WHERE run = ?1 AND round = ?2 "
        "AND group_ordinal = ?3 AND sample = ?4",
        BINDS(b_int(g->run), b_int(g->round), b_int(g->group), b_int(i), b_real(g->rewards[i]),
              b_real((double)g->advantages[i]), b_int(g->verdicts[i].well_formed), b_text(g->verdicts[i].detail)));
  }
  if (rc == RC_OK)
    rc = state_check(MACHINE_GROUP, GROUP_OPEN, (int)state, id_group(g->run, g->round, g->group).text, err);
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE groups SET state = ?4, reason = ?5, digest = ?6, tokens = ?7, sealed_ms = ?8 WHERE run = "
                    "?1 AND round = ?2 AND ordinal = ?3",
                    BINDS(b_int(g->run), b_int(g->round), b_int(g->group), b_int((int64_t)state), b_text(reason),
                          b_digest(digest), b_int(g->tokens), b_int(c->wall_ms)));
  }
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET groups_open = groups_open - 1, groups_trained = groups_trained + ?3, "
                    "groups_filtered = groups_filtered + ?4, sampled_tokens = sampled_tokens + ?5"
                    " WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(g->run), b_int(g->round), b_int(state == GROUP_SEALED), b_int(state == GROUP_FILTERED),
                          b_int(g->tokens)));
  }
  return rc;
}

/* Over tokens and log-probabilities (through the samples' digests) and rewards. */
static enum rc group_digest(struct digest *out, const struct sealing *g, struct err *err) {
  struct digest_state *d = digest_begin();
  if (!d) return err_set(err, RC_NO_MEMORY, NULL, "a group's digest was refused memory");
  digest_update_text(d, id_group(g->run, g->round, g->group).text);
  digest_update_u32(d, (uint32_t)g->count);
  for (int i = 0; i < g->count; i++) {
    uint64_t bits;
    memcpy(&bits, &g->rewards[i], sizeof bits);
    digest_update(d, g->samples[i].bytes, DIGEST_BYTES);
    digest_update_u64(d, bits);
  }
  digest_end(out, d);
  return RC_OK;
}

static enum rc sealing_read(struct core *c, struct sealing *g, struct arena *arena, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT purpose, sample_count, answer, extra FROM groups WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
      BINDS(b_int(g->run), b_int(g->round), b_int(g->group)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    g->purpose = (enum lease_purpose)rows_int(&q, 0);
    g->count = (int)rows_int(&q, 1);
    g->answer = arena_strdup(arena, rows_text(&q, 2, NULL));
    g->extra = arena_strdup(arena, rows_text(&q, 3, NULL));
  }
  rows_end(&q);
  if (rc != RC_OK) return rc;
  if (!row) return err_set(err, RC_CORRUPT, NULL, "group %s does not exist", id_group(g->run, g->round, g->group).text);
  g->rewards = arena_alloc(arena, (size_t)g->count, sizeof *g->rewards);
  g->advantages = arena_alloc(arena, (size_t)g->count, sizeof *g->advantages);
  g->verdicts = arena_alloc(arena, (size_t)g->count, sizeof *g->verdicts);
  g->samples = arena_alloc(arena, (size_t)g->count, sizeof *g->samples);
  if (!g->answer || !g->extra || !g->rewards || !g->advantages || !g->verdicts || !g->samples)
    return err_set(err, RC_NO_MEMORY, NULL, "a group of %d samples was refused memory", g->count);
  return RC_OK;
}

enum rc group_seal(struct core *c, int64_t run, int64_t round, int64_t group, struct err *err) {
  const struct run_config *config = &c->context->config;
  struct arena arena = ARENA_INIT;
  struct sealing g = {.run = run, .round = round, .group = group};
  struct digest digest;
  enum group_state state = GROUP_EVALUATED;
  const char *reason = NULL;
  int64_t open = -1;
  enum rc rc = sealing_read(c, &g, &arena, err);
  if (rc == RC_OK) rc = verify_samples(c, &g, &arena, err);
  if (rc == RC_OK && g.purpose == LEASE_TRAINING) {
    if (config->shuffle_rewards) rewards_shuffle(g.rewards, g.count, config->seed, (uint32_t)round, (uint32_t)group);
    advantages_of(config->advantage, g.rewards, g.count, config->advantage_epsilon, g.advantages);
    reason = group_filter_reason(config, g.advantages, g.count);
    state = reason ? GROUP_FILTERED : GROUP_SEALED;
  }
  if (rc == RC_OK) rc = group_digest(&digest, &g, err);
  if (rc == RC_OK) rc = store_outcome(c, &g, &digest, state, reason, err);
  if (rc == RC_OK)
    rc = store_int(c->store, &open, err, "SELECT groups_open FROM rounds WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK && open == 0) rc = round_generated(c, run, round, err);
  arena_free(&arena);
  return rc;
}
