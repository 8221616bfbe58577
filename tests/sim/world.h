/* One round in virtual time: a coordinator, a pool of generation-servers and a trainer, to try the coordinator's pure
 * decisions (dispatch.c, frontier.c, batching.c, expiry.c) by the thousand.
 *
 * The coordinator's side (world_coordinator.c) calls the real functions with what leases.c reads from the database,
 * the same bounds included.  Servers (world_pool.c) decode: each running sample advances by a token a step, a step of b
 * samples takes base + b * row, a lease is answered once all its samples are done, polls are sent as in
 * generation-server/leases.c, a prefetched sample waits behind the slots.  Servers are killed, frozen, drained and
 * added, the trainer is killed, messages take their time.  Everything random is Philox of the seed: under one seed all
 * policies meet the same lengths and the same accidents.
 *
 * Promises that are checked all the time: no sample is granted twice at once, nor without a higher fence; every group
 * is sealed once, and consumed once a lineage; a server with an idle slot asks, and is not left waiting while samples
 * may be granted; nothing behind the frontier goes before it, evaluation never before training; nobody is overtaken for
 * longer than the aging bound.
 *
 * Called by sim_rounds.c (make sim) and by tests/unit/coordinator/test_simulation.c (a slice).  One thread; the
 * only memory is the caller's struct world.  A broken promise ends the round with a sentence in result.fault. */
#ifndef LEASEHOLD_TESTS_SIM_WORLD_H
#define LEASEHOLD_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "services/coordinator/decide/admission.h"

enum { WORLD_GROUPS = 256, WORLD_SAMPLES = 16, WORLD_SERVERS = 64, WORLD_ACCIDENTS = 32 };

/* What the coordinator expects of lengths when it plans the round's admission; costs are known by then. */
enum world_knowledge {
  KNOWS_NOTHING, /* it does not plan: a first round */
  KNOWS_LENGTHS, /* how long samples are in general: those of another round */
  KNOWS_PROMPTS, /* how long each prompt's samples were in the mean, an epoch ago, and how they spread */
  KNOWS_SAMPLES  /* how long each sample is: max_new_tokens with ignore_eos */
};

struct world_config {
  uint64_t seed;
  bool sync; /* nothing is trained before everything is generated */
  enum frontier_kind kind;
  int frontier_groups; /* 0: frontier_size of what is measured */
  enum world_knowledge knowledge;
  const struct admission_plan *clairvoyant; /* a plan from outside, in place of the coordinator's; NULL: none */
  int candidates_max;  /* groups that a poll looks at; 0: FRONTIER_CANDIDATES_MAX, which is more than a world has */
  int groups, samples; /* the round's R and G */
  int evaluation_groups;
  double filtered; /* share of the groups that are filtered and, refill_max times at most, followed by a refill */
  int refill_max;
  int lease_samples_max;
  int servers, slots, prefetch;
  double step_base_us, step_row_us;
  double tokens_mean, sigma_prompt, sigma_sample; /* lognormal; the prompt's part is common to its samples */
  double long_share, long_factor; /* bimodal: of the prompts; so many times as long; tokens_mean is of all */
  double tokens_max;
  int64_t message_us, verify_us; /* one way; from a group's last sample to its sealing */
  double train_us_per_token;
  int64_t batch_tokens;
  int64_t heartbeat_ms, worker_ttl_ms, lease_ttl_ms, aging_ms;
  int kills, freezes, drains, joins, trainer_kills;
  int64_t accidents_us;  /* accidents happen in the first so many microseconds */
  int64_t freeze_us_max; /* longer than the times to live: zombies */
};

struct world_result {
  char fault[256];        /* "": every promise was kept */
  int64_t first_us;       /* the first group is trainable */
  int64_t generated_us;   /* the last group is sealed or filtered */
  int64_t first_train_us; /* the trainer begins */
  int64_t end_us;         /* the last group is trained */
  int64_t train_us;       /* the trainer's compute that counted: its last life's */
  double idle;            /* share of the pool's slot time until generated_us without a sample */
  double starved;         /* part of it while samples waited at the coordinator */
  double hoarded;         /* part of it while samples waited behind another server's slots */
  uint64_t trained;       /* over the trained groups: which, and how many tokens */
  int trained_groups;
  int64_t granted, regranted, refused, overtaken, aged; /* samples; results; groups */
};

struct world;
size_t world_bytes(void);
void world_run(struct world *w, const struct world_config *config, struct world_result *result);

/* Lengths, [groups * samples]: of this round's samples, of other samples of its prompts, of another round's. */
enum world_samples { THESE_SAMPLES, OTHER_SAMPLES, OTHER_PROMPTS };
void world_lengths(const struct world_config *c, enum world_samples whose, float *out);
void world_step_costs(const struct world_config *c, struct step_costs *costs);

/* Some small round full of accidents, another for each seed, under every policy, sync, and without accidents: all must
 * keep the promises and train the same groups.  Adds the counts up in *sum, whose fault is set when one does not. */
void world_chaos(struct world *w, uint64_t seed, struct world_result *sum);

#endif
