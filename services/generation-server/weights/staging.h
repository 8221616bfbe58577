/* The stager: one thread that fills the spare set of weights while the engine decodes with the other, and activates
 * the version that the coordinator says is current.
 *
 *   push (trainer: a body or a broadcast) or pull (late joiner)  the current version has its digest
 *     EMPTY ------------------> FILLING --------> STAGED --------------------> ACTIVATING --engine swapped--> EMPTY (the set that decoded before)
 *       ^                          |                 |
 *       +--- refused, mismatch ----+                 +--> FILLING (another push or pull)
 *
 * A version is activated only when the coordinator says that it is current, or when its push says that the coordinator
 * has accepted it already (announced); without a coordinator every push is current.  The newest version wins: it
 * replaces one that is staged or waits, and a version whose turn never comes is skipped.  An engine that is not settled
 * (engine.h) is left alone until it is.  The digest is computed from the memory that the kernels will read, never
 * echoed. A push may bring only what changed since the version that decodes, or that is staged: that one is the base,
 * and the digest of the whole proves the result.  When the model itself is unknown, its files are fetched first, from
 * the trainer of the current version. */
#ifndef LEASEHOLD_GENERATION_SERVER_WEIGHTS_STAGING_H
#define LEASEHOLD_GENERATION_SERVER_WEIGHTS_STAGING_H

#include "common/base/log.h"
#include "common/http/server.h"
#include "common/wire/training.h"
#include "services/generation-server/engine/loaded_model.h"
#include "services/generation-server/weights/broadcast_intake.h"
#include "services/generation-server/weights/current_policy.h"

struct staging;

struct staging_options {
  const struct http_access *access; /* to the trainer */
  struct fabric *fabric; /* borrowed; NULL: none */
  bool standalone;       /* no coordinator: a staged push is activated at once */
  struct loaded_model_options model;
  void (*opened)(void *context, struct loaded_model *loaded); /* the model is known, the engine runs */
  void (*activated)(void *context);                           /* other weights decode now; any thread, must not block */
  void *context;
};

enum rc staging_start(struct staging **out, const struct staging_options *options, struct err *err);
/* Loads a folder's model and weights and activates them as version 0.  In the caller's thread, before anything else. */
enum rc staging_load(struct staging *s, const char *dir, struct err *err);
/* NULL while the model is unknown. */
struct loaded_model *staging_model(struct staging *s);
/* The coordinator says which version is current: activates it when it is staged, has it pulled when it is not.  Older
 * versions than the one known are ignored, unless they are repeated (current_policy.h). */
void staging_follow_current(struct staging *s, const struct current_version *told);
/* The run's versions are announced before they are pushed: current_policy_awaits_push holds from now on. */
void staging_expect_pushes(struct staging *s, const char *run);
/* After a registration: the coordinator may have restarted with other runs, so the next version that it names is
 * current. */
void staging_forget_current(struct staging *s);

struct staging_push {
  struct http_request *request; /* suspended; its body is the file, unless it comes by broadcast; the stager replies */
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct digest digest;
  bool announced; /* activated as soon as it is staged */
  bool from_base; /* the body is what changed since the version of digest `base`, which is active or staged */
  struct digest base;
  bool by_broadcast;
  struct broadcast_offer offer;
  struct log_context log; /* staging_push sets it: the caller's */
};
/* Would staging_push take it now?  RC_FULL when pushes wait already, RC_UNAVAILABLE while the model is unknown,
 * RC_CONFLICT for a superseded version, or a base that is not here.  The push may still be on its way.  Any thread. */
enum rc staging_push_check(struct staging *s, const struct staging_push *push, struct err *err);
/* The same, and takes it. */
enum rc staging_push(struct staging *s, const struct staging_push *push, struct err *err);
/* The sender of this push has hung up: ends the wait for its broadcast, which will not come.  Any thread. */
void staging_push_abandoned(struct staging *s, const struct http_request *request);
/* Work that a client orders, only from a server without a coordinator: to decode with a folder's weights from then on;
 * to compute the digest of the decoding weights anew; or to wait for a pause that begins when open requests have ended
 * (ENGINE_PAUSE_WAIT).  Orders are carried out one after the other. */
struct staging_order {
  struct http_request *request; /* suspended; answer replies */
  char dir[LIMIT_PATH_MAX];     /* "": compute the digest */
  bool awaits_pause;            /* neither weights nor digest: wait for the pause */
  int64_t version;              /* of the folder's weights; -1: one more than the active one */
  /* On the stager's thread.  policy: what decodes now. */
  void (*answer)(struct http_request *request, enum rc rc, const struct policy *policy, const struct err *err);
};
/* RC_OK: answer will be called.  RC_CONFLICT under a coordinator, RC_FULL, RC_UNAVAILABLE.  Any thread. */
enum rc staging_take_order(struct staging *s, const struct staging_order *order, struct err *err);
/* Ends the thread, refuses waiting pushes and orders, stops the engine. */
void staging_stop(struct staging *s);
/* Frees everything, the loaded model included. NULL is fine. */
void staging_free(struct staging *s);

#endif
