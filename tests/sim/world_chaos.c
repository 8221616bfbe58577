/* Small worlds full of accidents: one configuration a seed, under every policy. */
#include <inttypes.h>
#include <stdio.h>

#include "tests/sim/world_state.h"

/* The seed's number `which`, between low and high. */
static int between(uint64_t seed, uint32_t which, int low, int high) {
  return low + (int)(world_draw(seed, STREAM_CHAOS, which, 0) % (uint32_t)(high - low + 1));
}

/* One world in four is crowded: few slots, and most samples are taken from their servers more than once, so that many
 * groups lack a sample or two, overtake each other and are served for their age. */
static struct world_config chaos_config(uint64_t seed) {
  const bool crowded = between(seed, 46, 0, 3) == 0;
  const int groups = between(seed, 1, crowded ? 12 : 1, 24), samples = between(seed, 2, 2, 6);
  const bool minibatch = between(seed, 33, 0, 2) == 0;
  return (struct world_config){
      .seed = seed,
      .rounds = between(seed, 34, 2, 6),
      .frontier_groups = between(seed, 0, crowded ? 3 : 0, 6), /* 0: measured */
      .knowledge = (enum world_knowledge)between(seed, 31, KNOWS_NOTHING, crowded ? KNOWS_NOTHING : KNOWS_SAMPLES),
      .groups = groups,
      .samples = samples,
      .groups_per_step = minibatch ? between(seed, 35, 1, groups) : 0,
      .evaluation_groups = between(seed, 3, 0, 1) * between(seed, 4, 1, 6),
      .filtered = between(seed, 5, 0, 2) * 0.2,
      .refill_max = between(seed, 6, 0, 12),
      .lease_samples_max = crowded ? 1 : between(seed, 7, 0, 3),
      .servers = between(seed, 8, 1, crowded ? 3 : 6),
      .slots = between(seed, 9, 1, crowded ? 4 : 12),
      .prefetch = between(seed, 10, 0, 8),
      .step_base_us = 4000 * between(seed, 11, 1, 8),
      .step_row_us = (between(seed, 32, 0, 2) ? 150 : 3000) * between(seed, 12, 0, 5),
      .prompt_us = 2000 * between(seed, 36, 0, 5),
      .slow_share = between(seed, 37, 0, 1) * 0.3,
      .slow_factor = between(seed, 38, 2, 5),
      .load_us = 20000 * between(seed, 39, 0, 5),
      .push_us = 10000 * between(seed, 46, 0, 30),
      .tokens_mean = 2 * between(seed, 13, 1, 15),
      .sigma_prompt = 0.2 * between(seed, 14, 0, 5),
      .sigma_sample = 0.2 * between(seed, 15, 0, 5),
      .tokens_max = 150,
      .message_us = 200 * between(seed, 16, 1, 50),
      .verify_us = 1000 * between(seed, 17, 0, 20),
      .train_us_per_token = 10 * between(seed, 18, 1, 40),
      .batch_us = 1000 * between(seed, 40, 0, 5),
      .optimizer_us = 2000 * between(seed, 41, 0, 20),
      .publish_us = 3000 * between(seed, 42, 0, 20),
      .batch_tokens = 60 * between(seed, 19, 1, 8),
      .heartbeat_ms = 100,
      .worker_ttl_ms = 250 * between(seed, 20, 1, 6),
      .lease_ttl_ms = 250 * between(seed, 21, 1, 6),
      .aging_ms = 20 * between(seed, 22, 1, crowded ? 5 : 40),
      .kills = between(seed, 23, 0, 5),
      .freezes = between(seed, 24, 0, 8),
      .drains = between(seed, 25, 0, 5),
      .joins = between(seed, 26, 0, 2),
      .preemptions = crowded ? 200 : between(seed, 43, 0, 40),
      .trainer_kills = between(seed, 27, 0, 3),
      .accidents_us = crowded ? 6000000 : 300000 * between(seed, 28, 1, 12),
      .freeze_us_max = 100000 * between(seed, 29, 1, 20),
      .lost = between(seed, 44, 0, 1) * 0.05,
      .doubled = between(seed, 45, 0, 1) * 0.1,
      .check_every = groups * samples <= 24 ? 0 : 40,
  };
}

static void calm(struct world_config *c) {
  c->kills = c->freezes = c->drains = c->joins = c->preemptions = c->trainer_kills = 0;
  c->lost = c->doubled = 0;
}

static void add(struct world_result *sum, const struct world_result *r) {
  sum->round_count += r->round_count;
  sum->trained_groups += r->trained_groups;
  sum->events += r->events;
  sum->leases += r->leases;
  sum->granted += r->granted;
  sum->regranted += r->regranted;
  sum->refused += r->refused;
  sum->repeated += r->repeated;
  sum->resumed += r->resumed;
  sum->overtaken += r->overtaken;
  sum->aged += r->aged;
  sum->lost += r->lost;
  sum->doubled += r->doubled;
  sum->partial += r->partial;
  sum->batches += r->batches;
  sum->inner_steps += r->inner_steps;
  sum->trainers += r->trainers;
  sum->swapped += r->swapped;
  sum->mixed += r->mixed;
  sum->again += r->again;
  sum->lagged += r->lagged;
  sum->skipped += r->skipped;
}

void world_chaos(struct world *w, uint64_t seed, struct world_result *sum) {
  enum { PRIORITY, GATE, OFF, SYNC, CALM, VARIANTS };
  static const char *const names[VARIANTS] = {"priority", "gate", "off", "sync", "calm"};
  static struct world_result first, r;
  for (int v = 0; v < VARIANTS && !sum->fault[0]; v++) {
    struct world_config c = chaos_config(seed);
    c.kind = v == GATE ? FRONTIER_GATE : v == OFF ? FRONTIER_OFF : FRONTIER_PRIORITY;
    c.sync = v == SYNC;
    if (v == GATE || v == OFF) c.knowledge = KNOWS_NOTHING;
    if (v == CALM) calm(&c);
    world_run(w, &c, &r);
    if (v == PRIORITY) first = r;
    if (r.fault[0])
      snprintf(sum->fault, sizeof sum->fault, "%s: %.300s", names[v], r.fault);
    else if (r.trained != first.trained || r.trained_groups != first.trained_groups)
      snprintf(sum->fault, sizeof sum->fault, "seed %" PRIu64 ": %s trains %d groups, priority %d, or others", seed,
               names[v], r.trained_groups, first.trained_groups);
    add(sum, &r);
  }
}

static struct world_config inflight_config(uint64_t seed) {
  struct world_config c = chaos_config(seed);
  const int groups = between(seed, 47, 1, 8);
  c.inflight = true;
  c.rounds = between(seed, 48, 3, 16);
  c.groups = groups;
  c.groups_per_step = 0;
  c.knowledge = KNOWS_NOTHING;
  c.max_lag = between(seed, 49, 0, 2) ? between(seed, 50, 1, 4) : 0;
  c.samples_ahead = between(seed, 51, 0, 2) * c.samples * between(seed, 52, 1, 4 * groups);
  c.tokens_mean *= between(seed, 53, 1, 3);
  c.publish_us /= 4;
  c.check_every = 40;
  return c;
}

void world_chaos_inflight(struct world *w, uint64_t seed, struct world_result *sum) {
  enum { COMPLETION, SUBMISSION, CALM, VARIANTS };
  static const char *const names[VARIANTS] = {"completion", "submission", "calm"};
  static struct world_result r;
  for (int v = 0; v < VARIANTS && !sum->fault[0]; v++) {
    struct world_config c = inflight_config(seed);
    c.recompute = between(seed, 54, 0, 1) == (v == SUBMISSION);
    c.by_submission = v == SUBMISSION;
    c.kind = between(seed, 55, 0, 2) ? FRONTIER_PRIORITY : FRONTIER_OFF;
    if (v == CALM) calm(&c);
    world_run(w, &c, &r);
    if (r.fault[0]) snprintf(sum->fault, sizeof sum->fault, "inflight, %s: %.290s", names[v], r.fault);
    add(sum, &r);
  }
}
