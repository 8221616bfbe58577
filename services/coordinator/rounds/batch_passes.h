/* Finds the sealed groups that a batch may take now, where preprocessors compute the reference's log-probabilities of
 * some of them: it reads the facts by which decide/passes.h decides.
 *
 * Called by batches.c on the driver's thread, with a connection for readers.  A run without a KL term reads nothing
 * here, one without preprocessors asks once a look whether there are any.  Which groups a step has never depends on
 * it. */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_BATCH_PASSES_H
#define LEASEHOLD_COORDINATOR_ROUNDS_BATCH_PASSES_H

#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/store.h"

struct group_place {
  int64_t round, ordinal; /* round: the batch's own, or in `inflight` an earlier one */
};

/* When batches_select is asked: whether a group is worth waiting for depends on it. */
struct batch_moment {
  int64_t wall_ms;   /* as it is stored */
  bool trainer_idle; /* no batch is at the trainer */
};

struct passes_moment {
  struct batch_moment now;
  int preprocessors; /* live ones that hold the run's reference; 0: nothing is waited for */
  bool taught;       /* the reference is a teacher's: every group waits for its pass */
};
enum rc batch_passes_look(struct passes_moment *out, struct store *s, const struct run_context *x,
                          const struct batch_moment *now, struct err *err);
/* Removes those that are worth waiting for: places[*count] and their tokens, in order. */
enum rc batch_passes_sift(struct group_place *places, int64_t *tokens, int *count, struct store *s,
                          const struct run_context *x, const struct passes_moment *m, struct arena *arena,
                          struct err *err);

#endif
