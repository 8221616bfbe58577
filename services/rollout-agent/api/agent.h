/* The rollout-agent as a whole.
 *
 *   coordinator <--leases, results, heartbeats--> worker/ --requests--> foreign engine <--loads, proofs-- weights/ <--versions-- trainer
 *
 * agent.c makes and frees the parts (agent_state.h); main.c alone calls it. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_API_AGENT_H
#define LEASEHOLD_ROLLOUT_AGENT_API_AGENT_H

#include "services/rollout-agent/api/agent_state.h"

enum rc agent_start(struct agent **out, const struct agent_options *options, struct err *err);
int agent_port(const struct agent *a);
/* Hands leases back, deregisters, and ends everything. */
void agent_stop(struct agent *a);

#endif
