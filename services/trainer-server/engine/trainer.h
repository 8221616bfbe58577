/* The trainer: one thread, the engine's, that owns the model, the optimizer and the current policy version, fed by a
 * bounded queue of jobs.
 *
 *   handlers --check, register--> jobs --queue--> engine thread --version durable--> publisher thread --> generation-servers, coordinator
 *
 * The engine takes jobs in order: open a run, compute a batch's log-probabilities and gradients (its own
 * log-probabilities; those of the samplers reach this process only in a run with update "inflight", whose loss needs
 * them), take a step.  A step is: exactly the named units
 * accumulated -> AdamW -> bf16 weights -> digest from the kernels' memory -> checkpoint durable -> version is current
 * -> publisher.  An inner step, of a run with update "minibatch", ends with the digest.  What jobs may touch is in
 * engine.h, and what handlers see of it in board/board.h.
 *
 * Recovery is replay: a trainer that came back from an older checkpoint is fed the logged rounds like any others, but
 * the versions that they make are known already, so they are neither pushed nor announced.  The inner steps of a round
 * are lost with the process, so a round that was under way is submitted again from its first batch.  A step whose
 * checkpoint could not be written stays pending: the engine's weights hold it already, so only the same step, submitted
 * again, or another run may follow.  When the disk is full the coordinator submits it again and again, until there is
 * room.  In flight the version is published first, and its checkpoint is written beside the next gradients (version.h):
 * then it is the next step that fails until there is room, and a trainer that dies before that is fed the rounds since
 * the previous checkpoint.
 *
 * Several processes can be one trainer, one rank each: rank 0 is the trainer-server that the coordinator knows, and its
 * engine tells the others' what to do next (ranks/ranks.h); they compute their share of every batch and of every step
 * (follow.c), and answer no requests.  The bits are those of one rank.  A rank that is lost ends the others; all
 * are started again, and the run is replayed.
 *
 * Previous hop of a rollout: jobs/jobs.c.  Next: batch.c.
 */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_TRAINER_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_TRAINER_H

#include "common/base/memory_plan.h"
#include "common/wire/training.h"
#include "services/trainer-server/board/board.h"
#include "services/trainer-server/engine/options.h"
#include "services/trainer-server/jobs/jobs.h"
#include "services/trainer-server/publish/publisher.h"

struct engine;
struct trainer;

/* Loads the newest whole checkpoint of state_dir, or model_dir, and starts the engine thread.  Of several ranks all
 * must come here; rank 0 loads, and the others need no state_dir and of model_dir only config.json. */
enum rc trainer_create(struct trainer **out, const struct trainer_options *options, struct err *err);
/* The parts of a trainer, one after the other, for foresee/: on the caller's thread, which is the engine's then, with
 * no state_dir and no thread of its own.  First the model and what computes it. */
enum rc trainer_open_model(struct trainer **out, const struct trainer_options *options, struct err *err);
/* Then its memory plan, as the options leave it that --fit has chosen, and why it is refused: RC_OK when it is not. */
enum rc trainer_open_plan(struct trainer *t, struct memory_plan *plan, struct memory_room *room, struct err *refused);
/* Then weights, of no content yet, optimizer and learners. */
enum rc trainer_open_learning(struct trainer *t, struct err *err);
struct engine *trainer_engine(struct trainer *t);
/* Ends the engine after the step or the gradient unit in hand.  Jobs that did not end stay as they are, and nothing
 * of theirs is durable: the coordinator finds the trainer gone, not the job failed, and submits it again when
 * the trainer is back. */
void trainer_stop(struct trainer *t);
void trainer_destroy(struct trainer *t); /* NULL is fine */

/* On a rank but 0: has rank 0 finished its start, and begun to give orders? */
bool trainer_led(const struct trainer *t);
/* Has the engine ended by itself?  Then *why is RC_OK when the ranks were asked to stop, else why one of them is
 * lost. */
bool trainer_ended(struct trainer *t, struct err *why);

/* For handlers; each has a lock of its own. */
struct board *trainer_board(struct trainer *t);
struct jobs *trainer_jobs(struct trainer *t);

/* --- constant; any thread --- */
const struct model_config *trainer_model_config(const struct trainer *t);
const char *trainer_model_dir(const struct trainer *t);
const char *trainer_state_dir(const struct trainer *t);
const char *trainer_kernels(const struct trainer *t);    /* "cpu-v4" */
int trainer_threads(const struct trainer *t);            /* that compute */
int trainer_ranks(const struct trainer *t);              /* 1: this process alone */
const char *trainer_ranks_over(const struct trainer *t); /* what carries their arrays: the name of a comm */
const char *trainer_device(const struct trainer *t);     /* "cpu", "cuda:0" */
/* The longest sequence that it takes. */
int trainer_context_max(const struct trainer *t);

/* --- what could be done; any thread --- */
/* A run that this trainer can carry out; pure. */
enum rc trainer_check_run(const struct trainer *t, const struct open_run *m, struct err *err);
/* The identity of a run when it is opened again: its id, seed, start and training configuration, not epoch,
 * fence and recorded version; pure. */
enum rc trainer_run_digest(struct digest *out, const struct open_run *m, struct err *err);
/* Whether a run could be opened, as far as that can be told beforehand: the same, its start, and room for what it keeps
 * frozen. */
enum rc trainer_foresee_run(struct trainer *t, const struct open_run *m, struct err *err);
/* Groups that the engine can compute: ids within the vocabulary, samples that fit the context and the run's chunks,
 * with behaviour log-probabilities exactly where the run's loss needs them, and the reference's only where it has a KL
 * term.  RC_INVALID or RC_TOO_LARGE with the field's path. */
enum rc trainer_check_batch(struct trainer *t, const struct submit_batch *m, struct err *err);

/* Queues a registered job; RC_FULL when the queue is full, RC_UNAVAILABLE when stopping. The job belongs to the
 * engine until it is done or failed. */
enum rc trainer_enqueue(struct trainer *t, struct job *job, struct err *err);
/* Before the first job; must outlive the engine's thread. */
void trainer_set_publisher(struct trainer *t, struct publisher *p);

#endif
