/* How good a round could be if every length were known: the best order and admission that a search finds, and a bound
 * that no order can pass.
 *
 * The search starts from many orders and ramps, moves groups about by admission.c's play, and runs what it likes best
 * in the world; the same groups are members.  It is no optimum, only hard to beat.  The bound is REFERENCES' "FIFO
 * trainer": for every k, the time before which no k groups can be ready and then the training of all that cannot be
 * over by then.
 *
 * Called by sim_rounds.c, predict.c and test_simulation.c. */
#ifndef LEASEHOLD_TESTS_SIM_CLAIRVOYANT_H
#define LEASEHOLD_TESTS_SIM_CLAIRVOYANT_H

#include "tests/sim/world.h"

/* When the round ends, in microseconds. */
int64_t clairvoyant_end(struct world *w, const struct world_config *config, int plays);
double clairvoyant_bound(const struct world_config *config);

#endif
