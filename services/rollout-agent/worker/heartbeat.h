/* Fills this agent's heartbeats and handles the coordinator's answers.
 * common/client/registration.h decides when to register and when to send one.
 *
 * A heartbeat renews the leases held, and says which weights the engine was proven to hold; its answer names leases
 * that are lost, and the current version. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_WORKER_HEARTBEAT_H
#define LEASEHOLD_ROLLOUT_AGENT_WORKER_HEARTBEAT_H

#include "services/rollout-agent/worker/leases.h"

struct heartbeat;

struct heartbeat_options {
  const char *coordinator, *name, *advertise_url; /* borrowed */
  const struct http_access *access;
  int slots;
  struct leases *leases;
  struct loader *loader;
};

enum rc heartbeat_start(struct heartbeat **out, const struct heartbeat_options *options, struct err *err);
/* Beat now: something changed that the coordinator should know. */
void heartbeat_poke(struct heartbeat *h);
/* The coordinator answered another caller that it does not know this agent: register again. */
void heartbeat_stale(struct heartbeat *h);
/* Beat now, and from now on as a worker that takes no more leases. */
void heartbeat_drain(struct heartbeat *h);
/* Ends the beat and deregisters. */
void heartbeat_leave(struct heartbeat *h);
/* NULL is fine. */
void heartbeat_stop(struct heartbeat *h);

#endif
