/* See registration.h.  Next hop of its messages: the coordinator's workers.c. */
#include "services/trainer-server/publish/registration.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/client/coordinator_client.h"

enum { CALL_MS = 5000, RETRY_MS = 500, TICK_MS = 50 };

struct registration {
  struct registration_options options;
  struct trainer *trainer;
  struct publisher *publisher;
  struct http_client *http;
  pthread_t thread;
  atomic_bool stopping;
  char worker_id[LIMIT_NAME_MAX]; /* "" while not registered; the thread's */
  uint64_t epoch;
  int64_t heartbeat_ms;
};

static enum rc do_register(struct registration *r, const struct coordinator_client *c, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct worker_registered answer;
  const struct worker_register m = {.name = r->options.name,
                                    .kind = WORKER_TRAINER,
                                    .url = r->options.advertise_url,
                                    .exactness = r->options.exactness,
                                    .fabric = r->options.fabric};
  enum rc rc = coordinator_register(c, &m, &answer, &arena, CALL_MS, err);
  if (rc == RC_OK) {
    snprintf(r->worker_id, sizeof r->worker_id, "%s", answer.worker_id);
    r->epoch = answer.epoch;
    r->heartbeat_ms = answer.heartbeat_ms;
    trainer_learn_epoch(r->trainer, answer.epoch, answer.fence);
    struct trainer_view v;
    trainer_view(r->trainer, &v);
    if (answer.epoch < v.epoch) {
      log_warn("the coordinator's epoch %" PRIu64 " is older than %" PRIu64
               ", which this trainer has seen: its messages will be refused; a coordinator with a new database needs a "
               "trainer "
               "with a new --state-dir",
               answer.epoch, v.epoch);
    }
    publisher_set_worker(r->publisher, r->worker_id);
    log_info("registered as %s, epoch %" PRIu64 ", fence %" PRIu64, r->worker_id, answer.epoch, answer.fence);
  }
  arena_free(&arena);
  return rc;
}

static enum rc do_heartbeat(struct registration *r, const struct coordinator_client *c, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct worker_heartbeat_answer answer;
  struct trainer_view v;
  trainer_view(r->trainer, &v);
  const struct worker_heartbeat m = {
      .epoch = r->epoch, .ready = true, .has_loaded = true, .loaded_digest = v.digest, .sent_us = clock_wall_us()};
  enum rc rc = coordinator_heartbeat(c, r->worker_id, &m, &answer, &arena, CALL_MS, err);
  arena_free(&arena);
  return rc;
}

static void sleep_unless_stopping(struct registration *r, int64_t ms) {
  for (int64_t slept = 0; slept < ms && !atomic_load(&r->stopping); slept += TICK_MS) clock_sleep_ms(TICK_MS);
}

static void *registration_main(void *context) {
  struct registration *r = context;
  const struct coordinator_client c = {.http = r->http, .base_url = r->options.coordinator_url};
  bool complained = false;
  while (!atomic_load(&r->stopping)) {
    struct err err = {0};
    enum rc rc = r->worker_id[0] ? do_heartbeat(r, &c, &err) : do_register(r, &c, &err);
    if (rc == RC_NOT_FOUND || rc == RC_CONFLICT ||
        rc == RC_GONE) { /* forgotten, or a new epoch: register again, at once */
      if (r->worker_id[0]) {
        r->worker_id[0] = 0;
        continue;
      }
    }
    if (rc != RC_OK && !complained) log_warn("coordinator: %s", err.message);
    complained = rc != RC_OK;
    sleep_unless_stopping(r, rc == RC_OK ? r->heartbeat_ms : RETRY_MS);
  }
  return NULL;
}

enum rc registration_start(struct registration **out, const struct registration_options *options, struct trainer *t,
                           struct publisher *p, struct err *err) {
  struct registration *r = calloc(1, sizeof *r);
  if (!r) return err_set(err, RC_NO_MEMORY, NULL, "the registration's state was refused memory");
  r->options = *options;
  r->trainer = t;
  r->publisher = p;
  enum rc rc = http_client_create(&r->http, options->token, &r->stopping, err);
  if (rc == RC_OK && pthread_create(&r->thread, NULL, registration_main, r) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the registration's thread could not be started");
  if (rc != RC_OK) {
    http_client_destroy(r->http);
    free(r);
    return rc;
  }
  *out = r;
  return RC_OK;
}

void registration_stop(struct registration *r) {
  if (!r) return;
  atomic_store(&r->stopping, true);
  pthread_join(r->thread, NULL);
  http_client_destroy(r->http);
  free(r);
}
