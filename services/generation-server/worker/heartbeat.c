/* Registers this server with the coordinator and beats until it is told to leave.
 *
 * Owns the registration (worker id, epoch) and its thread; server.c starts and stops it.  Other threads only set flags
 * under the mutex (poke, stale, drain), or read the epoch.  Every call has a deadline, every failure a pause that
 * grows to RETRY_MAX_MS; a coordinator that forgets us at every beat (two servers under one name) is asked no faster.
 *
 * It never touches weights or jobs: it tells staging.c which version is current, leases.c which leases are lost, and
 * the coordinator what activity.c recorded. */
#include "services/generation-server/worker/heartbeat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/client/coordinator_client.h"

enum {
  REGISTER_DEADLINE_MS = 5000,
  LEAVE_DEADLINE_MS = 1000,
  RETRY_MIN_MS = 200,
  RETRY_MAX_MS = 2000,
  BEAT_DEADLINE_MIN_MS = 1000
};

struct heartbeat {
  struct heartbeat_options options;
  struct http_client *http;
  atomic_bool cancel;
  pthread_t thread;
  bool started;

  /* The thread's own. */
  char worker_id[LIMIT_NAME_MAX];
  int32_t heartbeat_ms, worker_ttl_ms;
  struct engine_counters since; /* as they stood at the registration */

  pthread_mutex_t mutex; /* guards everything below */
  pthread_cond_t changed;
  uint64_t epoch;
  bool registered, poked, draining, stopping;
};

static bool stopping(struct heartbeat *h) {
  pthread_mutex_lock(&h->mutex);
  const bool yes = h->stopping;
  pthread_mutex_unlock(&h->mutex);
  return yes;
}

static void pause_for(struct heartbeat *h, int64_t ms) {
  const struct timespec until = clock_deadline_in(ms);
  pthread_mutex_lock(&h->mutex);
  while (!h->poked && !h->stopping)
    if (pthread_cond_timedwait(&h->changed, &h->mutex, &until) != 0) break;
  h->poked = false;
  pthread_mutex_unlock(&h->mutex);
}

static bool counters(struct heartbeat *h, struct engine_counters *out) {
  struct loaded_model *loaded = staging_model(h->options.staging);
  *out = (struct engine_counters){0};
  if (loaded) engine_read_counters(loaded->engine, out);
  return loaded != NULL;
}

static enum rc register_once(struct heartbeat *h, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct worker_registered answer;
  const struct coordinator_client client = {h->http, h->options.coordinator};
  const struct worker_register m = {.name = h->options.name,
                                    .kind = WORKER_GENERATION,
                                    .url = h->options.advertise_url,
                                    .slots = h->options.slots,
                                    .exactness = h->options.exactness,
                                    .fabric = h->options.fabric};
  const enum rc rc = coordinator_register(&client, &m, &answer, &arena, REGISTER_DEADLINE_MS, err);
  if (rc == RC_OK) {
    snprintf(h->worker_id, sizeof h->worker_id, "%s", answer.worker_id);
    h->heartbeat_ms = answer.heartbeat_ms > 0 ? answer.heartbeat_ms : 1000;
    h->worker_ttl_ms = answer.worker_ttl_ms;
    counters(h, &h->since);
    pthread_mutex_lock(&h->mutex);
    h->epoch = answer.epoch;
    h->registered = true;
    pthread_mutex_unlock(&h->mutex);
    staging_forget_current(h->options.staging);
    leases_registered(h->options.leases, answer.worker_id, answer.epoch);
    log_info("registered as %s under epoch %llu", answer.worker_id, (unsigned long long)answer.epoch);
  }
  arena_free(&arena);
  return rc;
}

/* What was added since the registration: room for WIRE_STEP_SLOTS. */
static size_t steps_since(const struct engine_counters *now, const struct engine_counters *since,
                          struct step_sum *out) {
  size_t count = 0;
  for (int i = 0; i < WIRE_STEP_SLOTS; i++) {
    const struct engine_steps *a = &now->by_rows[i], *b = &since->by_rows[i];
    if (a->steps > b->steps)
      out[count++] =
          (struct step_sum){.slot = i, .steps = a->steps - b->steps, .rows = a->rows - b->rows, .us = a->us - b->us};
  }
  return count;
}

static enum rc beat_once(struct heartbeat *h, uint64_t epoch, bool draining, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct engine_counters now;
  struct policy active;
  struct worker_heartbeat_answer answer;
  struct activity_report did;
  struct step_sum steps[WIRE_STEP_SLOTS];
  activity_take(h->options.activity, &did, clock_monotonic_us());
  struct worker_heartbeat m = {.epoch = epoch,
                               .draining = draining,
                               .sent_us = did.sent_us,
                               .intervals = did.items,
                               .interval_count = did.count};
  if (counters(h, &now)) {
    m.has_loaded = engine_policy(staging_model(h->options.staging)->engine, &active);
    if (m.has_loaded) m.loaded_digest = active.digest;
    m.ready = m.has_loaded && !draining;
    m.slots_busy = now.slots_busy;
    m.busy_slot_us = now.busy_slot_us - h->since.busy_slot_us;
    m.tokens_sampled = now.tokens_sampled - h->since.tokens_sampled;
    m.steps = steps;
    m.step_count = steps_since(&now, &h->since, steps);
  }
  enum rc rc = leases_list(h->options.leases, &m.leases, &m.lease_count, &arena, err);
  const struct coordinator_client client = {h->http, h->options.coordinator};
  const int64_t deadline_ms = h->heartbeat_ms * 2 > BEAT_DEADLINE_MIN_MS ? h->heartbeat_ms * 2 : BEAT_DEADLINE_MIN_MS;
  if (rc == RC_OK) rc = coordinator_heartbeat(&client, h->worker_id, &m, &answer, &arena, deadline_ms, err);
  if (rc == RC_OK) {
    leases_lost(h->options.leases, answer.lost, answer.lost_count, m.leases, m.lease_count);
    staging_follow_current(h->options.staging, &answer.current);
    activity_told(h->options.activity, did.until_us);
    activity_set(h->options.activity, ACTIVITY_ACTIVE, answer.run_active);
  }
  arena_free(&arena);
  return rc;
}

static void *heartbeat_main(void *argument) {
  struct heartbeat *h = argument;
  int64_t retry_ms = RETRY_MIN_MS;
  while (!stopping(h)) {
    struct err err;
    pthread_mutex_lock(&h->mutex);
    const bool registered = h->registered, draining = h->draining;
    const uint64_t epoch = h->epoch;
    pthread_mutex_unlock(&h->mutex);
    const enum rc rc = registered ? beat_once(h, epoch, draining, &err) : register_once(h, &err);
    if (rc == RC_OK && registered) {
      retry_ms = RETRY_MIN_MS;
      pause_for(h, h->heartbeat_ms);
    }
    if (rc == RC_OK) continue; /* the first beat follows the registration at once: it brings the current version */
    if (stopping(h)) break;
    log_warn("%s: %s", registered ? "heartbeat" : "registration", err.message);
    const bool forgotten = registered && (rc == RC_CONFLICT || rc == RC_NOT_FOUND);
    if (forgotten) heartbeat_stale(h);
    if (!forgotten || retry_ms > RETRY_MIN_MS)
      pause_for(h, retry_ms); /* forgotten again and again: do not register in a hot loop */
    retry_ms = retry_ms * 2 < RETRY_MAX_MS ? retry_ms * 2 : RETRY_MAX_MS;
  }
  return NULL;
}

enum rc heartbeat_start(struct heartbeat **out, const struct heartbeat_options *options, struct err *err) {
  *out = NULL;
  struct heartbeat *h = calloc(1, sizeof *h);
  if (!h) return err_set(err, RC_NO_MEMORY, NULL, "the heartbeat was refused its memory");
  h->options = *options;
  pthread_mutex_init(&h->mutex, NULL);
  cond_init(&h->changed);
  enum rc rc = http_client_create(&h->http, options->token, &h->cancel, err);
  if (rc == RC_OK && pthread_create(&h->thread, NULL, heartbeat_main, h) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the heartbeat's thread could not be made");
  h->started = rc == RC_OK;
  if (rc != RC_OK) {
    heartbeat_stop(h);
    return rc;
  }
  *out = h;
  return RC_OK;
}

static void set(struct heartbeat *h, bool *flag) {
  pthread_mutex_lock(&h->mutex);
  *flag = true;
  h->poked = true;
  pthread_cond_broadcast(&h->changed);
  pthread_mutex_unlock(&h->mutex);
}

void heartbeat_poke(struct heartbeat *h) { set(h, &h->poked); }
void heartbeat_drain(struct heartbeat *h) { set(h, &h->draining); }

void heartbeat_stale(struct heartbeat *h) {
  pthread_mutex_lock(&h->mutex);
  h->registered = false;
  h->poked = true;
  pthread_cond_broadcast(&h->changed);
  pthread_mutex_unlock(&h->mutex);
}

uint64_t heartbeat_epoch(struct heartbeat *h) {
  pthread_mutex_lock(&h->mutex);
  const uint64_t epoch = h->epoch;
  pthread_mutex_unlock(&h->mutex);
  return epoch;
}

static void end_thread(struct heartbeat *h) {
  set(h, &h->stopping);
  atomic_store(&h->cancel, true);
  if (h->started) pthread_join(h->thread, NULL);
  h->started = false;
}

void heartbeat_leave(struct heartbeat *h) {
  struct err err;
  const struct coordinator_client client = {h->http, h->options.coordinator};
  end_thread(h);
  atomic_store(&h->cancel, false);
  if (h->registered && coordinator_leave(&client, h->worker_id, LEAVE_DEADLINE_MS, &err) != RC_OK)
    log_warn("leaving: %s", err.message); /* then it misses our heartbeat */
}

void heartbeat_stop(struct heartbeat *h) {
  if (!h) return;
  end_thread(h);
  http_client_destroy(h->http);
  pthread_cond_destroy(&h->changed);
  pthread_mutex_destroy(&h->mutex);
  free(h);
}
