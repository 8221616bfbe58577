/* The engine of every rank but 0: hears what rank 0 tells, and takes its part.  See ranks/ranks.c.
 *
 *   ranks_hear --> ORDER_BATCH: own units of the batch into the own sums, what came of them to rank 0 --.
 *        ^         ORDER_STEP:  own shard of the sums of all, AdamW on it, weights of all             --|
 *        `--------------------------------------------------------------------------------------------'
 *
 * A failure that rank 0 can answer a request with (memory refused) is told to it; any other is the end of all ranks.
 * Previous hop of a rollout: engine/batch.c of rank 0.  Next: the same file's batch_units, here. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/trainer-server/engine/trainer_state.h"

/* Decodes a payload; what it holds is the arena's. */
static enum rc payload_decode(const char *text, size_t len, void *out,
                              enum rc (*decode)(void *out, const struct json *body, struct arena *arena,
                                                struct err *err),
                              struct arena *arena, struct err *err) {
  struct json *root = NULL;
  enum rc rc = json_parse(&root, text, len, LIMIT_BATCH_BODY_BYTES, err);
  if (rc == RC_OK) rc = decode(out, root, arena, err);
  json_free(root);
  return rc;
}

static enum rc decode_run(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return open_run_decode(out, body, arena, err);
}

static enum rc decode_batch(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return submit_batch_decode(out, body, arena, err);
}

/* The run's configuration, kept. */
static enum rc run_keep(struct trainer *t, const struct buf *payload, struct optimizer_config *o, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct open_run run;
  enum rc rc = payload_decode(payload->data, payload->len, &run, decode_run, &arena, err);
  if (rc == RC_OK) rc = trainer_map_config(&run.training, &t->unit, o, err);
  if (rc == RC_OK) rc = trainer_keep_config(t, &run, err);
  arena_free(&arena);
  return rc;
}

static enum rc follow_open(struct trainer *t, const struct buf *payload, struct err *err) {
  struct optimizer_config o;
  trainer_run_end(t);
  enum rc rc = run_keep(t, payload, &o, err);
  if (rc == RC_OK) rc = training_prepare(t, err);
  rc = ranks_agree(t, rc, err);
  if (rc == RC_OK) training_begin(t, &o);
  if (rc != RC_OK) log_warn("a run was not opened: %s", err->message);
  return RC_OK; /* rank 0 has answered with it */
}

/* Learner, hyperparameters and step count; weights, and the optimizer's arrays before, come by orders of their own. */
static enum rc follow_resume(struct trainer *t, const struct command *c, const struct buf *payload, struct err *err) {
  struct optimizer_config o;
  enum rc rc = run_keep(t, payload, &o, err);
  if (rc == RC_OK) rc = trainer_learner_for(t, t->training.chunk_tokens, err);
  if (rc == RC_OK && t->unit.loss.kl_coefficient != 0) {
    rc = trainer_check_reference(t, err);
    if (rc == RC_OK) rc = weights_create(&t->reference, t->model, false, err);
  }
  if (rc != RC_OK) return rc;
  optimizer_configure(t->optimizer, &o);
  optimizer_set_step_count(t->optimizer, c->steps);
  return RC_OK;
}

static enum rc follow_batch(struct trainer *t, const struct command *c, const struct buf *payload, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct buf mine = BUF_INIT, all = BUF_INIT;
  struct submit_batch in;
  struct batch_work work = {.in = &in, .adds = (const uint8_t *)payload->data, .first = c->first};
  size_t *begin = arena_alloc(&arena, (size_t)t->ranks.comm->size + 1, sizeof *begin);
  work.reports = arena_alloc(&arena, c->groups, sizeof *work.reports);
  enum rc rc = begin && work.reports ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "a batch was refused its memory");
  if (rc == RC_OK)
    rc = payload_decode(payload->data + c->groups, payload->len - c->groups, &in, decode_batch, &arena, err);
  if (rc == RC_OK && batch_units(t, &work, &arena, err) != RC_OK) log_warn("a unit failed: %s", err->message);
  if (rc == RC_OK) {
    unit_reports_encode(work.reports, in.groups, in.group_count, &mine);
    rc = ranks_exchange(t, &mine, &all, begin, err);
  }
  buf_free(&mine);
  buf_free(&all);
  arena_free(&arena);
  return rc;
}

static enum rc follow_step(struct trainer *t, const struct command *c, struct err *err) {
  struct step_result result;
  const enum rc rc = step_take(t, c->version, c->denominator, &result, err);
  return rc == RC_OK ? weights_digest(&t->ranks.digest, t->weights, err) : rc;
}

static enum rc follow(struct trainer *t, const struct command *c, const struct buf *payload, struct err *err) {
  switch (c->order) {
    case ORDER_MEET: return ranks_meet(t, err);
    case ORDER_OPEN: return follow_open(t, payload, err);
    case ORDER_RESUME: return follow_resume(t, c, payload, err);
    case ORDER_WEIGHTS: return ranks_share_weights(t, c->which == WEIGHTS_CURRENT ? t->weights : t->reference, err);
    case ORDER_SPREAD: return ranks_spread(t, c->which, err);
    case ORDER_COLLECT: return ranks_collect(t, c->which, err);
    case ORDER_BATCH: return follow_batch(t, c, payload, err);
    case ORDER_STEP: return follow_step(t, c, err);
    case ORDER_CHECK: return ranks_check_digest(t, &t->ranks.digest, err);
    case ORDER_END: break;
  }
  return RC_OK;
}

/* All others are told in the start of rank 0 as well; and an idle engine tells ORDER_MEET every half second. */
static bool is_of_engine(enum order order) {
  return order == ORDER_MEET || order == ORDER_OPEN || order == ORDER_BATCH || order == ORDER_STEP;
}

void *follow_main(void *trainer) {
  struct trainer *t = trainer;
  struct buf payload = BUF_INIT;
  struct err err = {0};
  enum rc rc;
  pool_enter();
  for (;;) {
    struct command c;
    if ((rc = ranks_hear(t, &c, &payload, &err)) != RC_OK || c.order == ORDER_END) break;
    if (is_of_engine(c.order)) atomic_store(&t->led, true);
    if ((rc = follow(t, &c, &payload, &err)) != RC_OK) break;
    timeline_mark(&t->timeline, CAUSE_COMPUTE, clock_monotonic_us());
  }
  if (rc != RC_OK) ranks_lose(t, &err);
  buf_free(&payload);
  atomic_store(&t->ended, true);
  return NULL;
}
