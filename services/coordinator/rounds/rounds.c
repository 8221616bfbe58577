/* Makes and frees the rounds' state in memory. */
#include "services/coordinator/rounds/rounds.h"

#include <stdlib.h>

#include "services/coordinator/run/run_context.h"

enum rc rounds_create(struct core *c, struct err *err) {
  struct rounds *r = c->rounds = calloc(1, sizeof *r);
  if (!r) return err_set(err, RC_NO_MEMORY, NULL, "the rounds' state of %zu bytes was refused", sizeof *r);
  pthread_mutex_init(&r->context_lock, NULL);
  r->m_rounds = metrics_register(METRIC_COUNTER, "leasehold_rounds_total", "", "Rounds done");
  r->m_refused =
      metrics_register(METRIC_COUNTER, "leasehold_results_refused_total", "", "Results of leases that were refused");
  r->m_samples = metrics_register(METRIC_COUNTER, "leasehold_samples_accepted_total", "", "Samples accepted");
  r->m_tokens = metrics_register(METRIC_COUNTER, "leasehold_tokens_sampled_total", "", "Tokens of accepted samples");
  r->m_unequal = metrics_register(METRIC_COUNTER, "leasehold_logprob_unequal_tokens_total", "",
                                  "Trained tokens whose log-probability differs between sampler and trainer");
  static const double seconds[] = {0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000};
  r->m_seconds =
      metrics_register_histogram("leasehold_round_seconds", "", "Time of a round, from its opening to its publication",
                                 seconds, sizeof seconds / sizeof seconds[0]);
  return RC_OK;
}

void rounds_destroy(struct core *c) {
  if (!c->rounds) return;
  run_context_release(c->rounds->shared);
  pthread_mutex_destroy(&c->rounds->context_lock);
  free(c->rounds);
  c->rounds = NULL;
}

enum rc rounds_result_refused(struct core *c, int64_t run, struct err *err) {
  metric_add(c->rounds->m_refused, 1);
  return store_exec(c->store, err, "UPDATE runs SET results_refused = results_refused + 1 WHERE id = ?1",
                    BINDS(b_int(run)));
}

void rounds_context_changed(struct core *c) {
  c->rounds->stream.known = false;
  pthread_mutex_lock(&c->rounds->context_lock);
  struct run_context *before = c->rounds->shared;
  c->rounds->shared = c->context ? run_context_keep(c->context) : NULL;
  pthread_mutex_unlock(&c->rounds->context_lock);
  run_context_release(before);
}

struct run_context *rounds_context_keep(struct core *c) {
  pthread_mutex_lock(&c->rounds->context_lock);
  struct run_context *x = c->rounds->shared ? run_context_keep(c->rounds->shared) : NULL;
  pthread_mutex_unlock(&c->rounds->context_lock);
  return x;
}
