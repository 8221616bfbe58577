/* Takes optimizer steps: applies what was accumulated, makes the version durable, hands it to the publisher. */
#include "services/trainer-server/engine/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/trainer-server/engine/learning.h"
#include "services/trainer-server/engine/run_config.h"
#include "services/trainer-server/engine/version.h"
#include "services/trainer-server/fault.h"
#include "services/trainer-server/ranks/shared_arrays.h"

enum { HISTORY_STEP = 256, HISTORY_MAX = 65536 };

/* A checkpoint holds the history, so it is bounded: past HISTORY_MAX the older half goes. */
static enum rc history_add(struct engine *e, const struct step_status *s, double denominator, struct err *err) {
  if (e->run.history_count == HISTORY_MAX) {
    e->run.history_count = HISTORY_MAX / 2;
    memmove(e->run.history, e->run.history + (HISTORY_MAX - HISTORY_MAX / 2),
            e->run.history_count * sizeof *e->run.history);
  }
  if (e->run.history_count == e->run.history_cap) {
    size_t cap = e->run.history_cap + HISTORY_STEP;
    struct round_record *grown = realloc(e->run.history, cap * sizeof *grown);
    if (!grown) return err_set(err, RC_NO_MEMORY, NULL, "a history of %zu rounds was refused memory", cap);
    e->run.history = grown;
    e->run.history_cap = cap;
  }
  e->run.history[e->run.history_count++] =
      (struct round_record){.version = s->version,
                            .digest = s->digest,
                            .grad_norm = s->grad_norm,
                            .lr = s->lr,
                            .skipped = s->skipped,
                            .loss = denominator > 0 ? e->next_step.loss / denominator : 0,
                            .tokens = e->next_step.tokens};
  return RC_OK;
}

static enum rc step_check(struct engine *e, const struct submit_step *in, struct err *err) {
  enum rc rc = board_check_version(e->board, in->run, in->version, err);
  if (rc != RC_OK) return rc;
  if (!run_config_trains(&e->run.training))
    return err_set(err, RC_CONFLICT, "run", "run %s evaluates, it takes no steps", in->run);
  if (e->next_step.pending) {
    if (strcmp(e->next_step.pending_id, in->step_id) == 0) return RC_OK;
    return err_set(err, RC_CONFLICT, "step_id", "step %s was taken and is not durable yet; expected it again, got %s",
                   e->next_step.pending_id, in->step_id);
  }
  if (in->group_count != e->next_step.accumulated->count) {
    return err_set(err, RC_CONFLICT, "groups", "the step names %zu groups, %zu were accumulated since the last step",
                   in->group_count, e->next_step.accumulated->count);
  }
  for (size_t g = 0; g < in->group_count; g++) { /* the decoder has refused a group that is named twice */
    if (!accumulated_find(e->next_step.accumulated, in->groups[g]))
      return err_set(err, RC_CONFLICT, "groups", "group %s has not been accumulated", in->groups[g]);
  }
  return RC_OK;
}

enum rc step_take(struct engine *e, int64_t version, double denominator, struct step_result *result, struct err *err) {
  fault_die(TRAINER_FAULT_DIE_BEFORE_STEP, version);
  *result = (struct step_result){.skipped = true};
  e->learning.clear = false; /* the step uses their memory */
  if (denominator == 0) {
    optimizer_discard(e->learning.optimizer);
    return RC_OK;
  }
  enum rc rc = RC_OK;
  if (!ranks_alone(&e->ranks)) {
    rc = ranks_step(&e->ranks, e->learning.optimizer, e->learning.weights, learning_scratch(&e->learning), denominator,
                    result, err);
  } else {
    optimizer_step(e->learning.optimizer, denominator, result);
    if (!result->skipped) weights_from_masters(e->learning.weights, optimizer_masters(e->learning.optimizer));
  }
  fault_weights(e->learning.weights, version);
  return rc;
}

/* Accumulators -> masters -> bf16, once: a step that is submitted again because its checkpoint failed finds it done. */
static enum rc step_apply(struct engine *e, const struct submit_step *in, struct err *err) {
  if (e->next_step.pending) return RC_OK;
  const struct order step = {.kind = ORDER_STEP,
                             .version = in->version,
                             .denominator = in->group_count > 0 && in->denominator > 0 ? in->denominator : 0};
  enum rc rc = ranks_tell(&e->ranks, &step, NULL, err);
  if (rc == RC_OK) rc = step_take(e, step.version, step.denominator, &e->next_step.result, err);
  if (rc != RC_OK) return rc;
  accumulated_clear(e->next_step.accumulated);
  e->next_step.pending = true;
  snprintf(e->next_step.pending_id, sizeof e->next_step.pending_id, "%s", in->step_id);
  return RC_OK;
}

/* The step's checkpoint, when one is due: also at the end of a replay, so that it need not be replayed again. */
static enum rc step_make_durable(struct engine *e, struct job *job, const struct weights_blob *b, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct board_view v;
  board_view(e->board, &v);
  if (!in->last && b->version % e->run.training.checkpoint_every != 0 && b->version != v.replay_to) return RC_OK;
  const enum rc rc = version_checkpoint(e, b, job, err);
  job->out.step.checkpoint_us = timeline_mark(&e->timeline, CAUSE_CHECKPOINT, clock_monotonic_us());
  return rc;
}

/* From here on the version is current.  The job ends now if the step was replayed, else when it has been published. */
static void step_finish(struct engine *e, struct job *job, struct weights_blob *b) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  struct board_view before;
  e->next_step.pending = false;
  e->next_step.loss = 0;
  e->next_step.tokens = 0;
  board_view(e->board, &before);
  const bool replayed = board_replaying(&before);
  if (!replayed) weights_blob_hold(b); /* for the publisher */
  board_publish(e->board, b);
  if (in->last) board_detach(e->board);
  out->oldest_checkpoint = checkpoint_oldest(e->options.state_dir, in->run);
  metric_add(out->skipped ? e->metric_skipped : e->metric_steps, 1);
  jobs_forget_before(e->jobs, in->version);
  timeline_take(&e->timeline, &out->intervals, &out->interval_count, 1, clock_wall_offset_us(), &job->arena);
  if (replayed) {
    jobs_finish(e->jobs, job, NULL);
    return;
  }
  fault_die(TRAINER_FAULT_DIE_BEFORE_PUBLISH, in->version);
  publisher_submit(e->publisher, job, b);
}

enum rc step_job(struct engine *e, struct job *job, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  struct weights_blob *b = NULL;
  const int64_t begun_us = clock_monotonic_us();
  enum rc rc = step_check(e, in, err);
  if (rc != RC_OK) return rc;
  if ((rc = step_apply(e, in, err)) != RC_OK) return rc;
  if ((rc = version_serialize(e, in->run, in->version + 1, &b, err)) != RC_OK) return rc;
  *out = (struct step_status){.version = b->version,
                              .digest = b->digest,
                              .grad_norm = e->next_step.result.grad_norm,
                              .lr = e->next_step.result.lr,
                              .skipped = e->next_step.result.skipped};
  rc = ranks_tell(&e->ranks, &(struct order){.kind = ORDER_CHECK}, NULL, err);
  if (rc == RC_OK) rc = ranks_check_digest(&e->ranks, &b->digest, err);
  if (rc == RC_OK) rc = history_add(e, out, in->denominator, err);
  if (rc != RC_OK) goto out;
  const int64_t stepped_us = clock_monotonic_us();
  out->step_us = stepped_us - begun_us;
  timeline_mark(&e->timeline, CAUSE_STEP, stepped_us);
  if ((rc = step_make_durable(e, job, b, err)) != RC_OK) {
    e->run.history_count--;
    goto out;
  }
  step_finish(e, job, b);
  return RC_OK;
out:
  weights_blob_release(b);
  return rc;
}
