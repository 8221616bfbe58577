/* Makes and frees the pool's state in memory. */
#include "services/coordinator/pool/pool.h"

#include <stdlib.h>

enum rc pool_create(struct core *c, struct err *err) {
  const size_t count = (size_t)c->options.workers_max;
  struct pool *p = c->pool = calloc(1, sizeof *p);
  if (p) pthread_mutex_init(&p->registrations.mutex, NULL);
  if (p) p->workers = calloc(count, sizeof *p->workers);
  if (!p || !p->workers) return err_set(err, RC_NO_MEMORY, NULL, "memory for %zu workers was refused", count);
  const enum rc rc = granted_create(&p->granted, err);
  if (rc != RC_OK) return rc;
  p->m_granted = metrics_register(METRIC_COUNTER, "leasehold_leases_granted_total", "", "Leases granted");
  p->m_lost =
      metrics_register(METRIC_COUNTER, "leasehold_leases_lost_total", "", "Leases expired, lost or handed back");
  p->m_passes_granted =
      metrics_register(METRIC_COUNTER, "leasehold_passes_granted_total", "", "Groups given to preprocessors");
  p->m_passes_done = metrics_register(METRIC_COUNTER, "leasehold_passes_done_total", "",
                                      "Groups whose reference log-probabilities a preprocessor computed");
  p->m_passes_lost = metrics_register(METRIC_COUNTER, "leasehold_passes_lost_total", "",
                                      "Groups that a preprocessor did not finish, because it was lost or silent");
  p->m_workers = metrics_register(METRIC_GAUGE, "leasehold_workers", "", "Live workers");
  p->m_slots = metrics_register(METRIC_GAUGE, "leasehold_pool_slots", "",
                                "Samples that the ready generation-servers and rollout-agents decode at once");
  p->m_silent = metrics_register(METRIC_COUNTER, "leasehold_workers_silent_total", "",
                                 "Workers that were given up because no heartbeat of theirs came");
  return RC_OK;
}

void pool_destroy(struct core *c) {
  if (c->pool) free(c->pool->workers);
  if (c->pool) waiting_free(&c->pool->waiting);
  if (c->pool) prompt_lengths_free(&c->pool->prompt_lengths);
  if (c->pool) pthread_mutex_destroy(&c->pool->registrations.mutex);
  if (c->pool) granted_destroy(c->pool->granted);
  free(c->pool);
  c->pool = NULL;
}

void pool_note_held(struct pool *p, struct live_worker *w, int32_t samples) {
  if (w->kind == WORKER_GENERATION && w->ready) p->held += samples - w->held;
  w->held = samples;
}
