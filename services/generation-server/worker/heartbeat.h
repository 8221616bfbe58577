/* The tie to the coordinator: one thread that registers, beats, and registers again when the coordinator has
 * forgotten us (404) or has a new epoch (409).
 *
 *   UNREGISTERED --POST /v1/workers--> REGISTERED --404, 409--> UNREGISTERED
 *                                      REGISTERED --DELETE /v1/workers/{id}--> gone
 *
 * A heartbeat renews the leases held; its answer names those that are lost, and the current version. */
#ifndef LEASEHOLD_GENERATION_SERVER_WORKER_HEARTBEAT_H
#define LEASEHOLD_GENERATION_SERVER_WORKER_HEARTBEAT_H

#include "services/generation-server/worker/leases.h"
#include "services/generation-server/weights/staging.h"

struct heartbeat;

struct heartbeat_options {
  const char *coordinator, *token, *name, *advertise_url; /* borrowed */
  int slots;
  enum worker_exactness exactness; /* what the kernels promise */
  struct worker_fabric fabric;
  struct leases *leases;
  struct staging *staging;
  struct activity *activity; /* told with every beat */
};

enum rc heartbeat_start(struct heartbeat **out, const struct heartbeat_options *options, struct err *err);
/* Beat now: something changed that the coordinator should know. */
void heartbeat_poke(struct heartbeat *h);
/* The coordinator answered another caller that it does not know us: register again. */
void heartbeat_stale(struct heartbeat *h);
/* Beat now, and from now on as one that takes no more leases. */
void heartbeat_drain(struct heartbeat *h);
/* Ends the beat and takes leave of the coordinator, which then grants to others the leases of a poll that was cut off:
 * this server never heard of those. */
void heartbeat_leave(struct heartbeat *h);
/* 0 before the first registration. */
uint64_t heartbeat_epoch(struct heartbeat *h);
/* NULL is fine. */
void heartbeat_stop(struct heartbeat *h);

#endif
