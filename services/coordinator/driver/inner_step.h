/* One inner step (update: minibatch) on its way through the trainer: made from the database, submitted, awaited.
 *
 *   inner_step_make --> inner_step_submit --> (the trainer's FIFO, behind the batches of its groups) --> inner_step_await
 *
 * It is queued before its batches are answered: its denominator is known (rounds/batches.c), so the trainer need not
 * stand still between them.  It has one owner at a time, like a batch (batch.h): the driver's thread, then
 * batch_answers.c's.  Every call has a deadline.  Nothing here writes the database.
 *
 * Previous hop: rounds/batches.c plans it.  Next: trainer-server/api/route_submit_step.c, and its answer. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_INNER_STEP_H
#define LEASEHOLD_COORDINATOR_DRIVER_INNER_STEP_H

#include <stdatomic.h>

#include "common/client/trainer_client.h"
#include "services/coordinator/driver/look.h"
#include "services/coordinator/run/run_context.h"

struct inner_step {
  int64_t run, round, step;
  int64_t trainer_worker; /* the incarnation that it is for */
  bool by_tokens;         /* the round's denominator counts tokens, not samples */
  char url[LIMIT_URL_MAX];
  struct arena arena;
  struct submit_step message;
};

struct inner_step_place {
  int64_t round, step;
  int64_t version; /* that the round was sampled at */
};

/* The message of a stored inner step of the context's run, for this trainer. */
enum rc inner_step_make(struct inner_step **out, struct readers *readers, struct run_context *context,
                        const struct trainer_target *trainer, const struct inner_step_place *place, struct err *err);
void inner_step_free(struct inner_step *s); /* NULL is fine */

/* See step_submit_once. */
enum rc inner_step_submit(const struct inner_step *s, struct http_client *http, struct err *err);

/* Waits until the step is taken, or until *cancel.  *status lives in the arena.  RC_CONFLICT or RC_IO when the trainer
 * failed it (step_failed); RC_UNAVAILABLE when cancelled. */
enum rc inner_step_await(const struct inner_step *s, struct http_client *http, const atomic_bool *cancel,
                         struct step_status *status, struct arena *arena, struct err *err);

/* The ids of the round's groups whose step comes after m->after_steps inner steps; strings live in the arena.  Also for
 * the round's own step, whose groups come after all of them. */
enum rc step_groups(struct store *s, struct submit_step *m, int64_t run, int64_t round, struct arena *arena,
                    struct err *err);

/* Any step, inner or a round's own.  Asks first, because it may have been submitted before a restart; a step that is
 * unknown is submitted, and so is one that failed: a trainer that had just come back may have been asked for it before
 * its batches were sent again.  *status is what the trainer said when it was asked; it lives in the arena. */
enum rc step_submit_once(const struct trainer_client *t, const struct submit_step *m, struct step_status *status,
                         struct arena *arena, struct err *err);
/* Any step that the trainer failed: RC_IO when its disk is to blame, so that the same step is tried again; else
 * RC_CONFLICT. */
enum rc step_failed(const struct step_status *status, const char *step_id, bool replayed, struct err *err);

#endif
