/* Reads which passes are done or under way, and leaves out the groups that a batch should wait for: see
 * batch_passes.h. */
#include "services/coordinator/rounds/batch_passes.h"

#include "services/coordinator/decide/passes.h"
#include "services/coordinator/decide/stored.h"

enum rc batch_passes_look(struct passes_moment *out, struct store *s, const struct run_context *x,
                          const struct batch_moment *now, struct err *err) {
  int64_t count = 0;
  *out = (struct passes_moment){.now = *now};
  if (!run_has_reference(&x->config)) return RC_OK;
  out->taught = x->config.training.teacher[0] != 0;
  if (out->taught) return RC_OK;
  const enum rc rc =
      store_int(s, &count, err,
                "SELECT count(*) FROM workers INDEXED BY workers_live WHERE live = 1 AND kind = ?2 AND "
                "ready = 1 AND draining = 0 AND loaded_digest = (SELECT digest FROM versions WHERE run = "
                "?1 AND version = 0)",
                BINDS(b_int(x->run), b_int(WORKER_PREPROCESS)));
  out->preprocessors = (int)count;
  return rc;
}

/* A group without a row waits. */
static enum rc facts_read(struct pass_facts *out, struct store *s, int64_t run, const struct group_place *place,
                          int64_t wall_ms, struct err *err) {
  struct rows q;
  *out = (struct pass_facts){.state = PASS_WAITING};
  enum rc rc = store_query(
      s, &q, err, "SELECT state, first_ms FROM passes WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3",
      BINDS(b_int(run), b_int(place->round), b_int(place->ordinal)));
  if (rc == RC_OK) rc = rows_next(&q, &out->granted_before, err);
  if (rc == RC_OK && out->granted_before) {
    out->state = (enum pass_state)rows_int(&q, 0);
    out->since_first_grant_ms = wall_ms - rows_int(&q, 1);
  }
  rows_end(&q);
  return rc;
}

enum rc batch_passes_sift(struct group_place *places, int64_t *tokens, int *count, struct store *s,
                          const struct run_context *x, const struct passes_moment *m, struct arena *arena,
                          struct err *err) {
  const int n = *count;
  enum rc rc = RC_OK;
  if ((m->preprocessors == 0 && !m->taught) || n == 0) return RC_OK;
  struct pass_facts *facts = arena_alloc(arena, (size_t)n, sizeof *facts);
  bool *take = arena_alloc(arena, (size_t)n, sizeof *take);
  if (!facts || !take) return err_set(err, RC_NO_MEMORY, NULL, "a batch's plan was refused memory");
  for (int i = 0; i < n && rc == RC_OK; i++) rc = facts_read(&facts[i], s, x->run, &places[i], m->now.wall_ms, err);
  if (rc != RC_OK) return rc;
  if (!m->taught) passes_select(facts, n, m->preprocessors, run_pass_timeout_ms(&x->config), m->now.trainer_idle, take);
  for (int i = 0; m->taught && i < n; i++) take[i] = facts[i].state == PASS_DONE;
  *count = 0;
  for (int i = 0; i < n; i++) {
    if (!take[i]) continue;
    places[*count] = places[i];
    tokens[(*count)++] = tokens[i];
  }
  return RC_OK;
}
