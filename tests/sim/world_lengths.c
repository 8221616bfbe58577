/* Lengths of samples, which groups are filtered, and what a decode step costs: functions of the configuration alone. */
#include <math.h>

#include "tests/sim/world_state.h"

enum { OTHER_ROUND = 1000, ROUND_APART = 7919, RECORDED_LEAST = 3 };

/* Box and Muller, the prompt's part and the sample's own.  With some of the prompts long, if so. */
static double lognormal(const struct world_config *c, uint64_t prompt_seed, uint64_t seed, uint32_t ordinal,
                        int sample) {
  double z[2];
  for (int part = 0; part < 2; part++) {
    const enum stream stream = part ? STREAM_SAMPLE : STREAM_PROMPT;
    const uint32_t at = part ? 2 * (uint32_t)sample : 0;
    const uint64_t of = part ? seed : prompt_seed;
    z[part] = sqrt(-2 * log(world_uniform(of, stream, ordinal, at))) *
              cos(6.283185307179586 * world_uniform(of, stream, ordinal, at + 1));
  }
  const double sp = c->sigma_prompt, ss = c->sigma_sample, longer = c->long_factor > 0 ? c->long_factor : 1;
  const bool is_long = world_uniform(prompt_seed, STREAM_PROMPT, ordinal, 9) < c->long_share;
  const double mean = c->tokens_mean / (1 + c->long_share * (longer - 1)) * (is_long ? longer : 1);
  const double tokens = floor(mean * exp(sp * z[0] + ss * z[1] - (sp * sp + ss * ss) / 2)) + 1;
  return tokens < c->tokens_max ? tokens : c->tokens_max;
}

static uint64_t seed_of(const struct world_config *c, int64_t round) { return c->seed + ROUND_APART * (uint64_t)round; }

double world_length(const struct world_config *c, int64_t round, int64_t ordinal, int sample) {
  if (c->length) return c->length(c->length_context, (int)round, (int)ordinal, sample);
  return lognormal(c, seed_of(c, round), seed_of(c, round), (uint32_t)ordinal, sample);
}

double world_grain(const struct world_config *c) { return c->token_grain > 0 ? c->token_grain : 1; }

int64_t world_recorded(const struct world_config *c, double tokens) {
  const int64_t n = (int64_t)ceil(tokens / world_grain(c));
  return n > RECORDED_LEAST ? n : RECORDED_LEAST;
}

int64_t world_handed_back(const struct world_config *c, int64_t round, int64_t ordinal, int sample, double had) {
  const int64_t whole = world_recorded(c, world_length(c, round, ordinal, sample));
  const int64_t tokens = had > 0 ? (int64_t)floor(had / world_grain(c)) : 0; /* a clock's rounding may be below */
  return tokens < whole ? tokens : whole - 1;
}

bool world_filtered(const struct world_config *c, int64_t round, int64_t ordinal) {
  return world_uniform(seed_of(c, round), STREAM_FILTER, (uint32_t)ordinal, 0) < c->filtered;
}

double world_step_us(const struct world_config *c, double rows) {
  const struct world_step *s = c->steps;
  int i = 1;
  if (c->step_count == 0) return c->step_base_us + c->step_row_us * rows;
  if (c->step_count == 1) return s[0].us;
  while (i + 1 < c->step_count && s[i].rows < rows) i++;
  const double us = s[i - 1].us + (s[i].us - s[i - 1].us) * (rows - s[i - 1].rows) / (s[i].rows - s[i - 1].rows);
  return us > 0 ? us : s[0].us;
}

/* ---- what may be expected before the first round ---- */

void world_lengths(const struct world_config *c, enum world_samples whose, float *out) {
  const uint64_t prompts = c->seed + (whose == OTHER_PROMPTS ? OTHER_ROUND : 0);
  const uint64_t samples = c->seed + (whose == THESE_SAMPLES ? 0 : OTHER_ROUND);
  for (int g = 0; g < c->groups; g++) {
    for (int s = 0; s < c->samples; s++)
      out[g * c->samples + s] =
          (float)(c->length ? c->length(c->length_context, 0, g, s) : lognormal(c, prompts, samples, (uint32_t)g, s));
  }
}

void world_step_costs(const struct world_config *c, struct step_costs *costs) {
  *costs = (struct step_costs){0};
  for (int slot = 0; slot < STEP_COST_SLOTS; slot++) {
    const int rows = 1 << slot;
    step_costs_note(costs, slot, 100, 100 * rows, (int64_t)(100 * world_step_us(c, rows)), 0);
  }
}
