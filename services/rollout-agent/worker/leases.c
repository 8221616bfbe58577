/* Pulls leases, has the slots draw their samples, and posts the results.
 *
 * Owns the table of held leases, one puller thread, the slots' threads and their HTTP clients.  Called by heartbeat.c
 * (leases held, leases lost, a new registration) and by the loader's thread (leases_wake).  The mutex is never held
 * across a call.
 *
 * Memory: an answer's arena holds its leases, and is freed with the last of them; each sample has an arena of its own,
 * freed with its lease; HELD_MAX leases and the queue bound them all.
 *
 * Previous hop of a rollout: coordinator/api/route_leases.c.  Next: sampling.c, then
 * coordinator/api/route_results.c. */
#include "services/rollout-agent/worker/leases.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/client/coordinator_client.h"
#include "common/http/trust/tls.h"
#include "common/client/lease_work.h"

enum {
  POLL_WAIT_MS = 15000,
  POLL_SLACK_MS = 5000,
  POST_DEADLINE_MS = 20000,
  PAUSE_MS = 100, /* between polls that returned early with nothing */
  BACKOFF_MIN_MS = 100,
  BACKOFF_MAX_MS = 3000,
  FAILURES_MAX = 8, /* answers 500 to one result */
  HELD_MAX = 2 * LIMIT_SLOTS
};

/* One answer of the coordinator: its leases share an arena. */
struct grant {
  struct arena arena;
  struct lease_answer answer;
  int users; /* held leases, and the puller */
};

struct held;
struct job {
  struct held *held;
  struct arena arena;
  struct draw draw;
};

struct held {
  struct held *next;
  struct grant *grant;
  const struct lease *lease;
  char worker_id[LIMIT_NAME_MAX];
  uint64_t epoch;
  struct job *jobs;                     /* [lease->sample_count] */
  int open;                             /* samples that no slot is done with */
  bool lost, excused;                   /* excused: the log says why it is handed back */
  char refused[WIRE_REFUSED_BYTES + 1]; /* why it can never be run here; "": it could */
  struct log_context log;
};

struct slot {
  struct leases *leases;
  struct http_client *engine_http, *post_http;
  atomic_bool cut; /* ends its running request */
  pthread_t thread;
  bool started;
  struct held *running; /* guarded by the mutex */
};

struct leases {
  struct leases_options options;
  atomic_bool cancel_pull, cancel_post; /* end running calls */
  struct http_client *pull_http;
  struct queue *jobs;
  pthread_t puller;
  bool puller_started;
  struct slot *slots;

  pthread_mutex_t mutex; /* guards everything below */
  pthread_cond_t changed;
  struct held *held;
  int samples_live;               /* of held leases, not finished */
  char worker_id[LIMIT_NAME_MAX]; /* "": not registered */
  uint64_t epoch;
  int64_t taken; /* leases found in answers since the registration: the coordinator sees by it which answer was lost */
  bool counts;   /* tells the coordinator so: one of an earlier version refuses what it does not know */
  uint64_t activity; /* counts wake-ups, so that none is missed */
  bool draining, stopping;
  struct leases_counters count;
};

/* --- the table; mutex held --- */

static void notify(struct leases *l) {
  l->activity++;
  pthread_cond_broadcast(&l->changed);
}

/* Fills idle slots at once, the prefetched part by halves: single samples would cut groups to pieces. */
static int samples_wanted(const struct leases *l) {
  const int room = l->options.slots + l->options.prefetch - l->samples_live;
  const int least = l->options.prefetch / 2 > 1 ? l->options.prefetch / 2 : 1;
  if (l->count.held >= HELD_MAX) return 0;
  return room >= least || (l->samples_live < l->options.slots && room > 0) ? room : 0;
}

static void wait_change(struct leases *l, uint64_t seen, int64_t ms) {
  const struct timespec until = clock_deadline_in(ms);
  while (l->activity == seen && !l->stopping && !l->draining)
    if (pthread_cond_timedwait(&l->changed, &l->mutex, &until) != 0) return;
}

static void grant_release(struct grant *g) {
  if (--g->users > 0) return;
  arena_free(&g->arena);
  free(g);
}

static void held_free(struct held *h) {
  for (int32_t i = 0; h->jobs && i < h->lease->sample_count; i++) arena_free(&h->jobs[i].arena);
  free(h->jobs);
  grant_release(h->grant);
  free(h);
}

static void forget(struct leases *l, struct held *h) {
  for (struct held **at = &l->held; *at; at = &(*at)->next) {
    if (*at != h) continue;
    *at = h->next;
    l->count.held--;
    break;
  }
  held_free(h);
  notify(l);
}

static void cut_requests_of(struct leases *l, const struct held *h) {
  for (int i = 0; i < l->options.slots; i++)
    if (!h || l->slots[i].running == h) atomic_store(&l->slots[i].cut, true);
}

static void lose(struct leases *l, struct held *h) {
  if (h->lost) return;
  h->lost = true;
  cut_requests_of(l, h);
}

/* --- the puller --- */

static struct held *hold(struct grant *g, const struct lease *lease, const char *worker_id, uint64_t epoch) {
  struct held *h = calloc(1, sizeof *h);
  if (!h) return NULL;
  h->jobs = calloc((size_t)lease->sample_count, sizeof *h->jobs);
  if (!h->jobs) {
    free(h);
    return NULL;
  }
  snprintf(h->worker_id, sizeof h->worker_id, "%s", worker_id);
  h->epoch = epoch;
  h->grant = g;
  h->lease = lease;
  log_context_save(&h->log);
  g->users++;
  return h;
}

/* A lease that does not fit into memory or the queue expires, and another worker gets it. */
static void take_lease(struct leases *l, struct grant *g, const struct lease *lease, const char *worker_id,
                       uint64_t epoch) {
  struct err err = {0};
  lease_work(lease);
  log_debug("lease %s is taken, %d samples from %d on", lease->id, lease->sample_count, lease->sample_first);
  pthread_mutex_lock(&l->mutex);
  struct held *h = hold(g, lease, worker_id, epoch);
  enum rc rc = h ? RC_OK : err_set(&err, RC_NO_MEMORY, NULL, "it was refused memory");
  for (int32_t i = 0; rc == RC_OK && i < lease->sample_count; i++) {
    h->jobs[i].held = h;
    rc = sampling_begin(&h->jobs[i].draw, lease, i, &h->jobs[i].arena, &err);
  }
  if (rc == RC_OK) {
    h->next = l->held;
    l->held = h;
    l->count.held++;
    for (int32_t i = 0; i < lease->sample_count; i++) {
      if (queue_push(l->jobs, &h->jobs[i]) != RC_OK) continue; /* closed: the agent stops */
      h->open++;
      l->samples_live++;
    }
  } else {
    log_error("lease %s cannot be held: %s", lease->id, err.message);
    if (h) held_free(h);
  }
  pthread_mutex_unlock(&l->mutex);
  log_context_clear();
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

/* One poll, without the mutex.  Returns how long to pause before the next, 0: not at all. */
static int64_t poll_once(struct leases *l, const struct lease_request *request, const char *worker_id) {
  struct err err = {0};
  struct grant *g = calloc(1, sizeof *g);
  if (!g) return PAUSE_MS;
  g->users = 1;
  const struct coordinator_client client = {l->pull_http, l->options.coordinator};
  const int64_t begin_ms = clock_monotonic_ms();
  int64_t pause_ms = 0;
  const enum rc rc =
      coordinator_leases(&client, worker_id, request, &g->answer, &g->arena, POLL_WAIT_MS + POLL_SLACK_MS, &err);
  const bool mine = note_answer(l, worker_id, request->epoch, rc, rc == RC_OK ? g->answer.lease_count : 0);
  if (rc == RC_OK && mine) {
    loader_told_current(l->options.loader, &g->answer.current);
    for (size_t i = 0; i < g->answer.lease_count; i++)
      take_lease(l, g, &g->answer.leases[i], worker_id, request->epoch);
    if (g->answer.lease_count == 0 && clock_monotonic_ms() - begin_ms < PAUSE_MS) pause_ms = PAUSE_MS;
  } else if (rc == RC_CONFLICT || rc == RC_NOT_FOUND) {
    if (mine) l->options.stale(l->options.context);
    pause_ms = PAUSE_MS;
  } else if (rc != RC_OK) {
    if (!atomic_load(&l->cancel_pull)) log_warn("asking for leases: %s", err.message);
    pause_ms = rc == RC_TIMEOUT ? PAUSE_MS : 5 * PAUSE_MS;
  }
  pthread_mutex_lock(&l->mutex);
  grant_release(g);
  pthread_mutex_unlock(&l->mutex);
  return pause_ms;
}

static void *puller_main(void *argument) {
  struct leases *l = argument;
  pthread_mutex_lock(&l->mutex);
  while (!l->stopping && !l->draining) {
    struct held_version version;
    const uint64_t seen = l->activity;
    const int wanted = l->worker_id[0] ? samples_wanted(l) : 0;
    if (wanted <= 0 || !loader_holds(l->options.loader, &version)) {
      wait_change(l, seen, 1000);
      continue;
    }
    const struct lease_request request = {.epoch = l->epoch,
                                          .slots_free = wanted,
                                          .wait_ms = POLL_WAIT_MS,
                                          .has_loaded = true,
                                          .loaded_digest = version.digest,
                                          .has_taken = l->counts,
                                          .leases_taken = l->taken};
    char worker_id[LIMIT_NAME_MAX];
    memcpy(worker_id, l->worker_id, sizeof worker_id);
    pthread_mutex_unlock(&l->mutex);
    const int64_t pause_ms = poll_once(l, &request, worker_id);
    pthread_mutex_lock(&l->mutex);
    if (pause_ms > 0) wait_change(l, seen, pause_ms);
  }
  pthread_mutex_unlock(&l->mutex);
  return NULL;
}

/* --- posting --- */

/* A coordinator that cannot be reached is retried for ever, one that answers with errors of its own FAILURES_MAX
 * times. */
static bool worth_retrying(enum rc rc, int failures) {
  if (rc == RC_UNAVAILABLE || rc == RC_TIMEOUT || rc == RC_FULL) return true;
  return (rc == RC_INTERNAL || rc == RC_IO || rc == RC_NO_MEMORY) && failures < FAILURES_MAX;
}

static bool unwanted(struct leases *l, const struct held *h) {
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

/* Whole, or handed back with every sample as far as it is proven. */
static enum rc result_of(struct lease_result *out, const struct held *h, struct arena *arena, struct err *err) {
  const int32_t count = h->lease->sample_count;
  bool all = true;
  int64_t newest = -1;
  *out = (struct lease_result){.worker_id = h->worker_id,
                               .epoch = h->epoch,
                               .fence = h->lease->fence,
                               .loaded_digest = h->lease->weights_digest,
                               .sample_count = (size_t)count};
  out->samples = arena_alloc(arena, (size_t)count, sizeof *out->samples);
  if (!out->samples) return err_set(err, RC_NO_MEMORY, NULL, "a result was refused its memory");
  for (int32_t i = 0; i < count; i++) {
    const struct draw *d = &h->jobs[i].draw;
    out->samples[i] = d->result;
    all &= d->done;
    if (d->sampled > 0 && d->version > newest) {
      newest = d->version;
      out->loaded_digest = d->digest;
    }
  }
  out->handed_back = !all;
  if (!all && h->refused[0]) out->refused = h->refused;
  for (int32_t i = 0; !all && i < count; i++) out->samples[i].finish = FINISH_ABORT;
  return RC_OK;
}

static void post(struct leases *l, struct http_client *http, struct held *h) {
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct lease_result result;
  const enum rc rc = result_of(&result, h, &arena, &err);
  int64_t wait_ms = BACKOFF_MIN_MS;
  int failures = 0;
  const struct coordinator_client client = {http, l->options.coordinator};
  while (rc == RC_OK && !unwanted(l, h)) {
    struct lease_result_answer answer;
    struct arena scratch = ARENA_INIT;
    const enum rc sent =
        coordinator_put_result(&client, h->lease->id, &result, &answer, &scratch, POST_DEADLINE_MS, &err);
    arena_free(&scratch);
    if (sent == RC_OK) {
      pthread_mutex_lock(&l->mutex);
      l->count.posted++;
      l->count.handed_back += result.handed_back;
      pthread_mutex_unlock(&l->mutex);
      break;
    }
    log_warn("result of lease %s: %s", h->lease->id, err.message);
    if (!worth_retrying(sent, ++failures)) break;
    backoff(l, h, wait_ms);
    wait_ms = wait_ms * 2 < BACKOFF_MAX_MS ? wait_ms * 2 : BACKOFF_MAX_MS;
  }
  if (rc != RC_OK) log_error("result of lease %s: %s", h->lease->id, err.message);
  arena_free(&arena);
}

/* --- the slots --- */

static bool abandoned(void *context) { return atomic_load(&((struct slot *)context)->cut); }

/* False: nobody wants it any more. */
static bool begin_job(struct slot *slot, struct held *h) {
  struct leases *l = slot->leases;
  pthread_mutex_lock(&l->mutex);
  const bool wanted = !h->lost && !l->draining && !l->stopping && !h->refused[0];
  slot->running = h;
  atomic_store(&slot->cut, !wanted);
  l->count.slots_busy++;
  pthread_mutex_unlock(&l->mutex);
  return wanted;
}

/* True: it was the lease's last. */
static bool end_job(struct slot *slot, struct held *h, const struct draw *d, int64_t begin_us) {
  struct leases *l = slot->leases;
  pthread_mutex_lock(&l->mutex);
  slot->running = NULL;
  l->count.slots_busy--;
  l->count.busy_us += clock_monotonic_us() - begin_us;
  l->count.tokens_sampled += d->sampled;
  l->samples_live--;
  const bool last = --h->open == 0;
  if (l->draining || samples_wanted(l) > 0) notify(l);
  pthread_mutex_unlock(&l->mutex);
  return last;
}

static void note_failure(struct leases *l, struct held *h, const struct err *err, enum rc rc) {
  pthread_mutex_lock(&l->mutex);
  const bool quiet = h->lost || h->excused || l->draining || l->stopping;
  h->excused = true;
  if (rc == RC_INVALID && !h->refused[0])
    snprintf(h->refused, sizeof h->refused, "%.*s", WIRE_REFUSED_BYTES, err->message);
  pthread_mutex_unlock(&l->mutex);
  if (!quiet) log_warn("lease %s is handed back: %s", h->lease->id, err->message);
}

static void *slot_main(void *argument) {
  struct slot *slot = argument;
  struct leases *l = slot->leases;
  const struct leases_options *o = &l->options;
  const struct sampling sampling = {.engine = {.http = slot->engine_http,
                                               .base_url = o->engine_url,
                                               .wire = o->wire,
                                               .model = o->engine_model},
                                    .loader = o->loader,
                                    .logprobs_at_temperature = o->logprobs_at_temperature,
                                    .request_timeout_ms = o->request_timeout_ms,
                                    .version_timeout_ms = o->version_timeout_ms,
                                    .abandoned = abandoned,
                                    .context = slot};
  void *item;
  for (;;) {
    struct err err = {0};
    const enum rc popped = queue_pop(l->jobs, &item, 1000);
    if (popped == RC_TIMEOUT) continue;
    if (popped != RC_OK) return NULL; /* closed and empty */
    struct job *job = item;
    struct held *h = job->held;
    const int64_t begin_us = clock_monotonic_us();
    log_context_restore(&h->log);
    if (begin_job(slot, h)) {
      const enum rc rc = sampling_run(&sampling, &job->draw, h->lease, &job->arena, &err);
      if (rc != RC_OK) note_failure(l, h, &err, rc);
    }
    const bool last = end_job(slot, h, &job->draw, begin_us);
    if (last) post(l, slot->post_http, h);
    log_context_clear();
    if (!last) continue;
    pthread_mutex_lock(&l->mutex);
    forget(l, h);
    pthread_mutex_unlock(&l->mutex);
  }
}

/* --- life --- */

static enum rc start_slots(struct leases *l, struct err *err) {
  enum rc rc = RC_OK;
  for (int i = 0; rc == RC_OK && i < l->options.slots; i++) {
    struct slot *s = &l->slots[i];
    s->leases = l;
    rc = http_client_create(&s->engine_http, l->options.engine_token, &s->cut, err);
    if (rc == RC_OK) http_client_of_strangers(s->engine_http, http_tls_ca());
    if (rc == RC_OK) rc = http_client_create_for(&s->post_http, l->options.access, &l->cancel_post, err);
    if (rc == RC_OK && pthread_create(&s->thread, NULL, slot_main, s) != 0)
      rc = err_set(err, RC_NO_MEMORY, NULL, "the thread of slot %d could not be made", i);
    s->started = rc == RC_OK;
  }
  return rc;
}

enum rc leases_start(struct leases **out, const struct leases_options *options, struct err *err) {
  *out = NULL;
  struct leases *l = calloc(1, sizeof *l);
  if (!l) return err_set(err, RC_NO_MEMORY, NULL, "the lease table was refused its memory");
  l->options = *options;
  pthread_mutex_init(&l->mutex, NULL);
  cond_init(&l->changed);
  l->slots = calloc((size_t)options->slots, sizeof *l->slots);
  enum rc rc = l->slots ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "%d slots were refused memory", options->slots);
  if (rc == RC_OK) rc = queue_create(&l->jobs, (size_t)HELD_MAX * 2, err);
  if (rc == RC_OK) rc = http_client_create_for(&l->pull_http, options->access, &l->cancel_pull, err);
  if (rc == RC_OK) rc = start_slots(l, err);
  if (rc == RC_OK && pthread_create(&l->puller, NULL, puller_main, l) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the puller's thread could not be made");
  l->puller_started = rc == RC_OK;
  if (rc != RC_OK) {
    leases_stop(l);
    return rc;
  }
  *out = l;
  return RC_OK;
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
    if (sent[i].fence == h->lease->fence && strcmp(sent[i].id, h->lease->id) == 0) return true;
  return false;
}

void leases_lost(struct leases *l, const char *const *ids, size_t count, const struct lease_ref *sent,
                 size_t sent_count) {
  pthread_mutex_lock(&l->mutex);
  for (size_t i = 0; i < count; i++) {
    struct held *oldest = NULL; /* the samples may have been granted to us again meanwhile, under a higher fence */
    for (struct held *h = l->held; h; h = h->next)
      if (!h->lost && strcmp(h->lease->id, ids[i]) == 0 && was_sent(h, sent, sent_count) &&
          (!oldest || h->lease->fence < oldest->lease->fence))
        oldest = h;
    if (oldest) lose(l, oldest);
  }
  notify(l);
  pthread_mutex_unlock(&l->mutex);
}

enum rc leases_list(struct leases *l, struct lease_ref **out, size_t *count, struct arena *arena, struct err *err) {
  *count = 0;
  pthread_mutex_lock(&l->mutex);
  *out = arena_alloc(arena, (size_t)l->count.held + 1, sizeof **out);
  bool ok = *out != NULL;
  for (const struct held *h = l->held; h && ok; h = h->next) {
    if (h->lost) continue;
    const char *id = arena_strdup(arena, h->lease->id);
    ok = id != NULL;
    if (ok) (*out)[(*count)++] = (struct lease_ref){.id = id, .fence = h->lease->fence};
  }
  pthread_mutex_unlock(&l->mutex);
  return ok ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "the list of held leases was refused its memory");
}

void leases_wake(struct leases *l) {
  pthread_mutex_lock(&l->mutex);
  notify(l);
  pthread_mutex_unlock(&l->mutex);
}

void leases_read_counters(struct leases *l, struct leases_counters *out) {
  pthread_mutex_lock(&l->mutex);
  *out = l->count;
  pthread_mutex_unlock(&l->mutex);
}

void leases_drain(struct leases *l, int64_t deadline_ms) {
  const struct timespec until = clock_deadline_in(deadline_ms);
  pthread_mutex_lock(&l->mutex);
  l->draining = true;
  notify(l);
  pthread_mutex_unlock(&l->mutex);
  atomic_store(&l->cancel_pull, true);
  if (l->puller_started)
    pthread_join(l->puller, NULL); /* its running call ends within 200 ms; no lease is taken after this */
  l->puller_started = false;
  pthread_mutex_lock(&l->mutex);
  cut_requests_of(l, NULL);
  while (l->count.held > 0)
    if (pthread_cond_timedwait(&l->changed, &l->mutex, &until) != 0) break;
  if (l->count.held > 0) log_warn("%d leases could not be handed back in time", l->count.held);
  pthread_mutex_unlock(&l->mutex);
}

void leases_stop(struct leases *l) {
  if (!l) return;
  pthread_mutex_lock(&l->mutex);
  l->stopping = true;
  if (l->slots) cut_requests_of(l, NULL);
  notify(l);
  pthread_mutex_unlock(&l->mutex);
  atomic_store(&l->cancel_pull, true);
  atomic_store(&l->cancel_post, true);
  if (l->puller_started) pthread_join(l->puller, NULL);
  if (l->jobs) queue_close(l->jobs);
  for (int i = 0; l->slots && i < l->options.slots; i++) {
    if (l->slots[i].started) pthread_join(l->slots[i].thread, NULL);
    http_client_destroy(l->slots[i].engine_http);
    http_client_destroy(l->slots[i].post_http);
  }
  while (l->held) forget(l, l->held);
  http_client_destroy(l->pull_http);
  queue_destroy(l->jobs);
  free(l->slots);
  pthread_cond_destroy(&l->changed);
  pthread_mutex_destroy(&l->mutex);
  free(l);
}
