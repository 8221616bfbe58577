/* Carries out what rank 0 tells this rank. */
#include "services/trainer-server/engine/follow.h"

#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/trainer-server/engine/batch.h"
#include "services/trainer-server/engine/learning.h"
#include "services/trainer-server/engine/optimizer_arrays.h"
#include "services/trainer-server/engine/run_config.h"
#include "services/trainer-server/engine/step.h"
#include "services/trainer-server/ranks/shared_arrays.h"

/* Decodes a payload into the arena's memory. */
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

/* The run's configuration, kept. */
static enum rc run_keep(struct engine *e, const struct buf *payload, struct optimizer_config *o, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct open_run run;
  enum rc rc = payload_decode(payload->data, payload->len, &run, decode_run, &arena, err);
  if (rc == RC_OK) rc = run_config_map(&run.training, &e->run.unit, o, err);
  if (rc == RC_OK) rc = run_config_keep(&e->run, &run, err);
  arena_free(&arena);
  return rc;
}

static enum rc follow_open(struct engine *e, const struct buf *payload, struct err *err) {
  struct optimizer_config o;
  learning_forget(e);
  enum rc rc = run_keep(e, payload, &o, err);
  if (rc == RC_OK) rc = learning_prepare(e, err);
  rc = ranks_agree(&e->ranks, rc, err);
  if (rc == RC_OK) learning_begin(e, &o);
  if (rc != RC_OK) log_warn("a run was not opened: %s", err->message);
  return RC_OK; /* rank 0 has answered with it */
}

/* Learner, hyperparameters and step count; weights, and the optimizer's arrays before, come by orders of their own. */
static enum rc follow_resume(struct engine *e, const struct order *o, const struct buf *payload, struct err *err) {
  struct optimizer_config config;
  enum rc rc = run_keep(e, payload, &config, err);
  if (rc == RC_OK) rc = learning_set_chunk(e, e->run.training.chunk_tokens, err);
  if (rc == RC_OK) rc = learning_frozen_make(e, err);
  if (rc != RC_OK) return rc;
  optimizer_configure(e->learning.optimizer, &config);
  optimizer_set_step_count(e->learning.optimizer, o->steps);
  return RC_OK;
}

static enum rc follow_batch(struct engine *e, const struct order *o, const struct buf *payload, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct buf mine = BUF_INIT, all = BUF_INIT;
  struct submit_batch in;
  struct batch_work work = {.in = &in, .adds = (const uint8_t *)payload->data, .first = o->first};
  size_t *begin = arena_alloc(&arena, (size_t)e->ranks.comm->size + 1, sizeof *begin);
  e->run.unit.loss.kl_coefficient = (float)o->kl_coefficient;
  e->round.inner_steps = (int32_t)o->steps; /* by which check_unit chooses the weights */
  work.reports = arena_alloc(&arena, o->groups, sizeof *work.reports);
  enum rc rc = begin && work.reports ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "a batch was refused its memory");
  if (rc == RC_OK)
    rc = submit_batch_decode_tensors(&in, payload->data + o->groups, payload->len - o->groups, &arena, err);
  if (rc == RC_OK && batch_units(e, &work, &arena, err) != RC_OK) log_warn("a unit failed: %s", err->message);
  if (rc == RC_OK) rc = unit_reports_encode(work.reports, in.groups, in.group_count, &mine, err);
  if (rc == RC_OK) rc = ranks_exchange(&e->ranks, &mine, &all, begin, err);
  buf_free(&mine);
  buf_free(&all);
  arena_free(&arena);
  return rc;
}

static enum rc follow_weights(struct engine *e, const struct order *o, struct digest *held, struct err *err) {
  struct learning *l = &e->learning;
  struct weights *w = o->which == WEIGHTS_CURRENT ? l->weights : l->reference;
  const enum rc rc = ranks_share_weights(&e->ranks, w, learning_scratch(l), err);
  return rc == RC_OK && w == l->weights ? weights_digest(held, w, err) : rc;
}

static enum rc follow_step(struct engine *e, const struct order *o, struct digest *held, struct err *err) {
  struct step_result result;
  const enum rc rc = step_take(e, o, &result, err);
  return rc == RC_OK ? weights_digest(held, e->learning.weights, err) : rc;
}

/* held: the digest of the weights that this rank holds. */
static enum rc follow(struct engine *e, const struct order *o, const struct buf *payload, struct digest *held,
                      struct err *err) {
  switch (o->kind) {
    case ORDER_MEET: return ranks_meet(&e->ranks, err);
    case ORDER_OPEN: return follow_open(e, payload, err);
    case ORDER_RESUME: return follow_resume(e, o, payload, err);
    case ORDER_WEIGHTS: return follow_weights(e, o, held, err);
    case ORDER_SPREAD: return optimizer_array_spread(e, o->which, err);
    case ORDER_COLLECT: return optimizer_array_collect(e, o->which, err);
    case ORDER_BATCH: return follow_batch(e, o, payload, err);
    case ORDER_STEP: return follow_step(e, o, held, err);
    case ORDER_REFER: learning_freeze_reference(&e->learning); return RC_OK;
    case ORDER_CHECK: return ranks_check_digest(&e->ranks, held, err);
    case ORDER_END: break;
  }
  return RC_OK;
}

/* All others are told in the start of rank 0 as well; and an idle engine tells ORDER_MEET every half second. */
static bool is_of_engine(enum order_kind kind) {
  return kind == ORDER_MEET || kind == ORDER_OPEN || kind == ORDER_BATCH || kind == ORDER_STEP ||
         kind == ORDER_REFER;
}

void follow_rank_0(struct engine *e, atomic_bool *led) {
  struct buf payload = BUF_INIT;
  struct digest held = {0};
  struct err err = {0};
  enum rc rc;
  for (;;) {
    struct order o;
    if ((rc = ranks_hear(&e->ranks, &o, &payload, &err)) != RC_OK || o.kind == ORDER_END) break;
    if (is_of_engine(o.kind)) atomic_store(led, true);
    if ((rc = follow(e, &o, &payload, &held, &err)) != RC_OK) break;
    timeline_mark(&e->timeline, CAUSE_COMPUTE, clock_monotonic_us());
  }
  if (rc != RC_OK) ranks_lose(&e->ranks, &err);
  buf_free(&payload);
}
