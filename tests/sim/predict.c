/* What a measured workload takes in virtual time: every mode's window, the best order that was found, and the bound.
 *
 *   tests/bench/bench-pipeline: costs of sync runs --stdin--> this --stdout--> a line for each mode and round
 *
 * Input: lines of a word and numbers (see `words`), lengths last: a line `lengths` for each round, with the tokens of
 * each group's samples.  Every round is played by itself, as one that comes after others: costs and lengths in general
 * are known.  `ratio` in the input scales the trainer, so that generation is to training as it says; without it the
 * trainer is as fast as it was measured.
 *
 * Output: `mode round window_us rollout_us train_us first_us idle`, then `clairvoyant round us` and `bound round us`.
 * Status 1 and a sentence on stderr for input that it does not understand, or when a promise of the simulation
 * breaks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/clairvoyant.h"
#include "tests/sim/world.h"

enum { STEPS_MAX = 32, ROUNDS_MAX = WORLD_ROUNDS, SEARCH_PLAYS = 300 };

struct problem {
  struct world_config config;
  struct world_step steps[STEPS_MAX];
  double ratio, groups_per_step; /* 0: not told */
  double behaviour_us_per_token; /* of a forward pass under the round's weights, which minibatch adds */
  int rounds;
  double lengths[ROUNDS_MAX][WORLD_GROUPS];
};

static const struct mode {
  const char *name;
  bool sync, minibatch;
  enum frontier_kind kind;
  enum world_knowledge knowledge;
} modes[] = {
    {"sync", true, false, FRONTIER_PRIORITY, KNOWS_NOTHING},
    {"cgp", false, false, FRONTIER_OFF, KNOWS_NOTHING},
    {"gate", false, false, FRONTIER_GATE, KNOWS_NOTHING},
    {"pipelined", false, false, FRONTIER_PRIORITY, KNOWS_SAMPLES},
    {"minibatch", false, true, FRONTIER_PRIORITY, KNOWS_SAMPLES},
};

/* ---- reading ---- */

struct word {
  const char *name;
  enum { WHOLE, WHOLE64, REAL } kind;
  void *target;
};

static bool set_word(struct problem *p, const char *name, double value) {
  struct world_config *c = &p->config;
  const struct word words[] = {
      {"groups", WHOLE, &c->groups},
      {"samples", WHOLE, &c->samples},
      {"slots", WHOLE, &c->slots},
      {"prefetch", WHOLE, &c->prefetch},
      {"batch_tokens", WHOLE64, &c->batch_tokens},
      {"message_us", WHOLE64, &c->message_us},
      {"verify_us", WHOLE64, &c->verify_us},
      {"prompt_us", REAL, &c->prompt_us},
      {"train_us_per_token", REAL, &c->train_us_per_token},
      {"batch_us", REAL, &c->batch_us},
      {"optimizer_us", REAL, &c->optimizer_us},
      {"publish_us", REAL, &c->publish_us},
      {"groups_per_step", REAL, &p->groups_per_step},
      {"ratio", REAL, &p->ratio},
      {"behaviour_us_per_token", REAL, &p->behaviour_us_per_token},
  };
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (strcmp(words[i].name, name) != 0) continue;
    if (words[i].kind == WHOLE) *(int *)words[i].target = (int)value;
    if (words[i].kind == WHOLE64) *(int64_t *)words[i].target = (int64_t)value;
    if (words[i].kind == REAL) *(double *)words[i].target = value;
    return true;
  }
  return false;
}

static bool read_numbers(double *out, int count) {
  for (int i = 0; i < count; i++)
    if (scanf("%lf", &out[i]) != 1 || !(out[i] >= 0)) return false;
  return true;
}

/* False: something is not understood; *name is the word. */
static bool read_problem(struct problem *p, char name[32]) {
  struct world_config *c = &p->config;
  double values[2];
  while (scanf("%31s", name) == 1) {
    if (strcmp(name, "lengths") == 0) {
      if (p->rounds == ROUNDS_MAX || c->groups < 1 || c->groups > WORLD_GROUPS) return false;
      if (!read_numbers(p->lengths[p->rounds++], c->groups)) return false;
    } else if (strcmp(name, "step") == 0) {
      if (c->step_count == STEPS_MAX || !read_numbers(values, 2)) return false;
      p->steps[c->step_count++] = (struct world_step){.rows = values[0], .us = values[1]};
    } else if (!read_numbers(values, 1) || !set_word(p, name, values[0])) {
      return false;
    }
  }
  c->steps = p->steps;
  return p->rounds > 0 && c->step_count > 0 && c->samples > 0 && c->samples <= WORLD_SAMPLES && c->slots > 0;
}

/* ---- playing ---- */

/* All samples of a group are equally long. */
static double length(void *context, int round, int ordinal, int sample) {
  (void)round, (void)sample;
  const double *lengths = context;
  return lengths[ordinal];
}

static bool play(struct world *w, const struct world_config *c, const char *name, int round, struct world_result *r) {
  world_run(w, c, r);
  if (r->fault[0]) fprintf(stderr, "predict: %s, round %d: %s\n", name, round, r->fault);
  return r->fault[0] == 0;
}

/* Trains as fast as generation and the ratio ask for. */
static bool scale(struct world *w, struct problem *p, int round) {
  struct world_config c = p->config;
  struct world_result r;
  c.sync = true;
  if (!play(w, &c, "sync", round, &r)) return false;
  const double times = (double)r.generated_us / p->ratio / (double)r.train_us;
  p->config.train_us_per_token *= times;
  p->behaviour_us_per_token *= times;
  p->config.batch_us *= times;
  p->config.optimizer_us *= times;
  return true;
}

static bool play_round(struct world *w, const struct problem *measured, int round) {
  struct problem p = *measured;
  struct world_result r;
  int64_t best_us = INT64_MAX;
  p.config.steps = p.steps;
  p.config.length_context = p.lengths[round];
  if (p.ratio > 0 && !scale(w, &p, round)) return false;
  for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
    struct world_config c = p.config;
    c.sync = modes[i].sync;
    c.kind = modes[i].kind;
    c.knowledge = modes[i].knowledge;
    if (modes[i].minibatch) {
      c.groups_per_step = (int)p.groups_per_step;
      c.train_us_per_token += p.behaviour_us_per_token;
    }
    if (!play(w, &c, modes[i].name, round, &r)) return false;
    if (!modes[i].sync && !modes[i].minibatch && r.end_us < best_us) best_us = r.end_us;
    printf("%s %d %lld %lld %lld %lld %.6f\n", modes[i].name, round, (long long)r.end_us, (long long)r.generated_us,
           (long long)r.train_us, (long long)r.first_train_us, r.idle);
  }
  const int64_t found_us = clairvoyant_end(w, &p.config, SEARCH_PLAYS);
  printf("clairvoyant %d %lld\n", round, (long long)(found_us < best_us ? found_us : best_us));
  printf("bound %d %.0f\n", round, clairvoyant_bound(&p.config));
  return true;
}

int main(void) {
  static struct problem p = {.config = {.seed = 1,
                                        .servers = 1,
                                        .tokens_max = 1e9,
                                        .heartbeat_ms = 1000,
                                        .worker_ttl_ms = 10000,
                                        .lease_ttl_ms = 30000,
                                        .aging_ms = 30000}};
  char name[32] = "";
  p.config.length = length;
  if (!read_problem(&p, name)) {
    fprintf(stderr, "predict: the input is not understood at \"%s\", or steps, lengths, samples or slots are missing\n",
            name);
    return 1;
  }
  struct world *w = world_create();
  bool good = w != NULL;
  for (int round = 0; good && round < p.rounds; round++) good = play_round(w, &p, round);
  world_destroy(w);
  return good ? 0 : 1;
}
