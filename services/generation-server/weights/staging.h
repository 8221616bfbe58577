/* The stager: one thread that fills the spare set of weights while the engine decodes with the other, and keeps the
 * coordinator's word about which version is current.
 *
 *   push (trainer: a body or a broadcast) or pull (late joiner)  the word names its digest
 *     EMPTY ------------------> FILLING --------> STAGED --------------------> ACTIVATING --engine swapped--> EMPTY (the set that decoded before)
 *       ^                          |                 |
 *       +--- refused, mismatch ----+                 +--> FILLING (another push or pull)
 *
 * A version is activated only on the coordinator's word; without a coordinator a push is its own word.  The digest is
 * computed from the memory that the kernels will read, never echoed.  When the model itself is unknown, its files are
 * fetched first, from the trainer that the word names. */
#ifndef LEASEHOLD_GENERATION_SERVER_WEIGHTS_STAGING_H
#define LEASEHOLD_GENERATION_SERVER_WEIGHTS_STAGING_H

#include "common/http/server.h"
#include "common/wire/training.h"
#include "services/generation-server/engine/loaded_model.h"
#include "services/generation-server/weights/broadcast_intake.h"

struct staging;

struct staging_options {
  const char *token;     /* for the trainer */
  struct fabric *fabric; /* borrowed; NULL: none */
  bool standalone;       /* no coordinator: a staged push is activated at once */
  struct loaded_model_options model;
  void (*opened)(void *context, struct loaded_model *loaded); /* the model is known, the engine runs */
  void (*activated)(void *context);                           /* other weights decode now; any thread, must not block */
  void *context;
};

enum rc staging_start(struct staging **out, const struct staging_options *options, struct err *err);
/* The model of a folder and its weights, activated as version 0; before anything else, in the caller's thread. */
enum rc staging_load(struct staging *s, const char *dir, struct err *err);
/* NULL while the model is unknown. */
struct loaded_model *staging_model(struct staging *s);
/* What the coordinator says is current; an older word than the one known is ignored, unless it is repeated. */
void staging_word(struct staging *s, const struct current_version *current);
/* After a registration: the coordinator may have begun anew, so the next word counts whatever it says. */
void staging_forget_word(struct staging *s);

struct staging_push {
  struct http_request *request; /* suspended; its body is the file, unless it comes by broadcast; the stager replies */
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct digest digest;
  bool by_broadcast;
  struct intake_offer offer;
};
/* RC_FULL when pushes wait already; RC_UNAVAILABLE while the model is unknown. */
enum rc staging_push(struct staging *s, const struct staging_push *push, struct err *err);
/* Nobody waits for this push any more: what is waited for by broadcast will not come.  Any thread. */
void staging_push_abandoned(struct staging *s, const struct http_request *request);
/* Ends the thread, refuses waiting pushes, stops the engine. */
void staging_stop(struct staging *s);
/* Frees everything, the loaded model included. NULL is fine. */
void staging_free(struct staging *s);

/* Does a word about (run, version) come after the one about (known_run, known_version)?  Runs are numbered "r7";
 * within a run versions rise. */
bool word_supersedes(const char *known_run, int64_t known_version, const char *run, int64_t version);

#endif
