/* The loader: one thread that has the foreign engine load the current version, and proves that it holds it, again and
 * again.
 *
 *           another version is current      its folder is whole, no request runs       the engine says so
 *   HOLDS ------------------------> FETCHING ------------------------------> LOADING ----------------> PROVING --> HOLDS
 *     |                                 ^                                                                 |
 *     +-- a proof fails, an answer      +----- a pause that grows ------- DOUBTED <-----------------------+
 *         names other weights ---------------------------------------------^
 *
 * Requests run between loader_enter and loader_leave, never beside a load.  A request counts only when a proof that
 * began after its end shows the evidence of the load (loader_prove); one proof serves all that wait for it.  While
 * nothing is held no lease is asked for.  A load of other weights must move the evidence; a load of the weights that
 * were proven last must bring theirs back.  The first load of a process has nothing to be compared with: from then on,
 * and in the rounds' mismatch, a lie shows.
 *
 * Thread-safe; one mutex. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_WEIGHTS_LOADER_H
#define LEASEHOLD_ROLLOUT_AGENT_WEIGHTS_LOADER_H

#include "common/wire/worker.h"
#include "services/rollout-agent/engine/client.h"

struct loader;

struct loader_options {
  const struct http_access *access; /* to the trainer */
  const struct engine_wire *wire;
  const char *engine_url, *engine_token, *engine_model;
  const char *folder;        /* this agent's own, where versions are pulled to */
  const char *engine_folder; /* the same as the engine sees it */
  int64_t weights_bytes_max, load_timeout_ms, proof_timeout_ms;
  bool wants_checksum;
  double probe_tolerance;
  void (*changed)(void *context); /* other weights are held, or none; any thread, must not block */
  void *context;
};

/* Weights that the engine was proven to hold. */
struct held_version {
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct digest digest;
  char name[ENGINE_VERSION_MAX]; /* what the engine calls them */
  bool named;                    /* the engine says so when it is asked */
  uint64_t generation;           /* of this load; a doubt ends it */
};

struct loader_counters {
  int64_t loads, proofs, doubts;
};

enum rc loader_start(struct loader **out, const struct loader_options *options, struct err *err);
/* The coordinator says which version is current.  Answers may overtake each other: an older one is believed when it is
 * repeated.  A version with the weights that are held is held at once. */
void loader_told_current(struct loader *l, const struct current_version *told);
/* After a registration: the next version that the coordinator names is current, whatever it is. */
void loader_forget_current(struct loader *l);
/* False while nothing is proven. */
bool loader_holds(struct loader *l, struct held_version *out);
/* Waits up to wait_ms until requests may run. RC_UNAVAILABLE: not yet. */
enum rc loader_enter(struct loader *l, struct held_version *out, int64_t wait_ms);
void loader_leave(struct loader *l);
/* Waits for a proof that begins after this call.  RC_CONFLICT: the engine is in doubt. */
enum rc loader_prove(struct loader *l, uint64_t generation, struct err *err);
/* What a request showed puts the load in doubt. */
void loader_doubt(struct loader *l, uint64_t generation, const struct err *why);
/* Why nothing is held; "" when something is. */
void loader_trouble(struct loader *l, char out[ERR_MESSAGE_MAX]);
void loader_read_counters(struct loader *l, struct loader_counters *out);
/* Wakes all that wait and ends the thread, cutting its calls short. */
void loader_stop(struct loader *l);
void loader_free(struct loader *l); /* NULL is fine */

#endif
