/* Tells the coordinator what it would know before the first round: what a round like it has shown, or a plan. */
#include <stdlib.h>

#include "services/coordinator/pool/pool.h"
#include "tests/sim/world_state.h"

/* The paces of trainer and samples, of groups that went before. */
static void tell_rates(struct world *w, const float *tokens, int count) {
  const struct world_config *c = &w->c;
  struct dispatch_rates *rates = &w->core->pool->rates;
  double sum = 0;
  for (int i = 0; i < count; i++) sum += (double)tokens[i];
  const double train_s = sum * c->train_us_per_token / 1e6;
  if (train_s > 0) rate_note(&rates->drain, c->groups, train_s, world_now_ms(w));
  rate_note(&rates->tokens, sum / world_grain(c), count, world_now_ms(w));
}

static double mean_of(const int32_t *values, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += values[i];
  return sum / n;
}

/* What the coordinator has measured itself when a round has passed; prompts_again: a round of these very prompts. */
static void tell_measures(struct world *w, const float *tokens, bool prompts_again) {
  struct pace *p = &w->core->pool->pace;
  const struct world_config *c = &w->c;
  int32_t lengths[WORLD_SAMPLES];
  world_step_costs(c, &p->costs);
  for (int i = 0; i < STEP_COST_SLOTS; i++) p->costs.slots[i].us *= world_grain(c); /* of recorded tokens */
  p->costs.at_ms = world_now_ms(w);
  for (int g = 0; g < c->groups; g++) {
    for (int s = 0; s < c->samples; s++) lengths[s] = (int32_t)world_recorded(c, (double)tokens[g * c->samples + s]);
    pace_note_group(p, 1, lengths, c->samples);
    if (prompts_again)
      prompt_lengths_note(&w->core->pool->prompt_lengths, 1, g, mean_of(lengths, c->samples), world_now_ms(w));
  }
}

static void tell_plan(struct world *w, const struct admission_plan *plan) {
  struct pace *p = &w->core->pool->pace;
  p->plan = *plan;
  p->plan_run = 1;
  p->plan_round = 0;
  p->opened_ms = world_now_ms(w);
  p->admitted = admission_groups(plan, 0);
  for (int i = 0; plan->ordered && i < w->c.groups; i++) p->place[plan->order[i]] = i + 1;
}

/* With the length of each sample. */
static void plan_round(struct world *w, const float *tokens) {
  const struct world_config *c = &w->c;
  struct step_costs costs;
  struct admission_plan plan;
  float most[WORLD_GROUPS];
  world_step_costs(c, &costs);
  for (int g = 0; g < c->groups; g++) most[g] = (float)c->tokens_max;
  const struct admission_facts f = {.costs = &costs,
                                    .spacing_least_us = 1,
                                    .servers = c->servers,
                                    .slots = c->slots,
                                    .train_us_per_token = c->train_us_per_token,
                                    .groups = c->groups,
                                    .samples = c->samples,
                                    .groups_per_step = c->groups_per_step,
                                    .tokens = tokens,
                                    .known = c->groups,
                                    .exact = true,
                                    .most = c->tokens_max > 0 ? most : NULL};
  if (!admission_plan(&f, &w->room, &plan)) world_fault(w, "the first round cannot be planned by what is known");
  tell_plan(w, &plan);
}

void world_tell(struct world *w) {
  const struct world_config *c = &w->c;
  const int count = c->groups * c->samples;
  if (c->clairvoyant) tell_plan(w, c->clairvoyant);
  if (c->knowledge == KNOWS_NOTHING || c->clairvoyant || c->kind != FRONTIER_PRIORITY || c->sync) return;
  if (count > ADMISSION_SAMPLES_MAX || c->groups > WORLD_GROUPS) return;
  float *tokens = calloc((size_t)count, sizeof *tokens);
  if (!tokens) abort();
  static const enum world_samples whose[] = {
      [KNOWS_LENGTHS] = OTHER_PROMPTS, [KNOWS_PROMPTS] = OTHER_SAMPLES, [KNOWS_SAMPLES] = THESE_SAMPLES};
  world_lengths(c, whose[c->knowledge], tokens);
  tell_rates(w, tokens, count);
  if (c->knowledge == KNOWS_SAMPLES)
    plan_round(w, tokens);
  else
    tell_measures(w, tokens, c->knowledge == KNOWS_PROMPTS);
  free(tokens);
}
