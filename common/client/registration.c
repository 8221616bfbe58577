/* Registers a worker with the coordinator, sends its heartbeats, and registers it again when it was forgotten.
 *
 * Other threads only set flags under the mutex (poke, stale), or read the epoch.  Previous hop: a worker's main.  Next
 * hop of the messages: the coordinator's route_workers.c. */
#include "common/client/registration.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/wire/fields.h"

enum {
  REGISTER_DEADLINE_MS = 5000,
  LEAVE_DEADLINE_MS = 1000,
  BEAT_DEADLINE_MIN_MS = 1000,
  HEARTBEAT_DEFAULT_MS = 1000, /* for a coordinator that names none */
  RETRY_MIN_MS = 200,
  PATIENCE_MS = 30000,
  DOUBT_MIN_MS = 200, /* doubts do not make a worker ask more often */
  DOUBT_TICK_MS = 50
};

struct registration {
  struct registration_options options;
  struct http_client *http;
  atomic_bool cancel; /* cuts calls short */
  pthread_t thread;
  bool started;

  /* The thread's own. */
  char worker_id[LIMIT_NAME_MAX];
  int64_t heartbeat_ms, retry_ms;
  bool unconfirmed; /* no heartbeat was answered since the last registration */
  enum registration_word said; /* of the failures since the last success */
  int64_t begun_ms;

  pthread_mutex_t mutex; /* guards everything below */
  pthread_cond_t changed;
  uint64_t epoch;
  bool registered, poked, stopping;
};

static bool stopping(struct registration *r) {
  pthread_mutex_lock(&r->mutex);
  const bool yes = r->stopping;
  pthread_mutex_unlock(&r->mutex);
  return yes;
}

/* Waits until it is told to stop, or, if pokes_end_it, something was poked. */
static void wait_for(struct registration *r, int64_t ms, bool pokes_end_it) {
  const struct timespec until = clock_deadline_in(ms);
  pthread_mutex_lock(&r->mutex);
  while (!(pokes_end_it && r->poked) && !r->stopping)
    if (pthread_cond_timedwait(&r->changed, &r->mutex, &until) != 0) break;
  pthread_mutex_unlock(&r->mutex);
}

static bool woken(struct registration *r) {
  pthread_mutex_lock(&r->mutex);
  const bool yes = r->poked || r->stopping;
  pthread_mutex_unlock(&r->mutex);
  return yes;
}

static void pause_until_due(struct registration *r, int64_t ms) {
  if (!r->options.in_doubt) {
    wait_for(r, ms, true);
    return;
  }
  for (int64_t waited = 0; waited < ms && !woken(r); waited += DOUBT_TICK_MS) {
    if (waited >= DOUBT_MIN_MS && r->options.in_doubt(r->options.context)) return;
    wait_for(r, DOUBT_TICK_MS, true);
  }
}

static void grow_pause(struct registration *r) {
  r->retry_ms = r->retry_ms * 2 < r->options.retry_ms_max ? r->retry_ms * 2 : r->options.retry_ms_max;
}

static enum rc register_once(struct registration *r, const struct coordinator_client *client, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct worker_registered answer;
  const enum rc rc = coordinator_register(client, &r->options.worker, &answer, &arena, REGISTER_DEADLINE_MS, err);
  if (rc == RC_NOT_FOUND) {
    const struct err cause = *err;
    err_set(err, rc, NULL, "%s: expected a coordinator at %s", cause.message, client->base_url);
  }
  if (rc == RC_OK) {
    snprintf(r->worker_id, sizeof r->worker_id, "%s", answer.worker_id);
    r->heartbeat_ms = answer.heartbeat_ms > 0 ? answer.heartbeat_ms : HEARTBEAT_DEFAULT_MS;
    r->unconfirmed = true;
    pthread_mutex_lock(&r->mutex);
    const uint64_t before = r->epoch;
    r->epoch = answer.epoch;
    r->registered = true;
    pthread_mutex_unlock(&r->mutex);
    if (answer.epoch < before)
      log_warn("the coordinator's epoch is %" PRIu64 " and was %" PRIu64 ": it has another database now", answer.epoch,
               before);
    r->options.registered(r->options.context, &answer);
  }
  arena_free(&arena);
  return rc;
}

static enum rc beat_once(struct registration *r, const struct coordinator_client *client, uint64_t epoch,
                         struct err *err) {
  struct arena arena = ARENA_INIT;
  struct worker_heartbeat m = {.epoch = epoch};
  struct worker_heartbeat_answer answer;
  const int64_t deadline_ms = r->heartbeat_ms * 2 > BEAT_DEADLINE_MIN_MS ? r->heartbeat_ms * 2 : BEAT_DEADLINE_MIN_MS;
  enum rc rc = r->options.tell(r->options.context, &m, &arena, err);
  if (rc == RC_OK) rc = coordinator_heartbeat(client, r->worker_id, &m, &answer, &arena, deadline_ms, err);
  if (rc == RC_OK) {
    r->unconfirmed = false;
    r->retry_ms = RETRY_MIN_MS;
    r->options.answered(r->options.context, &m, &answer);
  }
  arena_free(&arena);
  return rc;
}

enum registration_word registration_word(enum rc failure, int64_t waited_ms, enum registration_word said) {
  const bool awaited = failure == RC_UNAVAILABLE && waited_ms >= 0 && waited_ms < PATIENCE_MS;
  const enum registration_word word = awaited ? SAY_WAITING : SAY_WARNING;
  return word > said ? word : SAY_NOTHING;
}

/* epoch: 0 before the first registration. */
static void say(struct registration *r, bool registered, uint64_t epoch, const struct err *err) {
  const int64_t waited_ms = epoch == 0 ? clock_monotonic_ms() - r->begun_ms : -1;
  const enum registration_word word = registration_word(err->rc, waited_ms, r->said);
  if (word == SAY_WAITING) log_info("waiting for the coordinator at %s: %s", r->options.coordinator, err->message);
  if (word == SAY_WARNING) log_warn("%s: %s", registered ? "heartbeat" : "registration", err->message);
  if (word != SAY_NOTHING) r->said = word;
}

/* One call and the pause behind it. */
static void take_turn(struct registration *r, const struct coordinator_client *client) {
  struct err err = {0};
  pthread_mutex_lock(&r->mutex);
  const bool registered = r->registered;
  const uint64_t epoch = r->epoch;
  r->poked = false;
  pthread_mutex_unlock(&r->mutex);
  if (!registered && r->unconfirmed) {
    wait_for(r, r->retry_ms, false);
    grow_pause(r);
    r->unconfirmed = false;
    return;
  }
  const enum rc rc = registered ? beat_once(r, client, epoch, &err) : register_once(r, client, &err);
  if (rc == RC_OK) {
    r->said = SAY_NOTHING;
    if (registered || !r->options.beat_at_once) pause_until_due(r, r->heartbeat_ms);
    return;
  }
  if (stopping(r)) return;
  say(r, registered, epoch, &err);
  if (registered && (rc == RC_NOT_FOUND || rc == RC_CONFLICT || rc == RC_GONE)) {
    registration_stale(r);
    return;
  }
  pause_until_due(r, r->retry_ms);
  grow_pause(r);
}

static void *registration_main(void *argument) {
  struct registration *r = argument;
  const struct coordinator_client client = {.http = r->http, .base_url = r->options.coordinator};
  while (!stopping(r)) take_turn(r, &client);
  return NULL;
}

enum rc registration_check(const char *name, const char *advertise_url, struct err *err) {
  struct err why;
  enum rc rc = *name ? wire_check_name("name", name, &why) : RC_OK;
  if (rc == RC_OK && *advertise_url) rc = wire_check_url("advertise-url", advertise_url, &why);
  return rc == RC_OK ? rc : err_set(err, rc, why.field, "--%s: %s", why.field, why.message);
}

enum rc registration_start(struct registration **out, const struct registration_options *options, struct err *err) {
  *out = NULL;
  struct registration *r = calloc(1, sizeof *r);
  if (!r) return err_set(err, RC_NO_MEMORY, NULL, "the registration was refused its memory");
  r->options = *options;
  r->retry_ms = RETRY_MIN_MS;
  r->begun_ms = clock_monotonic_ms();
  pthread_mutex_init(&r->mutex, NULL);
  cond_init(&r->changed);
  enum rc rc = http_client_create_for(&r->http, options->access, &r->cancel, err);
  if (rc == RC_OK && pthread_create(&r->thread, NULL, registration_main, r) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the registration's thread could not be started");
  r->started = rc == RC_OK;
  if (rc != RC_OK) {
    registration_stop(r);
    return rc;
  }
  *out = r;
  return RC_OK;
}

void registration_poke(struct registration *r) {
  pthread_mutex_lock(&r->mutex);
  r->poked = true;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
}

void registration_stale(struct registration *r) {
  pthread_mutex_lock(&r->mutex);
  r->registered = false;
  r->poked = true;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
}

uint64_t registration_epoch(struct registration *r) {
  pthread_mutex_lock(&r->mutex);
  const uint64_t epoch = r->epoch;
  pthread_mutex_unlock(&r->mutex);
  return epoch;
}

static void end_thread(struct registration *r) {
  pthread_mutex_lock(&r->mutex);
  r->stopping = true;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
  atomic_store(&r->cancel, true);
  if (r->started) pthread_join(r->thread, NULL);
  r->started = false;
}

void registration_leave(struct registration *r) {
  struct err err;
  const struct coordinator_client client = {.http = r->http, .base_url = r->options.coordinator};
  end_thread(r);
  atomic_store(&r->cancel, false);
  pthread_mutex_lock(&r->mutex); /* another thread may say that the registration is stale */
  const bool registered = r->registered;
  pthread_mutex_unlock(&r->mutex);
  if (registered && coordinator_leave(&client, r->worker_id, LEAVE_DEADLINE_MS, &err) != RC_OK)
    log_warn("leaving: %s", err.message); /* then the coordinator misses the heartbeats */
}

void registration_stop(struct registration *r) {
  if (!r) return;
  end_thread(r);
  http_client_destroy(r->http);
  pthread_cond_destroy(&r->changed);
  pthread_mutex_destroy(&r->mutex);
  free(r);
}
