/* Makes a batch's message, submits it to the trainer, and awaits and compares the answer. */
#include "services/coordinator/driver/batch.h"

#include <stdlib.h>
#include <string.h>

#include "common/client/trainer_client.h"
#include "services/coordinator/store/ids.h"

/* ---- making ---- */

static enum rc build(struct batch *b, struct readers *readers, struct run_context *context,
                     const struct batch_place *place, struct err *err) {
  const struct batch_key key = {.run = b->run,
                                .trainer = b->trainer_worker,
                                .round = b->round,
                                .number = b->number,
                                .version = place->version,
                                .inflight = context->config.mode == MODE_INFLIGHT,
                                .has_reference = run_has_reference(&context->config)};
  struct store *s;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  if (run_is_supervised(&context->config))
    rc = batch_from_dataset(&b->built, s, context, b->round, b->number, &b->arena, err);
  else
    rc = batch_from_rollouts(&b->built, s, &key, &b->arena, err);
  if (rc == RC_OK && key.inflight && run_checks_samples(&context->config) && !place->recorded)
    rc = batch_verify_fill(&b->sources, &b->built, s, &key, &context->config, &b->arena, err);
  readers_give(readers, s);
  return rc;
}

static enum rc address(struct batch *b, const struct trainer_target *trainer, const struct batch_place *place,
                       struct err *err) {
  struct submit_batch *m = &b->built.message;
  m->batch_id = arena_strdup(&b->arena, id_batch(b->run, b->round, b->number).text);
  m->run = arena_strdup(&b->arena, id_run(b->run).text);
  m->epoch = trainer->epoch;
  m->fence = trainer->fence;
  m->version = place->version;
  m->after_steps = (int32_t)place->step;
  return m->batch_id && m->run ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "a batch was refused memory");
}

enum rc batch_make(struct batch **out, struct readers *readers, struct run_context *context,
                   const struct trainer_target *trainer, const struct batch_place *place, struct err *err) {
  struct batch *b = calloc(1, sizeof *b);
  if (!b) return err_set(err, RC_NO_MEMORY, NULL, "a batch was refused memory");
  b->run = context->run;
  b->round = place->round;
  b->number = place->number;
  b->trainer_worker = trainer->worker;
  b->by_tokens = run_counts_tokens(&context->config);
  memcpy(b->url, trainer->url, sizeof b->url);
  enum rc rc = build(b, readers, context, place, err);
  if (rc == RC_OK) rc = address(b, trainer, place, err);
  if (rc != RC_OK) {
    batch_free(b);
    return rc;
  }
  *out = b;
  return RC_OK;
}

void batch_free(struct batch *b) {
  if (!b) return;
  arena_free(&b->arena);
  free(b);
}

/* ---- at the trainer ---- */

enum rc batch_submit(const struct batch *b, struct http_client *http, bool ask_first, struct err *err) {
  const struct trainer_client t = {.http = http, .base_url = b->url};
  if (ask_first) { /* a body sent before a restart carried another epoch: a repeat would conflict */
    struct arena arena = ARENA_INIT;
    struct batch_status status;
    const enum rc rc = trainer_batch_status(&t, b->built.message.batch_id, 0, 0, &status, &arena, CALL_MS, err);
    const bool failed = rc == RC_OK && status.state == JOB_FAILED; /* behind a step that failed */
    arena_free(&arena);
    if (rc != RC_NOT_FOUND && !failed) return rc;
  }
  return trainer_submit_batch(&t, &b->built.message, SUBMIT_MS, err);
}

/* One long poll.  Whole log-probabilities travel only where their digest says that they differ; entropies always do,
 * because nobody else has them. */
static enum rc poll(const struct trainer_client *t, const char *id, bool with_logprobs, struct batch_status *status,
                    struct arena *arena, struct err *err) {
  arena_free(arena);
  *arena = (struct arena)ARENA_INIT;
  const int numbers = STATUS_ENTROPIES | (with_logprobs ? STATUS_LOGPROBS : 0);
  const enum rc rc = trainer_batch_status(t, id, POLL_MS, numbers, status, arena, POLL_MS + CALL_MS, err);
  if (rc != RC_OK || status->state != JOB_FAILED) return rc;
  return err_set(err, RC_CONFLICT, NULL, "the trainer failed batch %s: %.300s", id, status->error.message);
}

/* The answer's refusals point into the batch's arena: the status may be asked for again. */
static enum rc sift(struct batch *b, const struct batch_status *status, struct err *err) {
  struct batch_status kept = {.refusal_count = status->refusal_count,
                              .refusals = arena_alloc(&b->arena, status->refusal_count + 1, sizeof *kept.refusals)};
  if (!b->sources.items || b->refusals.refused) return RC_OK;
  if (!kept.refusals) return err_set(err, RC_NO_MEMORY, NULL, "what a batch was refused for was refused memory");
  for (size_t i = 0; i < status->refusal_count; i++) {
    kept.refusals[i] = status->refusals[i];
    kept.refusals[i].id = arena_strdup(&b->arena, status->refusals[i].id);
    if (!kept.refusals[i].id)
      return err_set(err, RC_NO_MEMORY, NULL, "what a batch was refused for was refused memory");
  }
  const enum rc rc = batch_verify_sift(&b->refusals, &b->built, &b->sources, &kept, &b->arena, err);
  b->refusals.run = b->run;
  b->refusals.round = b->round;
  b->refusals.number = b->number;
  b->refusals.version = b->built.message.version;
  return rc;
}

enum rc batch_await(struct batch *b, struct http_client *http, const atomic_bool *cancel,
                    struct batch_status *status, struct mismatch *mismatch, struct arena *arena, struct err *err) {
  const struct trainer_client t = {.http = http, .base_url = b->url};
  const char *id = b->built.message.batch_id;
  bool whole = b->built.compared && b->built.lag.compared < b->built.lag.tokens;
  *mismatch = (struct mismatch){0};
  for (;;) {
    if (atomic_load(cancel)) return err_set(err, RC_UNAVAILABLE, NULL, "waiting for batch %s was given up", id);
    enum rc rc = poll(&t, id, whole, status, arena, err);
    if (rc == RC_OK && status->state == JOB_DONE) rc = sift(b, status, err);
    if (rc != RC_OK) return rc;
    if (status->state != JOB_DONE) continue;
    if (whole && (rc = logprobs_compare(mismatch, &b->built, status, err)) == RC_OK && b->sources.items)
      batch_verify_older(&b->refusals, &b->built, &b->sources, status);
    if (whole) return rc;
    if (logprobs_agree(&b->built, &status->logprobs_sha256, arena)) return RC_OK;
    whole = true;
  }
}
