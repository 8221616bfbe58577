/* Batches: unit by unit, own log-probabilities and gradient, summed without order.  Engine's thread.
 * Previous hop of a rollout: route_submit_batch.c.  Next: unit.c, then trainer_step.c. */
#include "services/trainer-server/trainer_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"

struct accumulated *trainer_accumulated(const struct trainer *t, const char *group) {
  for (size_t i = 0; i < t->accumulated_count; i++) {
    if (strcmp(t->accumulated[i].id, group) == 0) return &t->accumulated[i];
  }
  return NULL;
}

static void stats_add(struct batch_stats *s, const struct unit_result *u, size_t samples) {
  s->loss += u->stats.loss;
  s->entropy_sum += u->entropy_sum;
  s->kl_reference_sum += u->stats.kl_reference;
  s->ratio_sum += u->stats.ratio_sum;
  s->ratio_squares += u->stats.ratio_squares;
  s->tokens += u->stats.tokens;
  s->clipped += u->stats.clipped;
  s->samples += (int64_t)samples;
  s->compute_us += u->compute_us;
}

/* Everything that can be wrong with a batch, before its first unit is accumulated. */
static enum rc batch_check(struct trainer *t, const struct submit_batch *in, struct err *err) {
  enum rc rc = trainer_check_version(t, in->run, in->version, err);
  if (rc == RC_OK) rc = trainer_check_batch(t, in, err);
  if (rc != RC_OK) return rc;
  if (!trainer_trains(&t->training))
    return err_set(err, RC_CONFLICT, "run", "run %s evaluates, it takes no batches", in->run);
  if (t->step_pending)
    return err_set(err, RC_CONFLICT, "version", "step %s was taken and is not durable yet; submit it again first",
                   t->pending_step);
  for (size_t g = 0; g < in->group_count; g++) {
    const struct accumulated *known = trainer_accumulated(t, in->groups[g].id);
    if (known && known->answered)
      return err_set(err, RC_CONFLICT, "groups", "group %s has been accumulated since the last step", in->groups[g].id);
  }
  if (t->accumulated_count + in->group_count > LIMIT_GROUPS_PER_ROUND) {
    return err_set(err, RC_TOO_LARGE, "groups", "a step takes at most %d groups, %zu were accumulated and %zu came",
                   LIMIT_GROUPS_PER_ROUND, t->accumulated_count, in->group_count);
  }
  return RC_OK;
}

#ifdef LEASEHOLD_FAULTS
/* The mutant: once, from the second round on, the sign bit of the largest element of one unit's gradient. */
static void fault_flip_gradient(struct trainer *t) {
  float *largest = &t->grads[0];
  if (t->fault_struck || !t->options.fault || strcmp(t->options.fault, "flip-gradient") != 0 || t->history_count < 1)
    return;
  for (size_t i = 0; i < t->model->params.elements; i++) {
    if (__builtin_fabsf(t->grads[i]) > __builtin_fabsf(*largest)) largest = &t->grads[i];
  }
  if (*largest == 0) return; /* a group without advantages */
  *largest = -*largest;
  t->fault_struck = true;
  log_warn("fault: flipped the sign bit of gradient element %td", largest - t->grads);
}
#endif

/* One group: log-probabilities and gradient, and the gradient into the sums. */
static enum rc batch_unit(struct trainer *t, const struct batch_group *group, struct unit_result *unit, bool *poisoned,
                          struct arena *arena, struct err *err) {
  memset(t->grads, 0, t->model->params.elements * sizeof *t->grads);
  enum rc rc =
      unit_compute(t->learner, t->model, t->weights, t->reference, &t->unit, group, t->grads, unit, arena, err);
  if (rc != RC_OK) return rc;
#ifdef LEASEHOLD_FAULTS
  fault_flip_gradient(t);
#endif
  metric_add(t->metric_units, 1);
  if (trainer_accumulated(t, group->id)) return RC_OK;
  if (!optimizer_add_unit(t->optimizer, t->grads)) *poisoned = true;
  struct accumulated *a = &t->accumulated[t->accumulated_count++];
  snprintf(a->id, sizeof a->id, "%s", group->id);
  a->answered = false;
  t->step_loss += unit->stats.loss;
  t->step_tokens += unit->stats.tokens;
  return RC_OK;
}

enum rc trainer_job_batch(struct trainer *t, struct job *job, struct err *err) {
  const struct submit_batch *in = &job->in.batch;
  struct batch_status *out = &job->out.batch;
  enum rc rc = batch_check(t, in, err);
  if (rc != RC_OK) return rc;
  size_t samples = 0, at = 0;
  for (size_t g = 0; g < in->group_count; g++) samples += in->groups[g].sample_count;
  memset(out, 0, sizeof *out);
  out->samples = arena_alloc(&job->arena, samples + 1, sizeof *out->samples);
  if (!out->samples) return err_set(err, RC_NO_MEMORY, NULL, "the results of %zu samples were refused memory", samples);
  out->sample_count = samples;
  for (size_t g = 0; g < in->group_count; g++) {
    struct unit_result unit;
    if (atomic_load(&t->stopping)) return err_set(err, RC_UNAVAILABLE, NULL, "the trainer is stopping");
    rc = batch_unit(t, &in->groups[g], &unit, &out->stats.poisoned, &job->arena, err);
    if (rc != RC_OK) return rc;
    memcpy(out->samples + at, unit.samples, in->groups[g].sample_count * sizeof *out->samples);
    at += in->groups[g].sample_count;
    stats_add(&out->stats, &unit, in->groups[g].sample_count);
  }
  for (size_t g = 0; g < in->group_count; g++) trainer_accumulated(t, in->groups[g].id)->answered = true;
  metric_add(t->metric_tokens, (double)out->stats.tokens);
  metric_add(t->metric_compute, (double)out->stats.compute_us * 1e-6);
  return RC_OK;
}
