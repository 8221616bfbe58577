/* A group whose samples are all in: decode, verify, (shuffle rewards), advantages, filter; sealed, filtered or
 * evaluated in the transaction of its last result (I4).
 *
 * Writer's thread only, but for the pure parts; memory of one sealing is an arena freed at its end.  It must not look
 * at time, worker or order of arrival: the digest and the advantages are functions of tokens, log-probabilities and
 * the dataset.  With the round's last group it hands over to round_generated.
 *
 * Previous hop: route_results.c.  Next: the driver's submit-batch (driver_train.c). */
#ifndef LEASEHOLD_COORDINATOR_GROUP_SEAL_H
#define LEASEHOLD_COORDINATOR_GROUP_SEAL_H

#include "services/coordinator/core_state.h"

enum rc group_seal(struct core *c, int64_t run, int64_t round, int64_t group, struct err *err);

/* Pure: permutes rewards[n] by Philox (RNG_REWARD), the control that must not learn. */
void rewards_shuffle(double *rewards, int n, uint64_t seed, uint32_t round, uint32_t group);
/* Pure: NULL when the group is to be trained on, else the reason why it is filtered. */
const char *group_filter_reason(const struct run_config *config, const float *advantages, int n);

#endif
