/* Reads what the round's groups were sealed with, standardizes it, and stores it, in the samples' order. */
#include "services/coordinator/rounds/round_advantages.h"

#include "common/base/arena.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/run/run_context.h"

/* The samples of all sealed groups. */
struct round_samples {
  int64_t *group, *sample, *tokens; /* [count]; tokens: trained ones */
  float *advantages;                /* [count] */
  int count;
};

static enum rc samples_read(struct round_samples *out, struct store *s, int64_t run, int64_t round, struct arena *arena,
                            struct err *err) {
  struct rows q;
  bool row;
  int64_t most = 0;
  enum rc rc = store_int(s, &most, err,
                         "SELECT coalesce(sum(sample_count), 0) FROM groups WHERE run = ?1 AND round = ?2 AND state = "
                         SQL_GROUP_SEALED,
                         BINDS(b_int(run), b_int(round)));
  const size_t n = (size_t)most + 1;
  *out = (struct round_samples){.group = arena_alloc(arena, n, sizeof *out->group),
                                .sample = arena_alloc(arena, n, sizeof *out->sample),
                                .tokens = arena_alloc(arena, n, sizeof *out->tokens),
                                .advantages = arena_alloc(arena, n, sizeof *out->advantages)};
  if (!out->group || !out->sample || !out->tokens || !out->advantages)
    return err_set(err, RC_NO_MEMORY, NULL, "the advantages of a round were refused memory");
  if (rc != RC_OK) return rc;
  rc = store_query(
      s, &q, err,
      "SELECT s.group_ordinal, s.sample, s.advantage, s.tokens - coalesce((SELECT sum(count) FROM segments "
      "e WHERE e.run = s.run AND e.round = s.round AND e.group_ordinal = s.group_ordinal AND e.sample = "
      "s.sample AND e.loss_mask = 0), 0) FROM groups g JOIN samples s ON s.run = g.run AND s.round = g.round "
      "AND s.group_ordinal = g.ordinal WHERE g.run = ?1 AND g.round = ?2 AND g.state = " SQL_GROUP_SEALED
      " ORDER BY s.group_ordinal, s.sample",
      BINDS(b_int(run), b_int(round)));
  while (rc == RC_OK && out->count < most && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int i = out->count++;
    out->group[i] = rows_int(&q, 0);
    out->sample[i] = rows_int(&q, 1);
    out->advantages[i] = (float)rows_real(&q, 2);
    out->tokens[i] = rows_int(&q, 3);
  }
  rows_end(&q);
  return rc;
}

enum rc round_advantages(struct core *c, int64_t run, int64_t round, struct err *err) {
  const struct run_config *config = &c->context->config;
  struct arena arena = ARENA_INIT;
  struct round_samples all;
  if (!run_trains_on_rollouts(config)) return RC_OK;
  if (config->advantage != ADVANTAGE_BATCH && config->advantage != ADVANTAGE_BATCH_CENTERED) return RC_OK;
  enum rc rc = samples_read(&all, c->store, run, round, &arena, err);
  if (rc == RC_OK) advantages_standardize(all.advantages, all.tokens, all.count, config->advantage_epsilon);
  for (int i = 0; rc == RC_OK && i < all.count; i++)
    rc = store_exec(
        c->store, err,
        "UPDATE samples SET advantage = ?5 WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample = ?4",
        BINDS(b_int(run), b_int(round), b_int(all.group[i]), b_int(all.sample[i]), b_real((double)all.advantages[i])));
  arena_free(&arena);
  return rc;
}
