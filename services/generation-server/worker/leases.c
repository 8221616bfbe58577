/* Pulls leases, submits them to the engine as decode jobs, and posts their results.
 *
 * Owns the table of held leases, one puller thread, POSTERS poster threads and their HTTP clients.  Called by
 * heartbeat.c (leases held, leases lost, a new registration), by server.c (other weights are active), and by the
 * engine's thread (job callbacks, which only queue).
 *
 * The mutex is never held across a call to the coordinator; it is held across engine_submit and engine_cancel, which
 * never wait, so that the two cannot overtake each other.  Lock order: this mutex, then the engine's inbox.
 *
 * Memory: a lease's decode job is made at the pull and freed after its post; HELD_MAX leases bound them all.  A result
 * that the coordinator refuses is dropped here, never changed and never sent under another fence.
 *
 * Previous hop of a rollout: coordinator/api/route_leases.c.  Next: engine/decode_job.c and engine.c, then
 * coordinator/api/route_results.c. */
#include "services/generation-server/worker/leases.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/client/coordinator_client.h"
#include "common/client/lease_work.h"

enum {
  POSTERS = 8, /* results posted at once: they share a commit of the coordinator */
  POLL_WAIT_MS = 15000,
  POLL_SLACK_MS = 5000,
  POST_DEADLINE_MS = 20000,
  PAUSE_MS = 100,    /* between polls that returned early with nothing */
  LOADING_MS = 1000, /* the same while the model is loaded, whose end ends the pause */
  DRAIN_LOOK_MS = 100,
  BACKOFF_MIN_MS = 100,
  BACKOFF_MAX_MS = 3000,
  FAILURES_MAX = 8, /* answers 500 to one result */
  HELD_MAX = 2 * LIMIT_SLOTS
};

struct held {
  struct held *next;
  char id[LIMIT_NAME_MAX], worker_id[LIMIT_NAME_MAX];
  uint64_t epoch, fence;
  struct decode_job *job; /* while posting; NULL: it could not be taken, and is handed back unchanged */
  bool lost;

  /* Of a lease that could not be taken. */
  struct digest weights_digest;
  int32_t sample_first, sample_count;
  char refused[WIRE_REFUSED_BYTES + 1]; /* why it can never be run here; "": it could, later */

  struct log_context log;
};

struct leases {
  struct leases_options options;
  atomic_bool cancel_pull, cancel_post; /* end running calls */
  struct http_client *pull_http, *post_http[POSTERS];
  struct queue *results; /* of struct held */
  pthread_t puller, posters[POSTERS];
  int posters_started;
  bool puller_started;

  pthread_mutex_t mutex; /* guards everything below */
  pthread_cond_t changed;
  struct held *held;
  int held_count;
  int samples_live; /* of held leases, not finished */
  struct engine *engine;
  const struct model *model;
  const struct tokenizer *tokenizer; /* NULL: there is none */
  char worker_id[LIMIT_NAME_MAX]; /* "": not registered */
  uint64_t epoch;
  int64_t taken; /* leases found in answers since the registration: the coordinator sees by it which answer was lost */
  bool counts;   /* tells the coordinator so: one of an earlier version refuses what it does not know */
  uint64_t activity; /* counts wake-ups, so that none is missed */
  bool draining, stopping;
  int64_t posted, tokens_resumed;
};

/* --- the table; mutex held --- */

static void notify(struct leases *l) {
  l->activity++;
  pthread_cond_broadcast(&l->changed);
}

/* Fills idle slots at once, the prefetched part by halves: asking for single samples would cut groups to pieces and
 * lose the shared prompt. */
static int samples_wanted(const struct leases *l) {
  const int room = l->options.slots + l->options.prefetch - l->samples_live;
  const bool idle_slot = l->samples_live < l->options.slots;
  const int least = l->options.prefetch / 2 > 1 ? l->options.prefetch / 2 : 1;
  if (l->held_count >= HELD_MAX) return 0;
  return room >= least || (idle_slot && room > 0) ? room : 0;
}

/* Wakes the puller if there is room for a poll; most samples that end free too little. */
static void notify_room(struct leases *l) {
  if (l->draining || samples_wanted(l) > 0) notify(l);
}

static void forget(struct leases *l, struct held *h) {
  for (struct held **at = &l->held; *at; at = &(*at)->next) {
    if (*at != h) continue;
    *at = h->next;
    l->held_count--;
    free(h);
    break;
  }
  notify_room(l);
}

/* Waits until something changes, at most ms. */
static void wait_change(struct leases *l, uint64_t seen, int64_t ms) {
  const struct timespec until = clock_deadline_in(ms);
  while (l->activity == seen && !l->stopping && !l->draining)
    if (pthread_cond_timedwait(&l->changed, &l->mutex, &until) != 0) return;
}

static void lose(struct leases *l, struct held *h) {
  if (h->lost) return;
  h->lost = true;
  if (l->engine) engine_cancel(l->engine, h->id, h->fence);
}

/* --- the engine's callbacks --- */

static void on_sample_done(struct decode_job *job, void *context) {
  struct leases *l = context;
  (void)job;
  pthread_mutex_lock(&l->mutex);
  l->samples_live--;
  notify_room(l);
  pthread_mutex_unlock(&l->mutex);
}

static void on_done(struct decode_job *job, void *context) {
  struct leases *l = context;
  struct held *h = job->owner;
  pthread_mutex_lock(&l->mutex);
  const bool post = job->end != DECODE_JOB_DROPPED && !h->lost;
  h->job = job;
  if (post && queue_push(l->results, h) == RC_OK) {
    pthread_mutex_unlock(&l->mutex);
    return;
  }
  if (post) {
    log_context_restore(&h->log);
    log_warn("lease %s is dropped: the queue of results is full", h->id);
    log_context_clear();
  }
  forget(l, h);
  pthread_mutex_unlock(&l->mutex);
  decode_job_free(job);
}

/* --- the puller --- */

/* A lease for several versions says that its run's versions come while samples are drawn. */
static void tell_ahead(struct leases *l, const struct lease_answer *answer) {
  for (size_t i = 0; i < answer->lease_count; i++) {
    const struct lease *lease = &answer->leases[i];
    if (lease->version_max > lease->version_min) l->options.told_ahead(l->options.context, lease->run);
  }
}

static struct held *hold(struct leases *l, const struct lease *lease, const char *worker_id, uint64_t epoch) {
  struct held *h = calloc(1, sizeof *h);
  if (!h) return NULL;
  snprintf(h->id, sizeof h->id, "%s", lease->id);
  snprintf(h->worker_id, sizeof h->worker_id, "%s", worker_id);
  h->epoch = epoch;
  h->fence = lease->fence;
  h->weights_digest = lease->weights_digest;
  h->sample_first = lease->sample_first;
  h->sample_count = lease->sample_count;
  log_context_save(&h->log);
  h->next = l->held;
  l->held = h;
  l->held_count++;
  return h;
}

/* A lease that cannot be run here goes back at once.  When it never can be, the answer says so, and the coordinator
 * grants it to another server.  Mutex held. */
static void give_back(struct leases *l, struct held *h, const struct err *why) {
  log_error("lease %s cannot be run here: %s", h->id, why->message);
  if (why->rc == RC_INVALID) snprintf(h->refused, sizeof h->refused, "%.*s", WIRE_REFUSED_BYTES, why->message);
  if (queue_push(l->results, h) != RC_OK) forget(l, h); /* it expires, then another server gets it */
}

/* False when the lease is handed back. */
static bool take_lease(struct leases *l, const struct lease *lease, const char *worker_id, uint64_t epoch) {
  struct err err;
  struct decode_job *job = NULL;
  lease_work(lease);
  log_debug("lease %s is taken, %d samples from %d on", lease->id, lease->sample_count, lease->sample_first);
  enum rc rc = decode_job_of_lease(&job, lease, l->model, l->tokenizer, engine_kv(l->engine), &err);
  pthread_mutex_lock(&l->mutex);
  struct held *h = hold(l, lease, worker_id, epoch);
  if (h && rc == RC_OK) {
    job->owner = h;
    job->context = l;
    job->sample_done = on_sample_done;
    job->done = on_done;
    l->samples_live += lease->sample_count;
    for (size_t i = 0; i < lease->partial_count; i++) l->tokens_resumed += (int64_t)lease->partials[i].token_ids.count;
    rc = engine_submit(l->engine, job, &err); /* under the mutex: a cancellation must not get ahead of it */
    if (rc == RC_OK) job = NULL;
    if (rc != RC_OK) l->samples_live -= lease->sample_count;
  }
  if (h && rc != RC_OK) give_back(l, h, &err);
  pthread_mutex_unlock(&l->mutex);
  log_context_clear();
  decode_job_free(job);
  return h && rc == RC_OK;
}

/* Of an answer with so many leases, or of its failure, rc.  False: the registration that asked for it is over. */
static bool note_answer(struct leases *l, const char *worker_id, uint64_t epoch, enum rc rc, size_t leases) {
  pthread_mutex_lock(&l->mutex);
  const bool mine = epoch == l->epoch && strcmp(worker_id, l->worker_id) == 0;
  if (mine && rc == RC_OK) l->taken += (int64_t)leases;
  if (mine && rc == RC_INVALID) l->counts = false;
  pthread_mutex_unlock(&l->mutex);
  return mine;
}

/* One poll, without the mutex. Returns how long to pause before the next, 0: not at all.  engine: NULL before there is
 * one. */
static int64_t poll_once(struct leases *l, struct lease_request *request, struct engine *engine,
                         const char *worker_id) {
  struct arena arena = ARENA_INIT;
  struct err err;
  struct lease_answer answer;
  struct policy active;
  int64_t pause_ms = 0;
  request->has_loaded = engine && engine_policy(engine, &active);
  if (request->has_loaded) request->loaded_digest = active.digest;
  request->wait_ms = POLL_WAIT_MS;
  const struct coordinator_client client = {l->pull_http, l->options.coordinator};
  const int64_t begin_ms = clock_monotonic_ms();
  const enum rc rc =
      coordinator_leases(&client, worker_id, request, &answer, &arena, POLL_WAIT_MS + POLL_SLACK_MS, &err);
  const bool mine = note_answer(l, worker_id, request->epoch, rc, rc == RC_OK ? answer.lease_count : 0);
  if (rc == RC_OK && mine) {
    tell_ahead(l, &answer);
    l->options.told_current(l->options.context, &answer.current);
    bool all = answer.lease_count > 0 || clock_monotonic_ms() - begin_ms >= PAUSE_MS;
    for (size_t i = 0; i < answer.lease_count; i++) all &= take_lease(l, &answer.leases[i], worker_id, request->epoch);
    if (!all) pause_ms = engine ? PAUSE_MS : LOADING_MS;
  } else if (rc == RC_CONFLICT || rc == RC_NOT_FOUND) {
    if (mine) l->options.stale(l->options.context);
    pause_ms = PAUSE_MS;
  } else if (rc != RC_OK) {
    if (!atomic_load(&l->cancel_pull)) log_warn("asking for leases: %s", err.message);
    pause_ms = rc == RC_TIMEOUT ? PAUSE_MS : 5 * PAUSE_MS;
  }
  arena_free(&arena);
  return pause_ms;
}

static void *puller_main(void *argument) {
  struct leases *l = argument;
  pthread_mutex_lock(&l->mutex);
  while (!l->stopping && !l->draining) {
    const uint64_t seen = l->activity;
    struct engine *const engine = l->engine;
    /* Without an engine it asks not for leases, but to be told of the first version as soon as there is one; then the
     * model is loaded. */
    const int wanted = l->worker_id[0] ? samples_wanted(l) : 0;
    if (wanted <= 0) {
      wait_change(l, seen, 1000);
      continue;
    }
    struct lease_request request = {
        .epoch = l->epoch, .slots_free = wanted, .has_taken = l->counts, .leases_taken = l->taken};
    char worker_id[LIMIT_NAME_MAX];
    memcpy(worker_id, l->worker_id, sizeof worker_id);
    pthread_mutex_unlock(&l->mutex);
    const int64_t pause_ms = poll_once(l, &request, engine, worker_id);
    pthread_mutex_lock(&l->mutex);
    if (pause_ms > 0)
      wait_change(l, seen, pause_ms); /* returns at once when something changed meanwhile, such as the active weights */
  }
  pthread_mutex_unlock(&l->mutex);
  return NULL;
}

/* --- the posters --- */

/* A coordinator that cannot be reached is retried for ever, one that answers with errors of its own FAILURES_MAX
 * times. */
static bool worth_retrying(enum rc rc, int failures) {
  if (rc == RC_UNAVAILABLE || rc == RC_TIMEOUT || rc == RC_FULL) return true;
  return (rc == RC_INTERNAL || rc == RC_IO || rc == RC_NO_MEMORY) && failures < FAILURES_MAX;
}

static bool abandoned(struct leases *l, const struct held *h) {
  pthread_mutex_lock(&l->mutex);
  const bool yes = h->lost || l->stopping;
  pthread_mutex_unlock(&l->mutex);
  return yes;
}

static void backoff(struct leases *l, const struct held *h, int64_t ms) {
  const struct timespec until = clock_deadline_in(ms);
  pthread_mutex_lock(&l->mutex);
  while (!h->lost && !l->stopping)
    if (pthread_cond_timedwait(&l->changed, &l->mutex, &until) != 0) break;
  pthread_mutex_unlock(&l->mutex);
}

/* The result that hands back a lease unchanged: it could not be taken, or what was drawn is not finite. */
static enum rc nothing_done(struct lease_result *out, const struct held *h, struct arena *arena, struct err *err) {
  const struct decode_job *drawn = h->job; /* NULL: nothing */
  *out = (struct lease_result){.fence = h->fence,
                               .loaded_digest = drawn ? drawn->policy.digest : h->weights_digest,
                               .handed_back = true,
                               .refused = h->refused[0] ? h->refused : NULL,
                               .nonfinite = drawn != NULL,
                               .nonfinite_version = drawn ? drawn->nonfinite_version : 0,
                               .sample_count = (size_t)h->sample_count};
  out->samples = arena_alloc(arena, out->sample_count, sizeof *out->samples);
  if (!out->samples) return err_set(err, RC_NO_MEMORY, NULL, "a result was refused its memory");
  for (int32_t i = 0; i < h->sample_count; i++)
    out->samples[i] = (struct sample_result){.sample = h->sample_first + i, .finish = FINISH_ABORT};
  return RC_OK;
}

static void post(struct leases *l, struct http_client *http, struct held *h) {
  struct arena arena = ARENA_INIT;
  struct err err;
  struct lease_result result;
  const bool finite = h->job && !h->job->nonfinite;
  enum rc rc = finite ? decode_job_result(&result, h->job, &arena, &err) : nothing_done(&result, h, &arena, &err);
  if (result.nonfinite)
    log_error("lease %s goes back: log-probabilities under version %lld are not finite here", h->id,
              (long long)result.nonfinite_version);
  result.worker_id = h->worker_id;
  result.epoch = h->epoch;
  int64_t wait_ms = BACKOFF_MIN_MS;
  int failures = 0;
  const struct coordinator_client client = {http, l->options.coordinator};
  while (rc == RC_OK && !abandoned(l, h)) {
    struct lease_result_answer answer;
    struct arena scratch = ARENA_INIT;
    const enum rc sent = coordinator_put_result(&client, h->id, &result, &answer, &scratch, POST_DEADLINE_MS, &err);
    arena_free(&scratch);
    if (sent == RC_OK) {
      pthread_mutex_lock(&l->mutex);
      l->posted++;
      pthread_mutex_unlock(&l->mutex);
      break;
    }
    log_warn("result of lease %s: %s", h->id, err.message);
    if (!worth_retrying(sent, ++failures)) break;
    backoff(l, h, wait_ms);
    wait_ms = wait_ms * 2 < BACKOFF_MAX_MS ? wait_ms * 2 : BACKOFF_MAX_MS;
  }
  if (rc != RC_OK) log_error("result of lease %s: %s", h->id, err.message);
  arena_free(&arena);
}

struct poster {
  struct leases *leases;
  struct http_client *http;
};

static void *poster_main(void *argument) {
  const struct poster p = *(struct poster *)argument;
  struct leases *l = p.leases;
  free(argument);
  void *item;
  for (;;) {
    const enum rc rc = queue_pop(l->results, &item, 1000);
    if (rc == RC_TIMEOUT) continue;
    if (rc != RC_OK) return NULL; /* closed and empty */
    struct held *h = item;
    log_context_restore(&h->log);
    post(l, p.http, h);
    log_context_clear();
    struct decode_job *job = h->job;
    pthread_mutex_lock(&l->mutex);
    forget(l, h);
    pthread_mutex_unlock(&l->mutex);
    decode_job_free(job);
  }
}

/* --- life --- */

static enum rc start_threads(struct leases *l, struct err *err) {
  for (int i = 0; i < POSTERS; i++) {
    struct poster *p = malloc(sizeof *p);
    if (p) *p = (struct poster){l, l->post_http[i]};
    if (!p || pthread_create(&l->posters[i], NULL, poster_main, p) != 0) {
      free(p);
      return err_set(err, RC_NO_MEMORY, NULL, "a poster thread could not be made");
    }
    l->posters_started++;
  }
  if (pthread_create(&l->puller, NULL, puller_main, l) != 0)
    return err_set(err, RC_NO_MEMORY, NULL, "the puller's thread could not be made");
  l->puller_started = true;
  return RC_OK;
}

enum rc leases_start(struct leases **out, const struct leases_options *options, struct err *err) {
  *out = NULL;
  struct leases *l = calloc(1, sizeof *l);
  if (!l) return err_set(err, RC_NO_MEMORY, NULL, "the lease table was refused its memory");
  l->options = *options;
  pthread_mutex_init(&l->mutex, NULL);
  cond_init(&l->changed);
  enum rc rc = queue_create(&l->results, HELD_MAX + LIMIT_LEASES_PER_REQUEST, err);
  if (rc == RC_OK) rc = http_client_create_for(&l->pull_http, options->access, &l->cancel_pull, err);
  for (int i = 0; i < POSTERS && rc == RC_OK; i++)
    rc = http_client_create_for(&l->post_http[i], options->access, &l->cancel_post, err);
  if (rc == RC_OK) rc = start_threads(l, err);
  if (rc != RC_OK) {
    leases_stop(l);
    return rc;
  }
  *out = l;
  return RC_OK;
}

void leases_set_engine(struct leases *l, struct engine *engine, const struct model *model,
                       const struct tokenizer *tokenizer) {
  pthread_mutex_lock(&l->mutex);
  l->engine = engine;
  l->model = model;
  l->tokenizer = tokenizer;
  notify(l);
  pthread_mutex_unlock(&l->mutex);
}

void leases_registered(struct leases *l, const char *worker_id, uint64_t epoch) {
  pthread_mutex_lock(&l->mutex);
  snprintf(l->worker_id, sizeof l->worker_id, "%s", worker_id);
  l->epoch = epoch;
  l->taken = 0;
  l->counts = true;
  for (struct held *h = l->held; h; h = h->next) lose(l, h);
  notify(l);
  pthread_mutex_unlock(&l->mutex);
}

static bool was_sent(const struct held *h, const struct lease_ref *sent, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (sent[i].fence == h->fence && strcmp(sent[i].id, h->id) == 0) return true;
  return false;
}

/* The one with the lowest fence, when the samples were granted again meanwhile: the answer names ids, and each id is
 * one lease that was sent.  NULL: none is held. */
static struct held *oldest_sent(struct leases *l, const char *id, const struct lease_ref *sent, size_t sent_count) {
  struct held *oldest = NULL;
  for (struct held *h = l->held; h; h = h->next) {
    if (h->lost || strcmp(h->id, id) != 0 || !was_sent(h, sent, sent_count)) continue;
    if (!oldest || h->fence < oldest->fence) oldest = h;
  }
  return oldest;
}

void leases_lost(struct leases *l, const char *const *ids, size_t count, const struct lease_ref *sent,
                 size_t sent_count) {
  pthread_mutex_lock(&l->mutex);
  for (size_t i = 0; i < count; i++) {
    struct held *h = oldest_sent(l, ids[i], sent, sent_count);
    if (h) lose(l, h);
  }
  notify(l);
  pthread_mutex_unlock(&l->mutex);
}

enum rc leases_list(struct leases *l, struct lease_ref **out, size_t *count, struct arena *arena, struct err *err) {
  *count = 0;
  pthread_mutex_lock(&l->mutex);
  *out = arena_alloc(arena, (size_t)l->held_count + 1, sizeof **out);
  bool ok = *out != NULL;
  for (const struct held *h = l->held; h && ok; h = h->next) {
    if (h->lost) continue;
    const char *id = arena_strdup(arena, h->id);
    ok = id != NULL;
    if (ok) (*out)[(*count)++] = (struct lease_ref){.id = id, .fence = h->fence};
  }
  pthread_mutex_unlock(&l->mutex);
  return ok ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "the list of held leases was refused its memory");
}

void leases_wake(struct leases *l) {
  pthread_mutex_lock(&l->mutex);
  notify(l);
  pthread_mutex_unlock(&l->mutex);
}

int leases_held(struct leases *l) {
  pthread_mutex_lock(&l->mutex);
  const int held = l->held_count;
  pthread_mutex_unlock(&l->mutex);
  return held;
}

int64_t leases_tokens_resumed(struct leases *l) {
  pthread_mutex_lock(&l->mutex);
  const int64_t tokens = l->tokens_resumed;
  pthread_mutex_unlock(&l->mutex);
  return tokens;
}

int64_t leases_posted(struct leases *l) {
  pthread_mutex_lock(&l->mutex);
  const int64_t posted = l->posted;
  pthread_mutex_unlock(&l->mutex);
  return posted;
}

/* At most ms, of which each look counts DRAIN_LOOK_MS at most: a process that stood still has handed nothing back
 * meanwhile. */
static void wait_handed_back(struct leases *l, int64_t ms) {
  pthread_mutex_lock(&l->mutex);
  while (l->held_count > 0 && ms > 0) {
    const int64_t look_ms = ms < DRAIN_LOOK_MS ? ms : DRAIN_LOOK_MS, begin_ms = clock_monotonic_ms();
    const struct timespec until = clock_deadline_in(look_ms);
    pthread_cond_timedwait(&l->changed, &l->mutex, &until);
    const int64_t passed_ms = clock_monotonic_ms() - begin_ms;
    ms -= passed_ms < look_ms ? passed_ms : look_ms;
  }
  if (l->held_count > 0) log_warn("%d leases could not be handed back in time", l->held_count);
  pthread_mutex_unlock(&l->mutex);
}

void leases_drain(struct leases *l, int64_t deadline_ms) {
  pthread_mutex_lock(&l->mutex);
  l->draining = true;
  notify(l);
  pthread_mutex_unlock(&l->mutex);
  atomic_store(&l->cancel_pull, true);
  if (l->puller_started)
    pthread_join(l->puller, NULL); /* its running call ends within 200 ms; no lease is taken after this */
  l->puller_started = false;
  if (l->engine) engine_hand_back(l->engine);
  wait_handed_back(l, deadline_ms);
}

void leases_stop(struct leases *l) {
  if (!l) return;
  pthread_mutex_lock(&l->mutex);
  l->stopping = true;
  notify(l);
  pthread_mutex_unlock(&l->mutex);
  atomic_store(&l->cancel_pull, true);
  atomic_store(&l->cancel_post, true);
  if (l->results) queue_close(l->results);
  if (l->puller_started) pthread_join(l->puller, NULL);
  for (int i = 0; i < l->posters_started; i++) pthread_join(l->posters[i], NULL);
  http_client_destroy(l->pull_http);
  for (int i = 0; i < POSTERS; i++) http_client_destroy(l->post_http[i]);
  queue_destroy(l->results);
  pthread_cond_destroy(&l->changed);
  pthread_mutex_destroy(&l->mutex);
  free(l);
}
