/* The hosts that the coordinator may ask for rewards: a client that may post a run must not be able to make it call any
 * address that it can reach.
 *
 *   --reward-hosts judge:9000,10.0.0.7,[::1]:9000        an entry without a port admits every port of the host
 *
 * Names are compared as they are written, without asking for their addresses; redirects are not followed (common/http).
 * Pure; called by api/route_runs.c when a run is posted, and by rewards.c before every call. */
#ifndef LEASEHOLD_COORDINATOR_REWARDS_REWARD_HOSTS_H
#define LEASEHOLD_COORDINATOR_REWARDS_REWARD_HOSTS_H

#include "services/coordinator/verifiers/reward.h"

/* RC_INVALID names the host that is missing.  hosts NULL or "": none may be asked. */
enum rc reward_host_check(const char *hosts, const char *url, struct err *err);
enum rc reward_hosts_check(const char *hosts, const struct reward_rule *rule, struct err *err);

#endif
