/* The collector: a thread that waits for the batches which are at the trainer, so that the driver can send the next
 * ones meanwhile.
 *
 *   driver --flight--> FIFO --long poll--> compare log-probabilities bit for bit --command--> figures of the round --kick--> driver
 *     ^                                                                        |                 (when it was the last)
 *     +----------------- a kick: the trainer has room for another ------------+
 *
 * A flight is the driver's until collector_add, the collector's from then on.  The first failure ends the collection:
 * what waits behind it is dropped (the database knows it as not done) and the driver asks for the error.  Every wait has
 * a deadline; collector_reset cuts the call in hand short.  Previous hop of a rollout: trainer-server/unit.c's answer.
 * Next: the step (driver/step.c). */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_BATCH_ANSWERS_H
#define LEASEHOLD_COORDINATOR_DRIVER_BATCH_ANSWERS_H

#include "common/http/client.h"
#include "services/coordinator/driver/batch_build.h"
#include "services/coordinator/writer/core.h"

/* One batch at the trainer.  What is built lives in the arena. */
struct flight {
  struct flight *next;
  int64_t run, round, number, trainer_worker;
  bool by_tokens; /* the step's denominator counts tokens, not samples */
  char url[LIMIT_URL_MAX];
  struct arena arena;
  struct built_batch built;
};
struct flight *flight_new(void);    /* NULL when memory is refused */
void flight_free(struct flight *f); /* NULL is fine */

/* Waits until the batch is done at the trainer, at most until *cancel.  *status lives in the arena.  RC_CONFLICT when the
 * trainer failed it; RC_UNAVAILABLE when cancelled. */
enum rc flight_await(const struct flight *f, struct http_client *http, const atomic_bool *cancel,
                     struct batch_status *status, struct mismatch *mismatch, struct arena *arena, struct err *err);

struct collector;
enum rc collector_start(struct collector **out, struct core *core, const char *token, void (*kick)(void *context),
                        void *context, struct err *err);
void collector_stop(struct collector *c); /* NULL is fine */
/* Takes over f. */
void collector_add(struct collector *c, struct flight *f);
/* Flights that have not ended; of these, the ones that the trainer has not answered. */
int collector_pending(struct collector *c);
int collector_at_trainer(struct collector *c);
/* RC_OK, or what went wrong since the last reset. */
enum rc collector_failure(struct collector *c, struct err *err);
/* Drops what is pending and forgets the failure; returns once nothing is in hand. */
void collector_reset(struct collector *c);

#endif
