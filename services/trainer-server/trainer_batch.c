/* Batches: unit by unit, own log-probabilities and gradient, summed without order.  Engine's thread.
 * Previous hop of a rollout: route_submit_batch.c.  Next: unit.c, then trainer_step.c. */
#include "services/trainer-server/trainer_internal.h"

#include <string.h>

#include "common/base/clock.h"
#include "services/trainer-server/fault.h"

static void stats_add(struct batch_stats *s, const struct unit_result *u, size_t samples) {
  s->loss += u->stats.loss;
  s->entropy_sum += u->entropy_sum;
  s->kl_reference_sum += u->stats.kl_reference;
  s->ratio_sum += u->stats.ratio_sum;
  s->ratio_squares += u->stats.ratio_squares;
  s->tokens += u->stats.tokens;
  s->clipped += u->stats.clipped;
  s->samples += (int64_t)samples;
  s->logprob_us += u->logprob_us;
  s->compute_us += u->compute_us;
}

/* Everything that can be wrong with a batch, before its first unit is accumulated.  Its tokens were looked at by the
 * handler, under the version that is asked for again here; unit_compute looks at each unit before it touches it. */
static enum rc batch_check(struct trainer *t, const struct submit_batch *in, struct err *err) {
  enum rc rc = trainer_check_version(t, in->run, in->version, err);
  if (rc != RC_OK) return rc;
  if (!trainer_trains(&t->training))
    return err_set(err, RC_CONFLICT, "run", "run %s evaluates, it takes no batches", in->run);
  if (t->step_pending)
    return err_set(err, RC_CONFLICT, "version", "step %s was taken and is not durable yet; submit it again first",
                   t->pending_step);
  for (size_t g = 0; g < in->group_count; g++) {
    const struct accumulated_group *known = accumulated_find(t->accumulated, in->groups[g].id);
    if (known && known->answered)
      return err_set(err, RC_CONFLICT, "groups", "group %s has been accumulated since the last step", in->groups[g].id);
  }
  if (t->accumulated->count + in->group_count > LIMIT_GROUPS_PER_ROUND) {
    return err_set(err, RC_TOO_LARGE, "groups", "a step takes at most %d groups, %zu were accumulated and %zu came",
                   LIMIT_GROUPS_PER_ROUND, t->accumulated->count, in->group_count);
  }
  return RC_OK;
}

/* One group: log-probabilities and gradient, and the gradient into the sums. */
static enum rc batch_unit(struct trainer *t, const struct batch_group *group, int64_t version, struct unit_result *unit,
                          bool *poisoned, struct arena *arena, struct err *err) {
  const size_t elements = t->model->params.elements;
  if (!t->grads_clear) memset(t->grads, 0, elements * sizeof *t->grads);
  t->grads_clear = false;
  enum rc rc = unit_compute(t->learner, t->model, t->weights, t->reference, &t->unit, group, t->grads, unit,
                            &t->timeline, arena, err);
  if (rc != RC_OK) return rc;
  fault_gradient(t->grads, elements, version);
  if (!accumulated_find(t->accumulated, group->id)) {
    if (fault_add_twice(t->grads, elements, version)) optimizer_add_unit(t->optimizer, t->grads);
    if (!optimizer_take_unit(t->optimizer, t->grads)) *poisoned = true;
    t->grads_clear = true;
    accumulated_add(t->accumulated, group->id);
    t->step_loss += unit->stats.loss;
    t->step_tokens += unit->stats.tokens;
  }
  metric_add(t->metric_units, 1);
  unit->compute_us += timeline_mark(&t->timeline, CAUSE_COMPUTE, clock_monotonic_us());
  return RC_OK;
}

static enum rc batch_units(struct trainer *t, const struct submit_batch *in, struct batch_status *out,
                           struct arena *arena, struct err *err) {
  size_t at = 0;
  fault_batch_begin();
  for (size_t g = 0; g < in->group_count; g++) {
    struct unit_result unit;
    if (atomic_load(&t->stopping)) return err_set(err, RC_UNAVAILABLE, NULL, "the trainer is stopping");
    enum rc rc = batch_unit(t, &in->groups[g], in->version, &unit, &out->stats.poisoned, arena, err);
    if (rc != RC_OK) return rc;
    memcpy(out->samples + at, unit.samples, in->groups[g].sample_count * sizeof *out->samples);
    at += in->groups[g].sample_count;
    stats_add(&out->stats, &unit, in->groups[g].sample_count);
    if (g + 1 == (in->group_count + 1) / 2) fault_die(FAULT_DIE_IN_BATCH, in->version);
  }
  return RC_OK;
}

enum rc trainer_job_batch(struct trainer *t, struct job *job, struct err *err) {
  const struct submit_batch *in = &job->in.batch;
  struct batch_status *out = &job->out.batch;
  enum rc rc = batch_check(t, in, err);
  if (rc != RC_OK) return rc;
  size_t samples = 0;
  for (size_t g = 0; g < in->group_count; g++) samples += in->groups[g].sample_count;
  memset(out, 0, sizeof *out);
  out->samples = arena_alloc(&job->arena, samples + 1, sizeof *out->samples);
  if (!out->samples) return err_set(err, RC_NO_MEMORY, NULL, "the results of %zu samples were refused memory", samples);
  out->sample_count = samples;
  if ((rc = batch_units(t, in, out, &job->arena, err)) != RC_OK) return rc;
  for (size_t g = 0; g < in->group_count; g++) accumulated_find(t->accumulated, in->groups[g].id)->answered = true;
  metric_add(t->metric_tokens, (double)out->stats.tokens);
  timeline_take(&t->timeline, &out->intervals, &out->interval_count, 0, timeline_wall_offset_us(), &job->arena);
  return RC_OK;
}
