/* The trainer's engine: one thread that owns the model, the optimizer and the current policy version, fed by a
 * bounded queue of jobs.
 *
 *   handlers --check, register--> jobs --queue--> engine thread --version durable--> publisher thread --> generation-servers, coordinator
 *
 * Handlers read a snapshot (run, version, epoch, fence, digest) under `lock`; only the engine writes it.  The engine
 * takes jobs in order: open a run, compute a batch's log-probabilities and gradients (own log-probabilities first: no
 * behaviour log-probability ever reaches this process), take a step.  A step is: exactly the named units accumulated
 * -> AdamW -> bf16 weights -> digest from the kernels' memory -> checkpoint durable -> version is ours -> publisher.
 *
 *   READY <--step reaches the version that the coordinator recorded-- REPLAYING
 *     `-------an opening names a newer version than the one held-------^
 *
 * Recovery is replay: a trainer that came back from an older checkpoint is fed the logged rounds like any others, but
 * what they make is old news, so it is neither pushed nor announced.  A step whose checkpoint could not be written
 * stays pending: its weights are the engine's already, so nothing but the same step, submitted again, or another run
 * may follow.  When the disk is full the coordinator submits it again and again, until there is room.
 *
 * Several processes can be one trainer, one rank each: rank 0 is the trainer-server that the coordinator knows, and its
 * engine tells the others' what to do next (ranks/ranks.c); they compute their share of every batch and of every step
 * (ranks/follow.c), and serve nobody.  The bits are those of one rank.  A rank that is lost ends the others: the job
 * is started again, and replayed.
 *
 * Previous hop of a rollout: the coordinator's driver.c (submit-batch).  Next hop: checkpoint.c and publisher.c.
 */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_TRAINER_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_TRAINER_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/memory_plan.h"
#include "common/base/queue.h"
#include "common/comm/comm.h"
#include "common/model/device.h"
#include "common/model/learning/backward.h"
#include "common/model/learning/optimizer.h"
#include "common/wire/training.h"
#include "services/trainer-server/jobs/jobs.h"

struct publisher;

struct trainer_options {
  const char *model_dir, *state_dir;
  const char *coordinator_url; /* NULL or "": none; messages are taken from anybody */
  struct device device;
  int64_t threads, chunk_tokens, context_max, keep_checkpoints, memory_max;
  int64_t random_init_seed;   /* used when model_dir has no model.safetensors; < 0: refuse */
  bool recompute_activations; /* see struct learner_options */
  struct comm *comm;          /* the ranks of this trainer, borrowed until trainer_stop; NULL: this process alone */
  /* Joins ranks that have a device each, as comm_nccl_create; NULL: this build has nothing that does. */
  enum rc (*link_devices)(struct comm **out, struct comm *host, int64_t start_ms, struct err *err);
  int64_t rank_wait_ms; /* the longest that ranks wait for each other's work, e.g. a large group's */
};

/* Serialized weights of one version, shared by pulls and pushes. */
struct weights_blob {
  atomic_int users;
  struct buf bytes;
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct digest digest;
};
void weights_blob_release(struct weights_blob *b); /* NULL is fine */

/* What handlers may know; copied out under the lock. */
struct trainer_view {
  char run[LIMIT_NAME_MAX]; /* "" before the first run */
  int64_t version;
  struct digest digest;
  uint64_t epoch, fence; /* what messages must carry: see engine/authority.c */
  bool registered;       /* the coordinator gave them; false: they are the newest that were accepted */
  bool stands_by;        /* registered, but another trainer holds the place */
  bool busy;
  struct digest run_digest; /* of the run's seed and training: see trainer_run_digest */
  int chunk_tokens;         /* the run's: the longest sample it takes */
  bool has_reference;       /* of a run with a KL term */
  /* Replaying from replay_from on while version < replay_to, the version that the coordinator recorded. */
  int64_t replay_from, replay_to;
  int64_t
      attached_us; /* CLOCK_MONOTONIC when the coordinator opened the run here; 0: not yet, or it took its last step */
};
static inline bool trainer_view_replaying(const struct trainer_view *v) { return v->version < v->replay_to; }

struct trainer;

/* Everything that a trainer allocates for this model under these options; pure.  The README's formula. */
void trainer_memory_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *options);

/* Loads the newest whole checkpoint of state_dir, or model_dir, and starts the engine thread.  Of several ranks all must
 * come here; rank 0 loads, and the others need no state_dir and of model_dir only config.json. */
enum rc trainer_create(struct trainer **out, const struct trainer_options *options, struct err *err);
/* Ends the engine after the step or the gradient unit in hand.  Jobs that did not end stay as they are, and nothing
 * of theirs is durable: the coordinator finds the trainer gone, not the job failed, and submits it again to the next
 * incarnation. */
void trainer_stop(struct trainer *t);
void trainer_destroy(struct trainer *t); /* NULL is fine */

/* Of a rank but 0: has rank 0 come through its own start, and leads? */
bool trainer_led(const struct trainer *t);
/* Has the engine ended by itself?  Then *why is RC_OK when the ranks were asked to stop, else what became of one of
 * them. */
bool trainer_ended(struct trainer *t, struct err *why);

void trainer_view(struct trainer *t, struct trainer_view *out);
struct jobs *trainer_jobs(struct trainer *t);
const struct model_config *trainer_model_config(const struct trainer *t);
const char *trainer_model_dir(const struct trainer *t);
const char *trainer_kernels(const struct trainer *t);    /* "cpu-v4" */
int trainer_ranks(const struct trainer *t);              /* 1: this process alone */
const char *trainer_ranks_over(const struct trainer *t); /* what carries their arrays: the name of a comm */
const char *trainer_device(const struct trainer *t);     /* "cpu", "cuda:0" */
/* A reference to the current version's bytes; release it. RC_NOT_FOUND, RC_CONFLICT when version is superseded, or
 * RC_UNAVAILABLE when a replay is to reach it. run "" matches any. */
enum rc trainer_weights_blob(struct trainer *t, const char *run, int64_t version, struct weights_blob **out,
                             struct err *err);

/* The coordinator's word, by registration or heartbeat: messages must carry this epoch and this fence from now on,
 * whatever was known before.  stands_by: none are taken. */
void trainer_registered(struct trainer *t, uint64_t epoch, uint64_t fence, bool stands_by);
/* RC_CONFLICT for an epoch or fence that is not the trainer's; only looks.  A trainer without a coordinator takes newer
 * ones. */
enum rc trainer_check_authority(struct trainer *t, uint64_t epoch, uint64_t fence, struct err *err);
/* A message was accepted: a trainer without a coordinator learns its epoch and fence. */
void trainer_accepted(struct trainer *t, uint64_t epoch, uint64_t fence);
/* Has a message been refused, since the last call, for what the coordinator may have said meanwhile? */
bool trainer_take_doubt(struct trainer *t);
/* RC_CONFLICT for another run or version than the current. */
enum rc trainer_check_version(struct trainer *t, const char *run, int64_t version, struct err *err);
/* A run that this trainer can carry out; pure. */
enum rc trainer_check_run(const struct trainer *t, const struct open_run *m, struct err *err);
/* The longest sequence that it takes. */
int trainer_context_max(const struct trainer *t);
/* Is the checkpoint there that a run is to start from? */
enum rc trainer_check_start(const struct trainer *t, const struct run_start *start, struct err *err);
/* Whether a run could be opened, as far as that can be told beforehand: all of the above, and room for the reference. */
enum rc trainer_foresee_run(struct trainer *t, const struct open_run *m, struct err *err);
/* Groups that the engine can compute: ids within the vocabulary, samples that fit the context and the run's chunks.
 * RC_INVALID or RC_TOO_LARGE with the field's path. */
enum rc trainer_check_batch(struct trainer *t, const struct submit_batch *m, struct err *err);
/* What makes a run the same run when it is opened again: its id, seed, start and training configuration, not epoch,
 * fence and recorded version; pure. */
enum rc trainer_run_digest(struct digest *out, const struct open_run *m, struct err *err);
/* The coordinator has opened `run` here, and has recorded current_version of it: replaying begins, or its end moves up,
 * when that is newer than what is held.  *out is the view afterwards; nothing changes when another run is current. */
void trainer_attach(struct trainer *t, const char *run, int64_t current_version, struct trainer_view *out);

/* Queues a registered job; RC_FULL when the queue is full, RC_UNAVAILABLE when stopping. The job belongs to the
 * engine until it is done or failed. */
enum rc trainer_enqueue(struct trainer *t, struct job *job, struct err *err);
/* The publisher's pushes and announcements, for /metrics. Any thread. */
void trainer_count_push(struct trainer *t, int64_t took_us);
/* Before the first job; must outlive the engine's thread. */
void trainer_set_publisher(struct trainer *t, struct publisher *p);

#endif
