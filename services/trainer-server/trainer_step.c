/* The step: exactly the named units -> AdamW -> bf16 -> digest -> checkpoint -> version.  Engine's thread.
 * Next hop of what was learnt: publisher.c. */
#include "services/trainer-server/trainer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/trainer-server/publisher.h"

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
  if (in->group_count != t->accumulated_count) {
    return err_set(err, RC_CONFLICT, "groups", "the step names %zu groups, %zu were accumulated since the last step",
                   in->group_count, t->accumulated_count);
  }
  for (size_t g = 0; g < in->group_count; g++) { /* the decoder has refused a group that is named twice */
    if (!trainer_accumulated(t, in->groups[g]))
      return err_set(err, RC_CONFLICT, "groups", "group %s has not been accumulated", in->groups[g]);
  }
  return RC_OK;
}

/* Accumulators -> masters -> bf16, once: a step that is submitted again because its checkpoint failed finds it done. */
static void step_apply(struct trainer *t, const struct submit_step *in) {
  if (t->step_pending) return;
  struct step_result result = {.skipped = true};
  if (in->group_count > 0 && in->denominator > 0)
    optimizer_step(t->optimizer, in->denominator, &result);
  else
    optimizer_discard(t->optimizer);
  if (!result.skipped) weights_from_masters(t->weights, optimizer_masters(t->optimizer));
  t->accumulated_count = 0;
  t->step_pending = true;
  t->pending = result;
  snprintf(t->pending_step, sizeof t->pending_step, "%s", in->step_id);
}

enum rc trainer_job_step(struct trainer *t, struct job *job, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  struct weights_blob *b = NULL;
  int64_t begun_us = clock_monotonic_us();
  enum rc rc = step_check(t, in, err);
  if (rc != RC_OK) return rc;
  step_apply(t, in);
  if ((rc = trainer_blob_make(t, in->run, in->version + 1, &b, err)) != RC_OK) return rc;
  *out = (struct step_status){.version = b->version,
                              .digest = b->digest,
                              .grad_norm = t->pending.grad_norm,
                              .lr = t->pending.lr,
                              .skipped = t->pending.skipped};
  if ((rc = history_add(t, out, in->denominator, err)) != RC_OK) goto out;
  out->step_us = clock_monotonic_us() - begun_us;
  if (in->last || b->version % t->training.checkpoint_every == 0) {
    int64_t write_us = clock_monotonic_us();
    if ((rc = trainer_write_checkpoint(t, b, job, err)) != RC_OK) {
      t->history_count--;
      goto out;
    }
    out->checkpoint_us = clock_monotonic_us() - write_us;
  }
  t->step_pending = false;
  t->step_loss = 0;
  t->step_tokens = 0;
  atomic_fetch_add(&b->users, 1); /* the publisher's reference */
  trainer_version_set(t, b);
  metric_add(out->skipped ? t->metric_skipped : t->metric_steps, 1);
  jobs_forget_before(t->jobs, in->version);
  publisher_submit(t->publisher, job, b);
  return RC_OK;
out:
  weights_blob_release(b);
  return rc;
}
