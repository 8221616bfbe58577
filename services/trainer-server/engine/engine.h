/* What a job of the engine may touch.  All of it belongs to the engine's thread once that runs, and to trainer_create before;
 * other threads see what the board shows them.
 *
 *   learning   weights, optimizer, and the memory that a gradient is computed in       learning.c
 *   run        the configuration of the run that is open, and its rounds so far        run_config.c, step.c
 *   next_step  what has been accumulated since the last step                           batch.c, step.c
 *
 * The jobs, one file each: open_run.c, batch.c, step.c.  Of several ranks each has an engine; those of the others do what rank
 * 0's tells them (follow.c). */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_ENGINE_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_ENGINE_H

#include "common/base/metrics.h"
#include "services/trainer-server/board/board.h"
#include "services/trainer-server/engine/accumulated_groups.h"
#include "services/trainer-server/engine/checkpoint.h"
#include "services/trainer-server/engine/gradient_unit.h"
#include "services/trainer-server/engine/options.h"
#include "services/trainer-server/engine/timeline.h"
#include "services/trainer-server/jobs/jobs.h"
#include "services/trainer-server/publish/publisher.h"

struct learning {
  struct weights *weights, *reference; /* current; frozen for the KL term or NULL */
  struct optimizer *optimizer;
  struct learner *learner;
  int learner_chunk; /* tokens per chunk that learner was made for */
  float *gradient;   /* of one unit; the optimizer's memory, see optimizer_gradient */
  bool clear;        /* the gradient is all zero, as optimizer_take_unit leaves it */
};

struct current_run {
  struct run_start start;
  struct training_config training;
  struct arena arena; /* the strings of both */
  struct unit_config unit;
  uint64_t seed;
  struct round_record *history; /* the newest rounds: see step.c */
  size_t history_count, history_cap;
};

struct next_step {
  struct accumulated *accumulated; /* groups */
  double loss;                     /* of their units */
  int64_t tokens;
  bool pending; /* taken: the weights hold it, and it is not durable yet */
  char pending_id[LIMIT_NAME_MAX];
  struct step_result result; /* of the pending one */
};

struct engine {
  struct trainer_options options;
  struct ops *ops;
  struct model *model;
  struct ranks ranks;
  struct learning learning;
  struct current_run run;
  struct next_step next_step;
  struct timeline timeline;

  struct board *board;
  struct jobs *jobs;
  struct publisher *publisher; /* NULL on every rank but the first */

  struct metric *metric_tokens, *metric_steps, *metric_skipped, *metric_units;
};

#endif
