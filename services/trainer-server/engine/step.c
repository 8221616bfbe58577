/* Takes optimizer steps: applies what was accumulated; then, but for an inner step, makes the version durable and hands
 * it to the publisher. */
#include "services/trainer-server/engine/step.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/trainer-server/engine/learning.h"
#include "services/trainer-server/engine/run_config.h"
#include "services/trainer-server/engine/version.h"
#include "services/trainer-server/fault.h"
#include "services/trainer-server/ranks/shared_arrays.h"

/* More than a coordinator takes from asking for a checkpoint (POST /v1/check-run) to telling it with every step: it
 * checks datasets meanwhile, by its --check-ms for 10 minutes at most. */
enum { ASKED_MS = 15 * 60 * 1000 };

/* The KL of a token is the mean of the round's. */
static double next_kl_coefficient(const struct engine *e) {
  const struct training_config *c = &e->run.training;
  const double now = (double)e->run.unit.loss.kl_coefficient;
  if (e->round.tokens == 0) return now;
  const double kl = (double)e->round.kl_units / KL_UNITS / (double)e->round.tokens;
  return (double)(float)schedule_kl_coefficient(now, kl, c->kl_target, (double)e->round.samples, c->kl_horizon);
}

static struct round_record record_of(const struct engine *e, const struct step_status *s) {
  return (struct round_record){.version = s->version,
                               .digest = s->digest,
                               .grad_norm = s->grad_norm,
                               .lr = s->lr,
                               .kl_coefficient = e->run.training.kl_target > 0 ? next_kl_coefficient(e) : 0,
                               .skipped = s->skipped,
                               .loss = e->round.denominator > 0 ? e->round.loss / e->round.denominator : 0,
                               .tokens = e->round.tokens};
}

enum rc step_check_order(const struct engine *e, int32_t after_steps, struct err *err) {
  if (after_steps == e->round.inner_steps) return RC_OK;
  return err_set(err, RC_CONFLICT, "after_steps",
                 "%" PRId32
                 " inner steps of the round have been taken; expected what comes after these, got "
                 "after_steps %" PRId32,
                 e->round.inner_steps, after_steps);
}

/* The denominator of an inner step is known before its units are computed, so it is compared with what they came to. */
static enum rc step_check_minibatch(const struct engine *e, const struct submit_step *in, struct err *err) {
  const bool by_tokens = e->run.unit.loss.normalization == NORMALIZE_TOKENS;
  if (e->run.training.update != UPDATE_MINIBATCH && in->inner)
    return err_set(err, RC_CONFLICT, "inner", "run %s steps once a round, it takes no inner steps", in->run);
  if (e->run.training.update != UPDATE_MINIBATCH || !by_tokens || in->group_count == 0) return RC_OK;
  if (in->denominator == (double)e->next_step.tokens) return RC_OK;
  return err_set(err, RC_CONFLICT, "denominator", "%" PRId64 " tokens were accumulated since the last step, got %.17g",
                 e->next_step.tokens, in->denominator);
}

static enum rc step_check(struct engine *e, const struct submit_step *in, struct err *err) {
  enum rc rc = board_check_version(e->board, in->run, in->version, err);
  if (rc != RC_OK) return rc;
  if (!run_config_trains(&e->run.training))
    return err_set(err, RC_CONFLICT, "run", "run %s evaluates, it takes no steps", in->run);
  if (in->announce_first && e->run.training.update != UPDATE_INFLIGHT)
    return err_set(err, RC_CONFLICT, "announce_first",
                   "run %s pushes a version before it is announced; update 'inflight' announces it first", in->run);
  if ((rc = step_check_order(e, in->after_steps, err)) != RC_OK) return rc;
  if (e->next_step.pending) {
    if (in->inner == e->next_step.pending_inner && strcmp(e->next_step.pending_id, in->step_id) == 0) return RC_OK;
    return err_set(err, RC_CONFLICT, "step_id", "step %s was taken but is not durable yet; expected it again, got %s",
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
  return step_check_minibatch(e, in, err);
}

enum rc step_take(struct engine *e, const struct order *order, struct step_result *result, struct err *err) {
  fault_die(TRAINER_FAULT_DIE_BEFORE_STEP, order->version);
  *result = (struct step_result){.skipped = true};
  e->learning.lanes[0].clear = false; /* the step uses its memory */
  if (order->which && order->steps == 0) learning_freeze_behaviour(&e->learning);
  if (order->denominator == 0) {
    optimizer_discard(e->learning.optimizer);
    return RC_OK;
  }
  enum rc rc = RC_OK;
  if (!ranks_alone(&e->ranks)) {
    rc = ranks_step(&e->ranks, e->learning.optimizer, e->learning.weights, learning_scratch(&e->learning),
                    order->denominator, result, err);
  } else {
    optimizer_step(e->learning.optimizer, order->denominator, result);
    if (!result->skipped) optimizer_to_weights(e->learning.optimizer, e->learning.weights);
  }
  fault_weights(e->learning.weights, order->version);
  return rc;
}

/* Notes what the step did to the round.  A round's own step without groups is no optimizer step if inner ones came
 * before. */
static void step_note(struct engine *e, const struct submit_step *in, double denominator) {
  const struct step_result *result = &e->next_step.result;
  e->round.denominator += denominator;
  if (!result->skipped) {
    e->round.changed = true;
    e->round.last = *result;
  }
  if (in->group_count > 0 || e->round.inner_steps == 0)
    metric_add(result->skipped ? e->metric_skipped : e->metric_steps, 1);
}

/* No server takes such a version, and no later step makes another of it. */
static enum rc step_check_weights(const struct engine *e, const struct submit_step *in, struct err *err) {
  struct err why;
  if (weights_check_finite(e->learning.weights, &why) == RC_OK) return RC_OK;
  return err_set(err, RC_CORRUPT, "step_id", "training has diverged: in version %" PRId64 " %s; " STEP_DIVERGED,
                 in->version + 1, why.message, in->run);
}

/* Accumulators -> masters -> bf16, once: a step that is submitted again because its checkpoint failed finds it done. */
static enum rc step_apply(struct engine *e, const struct submit_step *in, struct err *err) {
  if (e->next_step.pending) return RC_OK;
  const struct order step = {.kind = ORDER_STEP,
                             .version = in->version,
                             .which = in->inner,
                             .steps = in->after_steps,
                             .denominator = in->group_count > 0 && in->denominator > 0 ? in->denominator : 0};
  enum rc rc = ranks_tell(&e->ranks, &step, NULL, err);
  if (rc == RC_OK) rc = step_take(e, &step, &e->next_step.result, err);
  if (rc != RC_OK) return rc;
  step_note(e, in, step.denominator);
  accumulated_clear(e->next_step.accumulated);
  e->next_step.tokens = 0;
  e->next_step.pending = true;
  e->next_step.pending_inner = in->inner;
  snprintf(e->next_step.pending_id, sizeof e->next_step.pending_id, "%s", in->step_id);
  return RC_OK;
}

/* The step's checkpoint, when one is due: also at the end of a replay, so that it need not be replayed again.  One of a
 * version that is announced first, and is not the run's last, is owed: the record leads to it until it is written. */
static enum rc step_make_durable(struct engine *e, struct job *job, struct weights_blob *b, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct board_view v;
  board_view(e->board, &v);
  if (!in->last && !in->checkpoint && b->version % e->run.training.checkpoint_every != 0 && b->version != v.replay_to)
    return RC_OK;
  const struct kept_checkpoints kept = {
      .last = in->keep_last, .versions = in->keep_versions, .asked_since_ms = job->begun_ms - ASKED_MS};
  enum rc rc = checkpoint_keep(e->options.state_dir, in->run, &kept, err);
  if (rc == RC_OK && in->announce_first && !in->last && !board_replaying(&v) && version_may_owe(e))
    version_checkpoint_owe(e, b, job);
  else if (rc == RC_OK)
    rc = version_checkpoint(e, b, job, err);
  job->out.step.checkpoint_us += timeline_mark(&e->timeline, CAUSE_CHECKPOINT, clock_monotonic_us());
  return rc;
}

/* The checkpoint that an earlier step owes, whose arrays this step changes.  Its time is told in two parts: when it was
 * written beside the engine, here, and when the engine stands for it, by the engine's own record. */
struct settled {
  struct interval beside; /* empty: it was not */
  int64_t us;             /* of both */
};

static enum rc step_settle(struct engine *e, struct settled *out, struct err *err) {
  const int64_t stands_us = clock_monotonic_us();
  *out = (struct settled){0};
  if (!e->writing.owed) return RC_OK;
  const enum rc rc = version_checkpoint_settle(e, err);
  const int64_t begun_us = e->writing.begun_us, ended_us = e->writing.ended_us;
  if (rc == RC_OK && begun_us < stands_us)
    out->beside = (struct interval){CAUSE_CHECKPOINT, begun_us, ended_us < stands_us ? ended_us : stands_us};
  out->us = timeline_mark(&e->timeline, CAUSE_CHECKPOINT, clock_monotonic_us());
  out->us += out->beside.end_us - out->beside.begin_us;
  return rc;
}

/* Behind the engine's own stretches, which have room for it: see timeline_take. */
static void beside_note(struct step_status *out, const struct interval *beside) {
  const int64_t offset_us = clock_wall_offset_us();
  if (!out->intervals || beside->end_us <= beside->begin_us) return;
  out->intervals[out->interval_count++] =
      (struct interval){beside->cause, beside->begin_us + offset_us, beside->end_us + offset_us};
}

/* From here on the version is current.  The job ends now if the step was replayed, else when it has been published. */
static void step_finish(struct engine *e, struct job *job, struct weights_blob *b, const struct interval *beside) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  struct board_view before;
  e->next_step.pending = false;
  e->round = (struct round_so_far){0};
  if (e->run.training.kl_target > 0) {
    const double next = e->run.history.items[e->run.history.count - 1].kl_coefficient;
    e->run.unit.loss.kl_coefficient = (float)next;
    log_info("run %s: kl_coefficient %.9g from version %" PRId64 " on", in->run, next, b->version);
  }
  board_view(e->board, &before);
  const bool replayed = board_replaying(&before);
  if (!replayed) weights_blob_hold(b); /* for the publisher */
  board_publish(e->board, b);
  if (in->last) board_detach(e->board);
  out->oldest_checkpoint = checkpoint_oldest(e->options.state_dir, in->run, e->options.keep_checkpoints);
  out->checkpoints = checkpoint_versions(e->options.state_dir, in->run, &job->arena);
  jobs_forget_before(e->jobs, in->version);
  timeline_take(&e->timeline, &out->intervals, &out->interval_count, 1 + PUBLISHER_INTERVALS, clock_wall_offset_us(),
                &job->arena);
  beside_note(out, beside);
  if (replayed) {
    jobs_finish(e->jobs, job, NULL);
    return;
  }
  if (in->announce_first) publisher_take_pushes(e->publisher, in->run, out);
  fault_die(TRAINER_FAULT_DIE_BEFORE_PUBLISH, in->version);
  publisher_submit(e->publisher, job, b);
  version_checkpoint_begin(e);
}

/* Where the reference is taken anew, on every rank; a repeat does no harm. */
static enum rc step_refer(struct engine *e, int64_t version, struct err *err) {
  const int32_t every = e->run.training.reference_every;
  if (every == 0 || version % every != 0) return RC_OK;
  const enum rc rc = ranks_tell(&e->ranks, &(struct order){.kind = ORDER_REFER}, NULL, err);
  if (rc == RC_OK) learning_freeze_reference(&e->learning);
  return rc;
}

/* All ranks hold these weights. */
static enum rc step_agree(struct engine *e, const struct digest *digest, struct err *err) {
  const enum rc rc = ranks_tell(&e->ranks, &(struct order){.kind = ORDER_CHECK}, NULL, err);
  return rc == RC_OK ? ranks_check_digest(&e->ranks, digest, err) : rc;
}

/* The end of an inner step: its digest lets a replay find the first step that differs. */
static enum rc step_end_inner(struct engine *e, struct job *job, int64_t begun_us, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  struct digest digest;
  enum rc rc = weights_digest(&digest, e->learning.weights, err);
  if (rc == RC_OK) rc = step_agree(e, &digest, err);
  if (rc != RC_OK) return rc;
  const int64_t stepped_us = clock_monotonic_us();
  *out = (struct step_status){
      .version = in->version,
      .digest = digest,
      .grad_norm = e->next_step.result.grad_norm,
      .lr = e->next_step.result.lr,
      .skipped = e->next_step.result.skipped,
      .step_us = stepped_us - begun_us,
      .oldest_checkpoint = checkpoint_oldest(e->options.state_dir, in->run, e->options.keep_checkpoints)};
  timeline_mark(&e->timeline, CAUSE_STEP, stepped_us);
  timeline_take(&e->timeline, &out->intervals, &out->interval_count, 0, clock_wall_offset_us(), &job->arena);
  e->next_step.pending = false;
  e->round.inner_steps++;
  jobs_finish(e->jobs, job, NULL);
  return RC_OK;
}

enum rc step_job(struct engine *e, struct job *job, struct err *err) {
  const struct submit_step *in = &job->in.step;
  struct step_status *out = &job->out.step;
  struct weights_blob *b = NULL;
  struct settled settled;
  enum rc rc = step_check(e, in, err);
  if (rc == RC_OK) rc = step_settle(e, &settled, err);
  const int64_t begun_us = clock_monotonic_us();
  if (rc == RC_OK) rc = step_apply(e, in, err);
  if (rc == RC_OK) rc = step_check_weights(e, in, err);
  if (rc != RC_OK) return rc;
  if (in->inner) return step_end_inner(e, job, begun_us, err);
  if ((rc = version_serialize(e, in->run, in->version + 1, in->push_count > 0, &b, err)) != RC_OK) return rc;
  const struct step_result *result = e->round.changed ? &e->round.last : &e->next_step.result;
  *out = (struct step_status){.version = b->version,
                              .digest = b->digest,
                              .grad_norm = result->grad_norm,
                              .lr = result->lr,
                              .skipped = result->skipped,
                              .checkpoint_us = settled.us};
  rc = step_agree(e, &b->digest, err);
  if (rc != RC_OK) goto out;
  const struct round_record record = record_of(e, out);
  round_history_add(&e->run.history, &record, 1);
  const int64_t stepped_us = clock_monotonic_us();
  out->step_us = stepped_us - begun_us;
  timeline_mark(&e->timeline, CAUSE_STEP, stepped_us);
  if ((rc = step_refer(e, b->version, err)) != RC_OK || (rc = step_make_durable(e, job, b, err)) != RC_OK) {
    e->run.history.count--;
    goto out;
  }
  step_finish(e, job, b, &settled.beside);
  return RC_OK;
out:
  weights_blob_release(b);
  return rc;
}
