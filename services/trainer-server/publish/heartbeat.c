/* Fills the trainer's heartbeats and passes on their answers.
 *
 * Owns the registration (common/client/registration.h), whose thread runs the callbacks; main.c starts and stops it.  A
 * trainer that ends does not deregister: the coordinator keeps its place for it (trainer_place.h). */
#include "services/trainer-server/publish/heartbeat.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/client/registration.h"
#include "services/trainer-server/board/authority.h"

enum { RETRY_MAX_MS = 500 };

struct heartbeat {
  struct board *board;
  struct publisher *publisher;
  struct registration *registration;

  /* The registration's thread's. */
  uint64_t epoch;
  enum worker_role role;
};

/* The coordinator said whether the trainer's place is this trainer's. */
static void take_role(struct heartbeat *h, enum worker_role role, uint64_t fence) {
  if (role == ROLE_STANDBY && h->role != role) log_info("another trainer holds the place: this one stands by");
  if (role == ROLE_HOLDER && h->role == ROLE_STANDBY) log_info("this trainer takes the place, fence %" PRIu64, fence);
  h->role = role;
  authority_learn(h->board, h->epoch, fence, role == ROLE_STANDBY);
}

static void on_registered(void *context, const struct worker_registered *answer) {
  struct heartbeat *h = context;
  h->epoch = answer->epoch;
  publisher_set_worker(h->publisher, answer->worker_id);
  log_info("registered as %s, epoch %" PRIu64 ", fence %" PRIu64, answer->worker_id, answer->epoch, answer->fence);
  take_role(h, answer->role, answer->fence);
}

static enum rc tell(void *context, struct worker_heartbeat *m, struct arena *arena, struct err *err) {
  (void)arena, (void)err;
  struct board_view v;
  board_view(((struct heartbeat *)context)->board, &v);
  m->ready = m->has_loaded = true;
  m->loaded_digest = v.digest;
  m->sent_us = clock_wall_us();
  return RC_OK;
}

static void on_answer(void *context, const struct worker_heartbeat *m, const struct worker_heartbeat_answer *answer) {
  (void)m;
  if (answer->role != ROLE_NONE) take_role(context, answer->role, answer->fence);
}

/* A message claims to know more than the last answer. */
static bool in_doubt(void *context) { return authority_take_doubt(((struct heartbeat *)context)->board); }

enum rc heartbeat_start(struct heartbeat **out, const struct heartbeat_options *options, struct board *board,
                        struct publisher *p, struct err *err) {
  *out = NULL;
  struct heartbeat *h = calloc(1, sizeof *h);
  if (!h) return err_set(err, RC_NO_MEMORY, NULL, "the heartbeat was refused its memory");
  h->board = board;
  h->publisher = p;
  const struct registration_options registration = {.coordinator = options->coordinator_url,
                                                    .access = options->access,
                                                    .worker = {.name = options->name,
                                                               .kind = WORKER_TRAINER,
                                                               .url = options->advertise_url,
                                                               .exactness = options->exactness,
                                                               .device = options->device,
                                                               .fabric = options->fabric,
                                                               .identity = options->identity},
                                                    .retry_ms_max = RETRY_MAX_MS,
                                                    .registered = on_registered,
                                                    .tell = tell,
                                                    .answered = on_answer,
                                                    .in_doubt = in_doubt,
                                                    .context = h};
  const enum rc rc = registration_start(&h->registration, &registration, err);
  if (rc != RC_OK) {
    free(h);
    return rc;
  }
  *out = h;
  return RC_OK;
}

void heartbeat_stop(struct heartbeat *h) {
  if (!h) return;
  registration_stop(h->registration);
  free(h);
}
