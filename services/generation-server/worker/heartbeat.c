/* Fills this server's heartbeats and passes on their answers.
 *
 * Owns the registration (common/client/registration.h), whose thread runs the callbacks; server.c starts and stops it.
 * Other threads only set the draining mark or call registration's own functions.
 *
 * It never touches weights or jobs: it tells staging.c which version is current, leases.c which leases are lost, and
 * the coordinator what activity.c recorded. */
#include "services/generation-server/worker/heartbeat.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/client/registration.h"

enum { RETRY_MAX_MS = 2000 };

struct heartbeat {
  struct heartbeat_options options;
  struct registration *registration;
  atomic_bool draining;

  /* The registration's thread's. */
  struct engine_counters since;           /* as they stood at the registration */
  struct activity_report did;             /* what the heartbeat at hand tells, until it is answered */
  struct step_sum steps[WIRE_STEP_SLOTS]; /* likewise */
};

static bool counters(struct heartbeat *h, struct engine_counters *out) {
  struct loaded_model *loaded = staging_model(h->options.staging);
  *out = (struct engine_counters){0};
  if (loaded) engine_read_counters(loaded->engine, out);
  return loaded != NULL;
}

static void on_registered(void *context, const struct worker_registered *answer) {
  struct heartbeat *h = context;
  counters(h, &h->since);
  staging_forget_current(h->options.staging);
  leases_registered(h->options.leases, answer->worker_id, answer->epoch);
  log_info("registered as %s under epoch %llu", answer->worker_id, (unsigned long long)answer->epoch);
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

static enum rc tell(void *context, struct worker_heartbeat *m, struct arena *arena, struct err *err) {
  struct heartbeat *h = context;
  struct engine_counters now;
  struct policy active;
  activity_take(h->options.activity, &h->did, clock_monotonic_us());
  m->draining = atomic_load(&h->draining);
  m->sent_us = h->did.sent_us;
  m->intervals = h->did.items;
  m->interval_count = h->did.count;
  if (counters(h, &now)) {
    m->has_loaded = engine_policy(staging_model(h->options.staging)->engine, &active);
    if (m->has_loaded) m->loaded_digest = active.digest;
    m->ready = m->has_loaded && !m->draining;
    m->slots_busy = now.slots_busy;
    m->busy_slot_us = now.busy_slot_us - h->since.busy_slot_us;
    m->tokens_sampled = now.tokens_sampled - h->since.tokens_sampled;
    m->steps = h->steps;
    m->step_count = steps_since(&now, &h->since, h->steps);
  }
  return leases_list(h->options.leases, &m->leases, &m->lease_count, arena, err);
}

static void on_answer(void *context, const struct worker_heartbeat *m, const struct worker_heartbeat_answer *answer) {
  struct heartbeat *h = context;
  leases_lost(h->options.leases, answer->lost, answer->lost_count, m->leases, m->lease_count);
  staging_follow_current(h->options.staging, &answer->current);
  activity_told(h->options.activity, h->did.until_us);
  activity_set(h->options.activity, ACTIVITY_ACTIVE, answer->run_active);
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
                                                               .exactness = options->exactness,
                                                               .device = options->device,
                                                               .push_token = options->push_token,
                                                               .fabric = options->fabric},
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
uint64_t heartbeat_epoch(struct heartbeat *h) { return registration_epoch(h->registration); }
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
