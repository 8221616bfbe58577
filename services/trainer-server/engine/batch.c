/* Computes batches, unit by unit, together with the other ranks. */
#include "services/trainer-server/engine/batch.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/trainer-server/checks/judgement.h"
#include "services/trainer-server/engine/run_config.h"
#include "services/trainer-server/engine/step.h"
#include "services/trainer-server/fault.h"

static void stats_add(struct batch_stats *s, const struct batch_stats *u) {
  s->loss += u->loss;
  s->entropy_sum += u->entropy_sum;
  s->kl_reference_sum += u->kl_reference_sum;
  s->ratio_sum += u->ratio_sum;
  s->ratio_squares += u->ratio_squares;
  s->kl_new_old += u->kl_new_old;
  s->difference_new_old += u->difference_new_old;
  s->tokens += u->tokens;
  s->clipped += u->clipped;
  s->samples += u->samples;
  s->logprob_us += u->logprob_us;
  s->compute_us += u->compute_us;
  s->poisoned |= u->poisoned;
}

static struct unit_report report_of(const struct unit_result *u, size_t samples, bool poisoned) {
  return (struct unit_report){.state = UNIT_DONE,
                              .samples = u->samples,
                              .sample_count = samples,
                              .stats = {.loss = u->stats.loss,
                                        .entropy_sum = u->entropy_sum,
                                        .kl_reference_sum = u->stats.kl_reference,
                                        .ratio_sum = u->stats.ratio_sum,
                                        .ratio_squares = u->stats.ratio_squares,
                                        .kl_new_old = u->stats.kl_new_old,
                                        .difference_new_old = u->stats.difference_new_old,
                                        .tokens = u->stats.tokens,
                                        .clipped = u->stats.clipped,
                                        .samples = (int64_t)samples,
                                        .logprob_us = u->logprob_us,
                                        .compute_us = u->compute_us,
                                        .poisoned = poisoned}};
}

/* Refuses a batch before its first unit is accumulated.  The handler has checked its tokens, under the version that is
 * checked again here; unit_compute checks each unit before it computes. */
static enum rc batch_check(struct engine *e, const struct submit_batch *in, struct err *err) {
  enum rc rc = board_check_version(e->board, in->run, in->version, err);
  if (rc != RC_OK) return rc;
  if (!run_config_trains(&e->run.training))
    return err_set(err, RC_CONFLICT, "run", "run %s evaluates, it takes no batches", in->run);
  if (e->learning.learner_chunk != e->run.training.chunk_tokens)
    return err_set(err, RC_CONFLICT, "run",
                   "run %s takes chunks of %d tokens: start the trainer with --chunk-tokens %d", in->run,
                   e->run.training.chunk_tokens, e->run.training.chunk_tokens);
  if (e->next_step.pending)
    return err_set(err, RC_CONFLICT, "version", "step %s was taken but is not durable yet; submit it again first",
                   e->next_step.pending_id);
  if (in->check.wanted) return RC_OK;
  if ((rc = step_check_order(e, in->after_steps, err)) != RC_OK) return rc;
  for (size_t g = 0; g < in->group_count; g++) {
    const struct accumulated_group *known = accumulated_find(e->next_step.accumulated, in->groups[g].id);
    if (known && known->answered)
      return err_set(err, RC_CONFLICT, "groups", "group %s has been accumulated since the last step", in->groups[g].id);
  }
  size_t more = 0;
  for (size_t g = 0; g < in->group_count; g++) more += !accumulated_find(e->next_step.accumulated, in->groups[g].id);
  if (e->next_step.accumulated->count + more > LIMIT_GROUPS_PER_ROUND) {
    return err_set(err, RC_TOO_LARGE, "groups", "a step takes at most %d groups, %zu were accumulated and %zu came",
                   LIMIT_GROUPS_PER_ROUND, e->next_step.accumulated->count, more);
  }
  return RC_OK;
}

/* The units of a batch while they are computed side by side, each lane by one thread at a time.  There may be fewer
 * lanes than threads. */
struct units_job {
  struct engine *engine;
  const struct batch_work *work;
  struct arena *arena;
  atomic_size_t next;    /* the first unit that no lane has taken */
  pthread_mutex_t mutex; /* guards the arena, the sums and what stands below */
  size_t mine, done;     /* units of this rank */
  enum rc rc;            /* of the first that failed, in time */
  struct err *err;
};

static bool units_end(struct units_job *j) {
  pthread_mutex_lock(&j->mutex);
  const bool ends = j->rc != RC_OK;
  pthread_mutex_unlock(&j->mutex);
  return ends;
}

/* The gradient into the sums. */
static bool unit_add(struct units_job *j, struct lane *lane) {
  struct optimizer *o = j->engine->learning.optimizer;
  const size_t elements = j->engine->model->params.elements;
  const int64_t version = j->work->in->version;
  if (fault_add_twice(lane->gradient, elements, version)) optimizer_add_unit(o, lane->gradient);
  lane->clear = true;
  return optimizer_take_unit(o, lane->gradient);
}

/* The memory of a unit's gradient before it is computed: zeros, or parts that lead to the sums. */
static void gradient_begin(struct units_job *j, size_t g, struct lane *lane, struct unit *unit) {
  struct engine *e = j->engine;
  unit->parts = e->learning.parts;
  if (unit->parts)
    gradient_parts_begin(unit->parts, j->work->adds[g] ? e->learning.optimizer : NULL);
  else if (!lane->clear)
    e->ops->clear(e->ops, lane->gradient, e->model->params.elements * sizeof *lane->gradient);
  lane->clear = false;
}

/* Afterwards; false: it poisoned the step.  Parts are in the sums already: a unit of the CPU's that was begun does not
 * fail. */
static bool gradient_end(struct units_job *j, size_t g, struct lane *lane) {
  struct engine *e = j->engine;
  if (e->learning.parts) return gradient_parts_end(e->learning.parts);
  fault_gradient(lane->gradient, e->model->params.elements, j->work->in->version);
  return j->work->adds[g] ? unit_add(j, lane) : true;
}

/* Is a group that may go ahead one that will not be refused?  Its gradient could not be taken out of the sums again. */
static bool holds(const struct batch_group *group, const struct unit_draws *draws, const struct unit_result *own) {
  static const struct digest untold;
  struct digest logprobs;
  if (draws->difference_count > 0) return false;
  if (digest_equal(&group->recorded_sha256, &untold)) return true;
  logprobs_digest(&logprobs, own->samples, group->sample_count);
  return digest_equal(&logprobs, &group->recorded_sha256);
}

/* One group of a check: log-probabilities and draws under the version's weights, whatever inner steps there were.  One
 * that is taken ahead has its gradient from the same pass; it goes into the sums where it holds. */
static enum rc check_unit(struct units_job *j, size_t g, struct lane *lane, struct timeline *timeline,
                          struct err *err) {
  struct engine *e = j->engine;
  const struct submit_batch *in = j->work->in;
  const struct batch_group *group = &in->groups[g];
  const bool ahead = j->work->adds[g];
  const struct unit_policies policies = {
      .current = e->round.inner_steps > 0 ? e->learning.behaviour : e->learning.weights,
      .reference = ahead ? e->learning.reference : NULL};
  const struct unit_key key = {in->check.seed, in->check.round, group->ordinal};
  struct batch_group needed = *group;
  if (!ahead) needed.has_reference = false; /* the KL term is the gradient's */
  struct unit unit;
  struct unit_draws draws;
  struct unit_result result;
  bool poisoned = false;
  pthread_mutex_lock(&j->mutex);
  enum rc rc = unit_prepare(&unit, e->model, &policies, &needed, j->arena, err);
  if (rc == RC_OK) rc = unit_draws_prepare(&draws, &unit, &key, j->arena, err);
  pthread_mutex_unlock(&j->mutex);
  if (rc != RC_OK) return rc;
  if (ahead) {
    unit.draws = &draws.draws;
    gradient_begin(j, g, lane, &unit);
    rc = unit_compute(lane->learner, &policies, &e->run.unit, &unit, lane->gradient, &result, timeline, err);
  } else {
    rc = unit_draw(lane->learner, policies.current, &e->run.unit, &unit, &draws, &result, timeline, err);
  }
  if (rc != RC_OK) return rc;
  unit_draws_compare(&draws, &unit, group);
  const bool taken = ahead && holds(group, &draws, &result);
  pthread_mutex_lock(&j->mutex);
  if (taken) poisoned = !gradient_end(j, g, lane);
  if (++j->done == (j->mine + 1) / 2) fault_die(TRAINER_FAULT_DIE_IN_BATCH, in->version);
  pthread_mutex_unlock(&j->mutex);
  if (taken && timeline) result.compute_us += timeline_mark(timeline, CAUSE_COMPUTE, clock_monotonic_us());
  struct unit_report *r = &j->work->reports[g];
  *r = report_of(&result, group->sample_count, poisoned);
  r->differences = draws.differences;
  r->difference_count = draws.difference_count;
  r->unlike = ahead && !taken;
  return RC_OK;
}

/* ---- a unit that is verified ---- */

/* Passes over a unit that are judged differently each time show that something is wrong with this machine. */
enum { VERIFY_TRIES = 3 };

/* A unit, where its gradient goes, and what its samples are refused for. */
struct verified_unit {
  struct units_job *job;
  size_t g;
  struct lane *lane;
  const struct unit_policies *policies;
  struct unit *unit;
  struct unit_draws draws;
  struct sample_refusal *refusals, *again; /* [count of samples] */
  int refused;
};

static enum rc judge(const struct verified_unit *v, struct sample_refusal *out, int *refused, struct err *err) {
  const struct submit_batch *in = v->job->work->in;
  *refused = unit_judge(out, &v->draws, &in->verify, v->unit, &in->groups[v->g]);
  if (*refused >= 0) return RC_OK;
  return err_set(err, RC_NO_MEMORY, NULL, "the judgement of group %s was refused memory", in->groups[v->g].id);
}

/* Log-probabilities and draws by a forward pass only, judged. */
static enum rc judge_alone(struct verified_unit *v, struct sample_refusal *out, int *refused,
                           struct unit_result *result, struct timeline *timeline, struct err *err) {
  const struct engine *e = v->job->engine;
  const enum rc rc =
      unit_draw(v->lane->learner, v->policies->current, &e->run.unit, v->unit, &v->draws, result, timeline, err);
  return rc == RC_OK ? judge(v, out, refused, err) : rc;
}

/* The gradient with draws from the same logits, judged.  Where parts of a gradient go straight into the sums, the unit
 * is judged before it is computed. */
static enum rc compute_and_judge(struct verified_unit *v, struct unit_result *result, struct timeline *timeline,
                                 struct err *err) {
  struct engine *e = v->job->engine;
  struct unit_result before = {0};
  enum rc rc = RC_OK;
  v->refused = 0;
  if (e->learning.parts) rc = judge_alone(v, v->refusals, &v->refused, &before, timeline, err);
  if (rc != RC_OK || v->refused > 0) {
    *result = before;
    return rc;
  }
  v->unit->draws = &v->draws.draws;
  gradient_begin(v->job, v->g, v->lane, v->unit);
  rc = unit_compute(v->lane->learner, v->policies, &e->run.unit, v->unit, v->lane->gradient, result, timeline, err);
  if (rc == RC_OK && !e->learning.parts) rc = judge(v, v->refusals, &v->refused, err);
  result->logprob_us += before.logprob_us;
  result->compute_us += before.compute_us;
  return rc;
}

static bool same_refusals(const struct verified_unit *v, int again) {
  bool same = again == v->refused;
  for (int i = 0; same && i < again; i++) same = judgement_same(&v->refusals[i], &v->again[i]);
  return same;
}

static bool is_finite(const struct unit *unit) {
  for (int i = 0; i < unit->count; i++)
    for (int t = 0; t < unit->scored[i].count; t++)
      if (!isfinite(unit->logprob[unit->scored[i].first + t])) return false;
  return true;
}

/* What is refused has been found twice: a passing fault of this machine accuses nobody, and its gradient is not
 * used. */
static enum rc verified_compute(struct verified_unit *v, struct unit_result *result, struct timeline *timeline,
                                struct err *err) {
  int64_t logprob_us = 0, compute_us = 0;
  for (int n = 0; n < VERIFY_TRIES; n++) {
    struct unit_result more = {0};
    int again = 0;
    enum rc rc = compute_and_judge(v, result, timeline, err);
    if (rc == RC_OK && v->refused > 0) rc = judge_alone(v, v->again, &again, &more, timeline, err);
    if (rc != RC_OK) return rc;
    result->logprob_us += more.logprob_us + logprob_us;
    result->compute_us += more.compute_us + compute_us;
    if (v->refused == 0 || same_refusals(v, again)) return RC_OK;
    logprob_us = result->logprob_us;
    compute_us = result->compute_us;
  }
  const struct submit_batch *in = v->job->work->in;
  if (!is_finite(v->unit)) /* nothing can be said of the samples, by nobody's fault */
    return err_set(err, RC_CORRUPT, NULL,
                   "training has diverged: log-probabilities of version %" PRId64
                   " are not finite in group %s; " STEP_DIVERGED,
                   in->version, in->groups[v->g].id, in->run);
  return err_set(err, RC_CORRUPT, NULL,
                 "group %s was judged otherwise each time it was computed, %d times: look at this trainer's machine",
                 in->groups[v->g].id, VERIFY_TRIES);
}

static enum rc verified_alloc(struct verified_unit *v, struct arena *arena, struct err *err) {
  const struct submit_batch *in = v->job->work->in;
  const struct batch_group *group = &in->groups[v->g];
  const struct unit_key key = {in->verify.seed, group->round, group->ordinal};
  v->refusals = arena_alloc(arena, group->sample_count + 1, sizeof *v->refusals);
  v->again = arena_alloc(arena, group->sample_count + 1, sizeof *v->again);
  if (!v->refusals || !v->again)
    return err_set(err, RC_NO_MEMORY, NULL, "the judgement of group %s was refused memory", group->id);
  const enum rc rc = unit_draws_prepare(&v->draws, v->unit, &key, arena, err);
  return rc == RC_OK ? unit_draws_verify(&v->draws, v->unit, group, in->verify.draws_near, arena, err) : rc;
}

/* ---- a unit ---- */

/* Whether it is judged: one that is in the sums already was. */
static bool is_verified(const struct units_job *j, size_t g) {
  return j->work->in->verify.wanted && j->work->adds[g];
}

/* One group: log-probabilities and gradient, and the gradient into the sums.  timeline: NULL for lanes beside the
 * first. */
static enum rc batch_unit(struct units_job *j, size_t g, struct lane *lane, struct timeline *timeline,
                          struct err *err) {
  struct engine *e = j->engine;
  const struct submit_batch *in = j->work->in;
  const struct batch_group *group = &in->groups[g];
  const struct unit_policies policies = {.current = e->learning.weights,
                                         .behaviour = in->after_steps > 0 ? e->learning.behaviour : NULL,
                                         .recorded = run_config_takes_behaviour(&e->run.training),
                                         .reference = e->learning.reference,
                                         .taught = e->run.training.teacher[0] != 0};
  struct unit unit;
  struct unit_result result;
  struct verified_unit verified = {.job = j, .g = g, .lane = lane, .policies = &policies, .unit = &unit};
  bool poisoned = false;
  if (in->check.wanted) return check_unit(j, g, lane, timeline, err);
  pthread_mutex_lock(&j->mutex);
  enum rc rc = unit_prepare(&unit, e->model, &policies, group, j->arena, err);
  if (rc == RC_OK && is_verified(j, g)) rc = verified_alloc(&verified, j->arena, err);
  pthread_mutex_unlock(&j->mutex);
  if (rc != RC_OK) return rc;
  if (is_verified(j, g)) {
    rc = verified_compute(&verified, &result, timeline, err);
  } else {
    gradient_begin(j, g, lane, &unit);
    rc = unit_compute(lane->learner, &policies, &e->run.unit, &unit, lane->gradient, &result, timeline, err);
  }
  if (rc != RC_OK) return rc;
  pthread_mutex_lock(&j->mutex);
  if (verified.refused == 0) poisoned = !gradient_end(j, g, lane);
  if (++j->done == (j->mine + 1) / 2) fault_die(TRAINER_FAULT_DIE_IN_BATCH, in->version);
  pthread_mutex_unlock(&j->mutex);
  if (timeline) result.compute_us += timeline_mark(timeline, CAUSE_COMPUTE, clock_monotonic_us());
  struct unit_report *r = &j->work->reports[g];
  *r = report_of(&result, group->sample_count, poisoned);
  if (verified.refused == 0) return RC_OK;
  r->stats = (struct batch_stats){.logprob_us = result.logprob_us, .compute_us = result.compute_us};
  r->refusals = verified.refusals;
  r->refusal_count = (size_t)verified.refused;
  return RC_OK;
}

/* Before a unit, on the engine's thread: whether to go on. */
static enum rc units_look(struct engine *e, struct err *err) {
  if (ranks_stopping(&e->ranks)) return err_set(err, RC_UNAVAILABLE, NULL, "the trainer is stopping");
  return e->ranks.comm->check(e->ranks.comm, err) == RC_OK ? RC_OK : ranks_lose(&e->ranks, err);
}

static bool unit_is_mine(const struct units_job *j, size_t g) {
  const struct comm *comm = j->engine->ranks.comm;
  return unit_rank(j->work->first + g, comm->size) == comm->rank;
}

static void units_one(struct units_job *j, size_t g, struct lane *lane) {
  struct engine *e = j->engine;
  const int thread = pool_thread(e->ops->pool);
  struct err err = {0};
  if (units_end(j) || j->work->reports[g].state != UNIT_ABSENT) return; /* its result was kept */
  enum rc rc = thread == 0 ? units_look(e, &err) : RC_OK;
  if (rc == RC_OK && unit_is_mine(j, g)) {
    rc = batch_unit(j, g, lane, thread == 0 ? &e->timeline : NULL, &err);
    if (rc != RC_OK) {
      j->work->reports[g] = (struct unit_report){.state = UNIT_FAILED, .error = err};
      rc = ranks_look_at_device(&e->ranks, rc, &err);
    }
  }
  if (rc == RC_OK) return;
  pthread_mutex_lock(&j->mutex);
  if (j->rc == RC_OK) {
    j->rc = rc;
    *j->err = err;
  }
  pthread_mutex_unlock(&j->mutex);
}

/* A lane takes units until there are no more.  Its number is the part's, not the thread's: any thread may come. */
static void units_lane(void *context, int lane) {
  struct units_job *j = context;
  for (size_t g; (g = atomic_fetch_add(&j->next, 1)) < j->work->in->group_count;)
    units_one(j, g, &j->engine->learning.lanes[lane]);
}

enum rc batch_units(struct engine *e, const struct batch_work *work, struct arena *arena, struct err *err) {
  struct units_job job = {.engine = e, .work = work, .arena = arena, .err = err};
  for (size_t g = 0; g < work->in->group_count; g++) job.mine += unit_is_mine(&job, g);
  fault_batch_begin();
  pthread_mutex_init(&job.mutex, NULL);
  if (e->options.lanes > 1)
    pool_run(e->ops->pool, units_lane, &job, e->options.lanes);
  else
    units_lane(&job, 0); /* all threads in each of its operations */
  pthread_mutex_destroy(&job.mutex);
  return job.rc;
}

/* The other ranks are told of the batch, and compute their units while this one does. */
static enum rc batch_tell(struct engine *e, const struct batch_work *work, struct err *err) {
  struct buf payload = BUF_INIT;
  if (ranks_alone(&e->ranks)) return RC_OK;
  buf_append(&payload, work->adds, work->in->group_count);
  const struct order order = {.kind = ORDER_BATCH,
                              .groups = work->in->group_count,
                              .first = work->first,
                              .steps = e->round.inner_steps,
                              .kl_coefficient = (double)e->run.unit.loss.kl_coefficient};
  enum rc rc = submit_batch_encode_tensors(work->in, &payload, err);
  if (rc == RC_OK) rc = ranks_tell(&e->ranks, &order, &payload, err);
  buf_free(&payload);
  return rc;
}

/* Collects the results of the other ranks' units.  Of their time only what this engine waits for them is counted. */
static enum rc batch_gather(struct engine *e, const struct batch_work *work, int64_t *waited_us, struct arena *arena,
                            struct err *err) {
  const struct submit_batch *in = work->in;
  struct buf mine = BUF_INIT, all = BUF_INIT;
  const int size = e->ranks.comm->size;
  if (ranks_alone(&e->ranks)) return RC_OK;
  size_t *begin = arena_alloc(arena, (size_t)size + 1, sizeof *begin);
  enum rc rc = begin ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "the bounds of %d ranks were refused memory", size);
  rc = rc == RC_OK ? ranks_exchange(&e->ranks, &mine, &all, begin, err) : ranks_lose(&e->ranks, err);
  for (int r = 1; rc == RC_OK && r < size; r++) {
    rc = unit_reports_decode(work->reports, in->groups, in->group_count, all.data + begin[r], begin[r + 1] - begin[r],
                             arena, err);
    if (rc != RC_OK) ranks_lose(&e->ranks, err);
  }
  buf_free(&all);
  *waited_us += timeline_mark(&e->timeline, CAUSE_COMPUTE, clock_monotonic_us());
  for (size_t g = 0; g < in->group_count; g++) {
    struct batch_stats *s = &work->reports[g].stats;
    if (unit_rank(work->first + g, size) != 0) s->logprob_us = s->compute_us = 0;
  }
  return rc;
}

/* Of a poisoned unit nothing. */
static int64_t kl_rounded(double kl) {
  const double units = kl * KL_UNITS;
  return units > -1e15 && units < 1e15 ? (int64_t)(units < 0 ? units - 0.5 : units + 0.5) : 0;
}

/* Until the group's batch asks for it. */
static void keep_ahead(struct engine *e, const struct batch_group *group, const struct unit_report *r) {
  struct digest content;
  batch_group_digest(&content, group);
  accumulated_keep(accumulated_find(e->next_step.accumulated, group->id), &content, &r->stats, r->samples,
                   r->sample_count);
}

/* A group that a check took ahead, as it comes in its batch: answered from what was kept. */
static enum rc take_kept(struct unit_report *r, const struct kept_unit *kept, const struct batch_group *group,
                         struct arena *arena, struct err *err) {
  struct digest content;
  size_t at = 0;
  batch_group_digest(&content, group);
  if (!digest_equal(&content, &kept->content))
    return err_set(err, RC_CONFLICT, "groups", "group %s was taken ahead of its batch with other samples or advantages",
                   group->id);
  float *numbers = arena_alloc(arena, 2 * kept->count + 1, sizeof *numbers);
  *r = (struct unit_report){.state = UNIT_DONE,
                            .stats = kept->stats,
                            .samples = arena_alloc(arena, group->sample_count + 1, sizeof *r->samples),
                            .sample_count = group->sample_count};
  if (!numbers || !r->samples)
    return err_set(err, RC_NO_MEMORY, NULL, "the results of group %s were refused memory", group->id);
  memcpy(numbers, kept->numbers, 2 * kept->count * sizeof *numbers);
  for (size_t i = 0; i < group->sample_count; i++) {
    const struct batch_sample *s = &group->samples[i];
    const size_t trained = wire_segments_trained(s->segments, s->segment_count);
    r->samples[i] = (struct sample_logprobs){
        .id = s->id, .logprobs = {numbers + at, trained}, .entropies = {numbers + kept->count + at, trained}};
    at += trained;
  }
  return RC_OK;
}

/* Whether a check may take a group ahead.  Of several ranks, and where the gradient goes into the sums before the last
 * draw is known, none is; nor where a group's gradient needs a teacher's log-probabilities. */
static bool may_go_ahead(const struct engine *e, const struct batch_group *group) {
  return group->ahead && ranks_alone(&e->ranks) && !e->learning.parts && e->run.training.update == UPDATE_STRICT &&
         !e->run.training.teacher[0];
}

/* Which groups go into the sums, and the results of those that were taken ahead. */
static enum rc units_plan(struct engine *e, const struct submit_batch *in, uint8_t *adds, struct unit_report *reports,
                          struct arena *arena, struct err *err) {
  size_t room = LIMIT_GROUPS_PER_ROUND - e->next_step.accumulated->count;
  enum rc rc = RC_OK;
  for (size_t g = 0; g < in->group_count && rc == RC_OK; g++) {
    const struct accumulated_group *known = accumulated_find(e->next_step.accumulated, in->groups[g].id);
    adds[g] = !known && (!in->check.wanted || (room > 0 && may_go_ahead(e, &in->groups[g])));
    room -= adds[g];
    if (known && known->kept && !in->check.wanted) rc = take_kept(&reports[g], known->kept, &in->groups[g], arena, err);
  }
  return rc;
}

/* Notes which groups are in the sums, in their order whichever rank computed them; also when the batch fails. */
static enum rc batch_settle(struct engine *e, const struct batch_work *work, struct err *err) {
  const struct submit_batch *in = work->in;
  enum rc rc = RC_OK;
  for (size_t g = 0; g < in->group_count; g++) {
    const struct unit_report *r = &work->reports[g];
    if (r->state == UNIT_FAILED && rc == RC_OK) rc = err_set(err, r->error.rc, r->error.field, "%s", r->error.message);
    if (r->state != UNIT_DONE || (!work->adds[g] && in->check.wanted)) continue;
    metric_add(e->metric_units, 1);
    if (!work->adds[g] || r->unlike || r->refusal_count > 0) continue;
    accumulated_add(e->next_step.accumulated, in->groups[g].id);
    if (in->check.wanted) keep_ahead(e, &in->groups[g], r);
    e->next_step.tokens += r->stats.tokens;
    e->round.loss += r->stats.loss;
    e->round.tokens += r->stats.tokens;
    e->round.samples += r->stats.samples;
    e->round.kl_units += kl_rounded(r->stats.kl_reference_sum);
  }
  for (size_t g = 0; rc == RC_OK && g < in->group_count; g++) {
    if (work->reports[g].state != UNIT_ABSENT) continue;
    ranks_stop(&e->ranks); /* a rank that was asked to stop leaves its units undone; so all stop */
    rc = err_set(err, RC_UNAVAILABLE, NULL, "the trainer is stopping");
  }
  return rc;
}

static enum rc batch_compute(struct engine *e, const struct batch_work *work, int64_t *waited_us, struct arena *arena,
                             struct err *err) {
  struct err own; /* the report of the unit has it too */
  enum rc rc = batch_tell(e, work, err);
  if (rc != RC_OK) return rc;
  batch_units(e, work, arena, &own);
  *waited_us = timeline_mark(&e->timeline, CAUSE_COMPUTE, clock_monotonic_us()); /* for the units of other threads */
  if ((rc = batch_gather(e, work, waited_us, arena, err)) != RC_OK) return rc;
  return batch_settle(e, work, err);
}

/* The units' results, one behind the other; out has room. */
static void answer_fill(struct batch_status *out, const struct submit_batch *in, const struct unit_report *reports) {
  size_t at = 0;
  for (size_t g = 0; g < in->group_count; g++) {
    const struct unit_report *r = &reports[g];
    if (r->refusal_count > 0)
      memcpy(out->refusals + out->refusal_count, r->refusals, r->refusal_count * sizeof *out->refusals);
    else
      memcpy(out->samples + at, r->samples, r->sample_count * sizeof *out->samples);
    out->refusal_count += r->refusal_count;
    at += r->refusal_count > 0 ? 0 : r->sample_count;
    if (r->difference_count > 0)
      memcpy(out->differences + out->difference_count, r->differences, r->difference_count * sizeof *out->differences);
    out->difference_count += r->difference_count;
    stats_add(&out->stats, &r->stats);
  }
  out->sample_count = at;
}

/* Time that a check took, and with which no batch will be answered: the next batch reports it, so that the sums are the
 * timeline's. */
static void checked_note(struct engine *e, const struct batch_work *work, int64_t waited_us) {
  e->next_step.checked_compute_us += waited_us;
  for (size_t g = 0; g < work->in->group_count; g++) {
    const struct unit_report *r = &work->reports[g];
    if (work->adds[g] && r->difference_count == 0) continue; /* kept with its results */
    e->next_step.checked_logprob_us += r->stats.logprob_us;
    e->next_step.checked_compute_us += r->stats.compute_us;
  }
}

static void checked_take(struct engine *e, struct batch_stats *out) {
  out->logprob_us += e->next_step.checked_logprob_us;
  out->compute_us += e->next_step.checked_compute_us;
  e->next_step.checked_logprob_us = e->next_step.checked_compute_us = 0;
}

enum rc batch_job(struct engine *e, struct job *job, struct err *err) {
  const struct submit_batch *in = &job->in.batch;
  struct batch_status *out = &job->out.batch;
  enum rc rc = batch_check(e, in, err);
  if (rc != RC_OK) return rc;
  size_t samples = 0;
  int64_t waited_us = 0;
  for (size_t g = 0; g < in->group_count; g++) samples += in->groups[g].sample_count;
  memset(out, 0, sizeof *out);
  out->samples = arena_alloc(&job->arena, samples + 1, sizeof *out->samples);
  if (in->check.wanted) out->differences = arena_alloc(&job->arena, samples + 1, sizeof *out->differences);
  out->refusals = arena_alloc(&job->arena, (in->verify.wanted ? samples : 0) + 1, sizeof *out->refusals);
  uint8_t *adds = arena_alloc(&job->arena, in->group_count + 1, sizeof *adds);
  struct unit_report *reports = arena_alloc(&job->arena, in->group_count + 1, sizeof *reports);
  if (!out->samples || !out->refusals || !adds || !reports || (in->check.wanted && !out->differences))
    return err_set(err, RC_NO_MEMORY, NULL, "the results of %zu samples were refused memory", samples);
  if ((rc = units_plan(e, in, adds, reports, &job->arena, err)) != RC_OK) return rc;
  const struct batch_work work = {.in = in, .adds = adds, .first = e->next_step.accumulated->count, .reports = reports};
  if ((rc = batch_compute(e, &work, &waited_us, &job->arena, err)) != RC_OK) return rc;
  answer_fill(out, in, reports);
  if (out->refusal_count > 0) fault_die(TRAINER_FAULT_DIE_AFTER_REFUSAL, in->version);
  if (in->check.wanted) { /* its stretch of the timeline goes with the next batch's */
    checked_note(e, &work, waited_us);
    return RC_OK;
  }
  out->stats.compute_us += waited_us;
  checked_take(e, &out->stats);
  for (size_t g = 0; g < in->group_count; g++)
    if (reports[g].refusal_count == 0) accumulated_find(e->next_step.accumulated, in->groups[g].id)->answered = true;
  metric_add(e->metric_tokens, (double)out->stats.tokens);
  timeline_take(&e->timeline, &out->intervals, &out->interval_count, 0, clock_wall_offset_us(), &job->arena);
  return RC_OK;
}
