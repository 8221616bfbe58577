/* One batch on its way through the trainer: made from the database, submitted, awaited.
 *
 *   batch_make --> batch_submit --> (the trainer's FIFO) --> batch_await: log-probabilities compared bit for bit; what the
 *                                                            trainer refused is taken out before
 *
 * A batch has one owner at a time.  train.c makes and submits it on the driver's thread and hands it to
 * batch_answers.c, whose thread awaits it; replay.c does all three itself.  Everything built lives in the batch's
 * arena and is freed with it. Every call has a deadline.  Nothing here writes the database.
 *
 * Previous hop of a rollout: batch_build.c.  Next: trainer-server/api/route_submit_batch.c, and its answer. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_BATCH_H
#define LEASEHOLD_COORDINATOR_DRIVER_BATCH_H

#include <stdatomic.h>

#include "common/http/client.h"
#include "services/coordinator/driver/batch_verify.h"
#include "services/coordinator/driver/look.h"
#include "services/coordinator/store/readers.h"

/* Deadlines of the driver's calls to the trainer.  POLL_MS is how long the trainer may hold a long poll. */
enum { CALL_MS = 10000, POLL_MS = 2000, SUBMIT_MS = 120000 };

struct batch {
  int64_t run, round, number;
  int64_t trainer_worker; /* the incarnation that it is for */
  bool by_tokens;         /* the step's denominator counts tokens, not samples */
  char url[LIMIT_URL_MAX];
  struct arena arena;
  struct built_batch built;
  struct batch_sources sources;
  struct refusals refusals; /* once it was answered; without any where it is not verified */
};

struct batch_place {
  int64_t round, number;
  int64_t step;    /* inner steps of the round that come before it */
  int64_t version; /* that the round was sampled at */
  bool recorded;   /* the round is over: nothing of it is verified again */
};

/* The message of a stored batch of the context's run, for this trainer. */
enum rc batch_make(struct batch **out, struct readers *readers, struct run_context *context,
                   const struct trainer_target *trainer, const struct batch_place *place, struct err *err);
void batch_free(struct batch *b); /* NULL is fine */

/* ask_first: it may have been submitted before a restart; then it is submitted only if the trainer does not know it, or
 *   failed it. */
enum rc batch_submit(const struct batch *b, struct http_client *http, bool ask_first, struct err *err);

/* Waits until the batch is done at the trainer, or until *cancel.  *status lives in the arena, and from then on the
 * batch is without the groups that the trainer refused.  RC_CONFLICT when the trainer failed it; RC_UNAVAILABLE when
 * cancelled. */
enum rc batch_await(struct batch *b, struct http_client *http, const atomic_bool *cancel,
                    struct batch_status *status, struct mismatch *mismatch, struct arena *arena, struct err *err);

#endif
