/* The largest run of make sim: ten thousand servers and a million leases over several rounds, with every kind of
 * accident; before it a quarter of the pool in flight.  Its cost must grow with what happens, not with the pool: a
 * tenth of the pool and of the leases is run first, and a lease of the large run may not cost more than twice as much.
 *
 * sim_large [rounds]: of the large run, fewer for a first look.  Prints CPU time; ends with status 1 when a promise is
 * broken or a lease costs too much. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/sim/world.h"

enum { SERVERS = 10000, LEASES = 1000000, GROUPS = 2048, SAMPLES = 64, ROUNDS = 8, TENTH = 10, IN_FLIGHT = 4 };
#define COST_MAX 2.0

static double cpu_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct world_config large(int share, int rounds) {
  return (struct world_config){.seed = 1,
                               .rounds = rounds,
                               .groups = GROUPS / share,
                               .samples = SAMPLES,
                               .groups_per_step = GROUPS / share / 4,
                               .filtered = 0.1,
                               .refill_max = GROUPS / share / 5,
                               .lease_samples_max = 1,
                               .batch_tokens = 1 << 18,
                               .servers = SERVERS / share,
                               .slots = 4,
                               .prefetch = 2,
                               .step_base_us = 200000,
                               .step_row_us = 2000,
                               .slow_share = 0.02,
                               .slow_factor = 2,
                               .load_us = 1000000,
                               .tokens_mean = 20,
                               .sigma_prompt = 0.3,
                               .sigma_sample = 0.3,
                               .tokens_max = 60,
                               .train_us_per_token = 4 * share,
                               .batch_us = 20000,
                               .optimizer_us = 100000,
                               .publish_us = 500000,
                               .message_us = 5000,
                               .verify_us = 1000,
                               .heartbeat_ms = 10000,
                               .worker_ttl_ms = 30000,
                               .lease_ttl_ms = 30000,
                               .aging_ms = 10000,
                               .kills = 200 / share,
                               .freezes = 100 / share,
                               .drains = 100 / share,
                               .joins = 100 / share,
                               .preemptions = 300 / share,
                               .trainer_kills = 2,
                               .accidents_us = 100000000,
                               .freeze_us_max = 60000000,
                               .lost = 0.002,
                               .doubled = 0.002,
                               .in_file = true,
                               .check_every = 500000};
}

/* The same pool in flight, as far ahead as a run may be; steps are smaller, so that versions come often. */
static struct world_config inflight(int share, int rounds) {
  struct world_config c = large(share, rounds);
  c.inflight = true;
  c.groups = 512 / share;
  c.groups_per_step = 0;
  c.refill_max = 0;
  c.max_lag = 4;
  c.samples_ahead = 2048 / share * SAMPLES;
  c.push_us = 2000000;
  return c;
}

/* CPU microseconds of a lease, or 0. */
static double run(struct world *w, const struct world_config *config, int share, int rounds) {
  static struct world_result r;
  const struct world_config c = *config;
  const double begun_s = cpu_s();
  world_run(w, &c, &r);
  const double took_s = cpu_s() - begun_s;
  if (r.fault[0]) {
    printf("BROKEN %s\n", r.fault);
    return 0;
  }
  printf(
      "%5d servers: %lld leases (%lld samples, %lld of them again) in %d rounds of %.0f s together, %lld events, %lld "
      "results refused, %lld repeated, %lld samples continued; %lld lives of the trainer; %.1f s, %.0f us a lease\n",
      c.servers, (long long)r.leases, (long long)r.granted, (long long)r.regranted, r.round_count,
      (double)r.ended_us / 1e6, (long long)r.events, (long long)r.refused, (long long)r.repeated, (long long)r.resumed,
      (long long)r.trainers, took_s, 1e6 * took_s / (double)r.leases);
  fflush(stdout);
  const bool few = share == 1 && !c.inflight && rounds == ROUNDS && r.leases < LEASES;
  if (few) printf("BROKEN: fewer than a million leases\n");
  return few ? 0 : 1e6 * took_s / (double)r.leases;
}

/* A lease of the whole pool may not cost much more than one of a tenth of it. */
static bool grows(struct world *w, struct world_config (*of)(int share, int rounds), int rounds, int share) {
  const struct world_config few = of(TENTH * share, rounds), all = of(share, rounds);
  const double tenth = run(w, &few, TENTH * share, rounds), whole = tenth > 0 ? run(w, &all, share, rounds) : 0;
  if (tenth > 0 && whole > COST_MAX * tenth) printf("BROKEN: a lease costs %.2f times as much\n", whole / tenth);
  return tenth > 0 && whole > 0 && whole <= COST_MAX * tenth;
}

int main(int argc, char **argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;
  struct world *w = world_create();
  if (!w) return 1;
  const bool good = grows(w, inflight, rounds, IN_FLIGHT) && grows(w, large, rounds, 1);
  world_destroy(w);
  return good ? 0 : 1;
}
