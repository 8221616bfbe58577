/* Searches for the order and the ramp of a round whose every length is known, and bounds what any could reach. */
#include "tests/sim/clairvoyant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOTAL_MAX = WORLD_GROUPS * WORLD_SAMPLES, KEYS = 5, RAMPS = 4 };

struct group_length {
  double longest, total;
};
static float tokens[TOTAL_MAX];
static struct group_length lengths[WORLD_GROUPS];

static void know(const struct world_config *c) {
  world_lengths(c, THESE_SAMPLES, tokens);
  for (int g = 0; g < c->groups; g++) {
    lengths[g] = (struct group_length){0};
    for (int s = 0; s < c->samples; s++) {
      const double t = (double)tokens[g * c->samples + s];
      lengths[g].total += t;
      if (t > lengths[g].longest) lengths[g].longest = t;
    }
  }
}

/* ---- the search ---- */

static double key_of(int kind, int g) {
  switch (kind) {
    case 0: return g;
    case 1: return lengths[g].longest;
    case 2: return lengths[g].total;
    case 3: return -lengths[g].longest;
    default: return -lengths[g].total;
  }
}

static void order_by(int kind, int groups, int32_t *order) {
  for (int g = 0; g < groups; g++) {
    int i = g;
    for (; i > 0 && key_of(kind, order[i - 1]) > key_of(kind, g); i--) order[i] = order[i - 1];
    order[i] = g;
  }
}

static int64_t run(struct world *w, const struct world_config *config, const struct admission_plan *plan) {
  struct world_config c = *config;
  struct world_result r;
  c.clairvoyant = plan;
  world_run(w, &c, &r);
  return r.fault[0] ? INT64_MAX : r.end_us;
}

int64_t clairvoyant_end(struct world *w, const struct world_config *config, int plays) {
  static struct admission_room room;
  struct step_costs costs;
  struct admission_plan planned, best[RAMPS];
  int64_t end_us = INT64_MAX;
  know(config);
  world_step_costs(config, &costs);
  const struct admission_facts f = {.costs = &costs,
                                    .servers = config->servers,
                                    .spacing_least_us = 1,
                                    .slots = config->slots,
                                    .train_us_per_token = config->train_us_per_token,
                                    .groups = config->groups,
                                    .samples = config->samples,
                                    .groups_per_step = config->groups_per_step,
                                    .tokens = tokens,
                                    .known = config->groups,
                                    .exact = true};
  if (!admission_plan(&f, &room, &planned)) return INT64_MAX;
  const double group_us = planned.filled_end_us > 0 ? planned.filled_end_us / config->groups : 0;
  for (int ramp = 0; ramp < RAMPS; ramp++) { /* none, the planner's, and two others */
    best[ramp] = planned;
    if (ramp == 1 && planned.bounded) best[ramp].end_us = admission_play(&f, &room, &best[ramp]);
    for (int kind = 0; kind < KEYS; kind++) {
      struct admission_plan p = planned;
      p.ordered = true;
      p.bounded = ramp == 1 ? planned.bounded : ramp > 1;
      if (ramp > 1) p.first = ramp == 2 ? 6 : 10;
      if (ramp > 1) p.spacing_us = (int64_t)(group_us * (ramp == 2 ? 0.7 : 0.8)) + 1;
      order_by(kind, config->groups, p.order);
      p.end_us = admission_play(&f, &room, &p);
      if (kind == 0 || p.end_us < best[ramp].end_us) best[ramp] = p;
    }
    admission_improve(&f, &room, &best[ramp], plays);
    const int64_t us = run(w, config, &best[ramp]);
    if (us < end_us) end_us = us;
  }
  const int64_t us = run(w, config, &planned);
  return us < end_us ? us : end_us;
}

/* ---- the bound ---- */

static int by_longest(const void *a, const void *b) {
  const struct group_length *x = a, *y = b;
  return (x->longest > y->longest) - (x->longest < y->longest);
}
static int by_total(const void *a, const void *b) {
  const struct group_length *x = a, *y = b;
  return (x->total > y->total) - (x->total < y->total);
}

double clairvoyant_bound(const struct world_config *c) {
  struct group_length longest[WORLD_GROUPS], total[WORLD_GROUPS];
  double all = 0, least = 0, most = 0, bound = 0;
  const double prompts_us = c->samples * c->prompt_us / c->servers;
  double step_us = INFINITY, token_us = INFINITY; /* each at the number of rows that suits it; measured costs may
                                                   * fall */
  for (int rows = 1; rows <= c->slots; rows++) {
    step_us = fmin(step_us, world_step_us(c, rows));
    token_us = fmin(token_us, world_step_us(c, rows) / rows);
  }
  token_us /= c->servers;
  know(c);
  memcpy(longest, lengths, sizeof longest);
  memcpy(total, lengths, sizeof total);
  qsort(longest, (size_t)c->groups, sizeof longest[0], by_longest);
  qsort(total, (size_t)c->groups, sizeof total[0], by_total);
  for (int g = 0; g < c->groups; g++) all += total[g].total;
  for (int k = 1; k <= c->groups; k++) { /* k are ready; at most the k - 1 largest have been trained */
    least += total[k - 1].total;
    const double ready_us = fmax(longest[k - 1].longest * step_us, least * token_us + k * prompts_us);
    bound = fmax(bound, ready_us + (all - most) * c->train_us_per_token);
    most += total[c->groups - k].total;
  }
  return bound;
}
