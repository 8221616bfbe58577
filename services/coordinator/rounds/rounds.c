/* Makes and frees the rounds' state in memory. */
#include "services/coordinator/rounds/rounds.h"

#include <stdlib.h>

enum rc rounds_create(struct core *c, struct err *err) {
  struct rounds *r = c->rounds = calloc(1, sizeof *r);
  if (!r) return err_set(err, RC_NO_MEMORY, NULL, "the rounds' state of %zu bytes was refused", sizeof *r);
  r->m_rounds = metrics_register(METRIC_COUNTER, "leasehold_rounds_total", "", "Rounds done");
  r->m_refused =
      metrics_register(METRIC_COUNTER, "leasehold_results_refused_total", "", "Results of leases that were refused");
  r->m_samples = metrics_register(METRIC_COUNTER, "leasehold_samples_accepted_total", "", "Samples accepted");
  r->m_tokens = metrics_register(METRIC_COUNTER, "leasehold_tokens_sampled_total", "", "Tokens of accepted samples");
  r->m_unequal = metrics_register(METRIC_COUNTER, "leasehold_logprob_unequal_tokens_total", "",
                                  "Trained tokens whose log-probability differs between sampler and trainer");
  return RC_OK;
}

void rounds_destroy(struct core *c) {
  free(c->rounds);
  c->rounds = NULL;
}
