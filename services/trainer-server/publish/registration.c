/* Registers this trainer with the coordinator, and keeps it registered by heartbeats.  Next hop of its messages: the
 * coordinator's pool/workers.c. */
#include "services/trainer-server/publish/registration.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/client/coordinator_client.h"
#include "services/trainer-server/board/authority.h"

/* DOUBT_MS: messages that nobody believes do not make it ask more often. */
enum { CALL_MS = 5000, RETRY_MS = 500, DOUBT_MS = 200, TICK_MS = 50 };

struct registration {
  struct registration_options options;
  struct board *board;
  struct publisher *publisher;
  struct http_client *http;
  pthread_t thread;
  atomic_bool stopping;
  char worker_id[LIMIT_NAME_MAX]; /* "" while not registered; the thread's */
  uint64_t epoch;
  enum worker_role role;
  int64_t heartbeat_ms;
};

/* What the coordinator says of this trainer's place. */
static void take_word(struct registration *r, enum worker_role role, uint64_t fence) {
  if (role == ROLE_STANDBY && r->role != role) log_info("another trainer holds the place: this one stands by");
  if (role == ROLE_HOLDER && r->role == ROLE_STANDBY) log_info("this trainer takes the place, fence %" PRIu64, fence);
  r->role = role;
  authority_learn(r->board, r->epoch, fence, role == ROLE_STANDBY);
}

static enum rc do_register(struct registration *r, const struct coordinator_client *c, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct worker_registered answer;
  const struct worker_register m = {.name = r->options.name,
                                    .kind = WORKER_TRAINER,
                                    .url = r->options.advertise_url,
                                    .exactness = r->options.exactness,
                                    .fabric = r->options.fabric,
                                    .identity = r->options.identity};
  enum rc rc = coordinator_register(c, &m, &answer, &arena, CALL_MS, err);
  if (rc == RC_OK) {
    snprintf(r->worker_id, sizeof r->worker_id, "%s", answer.worker_id);
    if (answer.epoch < r->epoch)
      log_warn("the coordinator's epoch is %" PRIu64 " and was %" PRIu64 ": it has another database now", answer.epoch,
               r->epoch);
    r->epoch = answer.epoch;
    r->heartbeat_ms = answer.heartbeat_ms;
    publisher_set_worker(r->publisher, r->worker_id);
    log_info("registered as %s, epoch %" PRIu64 ", fence %" PRIu64, r->worker_id, answer.epoch, answer.fence);
    take_word(r, answer.role, answer.fence);
  }
  arena_free(&arena);
  return rc;
}

static enum rc do_heartbeat(struct registration *r, const struct coordinator_client *c, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct worker_heartbeat_answer answer;
  struct board_view v;
  board_view(r->board, &v);
  const struct worker_heartbeat m = {
      .epoch = r->epoch, .ready = true, .has_loaded = true, .loaded_digest = v.digest, .sent_us = clock_wall_us()};
  enum rc rc = coordinator_heartbeat(c, r->worker_id, &m, &answer, &arena, CALL_MS, err);
  if (rc == RC_OK && answer.role != ROLE_NONE) take_word(r, answer.role, answer.fence);
  arena_free(&arena);
  return rc;
}

/* Shorter when a message claims to know more than the last answer. */
static void sleep_until_due(struct registration *r, int64_t ms) {
  for (int64_t slept = 0; slept < ms && !atomic_load(&r->stopping); slept += TICK_MS) {
    if (slept >= DOUBT_MS && authority_take_doubt(r->board)) return;
    clock_sleep_ms(TICK_MS);
  }
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
    sleep_until_due(r, rc == RC_OK ? r->heartbeat_ms : RETRY_MS);
  }
  return NULL;
}

enum rc registration_start(struct registration **out, const struct registration_options *options, struct board *board,
                           struct publisher *p, struct err *err) {
  struct registration *r = calloc(1, sizeof *r);
  if (!r) return err_set(err, RC_NO_MEMORY, NULL, "the registration's state was refused memory");
  r->options = *options;
  r->board = board;
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
