/* Runs the engine's thread: takes messages, swaps weights, starts and ends jobs.  engine_step.c has the forward pass.
 *
 *   submit, cancel, activate, relabel, hand back --inbox--> handle --> live samples --> settle --> job->done
 *
 * Live samples are kept in order of arrival.  The samples of a finished or dropped job leave the list between steps
 * (settle), and then its done callback runs.
 *
 * Previous hop of a rollout: worker/leases.c, of a plain request: requests.c.  Next: engine_step.c, and in the end
 * their done callbacks, which only queue. */
#include "services/generation-server/engine/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/generation-server/engine/activation.h"
#include "services/generation-server/engine/branches.h"
#include "services/generation-server/engine/engine_state.h"
#include "services/generation-server/engine/engine_step.h"
#include "services/generation-server/engine/sample_life.h"
#include "services/generation-server/fault.h"

enum { ENGINE_IDLE_MS = 200 };

enum message_kind {
  MESSAGE_SUBMIT,
  MESSAGE_CANCEL,
  MESSAGE_ACTIVATE,
  MESSAGE_RELABEL,
  MESSAGE_HAND_BACK,
  MESSAGE_PAUSE,
  MESSAGE_RESUME
};

struct message {
  enum message_kind kind;
  struct decode_job *job;
  struct weights *weights;
  struct policy policy;
  char id[LIMIT_NAME_MAX];
  uint64_t fence;
  enum engine_pause pause;
};

/* --- creation --- */

static int rows_of(const struct engine_options *o) { return o->slots + o->prefill_chunk; }
static int pages_per_sequence(const struct engine_options *o) {
  return (o->model->context_max + o->page_tokens - 1) / o->page_tokens;
}
static size_t logits_bytes(const struct engine_options *o) {
  return (size_t)ENGINE_LOGITS_ROWS * (size_t)o->model->config.vocabulary * sizeof(float);
}

/* Takes count * size zeroed bytes for *out, unless measuring; what it takes is added up. */
struct taking {
  bool measuring, refused;
  size_t bytes;
};
static void *take(struct taking *t, size_t count, size_t size) {
  t->bytes += count * size;
  void *memory = t->measuring ? NULL : calloc(count, size);
  t->refused |= !t->measuring && !memory;
  return memory;
}

static void take_lists(struct engine *e, struct taking *t, const struct engine_options *o) {
  const size_t slots = (size_t)o->slots, rows = (size_t)rows_of(o), samples = (size_t)o->samples_max;
  e->live = take(t, samples, sizeof *e->live);
  e->items = take(t, samples, sizeof *e->items);
  e->take = take(t, samples, sizeof *e->take);
  e->slot_used = take(t, slots, sizeof *e->slot_used);
  e->sequence = take(t, rows, sizeof *e->sequence);
  e->position = take(t, rows, sizeof *e->position);
  e->computed = take(t, rows, sizeof *e->computed);
  e->tokens = take(t, rows, sizeof *e->tokens);
  e->computed_sequence = take(t, rows, sizeof *e->computed_sequence);
  e->computed_position = take(t, rows, sizeof *e->computed_position);
  e->logits_row = take(t, rows, sizeof *e->logits_row);
  e->pages = take(t, slots * (size_t)pages_per_sequence(o), sizeof *e->pages);
  e->picks = take(t, rows, sizeof *e->picks);
}

struct engine_memory engine_memory(const struct engine_options *o) {
  const struct model *m = o->model;
  struct taking t = {.measuring = true};
  struct engine measured = {0};
  take_lists(&measured, &t, o);
  return (struct engine_memory){.kv = (size_t)o->pages * kv_page_bytes(m, o->page_tokens),
                                .scratch = workspace_bytes(m, rows_of(o), o->slots * pages_per_sequence(o)) +
                                           logits_bytes(o) + sampler_bytes(m->ops, m->config.vocabulary) + t.bytes};
}

static bool allocate(struct engine *e) {
  struct taking t = {0};
  take_lists(e, &t, &e->options);
  for (int i = 0; e->logits_row && i < e->rows_max; i++) e->logits_row[i] = -1;
  e->logits = e->model->ops->alloc(e->model->ops, logits_bytes(&e->options));
  e->sampler = sampler_create(e->model->ops, e->model->config.vocabulary);
  return !t.refused && e->logits && e->sampler;
}

enum rc engine_create(struct engine **out, const struct engine_options *options, struct err *err) {
  *out = NULL;
  struct engine *e = calloc(1, sizeof *e);
  if (!e) return err_set(err, RC_NO_MEMORY, NULL, "the engine was refused its memory");
  e->options = *options;
  e->model = options->model;
  e->rows_max = rows_of(options);
  e->pages_per_sequence = pages_per_sequence(options);
  pthread_mutex_init(&e->mutex, NULL);
  enum rc rc = kv_cache_create(&e->kv, e->model, options->pages, options->page_tokens, err);
  if (rc == RC_OK) rc = workspace_create(&e->ws, e->model, e->rows_max, options->slots * e->pages_per_sequence, err);
  if (rc == RC_OK) rc = queue_create(&e->inbox, (size_t)options->inbox_max, err);
  if (rc == RC_OK && !allocate(e))
    rc = err_set(err, RC_NO_MEMORY, NULL,
                 "the engine's buffers for %d rows, %d samples, %d slots of %d pages and %d x %d logits were refused",
                 e->rows_max, options->samples_max, options->slots, e->pages_per_sequence, ENGINE_LOGITS_ROWS,
                 e->model->config.vocabulary);
  if (rc != RC_OK) {
    engine_free(e);
    return rc;
  }
  atomic_store(&e->shown_pages_free, kv_pages_free(e->kv));
  activation_open(e);
  *out = e;
  return RC_OK;
}

struct weights *engine_free(struct engine *e) {
  if (!e) return NULL;
  struct weights *active = e->active;
  assert(e->live_count == 0);
  queue_destroy(e->inbox);
  sampler_free(e->sampler);
  if (e->logits) e->model->ops->release(e->model->ops, e->logits);
  workspace_free(e->ws);
  kv_cache_free(e->kv);
  free(e->slot_used);
  free(e->sequence);
  free(e->position);
  free(e->computed);
  free(e->tokens);
  free(e->computed_sequence);
  free(e->computed_position);
  free(e->logits_row);
  free(e->pages);
  free(e->picks);
  free(e->live);
  free(e->items);
  free(e->take);
  pthread_mutex_destroy(&e->mutex);
  free(e);
  return active;
}

/* --- messages, from any thread --- */

static enum rc post(struct engine *e, const struct message *m, struct err *err) {
  struct message *copy = malloc(sizeof *copy);
  if (!copy) return err_set(err, RC_NO_MEMORY, NULL, "a message to the engine was refused its memory");
  *copy = *m;
  const enum rc rc = queue_push(e->inbox, copy);
  if (rc == RC_OK) return RC_OK;
  free(copy);
  if (rc == RC_FULL)
    return err_set(err, RC_FULL, NULL, "the engine's inbox holds %d messages already", e->options.inbox_max);
  return err_set(err, rc, NULL, "the engine has stopped");
}

enum rc engine_submit(struct engine *e, struct decode_job *job, struct err *err) {
  return post(e, &(struct message){.kind = MESSAGE_SUBMIT, .job = job}, err);
}

enum rc engine_cancel(struct engine *e, const char *id, uint64_t fence) {
  struct message m = {.kind = MESSAGE_CANCEL, .fence = fence};
  snprintf(m.id, sizeof m.id, "%s", id);
  return post(e, &m, NULL);
}

enum rc engine_activate(struct engine *e, struct weights *weights, const struct policy *policy) {
  return post(e, &(struct message){.kind = MESSAGE_ACTIVATE, .weights = weights, .policy = *policy}, NULL);
}

enum rc engine_relabel(struct engine *e, const struct policy *policy) {
  return post(e, &(struct message){.kind = MESSAGE_RELABEL, .policy = *policy}, NULL);
}

enum rc engine_hand_back(struct engine *e) { return post(e, &(struct message){.kind = MESSAGE_HAND_BACK}, NULL); }

enum rc engine_pause(struct engine *e, enum engine_pause mode) {
  return post(e, &(struct message){.kind = MESSAGE_PAUSE, .pause = mode}, NULL);
}

enum rc engine_resume(struct engine *e) { return post(e, &(struct message){.kind = MESSAGE_RESUME}, NULL); }

/* --- jobs --- */

/* Ends samples whose text has met a stop text: further tokens are not wanted. */
static void finish_texts(struct engine *e) {
  for (int i = 0; i < e->live_count; i++)
    if (e->live[i]->state != DECODE_DONE && atomic_load_explicit(&e->live[i]->text_over, memory_order_relaxed))
      sample_finish(e, e->live[i], FINISH_STOP);
}

/* After a step or a message: finished samples leave the list, the follower is woken, then ended jobs leave the engine
 * (done may free them). */
static void settle(struct engine *e) {
  int kept = 0;
  for (int i = 0; i < e->live_count; i++)
    if (e->live[i]->state != DECODE_DONE) e->live[kept++] = e->live[i];
  e->live_count = kept;
  if (e->told) e->told->wake(e->told->context);
  e->told = NULL;
  while (e->ended) {
    struct decode_job *job = e->ended;
    e->ended = job->next_ended;
    job->done(job, job->context);
  }
}

static void take_job(struct engine *e, struct decode_job *job) {
  if (job->done_count == job->sample_count) { /* an earlier holder had finished all of them */
    for (int32_t i = 0; i < job->sample_count; i++)
      if (job->sample_done) job->sample_done(job, job->context);
    decode_job_ended(e, job, DECODE_JOB_COMPLETE);
    return;
  }
  for (int32_t i = 0; i < job->done_count; i++)
    if (job->sample_done) job->sample_done(job, job->context);
  const bool fits = e->active && activation_allows(job, &e->policy);
  const bool room = e->live_count + job->sample_count <= e->options.samples_max;
  if (e->failed || !fits || !room) {
    log_context_id(job->id);
    if (e->failed)
      log_info("%s goes back: the device has failed", job->id);
    else if (!fits)
      log_info("%s goes back: the weights here are version %lld, it is valid for %lld-%lld", job->id,
               (long long)e->policy.version, (long long)job->version_min, (long long)job->version_max);
    else
      log_warn("%s goes back: it has %d samples, and %d of at most %d are open here", job->id, job->sample_count,
               e->live_count, e->options.samples_max);
    log_context_clear();
    decode_job_break_off(e, job, job->kind == DECODE_JOB_OF_LEASE ? DECODE_JOB_HANDED_BACK : DECODE_JOB_DROPPED);
    return;
  }
  job->taken = true;
  branches_begin(job);
  job->late = atomic_load(&e->pausing);
  for (int32_t i = 0; i < job->sample_count; i++)
    if (job->samples[i].state != DECODE_DONE) e->live[e->live_count++] = &job->samples[i];
}

/* Ends every live job for which `which` holds, e.g. those that the new policy voids. */
static void end_jobs(struct engine *e,
                     bool (*which)(const struct engine *, const struct decode_job *, const struct message *),
                     const struct message *m, enum decode_job_end end) {
  for (int i = 0; i < e->live_count; i++)
    if (e->live[i]->state != DECODE_DONE && which(e, e->live[i]->job, m)) decode_job_break_off(e, e->live[i]->job, end);
}

static bool is_void(const struct engine *e, const struct decode_job *job, const struct message *m) {
  return (void)e, !activation_allows(job, &m->policy);
}
static bool is_lease(const struct engine *e, const struct decode_job *job, const struct message *m) {
  return (void)e, (void)m, job->kind == DECODE_JOB_OF_LEASE;
}
static bool is_named(const struct engine *e, const struct decode_job *job, const struct message *m) {
  return (void)e, m->fence == job->fence && strcmp(job->id, m->id) == 0;
}
static bool is_abandoned(const struct engine *e, const struct decode_job *job, const struct message *m) {
  (void)e, (void)m;
  return (job->abandoned && atomic_load_explicit(job->abandoned, memory_order_relaxed)) ||
         (job->abandoned_alone && atomic_load_explicit(job->abandoned_alone, memory_order_relaxed));
}
static bool is_nonfinite(const struct engine *e, const struct decode_job *job, const struct message *m) {
  return (void)e, (void)m, job->nonfinite;
}
static bool is_any(const struct engine *e, const struct decode_job *job, const struct message *m) {
  return (void)e, (void)job, (void)m, true;
}

/* --- activation --- */

static void show_policy(struct engine *e, const struct policy *policy) {
  e->policy = *policy;
  pthread_mutex_lock(&e->mutex);
  e->shown = *policy;
  e->shown_valid = true;
  pthread_mutex_unlock(&e->mutex);
}

/* Threads that are woken may take the processor from this one, so that samples would pause for them: they are told when
 * the first step under the new weights is done, or at once when there is none. */
static void tell_activated(struct engine *e) {
  if (!e->swapped) return;
  e->swapped = false;
  if (e->options.activated) e->options.activated(e->options.context, e->replaced, &e->policy);
}

/* Leases that are not valid for the new version go back, under the old one that they were decoded with: the coordinator
 * has voided them, or else grants them to another server.  The others go on: their next tokens are drawn under the new
 * weights. */
static void activate(struct engine *e, const struct message *m) {
  tell_activated(e);
  e->replaced = e->active;
  end_jobs(e, is_void, m, DECODE_JOB_HANDED_BACK);
  activation_pauses(e);
  e->active = m->weights;
  e->swap++;
  show_policy(e, &m->policy);
  fault_after_activation(e->active);
  activation_drop_kv(e);
  atomic_fetch_add(&e->activations, 1);
  e->swapped = true;
}

/* --- the pause --- */

static bool is_request(const struct engine *e, const struct decode_job *job, const struct message *m) {
  return (void)e, (void)m, job->kind == DECODE_JOB_OF_REQUEST;
}

/* Who sees the pause sees what it has left. */
static void pause(struct engine *e, const struct message *m) {
  if (m->pause == ENGINE_PAUSE_ABORT) end_jobs(e, is_request, m, DECODE_JOB_DROPPED);
  for (int i = 0; i < e->live_count && m->pause == ENGINE_PAUSE_RETRACT; i++)
    sample_evict(e, e->live[i]); /* one without a slot may share its prompt's */
  settle(e);
  samples_show(e);
  atomic_store(&e->pausing, m->pause == ENGINE_PAUSE_WAIT);
  atomic_store(&e->paused, m->pause != ENGINE_PAUSE_WAIT);
}

static void resume(struct engine *e) {
  atomic_store(&e->pausing, false);
  atomic_store(&e->paused, false);
  for (int i = 0; i < e->live_count; i++) e->live[i]->job->late = false;
}

/* The pause that was waited for begins with the end of the last job from before. */
static void rest_when_due(struct engine *e) {
  bool due = atomic_load(&e->pausing);
  for (int i = 0; i < e->live_count && due; i++) due = e->live[i]->job->late || e->live[i]->state == DECODE_DONE;
  if (!due) return;
  atomic_store(&e->paused, true);
  atomic_store(&e->pausing, false);
}

static void handle(struct engine *e, const struct message *m) {
  switch (m->kind) {
    case MESSAGE_SUBMIT: take_job(e, m->job); break;
    case MESSAGE_CANCEL: end_jobs(e, is_named, m, DECODE_JOB_DROPPED); break;
    case MESSAGE_ACTIVATE: activate(e, m); break;
    case MESSAGE_RELABEL:
      if (!e->active || !digest_equal(&m->policy.digest, &e->policy.digest)) break; /* swapped since */
      end_jobs(e, is_void, m, DECODE_JOB_HANDED_BACK);
      show_policy(e, &m->policy);
      break;
    case MESSAGE_HAND_BACK: end_jobs(e, is_lease, m, DECODE_JOB_HANDED_BACK); break;
    case MESSAGE_PAUSE: pause(e, m); break;
    case MESSAGE_RESUME: resume(e); break;
  }
}

/* Handles all messages that wait; waits up to wait_ms for the first one. */
static bool take_messages(struct engine *e, int64_t wait_ms) {
  bool any = false;
  void *item;
  while (queue_pop(e->inbox, &item, any ? 0 : wait_ms) == RC_OK) {
    handle(e, item);
    free(item);
    settle(e);
    any = true;
  }
  return any;
}

/* --- the thread --- */

/* Results computed since the device failed are dropped; tokens from before are kept. */
static void give_up(struct engine *e) {
  end_jobs(e, is_lease, NULL, DECODE_JOB_HANDED_BACK);
  end_jobs(e, is_any, NULL, DECODE_JOB_DROPPED);
  settle(e);
}

bool engine_step(struct engine *e) {
  const bool told = take_messages(e, 0);
  end_jobs(e, is_abandoned, NULL, DECODE_JOB_DROPPED);
  finish_texts(e);
  settle(e);
  rest_when_due(e);
  const bool computed = e->active && !e->failed && !atomic_load(&e->paused) && step_run(e);
  if (e->failed) {
    give_up(e);
  } else if (computed) {
    if (e->nonfinite) end_jobs(e, is_nonfinite, NULL, DECODE_JOB_HANDED_BACK);
    e->nonfinite = false;
    settle(e);
    fault_after_step(e->live, e->live_count, e->kv);
  }
  tell_activated(e);
  activation_settle(e);
  if (computed) activation_step_ended(e, clock_monotonic_us());
  rest_when_due(e);
  samples_show(e);
  return told || computed;
}

static void *engine_main(void *argument) {
  struct engine *e = argument;
  pool_enter();
  while (!atomic_load(&e->stop))
    if (!engine_step(e)) take_messages(e, ENGINE_IDLE_MS);
  end_jobs(e, is_any, NULL, DECODE_JOB_DROPPED);
  settle(e);
  samples_show(e);
  return NULL;
}

enum rc engine_start(struct engine *e, struct err *err) {
  const int failed = pthread_create(&e->thread, NULL, engine_main, e);
  if (failed != 0)
    return err_set(err, RC_NO_MEMORY, NULL, "the engine's thread could not be made: %s", strerror(failed));
  e->started = true;
  return RC_OK;
}

/* Handles the messages that came after the thread had ended, so that no job and no set of weights is lost. */
static void refuse_messages(struct engine *e) {
  void *item;
  while (queue_pop(e->inbox, &item, 0) == RC_OK) {
    struct message *m = item;
    if (m->kind == MESSAGE_SUBMIT) decode_job_break_off(e, m->job, DECODE_JOB_DROPPED);
    if (m->kind == MESSAGE_ACTIVATE) activate(e, m);
    free(m);
    settle(e);
  }
  tell_activated(e);
}

void engine_stop(struct engine *e) {
  queue_close(e->inbox);
  atomic_store(&e->stop, true);
  if (e->started) pthread_join(e->thread, NULL);
  e->started = false;
  end_jobs(e, is_any, NULL, DECODE_JOB_DROPPED);
  settle(e);
  refuse_messages(e);
}

/* --- reading, from any thread --- */

enum rc engine_failure(struct engine *e, struct err *err) {
  pthread_mutex_lock(&e->mutex);
  const struct err failure = e->failure;
  pthread_mutex_unlock(&e->mutex);
  if (failure.rc != RC_OK && err) *err = failure;
  return failure.rc;
}

bool engine_paused(const struct engine *e) { return atomic_load(&e->paused); }

bool engine_pausing(const struct engine *e) { return atomic_load(&e->pausing); }

bool engine_settled(const struct engine *e) { return !atomic_load(&e->recomputing); }

bool engine_policy(struct engine *e, struct policy *out) {
  pthread_mutex_lock(&e->mutex);
  const bool valid = e->shown_valid;
  *out = e->shown;
  pthread_mutex_unlock(&e->mutex);
  return valid;
}

void engine_read_counters(struct engine *e, struct engine_counters *out) {
  *out = (struct engine_counters){.tokens_sampled = atomic_load(&e->tokens_sampled),
                                  .steps = atomic_load(&e->steps),
                                  .rows = atomic_load(&e->rows),
                                  .rows_shared = atomic_load(&e->rows_shared),
                                  .preemptions = atomic_load(&e->preemptions),
                                  .activations = atomic_load(&e->activations),
                                  .pauses = atomic_load(&e->pauses),
                                  .pause_us = atomic_load(&e->pause_us),
                                  .recomputed = atomic_load(&e->recomputed),
                                  .busy_slot_us = atomic_load(&e->busy_slot_us),
                                  .slots_busy = atomic_load(&e->shown_slots_busy),
                                  .samples_waiting = atomic_load(&e->shown_waiting),
                                  .pages_free = atomic_load(&e->shown_pages_free),
                                  .pages_total = kv_pages_total(e->kv)};
  for (int i = 0; i < WIRE_STEP_SLOTS; i++) {
    out->by_rows[i] = (struct engine_steps){.steps = atomic_load(&e->by_rows[i].steps),
                                            .rows = atomic_load(&e->by_rows[i].rows),
                                            .us = atomic_load(&e->by_rows[i].us)};
  }
}

const struct kv_cache *engine_kv(const struct engine *e) { return e->kv; }
