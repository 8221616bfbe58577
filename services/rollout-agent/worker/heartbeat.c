/* Fills this agent's heartbeats and passes on their answers.
 *
 * Owns the registration (common/client/registration.h), whose thread runs the callbacks; agent.c starts and stops it.
 * Other threads only set the draining mark or call registration's own functions.  The agent registers as a generation
 * worker whose engine is not ours: rounds in which it has a part say so. */
#include "services/rollout-agent/worker/heartbeat.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/client/registration.h"

enum { RETRY_MAX_MS = 2000 };

struct heartbeat {
  struct heartbeat_options options;
  struct registration *registration;
  atomic_bool draining;
  struct leases_counters since; /* the registration's thread's: as they stood at the registration */
};

static void on_registered(void *context, const struct worker_registered *answer) {
  struct heartbeat *h = context;
  leases_read_counters(h->options.leases, &h->since);
  loader_forget_current(h->options.loader);
  leases_registered(h->options.leases, answer->worker_id, answer->epoch);
  log_info("registered as %s under epoch %llu", answer->worker_id, (unsigned long long)answer->epoch);
}

static enum rc tell(void *context, struct worker_heartbeat *m, struct arena *arena, struct err *err) {
  struct heartbeat *h = context;
  struct leases_counters now;
  struct held_version held;
  leases_read_counters(h->options.leases, &now);
  m->draining = atomic_load(&h->draining);
  m->has_loaded = loader_holds(h->options.loader, &held);
  if (m->has_loaded) m->loaded_digest = held.digest;
  m->ready = m->has_loaded && !m->draining;
  m->slots_busy = now.slots_busy;
  m->busy_slot_us = now.busy_us - h->since.busy_us;
  m->tokens_sampled = now.tokens_sampled - h->since.tokens_sampled;
  return leases_list(h->options.leases, &m->leases, &m->lease_count, arena, err);
}

static void on_answer(void *context, const struct worker_heartbeat *m, const struct worker_heartbeat_answer *answer) {
  struct heartbeat *h = context;
  leases_lost(h->options.leases, answer->lost, answer->lost_count, m->leases, m->lease_count);
  loader_told_current(h->options.loader, &answer->current);
}

enum rc heartbeat_start(struct heartbeat **out, const struct heartbeat_options *options, struct err *err) {
  *out = NULL;
  struct heartbeat *h = calloc(1, sizeof *h);
  if (!h) return err_set(err, RC_NO_MEMORY, NULL, "the heartbeat was refused its memory");
  h->options = *options;
  const struct registration_options registration = {.coordinator = options->coordinator,
                                                    .access = options->access,
                                                    .worker = {.name = options->name,
                                                               .kind = WORKER_GENERATION,
                                                               .url = options->advertise_url,
                                                               .slots = options->slots,
                                                               .exactness = WORKER_FOREIGN},
                                                    .beat_at_once = true, /* the answer names the current version */
                                                    .retry_ms_max = RETRY_MAX_MS,
                                                    .registered = on_registered,
                                                    .tell = tell,
                                                    .answered = on_answer,
                                                    .context = h};
  const enum rc rc = registration_start(&h->registration, &registration, err);
  if (rc != RC_OK) {
    free(h);
    return rc;
  }
  *out = h;
  return RC_OK;
}

void heartbeat_poke(struct heartbeat *h) { registration_poke(h->registration); }
void heartbeat_stale(struct heartbeat *h) { registration_stale(h->registration); }
void heartbeat_leave(struct heartbeat *h) { registration_leave(h->registration); }

void heartbeat_drain(struct heartbeat *h) {
  atomic_store(&h->draining, true);
  registration_poke(h->registration);
}

void heartbeat_stop(struct heartbeat *h) {
  if (!h) return;
  registration_stop(h->registration);
  free(h);
}
