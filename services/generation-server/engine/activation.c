/* Decides what a swap of weights does to jobs and samples, and measures what it costs them.
 *
 * Every sample remembers which swap brought the weights that computed its first position (kv_swap); positions are
 * computed in order, so its keys and values are all of the active weights exactly when that is the last swap.  From
 * this the step tells which tokens are fresh (engine_step.c).
 *
 * Previous hop of a version: weights/staging.c through engine.c.  Next: engine_step.c computes with it. */
#include "services/generation-server/engine/activation.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "services/generation-server/engine/engine_state.h"
#include "services/generation-server/engine/sample_life.h"
#include "services/generation-server/fault.h"

static const double PAUSE_STEPS[] = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30};
static const double RECOMPUTE_SECONDS[] = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};

bool activation_allows(const struct decode_job *job, const struct policy *policy) {
  if (job->kind != DECODE_JOB_OF_LEASE || fault_takes_any_lease()) return true;
  if (policy->version < job->version_min || policy->version > job->version_max) return false;
  if (job->version_min == job->version_max) return digest_equal(&job->weights_digest, &policy->digest);
  return policy->version >= job->version_reached && strcmp(policy->run, job->run) == 0;
}

void activation_open(struct engine *e) {
  e->metric_pause = metrics_register_histogram(
      "leasehold_generation_activation_pause_steps", "",
      "Pauses of running samples when weights were swapped, in decode steps: from the end of the last step under the "
      "old weights to the start of the first one under the new, divided by the time of the last step that only "
      "decoded.",
      PAUSE_STEPS, sizeof PAUSE_STEPS / sizeof *PAUSE_STEPS);
  e->metric_recompute =
      metrics_register_histogram("leasehold_generation_recompute_seconds", "",
                                 "Time from a swap of weights until every running sample that had to compute its keys "
                                 "and values again had drawn a token.",
                                 RECOMPUTE_SECONDS, sizeof RECOMPUTE_SECONDS / sizeof *RECOMPUTE_SECONDS);
}

/* --- keys and values --- */

static bool keeps_kv(const struct sample *s) {
  return s->state == DECODE_RUNNING && s->kv_used && !s->job->recompute_kv;
}

void activation_drop_kv(struct engine *e) {
  bool recomputing = false;
  for (int i = 0; i < e->live_count; i++) {
    struct sample *s = e->live[i];
    if (s->state == DECODE_DONE) continue;
    s->job->prompt_ready = false; /* what shares the prompt from now on shares that of the active weights */
    s->job->leader = NULL;
    if (s->kv.length == 0 || keeps_kv(s)) continue;
    if (s->state == DECODE_RUNNING) {
      s->recomputing = recomputing = true;
      atomic_fetch_add(&e->recomputed, s->kv.length);
    }
    sample_drop_kv(e, s);
  }
  if (!recomputing) return;
  e->recompute_since_us = clock_monotonic_us();
  atomic_store(&e->recomputing, true);
}

void activation_settle(struct engine *e) {
  if (!atomic_load_explicit(&e->recomputing, memory_order_relaxed)) return;
  for (int i = 0; i < e->live_count; i++)
    if (e->live[i]->recomputing) return;
  metric_observe(e->metric_recompute, (double)(clock_monotonic_us() - e->recompute_since_us) / 1e6);
  atomic_store(&e->recomputing, false);
  if (e->options.settled) e->options.settled(e->options.context);
}

/* --- the pause --- */

void activation_pauses(struct engine *e) {
  if (e->slots_busy > 0 && e->paused_since_us == 0) e->paused_since_us = e->step_end_us;
}

void activation_rests(struct engine *e) { e->paused_since_us = 0; }

void activation_step_begins(struct engine *e, int64_t begin_us) {
  if (e->paused_since_us == 0) return;
  const int64_t us = begin_us - e->paused_since_us;
  e->paused_since_us = 0;
  atomic_fetch_add(&e->pauses, 1);
  atomic_fetch_add(&e->pause_us, us);
  if (e->step_us > 0) metric_observe(e->metric_pause, (double)us / (double)e->step_us);
}

void activation_step_ended(struct engine *e, int64_t end_us) {
  e->step_end_us = end_us;
  if (e->step_decoded || e->step_us == 0) e->step_us = end_us - e->step_begin_us;
}
