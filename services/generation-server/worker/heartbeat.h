/* Fills this server's heartbeats and handles the coordinator's answers.
 * common/client/registration.h decides when to register and when to send one.
 *
 * A heartbeat renews the leases held; its answer names those that are lost, and the current version. */
#ifndef LEASEHOLD_GENERATION_SERVER_WORKER_HEARTBEAT_H
#define LEASEHOLD_GENERATION_SERVER_WORKER_HEARTBEAT_H

#include "services/generation-server/worker/leases.h"
#include "services/generation-server/weights/staging.h"

struct heartbeat;

struct heartbeat_options {
  const char *coordinator, *name, *advertise_url, *push_token; /* borrowed; push_token NULL: none is asked for */
  const struct http_access *access;
  int slots;
  enum worker_exactness exactness; /* what the kernels promise */
  enum worker_device device;
  struct worker_fabric fabric;
  struct leases *leases;
  struct staging *staging;
  struct activity *activity; /* told with every beat */
};

enum rc heartbeat_start(struct heartbeat **out, const struct heartbeat_options *options, struct err *err);
/* Beat now: something changed that the coordinator should know. */
void heartbeat_poke(struct heartbeat *h);
/* The coordinator answered another caller that it does not know this server: register again. */
void heartbeat_stale(struct heartbeat *h);
/* Beat now, and from now on as a server that takes no more leases. */
void heartbeat_drain(struct heartbeat *h);
/* Ends the beat and deregisters.  The coordinator then grants the leases of a poll that was cut off to others: this
 * server never heard of them. */
void heartbeat_leave(struct heartbeat *h);
/* 0 before the first registration. */
uint64_t heartbeat_epoch(struct heartbeat *h);
/* NULL is fine. */
void heartbeat_stop(struct heartbeat *h);

#endif
