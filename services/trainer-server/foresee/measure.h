/* Measures, for a few seconds, how fast a trainer learns from groups of a run's shape. */
#ifndef LEASEHOLD_TRAINER_SERVER_FORESEE_MEASURE_H
#define LEASEHOLD_TRAINER_SERVER_FORESEE_MEASURE_H

#include "common/client/foresight.h"
#include "services/trainer-server/engine/engine.h"

struct learning_pace {
  int groups; /* computed; 0: nothing was measured */
  /* Tokens of prompts and completions: in each measured group, and in one of the run's.  Where they differ a whole
   * group would have taken too long, and group_us is reckoned from two smaller sizes. */
  int rows, rows_of_a_group;
  double group_us; /* of one of the run's, with as many side by side as the trainer computes */
  double step_us;  /* an optimizer step, and the digest of what it made */
};

/* The engine is one of trainer_open_learning, with no run; it is of no use afterwards.  Groups have the run's shape and
 * made-up tokens, so their samples have the prompt in common and nothing else.  Computes for about measure_ms, and at
 * least a few small groups; the run's start weights and its frozen ones are made first. */
enum rc learning_measure(struct learning_pace *out, struct engine *e, const struct check_run *run,
                         const struct foresight_request *q, struct err *err);

#endif
