/* Plays a round of equally long samples: see round_times.h. */
#include "services/coordinator/foresee/round_times.h"

#include <math.h>

#define NEXT_TO_NOTHING 1e-9 /* a play takes a trainer, so sampling alone has one that takes no time */

/* The rest admission_plan looks at. */
static bool is_round(const struct round_paces *p) {
  return p->samples > 0 && p->samples <= ADMISSION_SAMPLES_MAX && p->new_tokens >= 1;
}

bool round_times(struct round_times *out, const struct round_paces *p, struct admission_room *room) {
  float tokens[ADMISSION_SAMPLES_MAX];
  struct admission_plan plan;
  if (!is_round(p)) return false;
  const int32_t most = (int32_t)fmin(ADMISSION_GROUPS_MAX, ADMISSION_SAMPLES_MAX / p->samples);
  const int32_t played = p->groups < most ? p->groups : most;
  const double times = (double)p->groups / played;
  for (int32_t i = 0; i < played * p->samples; i++) tokens[i] = (float)p->new_tokens;
  struct admission_facts f = {.costs = p->costs,
                              .servers = p->servers,
                              .slots = p->slots,
                              .train_us_per_token = NEXT_TO_NOTHING,
                              .spacing_least_us = p->spacing_least_us,
                              .groups = played,
                              .samples = p->samples,
                              .tokens = tokens,
                              .known = played,
                              .exact = true,
                              .groups_per_step = p->groups_per_step};
  if (!admission_plan(&f, room, &plan)) return false;
  const double prompts = p->prompt_us * p->groups / p->servers;
  out->sampled = plan.filled_end_us * times + prompts;
  out->learned = p->group_us * p->groups;
  out->sync = out->sampled + out->learned + p->round_us;
  out->pipelined = out->sync;
  if (p->group_us > 0) {
    f.train_us_per_token = p->group_us / (p->samples * p->new_tokens);
    admission_plan(&f, room, &plan); /* nothing else has changed, so there is one */
    out->pipelined = fmin(out->sync, plan.end_us * times + prompts + p->round_us);
  }
  out->inflight = fmax(out->sampled, out->learned + p->round_us);
  return true;
}
