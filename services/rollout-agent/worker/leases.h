/* The leases that this agent holds: pulled from the coordinator, drawn sample by sample by the slots, posted back.
 *
 *   puller --long poll--> coordinator          slots --a request each--> foreign engine
 *      +--a job for each sample--> queue --> slots; the slot that ends a lease's last sample --PUT result--> coordinator
 *
 *   held ---> running ---> posting ---> gone
 *     |          +-- a sample was not drawn, or not proven: the whole lease is handed back, with those that were
 *     +----------+------> lost (heartbeat's answer, new registration): its requests are cut, nothing is posted
 *
 * The puller asks only while the engine is proven to hold a version.  Thread-safe throughout; one mutex. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_WORKER_LEASES_H
#define LEASEHOLD_ROLLOUT_AGENT_WORKER_LEASES_H

#include "services/rollout-agent/worker/sampling.h"

struct leases;

struct leases_options {
  const char *coordinator; /* borrowed */
  const struct http_access *access;
  const struct engine_wire *wire;
  const char *engine_url, *engine_token, *engine_model;
  bool logprobs_at_temperature;
  int64_t request_timeout_ms, version_timeout_ms;
  int slots, prefetch;
  struct loader *loader;
  void (*stale)(void *context); /* the coordinator does not know us (any more): register again */
  void *context;
};

struct leases_counters {
  int held, slots_busy;
  int64_t posted, handed_back; /* results; those handed back are among the posted */
  int64_t tokens_sampled, busy_us;
};

enum rc leases_start(struct leases **out, const struct leases_options *options, struct err *err);
/* A new registration voids everything that was held. */
void leases_registered(struct leases *l, const char *worker_id, uint64_t epoch);
/* The answer to the heartbeat that listed `sent` says that ids are lost; leases of the same names granted since are not
 * meant. */
void leases_lost(struct leases *l, const char *const *ids, size_t count, const struct lease_ref *sent,
                 size_t sent_count);
/* The leases that a heartbeat renews.  RC_NO_MEMORY. */
enum rc leases_list(struct leases *l, struct lease_ref **out, size_t *count, struct arena *arena, struct err *err);
/* Something changed that the puller should look at: what the engine holds. */
void leases_wake(struct leases *l);
void leases_read_counters(struct leases *l, struct leases_counters *out);
/* Stops pulling, cuts running requests, hands all leases back, and waits for that for at most deadline_ms. */
void leases_drain(struct leases *l, int64_t deadline_ms);
/* Ends the threads; the loader must have been stopped.  NULL is fine. */
void leases_stop(struct leases *l);

#endif
