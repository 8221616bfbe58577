/* Turns passes into training samples, and computes their log-probabilities. */
#include "services/trainer-server/preprocess/pass_work.h"

#include <assert.h>
#include <float.h>
#include <stdlib.h>

#include "common/threads/pool.h"
#include "services/trainer-server/engine/gradient_unit.h"

static void learners_free(struct pass_work *w) {
  for (int i = 0; w->learners && i < w->lanes; i++) {
    learner_free(w->learners[i]);
    w->learners[i] = NULL;
  }
  w->learner_chunk = 0;
}

static enum rc set_chunk(struct pass_work *w, int chunk_tokens, struct err *err) {
  const struct learner_options options = {.chunk_tokens = chunk_tokens, .forward_only = true};
  enum rc rc = RC_OK;
  if (w->learner_chunk == chunk_tokens) return RC_OK;
  learners_free(w); /* first: the memory plan has one a lane */
  for (int i = 0; rc == RC_OK && i < w->lanes; i++) rc = learner_create(&w->learners[i], w->model, &options, err);
  if (rc == RC_OK) w->learner_chunk = chunk_tokens;
  return rc;
}

enum rc pass_work_create(struct pass_work *w, const struct model *m, int lanes, int chunk_tokens_max, struct err *err) {
  *w = (struct pass_work){.model = m, .lanes = lanes, .chunk_tokens_max = chunk_tokens_max};
  w->learners = calloc((size_t)lanes, sizeof *w->learners);
  if (!w->learners)
    return err_set(err, RC_NO_MEMORY, NULL, "the lanes of %d passes at once were refused memory", lanes);
  return set_chunk(w, chunk_tokens_max, err);
}

void pass_work_free(struct pass_work *w) {
  learners_free(w);
  free(w->learners);
}

enum rc pass_work_check(const struct pass_work *w, const struct pass *pass, struct err *err) {
  if (pass->chunk_tokens > w->chunk_tokens_max)
    return err_set(err, RC_TOO_LARGE, "chunk_tokens", "this preprocessor's --chunk-tokens is %d, the run's is %d",
                   w->chunk_tokens_max, pass->chunk_tokens);
  return unit_check(w->model, pass->chunk_tokens, &pass->group, err);
}

struct lanes_job {
  struct pass_work *work;
  const struct weights *weights;
  const struct pass *const *passes;
  struct unit *units;
  struct pass_outcome *outcomes;
};

/* A number that is no log-probability has no place in a result, and comes out the same wherever it is computed. */
static enum rc finite(const struct unit *u, const char *id, struct err *err) {
  for (int i = 0; i < u->count; i++) {
    const struct json_f32s *logprobs = &u->results[i].logprobs;
    for (size_t k = 0; k < logprobs->count; k++) {
      if (logprobs->items[k] >= -FLT_MAX && logprobs->items[k] <= 0) continue;
      return err_set(err, RC_INVALID, NULL, "pass %s: a log-probability of sample %s is %g", id, u->results[i].id,
                     (double)logprobs->items[k]);
    }
  }
  return RC_OK;
}

static void lane_part(void *context, int part) {
  struct lanes_job *j = context;
  struct pass_outcome *out = &j->outcomes[part];
  struct unit *u = &j->units[part];
  struct pass_work *w = j->work;
  if (out->rc != RC_OK) return;
  const int lane = w->lanes > 1 ? part : 0; /* not the thread's number: any thread may come */
  out->rc = learner_logprobs(w->learners[lane], j->weights, u->samples, u->count, j->passes[part]->temperature,
                             u->logprob, NULL, &out->err);
  if (out->rc == RC_OK) out->rc = finite(u, j->passes[part]->group.id, &out->err);
  if (out->rc == RC_OK) out->samples = u->results;
}

void pass_work_compute(struct pass_work *w, const struct weights *weights, const struct pass *const *passes, int count,
                       struct pass_outcome *outcomes, struct arena *arena) {
  const struct unit_policies policies = {.current = weights};
  struct unit units[LIMIT_PASSES_PER_REQUEST];
  struct lanes_job job = {.work = w, .weights = weights, .passes = passes, .units = units, .outcomes = outcomes};
  struct err err = {0};
  assert(count >= 1 && count <= LIMIT_PASSES_PER_REQUEST && (w->lanes == 1 || count <= w->lanes));
  const enum rc rc = set_chunk(w, passes[0]->chunk_tokens, &err);
  for (int i = 0; i < count; i++) {
    outcomes[i] = (struct pass_outcome){.rc = rc, .err = err};
    if (rc == RC_OK)
      outcomes[i].rc = unit_prepare(&units[i], w->model, &policies, &passes[i]->group, arena, &outcomes[i].err);
  }
  if (w->lanes > 1)
    pool_run(w->model->ops->pool, lane_part, &job, count);
  else
    for (int i = 0; i < count; i++) lane_part(&job, i);
}
