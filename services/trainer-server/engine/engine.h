/* The state that the engine's jobs may touch.  All of it belongs to the engine's thread once that runs, and to
 * trainer_create before; other threads see what the board shows them.
 *
 *   learning   weights, optimizer, and the memory that a gradient is computed in       learning.c
 *   run        the configuration of the run that is open, and its rounds so far        run_config.c, step.c
 *   round      what was done since the current version was made                        batch.c, step.c
 *   next_step  what has been accumulated since the last step                           batch.c, step.c
 *   writing    a checkpoint that a thread of its own writes beside the next gradients  version.c
 *
 * The jobs, one file each: open_run.c, batch.c, step.c.  Of several ranks each has an engine; those of the others do
 * what rank 0's tells them (follow.c). */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_ENGINE_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_ENGINE_H

#include "common/base/memory_plan.h"
#include "common/base/metrics.h"
#include "services/trainer-server/board/board.h"
#include "services/trainer-server/engine/accumulated_groups.h"
#include "services/trainer-server/engine/checkpoint.h"
#include "services/trainer-server/engine/gradient_unit.h"
#include "services/trainer-server/engine/options.h"
#include "services/trainer-server/engine/timeline.h"
#include "services/trainer-server/jobs/jobs.h"
#include "services/trainer-server/publish/publisher.h"

/* What computes one gradient unit at a time. */
struct lane {
  struct learner *learner;
  float *gradient; /* of one unit, or NULL; the first lane's is the optimizer's memory, see optimizer_gradient */
  bool clear;      /* the gradient is all zero, as optimizer_take_unit leaves it */
};

struct learning {
  struct weights *weights;   /* current */
  struct weights *reference; /* frozen at the run's start for the KL term, or NULL */
  struct weights *behaviour; /* the version's, frozen before a round's first inner step; NULL: a strict run */
  struct memory_plan frozen; /* as it is shown: what this run keeps beside what every run needs */
  struct optimizer *optimizer;
  struct lane *lanes; /* [options.lanes] */
  struct gradient_parts *parts; /* a lean trainer's: its one lane has no gradient of its own */
  int learner_chunk;  /* tokens per chunk that the learners were made for */
};

struct current_run {
  struct run_start start;
  struct training_config training;
  struct arena arena; /* the strings of both */
  struct unit_config unit;
  uint64_t seed;
  struct round_history history;
};

enum { KL_UNITS = 1 << 20 };

struct round_so_far {
  int32_t inner_steps; /* taken since the version was made; a trainer that starts has none */
  double loss, denominator;
  int64_t tokens, samples;
  int64_t kl_units; /* the units' KL, each rounded to 2^-20: a sum that no order changes */
  bool changed;            /* the weights are not the version's any more */
  struct step_result last; /* when changed: the last step that did */
};

struct next_step {
  struct accumulated *accumulated; /* groups */
  int64_t tokens;                  /* of their units */
  bool pending;                    /* taken: the weights hold it, and the job has not ended well yet */
  bool pending_inner;
  char pending_id[LIMIT_NAME_MAX];
  struct step_result result; /* of the pending one */
  int64_t checked_logprob_us, checked_compute_us; /* of checks (batch.c), until a batch tells them */
};

/* A checkpoint that is written while the next step's gradients are computed, see version.h. */
struct checkpoint_writing {
  bool owed; /* there is one */
  bool runs; /* the thread: until it was joined all below is its */
  pthread_t thread;
  struct checkpoint_meta meta; /* what it borrows stays as it is while the checkpoint is owed */
  struct weights_blob *blob;   /* held */
  struct err err;
  int64_t begun_us, ended_us; /* by the monotonic clock; of the last one until its time was told, then 0 */
};

struct engine {
  struct trainer_options options;
  struct ops *ops;
  struct model *model;
  struct ranks ranks;
  struct learning learning;
  struct current_run run;
  struct round_so_far round;
  struct next_step next_step;
  struct checkpoint_writing writing;
  struct timeline timeline;

  struct board *board;
  struct jobs *jobs;
  struct publisher *publisher; /* NULL on every rank but the first */

  struct metric *metric_tokens, *metric_steps, *metric_skipped, *metric_units;
};

#endif
