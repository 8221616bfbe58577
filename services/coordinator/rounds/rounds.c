/* Makes and frees the rounds' state in memory. */
#include "services/coordinator/rounds/rounds.h"

#include <stdio.h>
#include <stdlib.h>

#include "services/coordinator/run/run_context.h"
#include "services/coordinator/writer/core.h"

enum { FAILING_MS = 1000 }; /* shorter trouble is not told */

enum rc rounds_create(struct core *c, struct err *err) {
  struct rounds *r = c->rounds = calloc(1, sizeof *r);
  if (!r) return err_set(err, RC_NO_MEMORY, NULL, "the rounds' state of %zu bytes was refused", sizeof *r);
  pthread_mutex_init(&r->shared_lock, NULL);
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
  pthread_mutex_destroy(&c->rounds->shared_lock);
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
  pthread_mutex_lock(&c->rounds->shared_lock);
  struct run_context *before = c->rounds->shared;
  c->rounds->shared = c->context ? run_context_keep(c->context) : NULL;
  pthread_mutex_unlock(&c->rounds->shared_lock);
  run_context_release(before);
}

struct run_context *rounds_context_keep(struct core *c) {
  pthread_mutex_lock(&c->rounds->shared_lock);
  struct run_context *x = c->rounds->shared ? run_context_keep(c->rounds->shared) : NULL;
  pthread_mutex_unlock(&c->rounds->shared_lock);
  return x;
}

void rounds_checks_note(struct core *c, int64_t run, const char *why) {
  struct failing_checks *f = &c->rounds->failing;
  pthread_mutex_lock(&c->rounds->shared_lock);
  if (why && f->run != run) f->since_ms = core_monotonic_ms(c);
  f->run = why ? run : 0;
  if (why) snprintf(f->why, sizeof f->why, "%s", why);
  pthread_mutex_unlock(&c->rounds->shared_lock);
}

bool rounds_checks_failing(struct core *c, int64_t run, char why[ERR_MESSAGE_MAX]) {
  const struct failing_checks *f = &c->rounds->failing;
  pthread_mutex_lock(&c->rounds->shared_lock);
  const bool failing = f->run == run && core_monotonic_ms(c) - f->since_ms >= FAILING_MS;
  if (failing) snprintf(why, ERR_MESSAGE_MAX, "samples could not be checked: %.990s", f->why);
  pthread_mutex_unlock(&c->rounds->shared_lock);
  return failing;
}
