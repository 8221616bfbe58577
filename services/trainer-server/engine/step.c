/* The step: exactly the named units -> AdamW -> bf16 -> digest -> checkpoint -> version.  Engine's thread.
 * Next hop of what was learnt: publisher.c. */
#include "services/trainer-server/engine/trainer_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/trainer-server/fault.h"
#include "services/trainer-server/publish/publisher.h"

enum { HISTORY_STEP = 256, HISTORY_MAX = 65536 };

/* The checkpoint's file would grow without end: past HISTORY_MAX the older half goes. */
static enum rc history_add(struct trainer *t, const struct step_status *s, double denominator, struct err *err) {
  if (t->history_count == HISTORY_MAX) {
    t->history_count = HISTORY_MAX / 2;
    memmove(t->history, t->history + (HISTORY_MAX - HISTORY_MAX / 2), t->history_count * sizeof *t->history);
  }
  if (t->history_count == t->history_cap) {
    size_t cap = t->history_cap + HISTORY_STEP;
    struct round_record *grown = realloc(t->history, cap * sizeof *grown);
    if (!grown) return err_set(err, RC_NO_MEMORY, NULL, "a history of %zu rounds was refused memory", cap);
    t->history = grown;
    t->history_cap = cap;
  }
  t->history[t->history_count++] = (struct round_record){.version = s->version,
                                                         .digest = s->digest,
                                                         .grad_norm = s->grad_norm,
                                                         .lr = s->lr,
                                                         .skipped = s->skipped,
                                                         .loss = denominator > 0 ? t->step_loss / denominator : 0,
                                                         .tokens = t->step_tokens};
  return RC_OK;
}

static enum rc step_check(struct trainer *t, const struct submit_step *in, struct err *err) {
  enum rc rc = trainer_check_version(t, in->run, in->version, err);
  if (rc != RC_OK) return rc;
  if (!trainer_trains(&t->training))
    return err_set(err, RC_CONFLICT, "run", "run %s evaluates, it takes no steps", in->run);
  if (t->step_pending) {
    if (strcmp(t->pending_step, in->step_id) == 0) return RC_OK;
    return err_set(err, RC_CONFLICT, "step_id", "step %s was taken and is not durable yet; expected it again, got %s",
                   t->pending_step, in->step_id);
  }
  if (in->group_count != t->accumulated->count) {
    return err_set(err, RC_CONFLICT, "groups", "the step names %zu groups, %zu were accumulated since the last step",
                   in->group_count, t->accumulated->count);
  }
  for (size_t g = 0; g < in->group_count; g++) { /* the decoder has refused a group that is named twice */
    if (!accumulated_find(t->accumulated, in->groups[g]))
      return err_set(err, RC_CONFLICT, "groups", "group %s has not been accumulated", in->groups[g]);
  }
  return RC_OK;
}

enum rc step_take(struct trainer *t, int64_t version, double denominator, struct step_result *result, struct err *err) {
  fault_die(TRAINER_FAULT_DIE_BEFORE_STEP, version);
  *result = (struct step_result){.skipped = true};
  t->grads_clear = false; /* the step uses their memory */
  if (denominator == 0) {
    optimizer_discard(t->optimizer);
    return RC_OK;
  }
  enum rc rc = RC_OK;
  if (!ranks_alone(t)) {
    rc = ranks_step(t, denominator, result, err);
  } else {
    optimizer_step(t->optimizer, denominator, result);
    if (!result->skipped) weights_from_masters(t->weights, optimizer_masters(t->optimizer));
  }
  fault_weights(t->weights, version);
  return rc;
}

/* Accumulators -> masters -> bf16, once: a step that is submitted again because its checkpoint failed finds it done. */
static enum rc step_apply(struct trainer *t, const struct submit_step *in, struct err *err) {
  if (t->step_pending) return RC_OK;
  const struct command step = {.order = ORDER_STEP,
                               .version = in->version,
                               .denominator = in->group_count > 0 && in->denominator > 0 ? in->denominator : 0};
  enum rc rc = ranks_tell(t, &step, NULL, err);
  if (rc == RC_OK) rc = step_take(t, step.version, step.denominator, &t->pending, err);
  if (rc != RC_OK) return rc;
  accumulated_clear(t->accumulated);
  t->step_pending = true;
  snprintf(t->pending_step, sizeof t->pending_step, "%s", in->step_id);
  return RC_OK;
}

/* The step's checkpoint, when one is due: a replay that has reached what is recorded must not have to be replayed
 * again. */
static enum rc step_make_durable(struct trainer *t, struct job *job, const struct weights_blob *b, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct trainer_view v;
  trainer_view(t, &v);
  if (!in->last && b->version % t->training.checkpoint_every != 0 && b->version != v.replay_to) return RC_OK;
  const enum rc rc = trainer_write_checkpoint(t, b, job, err);
  job->out.step.checkpoint_us = timeline_mark(&t->timeline, CAUSE_CHECKPOINT, clock_monotonic_us());
  return rc;
}

/* The version is ours from here on, and the job ends: now when it was replayed, else when it has been published. */
static void step_finish(struct trainer *t, struct job *job, struct weights_blob *b) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  struct trainer_view before;
  t->step_pending = false;
  t->step_loss = 0;
  t->step_tokens = 0;
  trainer_view(t, &before);
  const bool replayed = trainer_view_replaying(&before);
  if (!replayed) atomic_fetch_add(&b->users, 1); /* the publisher's reference */
  trainer_version_set(t, b);
  if (in->last) trainer_detach(t);
  out->oldest_checkpoint = checkpoint_oldest(t->options.state_dir, in->run);
  metric_add(out->skipped ? t->metric_skipped : t->metric_steps, 1);
  jobs_forget_before(t->jobs, in->version);
  timeline_take(&t->timeline, &out->intervals, &out->interval_count, 1, clock_wall_offset_us(), &job->arena);
  if (replayed) {
    jobs_finish(t->jobs, job, NULL);
    return;
  }
  fault_die(TRAINER_FAULT_DIE_BEFORE_PUBLISH, in->version);
  publisher_submit(t->publisher, job, b);
}

enum rc trainer_job_step(struct trainer *t, struct job *job, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  struct weights_blob *b = NULL;
  const int64_t begun_us = clock_monotonic_us();
  enum rc rc = step_check(t, in, err);
  if (rc != RC_OK) return rc;
  if ((rc = step_apply(t, in, err)) != RC_OK) return rc;
  if ((rc = trainer_blob_make(t, in->run, in->version + 1, &b, err)) != RC_OK) return rc;
  *out = (struct step_status){.version = b->version,
                              .digest = b->digest,
                              .grad_norm = t->pending.grad_norm,
                              .lr = t->pending.lr,
                              .skipped = t->pending.skipped};
  rc = ranks_tell(t, &(struct command){.order = ORDER_CHECK}, NULL, err);
  if (rc == RC_OK) rc = ranks_check_digest(t, &b->digest, err);
  if (rc == RC_OK) rc = history_add(t, out, in->denominator, err);
  if (rc != RC_OK) goto out;
  const int64_t stepped_us = clock_monotonic_us();
  out->step_us = stepped_us - begun_us;
  timeline_mark(&t->timeline, CAUSE_STEP, stepped_us);
  if ((rc = step_make_durable(t, job, b, err)) != RC_OK) {
    t->history_count--;
    goto out;
  }
  step_finish(t, job, b);
  return RC_OK;
out:
  weights_blob_release(b);
  return rc;
}
