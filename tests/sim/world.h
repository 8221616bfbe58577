/* A run in virtual time: the coordinator itself, beside a pool of generation-servers and a trainer that only compute
 * time.
 *
 *   events: a heap, by time --> a server or the trainer acts --message--> the coordinator's core (no thread, its database
 *   in memory, its clock the heap's) --answer--> events ...
 *
 * The coordinator's side is the coordinator's code: registration, polls, heartbeats and results are its routes'
 * commands, parked polls are its writer's, groups are verified and sealed, batches planned, inner steps and versions
 * taken by its rooms, and what goes to the trainer next is its driver's choice (driver/next.h).  Only computing is
 * modelled: a step of b rows takes so long, a batch of n tokens so long, messages take their time, and are lost and
 * doubled.  Servers ask as generation-server/worker/leases.c does, are killed, frozen, drained, added and slow, and
 * hand leases back half done; the trainer is killed and begins its round again.  Everything random is Philox of the
 * seed: under one seed all policies meet the same lengths and the same accidents.
 *
 * In `mode: inflight` a round is a step, and servers swap versions while samples run: a version is announced first and
 * pushed then, early, late or not at all, so that some are skipped; leases that it is not valid for go back, the others
 * go on with another span.  A token's log-probability tells which version drew it, whatever the ledger says of it.
 *
 * Promises that are checked all the time: the invariants I1 to I6 and I9 (world_invariants.h); no sample is granted
 * twice at once, nor without a higher fence; a server with an idle slot asks, and is not left waiting while samples may
 * be granted; nothing behind the frontier goes before it, evaluation never before training; nobody is overtaken for
 * longer than the aging bound; the trainer's weights are a function of the seed.  In flight in place of these last
 * three: what world_stream.c lists.
 *
 * Called by the programs of make sim, by predict.c, and by tests/unit/coordinator/test_simulation.c (a slice).  One
 * thread; a world is made once and runs any number of configurations.  A broken promise ends the run with a sentence in
 * result.fault. */
#ifndef LEASEHOLD_TESTS_SIM_WORLD_H
#define LEASEHOLD_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "services/coordinator/decide/admission.h"

enum { WORLD_GROUPS = 256, WORLD_SAMPLES = 64, WORLD_ROUNDS = 64, WORLD_ACCIDENTS = 4096 };

/* What the coordinator expects of lengths when it plans the first round's admission; costs are known by then.  Later
 * rounds go by what it has measured itself. */
enum world_knowledge {
  KNOWS_NOTHING, /* it does not plan: a first round */
  KNOWS_LENGTHS, /* how long samples are in general: those of another round */
  KNOWS_PROMPTS, /* how long each prompt's samples were in the mean, an epoch ago, and how they spread */
  KNOWS_SAMPLES  /* how long each sample is: max_new_tokens with ignore_eos */
};

/* A measured decode step. */
struct world_step {
  double rows, us;
};

struct world_config {
  uint64_t seed;
  bool sync; /* nothing is trained before everything is generated */
  enum frontier_kind kind;
  int frontier_groups; /* 0: as measured */
  enum world_knowledge knowledge;
  const struct admission_plan *clairvoyant; /* of the first round, in place of the coordinator's; NULL: none */
  int rounds;                               /* 0: one */
  int groups, samples;                      /* a round's R and G */
  int groups_per_step;                      /* update: minibatch; 0: strict */
  /* mode: inflight, whose steps take `groups` each. */
  bool inflight, recompute, by_submission;
  int max_lag, samples_ahead; /* samples_ahead 0: two steps' */
  int evaluation_groups;                    /* of the first round */
  double filtered; /* share of the groups that are filtered and, refill_max times at most, followed by a refill */
  int refill_max;
  int lease_samples_max;
  int64_t batch_tokens;

  /* The pool.  A step takes what `steps` say, by straight lines, which go on beyond the last one; without steps
   * step_base_us + rows * step_row_us. */
  int servers, slots, prefetch;
  double step_base_us, step_row_us;
  const struct world_step *steps; /* [step_count], rows ascending */
  int step_count;
  double prompt_us;               /* before a sample's first step its server computes the prompt, and nothing else */
  double slow_share, slow_factor; /* stragglers: so many of the servers take so many times as long */
  double load_us;                 /* a server that was not pushed to loads a version */
  double push_us;                 /* in flight a push takes up to so long; a fifth of them get lost */

  /* Lengths: a callback, or lognormal; tokens_mean is of all. */
  double (*length)(void *context, int round, int ordinal, int sample);
  void *length_context;
  double tokens_mean, sigma_prompt, sigma_sample; /* the prompt's part is common to its samples */
  double long_share, long_factor;                 /* bimodal: of the prompts; so many times as long */
  double tokens_max;
  double token_grain; /* the ledger keeps one token for so many, so that long samples cost no memory; 0: 1 */

  /* The trainer.  A batch takes batch_us + tokens * train_us_per_token (prompts not counted), an optimizer step
   * optimizer_us; from a round's last step on, checkpoint and push take publish_us. */
  double train_us_per_token, batch_us, optimizer_us, publish_us;

  int64_t message_us, verify_us; /* one way; what a group's last sample takes longer */
  int64_t heartbeat_ms, worker_ttl_ms, lease_ttl_ms, aging_ms;
  /* The ledger is a file on tmpfs, with a bounded page cache, for large worlds: of a database in memory SQLite goes
   * through all pages in every commit that has split one. */
  bool in_file;
  int64_t look_ms; /* between the writer's looks at the time, CORE_LOOK_MS to three times as much; 0: CORE_LOOK_MS */

  /* Accidents, all in the first accidents_us. */
  int kills, freezes, drains, joins, preemptions, trainer_kills;
  int64_t accidents_us;
  int64_t freeze_us_max; /* longer than the times to live: zombies */
  double lost, doubled;  /* share of the messages between servers and coordinator */

  int check_every; /* the database is asked for every invariant after so many events, and at the end; 0: after each */
};

/* Microseconds; all but opened_us are counted from the round's opening. */
struct world_round {
  int64_t opened_us;      /* since the beginning */
  int64_t first_us;       /* the first group is trainable */
  int64_t generated_us;   /* the last group is sealed or filtered */
  int64_t first_train_us; /* the trainer begins */
  int64_t end_us;         /* the last group is trained: batches and inner steps are done */
  int64_t published_us;   /* the next version is current */
  int64_t train_us;       /* the trainer's compute that counted: its last life's, inner steps included */
  double idle;            /* share of the pool's slot time until generated_us without a sample */
};

struct world_result {
  char fault[320]; /* "": every promise was kept */
  int round_count;
  struct world_round rounds[WORLD_ROUNDS];
  /* Of the last round, as above. */
  int64_t first_us, generated_us, first_train_us, end_us, train_us;
  double idle;
  int64_t ended_us; /* the last version is current */
  uint64_t trained; /* over the trained groups of all rounds, their steps and contents: the weights, so to say */
  int trained_groups;
  int64_t events, leases, granted, regranted, refused, repeated, resumed, overtaken, aged; /* of samples: granted to
                     resumed but for refused and repeated, which are of results; overtaken and aged are of groups */
  int64_t lost, doubled, partial;         /* messages; samples that were handed back half done */
  int64_t batches, inner_steps, trainers; /* sent, those that were sent again included; lives */
  /* In flight: samples that ran on under another version, samples of several versions that a step took; finished
   * samples that were too old and drawn again, groups that were left out; versions that no push or load brought to a
   * server. */
  int64_t swapped, mixed, again, lagged, skipped;
};

/* Reads deploy/demo/model below the working directory; NULL with a line on stderr when it cannot. */
struct world *world_create(void);
void world_destroy(struct world *w); /* NULL is fine */
void world_run(struct world *w, const struct world_config *config, struct world_result *result);

/* Lengths, [groups * samples]: of this round's samples, of other samples of its prompts, of another round's. */
enum world_samples { THESE_SAMPLES, OTHER_SAMPLES, OTHER_PROMPTS };
void world_lengths(const struct world_config *c, enum world_samples whose, float *out);
void world_step_costs(const struct world_config *c, struct step_costs *costs);
double world_step_us(const struct world_config *c, double rows);

/* Some small rounds full of accidents, others for each seed, under every policy, sync, and without accidents: all must
 * keep the promises and train the same groups.  Adds the counts up in *sum, whose fault is set when one does not. */
void world_chaos(struct world *w, uint64_t seed, struct world_result *sum);
/* The same for `mode: inflight`, in either order, with keys and values kept and computed again, and without
 * accidents. */
void world_chaos_inflight(struct world *w, uint64_t seed, struct world_result *sum);

#endif
