/* The leases that this server holds: pulled from the coordinator, run by the engine, posted back.
 *
 *   puller --long poll--> coordinator          engine --job->done--> queue --> posters --PUT result--> coordinator
 *      +--engine_submit--> engine
 *
 * The puller asks for as many samples as there are slots, and `prefetch` more, so that no slot waits for a round
 * trip.  Before there is an engine it asks too, to be told of the first version as soon as there is one.  Results are
 * posted by POSTERS threads with retries; a lease that this server does not hold any more (404, 409, 410) is dropped,
 * since its samples were granted to another server.
 *
 *   held ---> running ---> posting ---> gone
 *     +-- cannot be run here --^   (handed back unchanged, with the reason)
 *     +----------+------------+--> lost (heartbeat's answer, new registration): cancelled in the engine, dropped by the poster
 *
 * Thread-safe throughout; one mutex. */
#ifndef LEASEHOLD_GENERATION_SERVER_WORKER_LEASES_H
#define LEASEHOLD_GENERATION_SERVER_WORKER_LEASES_H

#include "services/generation-server/engine/engine.h"

struct leases;

struct leases_options {
  const char *coordinator; /* base URL, borrowed */
  const struct http_access *access;
  int slots, prefetch;
  /* The coordinator said which version is current; called before the leases of the same answer are submitted. */
  void (*told_current)(void *context, const struct current_version *told);
  /* A lease of this run is valid for several versions. */
  void (*told_ahead)(void *context, const char *run);
  void (*stale)(void *context); /* the coordinator does not know us (any more): register again */
  void *context;
};

enum rc leases_start(struct leases **out, const struct leases_options *options, struct err *err);
/* From now on leases can be pulled. */
void leases_set_engine(struct leases *l, struct engine *engine, const struct model *model,
                       const struct tokenizer *tokenizer);
/* A new registration voids everything that was held. */
void leases_registered(struct leases *l, const char *worker_id, uint64_t epoch);
/* The answer to the heartbeat that listed `sent` says that ids are lost; leases of the same names granted since are not
 * meant. */
void leases_lost(struct leases *l, const char *const *ids, size_t count, const struct lease_ref *sent,
                 size_t sent_count);
/* The leases that a heartbeat renews.  RC_NO_MEMORY. */
enum rc leases_list(struct leases *l, struct lease_ref **out, size_t *count, struct arena *arena, struct err *err);
/* Something changed that the puller should look at: other weights are active. */
void leases_wake(struct leases *l);
int leases_held(struct leases *l);
int64_t leases_posted(struct leases *l);
/* Tokens that earlier holders had sampled and that are continued here. */
int64_t leases_tokens_resumed(struct leases *l);
/* Stops pulling, hands running leases back, and waits until all are posted, for at most deadline_ms. */
void leases_drain(struct leases *l, int64_t deadline_ms);
/* Ends the threads; the engine must have been stopped. NULL is fine. */
void leases_stop(struct leases *l);

#endif
