/* What the trainer's files share: the engine's state and the functions that cross files.  Everything but what `lock`
 * guards belongs to the engine's thread once it runs, and to trainer_create before.
 *
 *   trainer.c       start, the engine's loop, what handlers ask   version.c           versions and checkpoints
 *   open_run.c      opening a run: configuration, reference       batch.c             log-probabilities and gradients
 *   step.c          the optimizer step                            restore.c           a checkpoint, or the model folder
 *   accumulated_groups.c  the groups since the last step          timeline.c          what the engine did, by cause
 *   memory.c        what all of it needs                          authority.c         whose messages are taken
 *   ../ranks/       what ranks tell each other, and the engine of every rank but the first
 */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_TRAINER_STATE_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_TRAINER_STATE_H

#include "common/base/memory_plan.h"
#include "common/base/metrics.h"
#include "services/trainer-server/engine/accumulated_groups.h"
#include "services/trainer-server/engine/checkpoint.h"
#include "services/trainer-server/engine/timeline.h"
#include "services/trainer-server/engine/trainer.h"
#include "services/trainer-server/engine/gradient_unit.h"
#include "services/trainer-server/ranks/unit_report.h"

enum { CHUNK_TOKENS_MIN = 2 };

/* What a rank tells the others of its device, as it lies in memory. */
struct rank_place {
  unsigned char device[DEVICE_IDENTITY_BYTES];
  uint64_t links;         /* 1: its build can join devices */
  uint64_t planned, room; /* bytes of the device: what this rank is going to take, and what it found free */
};

/* The ranks of this trainer.  Where each one's part of an array begins, [size + 1] each: in elements of the parameters,
 * which bound the shards, and in bytes of what is exchanged.  Alone there are none of these arrays. */
struct ranks {
  struct comm *comm;   /* borrowed; takes what is the host's */
  struct comm *arrays; /* takes what is the table's: comm where that is the host's own memory, else devices_join's */
  int count;           /* of ranks, and */
  const char *over;    /* the name of `arrays`: for handlers, which may ask when the comms are gone */
  size_t *elements;
  size_t *floats;           /* of an optimizer's array */
  size_t *operands;         /* of the weights in the kernels' format, row-major */
  size_t *squares;          /* of block_squares */
  size_t *verdicts;         /* of verdict */
  size_t *places;           /* of place */
  double *block_squares;    /* [shard_blocks(params.elements)] */
  struct err *verdict;      /* [size + 1] a short word of every rank's: what failed, or the digest of its weights */
  struct rank_place *place; /* [size] */
  int64_t told_us;          /* rank 0: when it last told the others something */
  struct digest digest;     /* the others: of the weights that they hold */
};

struct trainer {
  /* set by trainer_create, constant afterwards */
  struct trainer_options options;
  struct model_config config;
  struct pool *pool;
  struct ops *ops;
  struct model *model;
  struct learner *learner;
  struct jobs *jobs;
  struct queue *queue;
  struct publisher *publisher;
  pthread_t thread;
  bool thread_runs;
  atomic_bool stopping;
  struct ranks ranks;
  atomic_bool led;      /* see trainer_led */
  atomic_bool ended;    /* the engine's thread is through, and `why` is final */
  atomic_bool in_doubt; /* see trainer_take_doubt */

  /* the engine thread's */
  struct weights *weights, *reference; /* current; frozen for the KL term or NULL */
  struct optimizer *optimizer;
  int learner_chunk; /* tokens per chunk that learner was made for */
  float *grads;      /* one unit; the optimizer's, see optimizer_gradient */
  bool grads_clear;  /* they are all zero, as optimizer_take_unit leaves them */
  struct run_start start;
  struct training_config training;
  struct arena run_arena; /* the strings of both */
  struct unit_config unit;
  uint64_t seed;
  struct accumulated *accumulated; /* groups since the last step */
  struct timeline timeline;
  bool step_pending; /* weights hold a step that is not durable yet: see step_apply */
  char pending_step[LIMIT_NAME_MAX];
  struct step_result pending;
  struct round_record *history; /* the newest HISTORY_MAX / 2 rounds at least */
  size_t history_count, history_cap;
  double step_loss; /* of the units since the last step */
  int64_t step_tokens;

  pthread_mutex_t lock; /* guards view, blob and why */
  struct err why;       /* RC_OK unless a rank is lost, or the device */
  struct trainer_view view;
  struct weights_blob *blob; /* the current version's bytes */

  struct metric *metric_tokens, *metric_steps, *metric_skipped, *metric_version, *metric_units, *metric_replaying;
};

/* --- trainer.c --- */
/* Is a rank lost?  *why is RC_OK when not. */
bool trainer_lost(struct trainer *t, struct err *why);

/* --- engine/version.c --- */
void trainer_run_set(struct trainer *t, const struct digest *run_digest, int chunk_tokens);
/* From here on no message of the old run is taken, whatever becomes of the new one. */
void trainer_run_end(struct trainer *t);
/* The run took its last step: what is waited for now is another run. */
void trainer_detach(struct trainer *t);
/* Serializes the current weights. */
enum rc trainer_blob_make(struct trainer *t, const char *run, int64_t version, struct weights_blob **out,
                          struct err *err);
/* Makes them the version that handlers see; the reference is the trainer's from here on. */
void trainer_version_set(struct trainer *t, struct weights_blob *b);
/* step NULL: version 0. */
enum rc trainer_write_checkpoint(struct trainer *t, const struct weights_blob *b, const struct job *step,
                                 struct err *err);

/* --- engine/open_run.c --- */
bool trainer_trains(const struct training_config *c);
/* The wire's names and numbers as the model module's configurations; pure. */
enum rc trainer_map_config(const struct training_config *c, struct unit_config *unit, struct optimizer_config *o,
                           struct err *err);
/* Keeps a copy of the run's configuration whose strings outlive the request. */
enum rc trainer_keep_config(struct trainer *t, const struct open_run *m, struct err *err);
enum rc trainer_learner_for(struct trainer *t, int chunk_tokens, struct err *err);
enum rc trainer_job_open_run(struct trainer *t, struct job *job, struct err *err);

/* The rest of opening a training run, on every rank: learner and reference, which may be refused; then, when no rank
 * refused, the optimizer. */
enum rc training_prepare(struct trainer *t, struct err *err);
void training_begin(struct trainer *t, const struct optimizer_config *o);

/* --- engine/batch.c --- */
/* The units of a batch that this rank has to compute, into the sums where adds[g]; stops at the first that fails. */
struct batch_work {
  const struct submit_batch *in;
  const uint8_t *adds;         /* [group_count] 0: its gradient is in the sums already */
  size_t first;                /* units of earlier batches since the last step: see unit_rank */
  struct unit_report *reports; /* [group_count] zeroed by the caller; the own ones are filled */
};
enum rc batch_units(struct trainer *t, const struct batch_work *work, struct arena *arena, struct err *err);
enum rc trainer_job_batch(struct trainer *t, struct job *job, struct err *err);

/* --- engine/step.c --- */
/* Sums -> masters -> weights of every rank, on every rank; denominator 0: the sums are forgotten, and the step is
 * skipped. */
enum rc step_take(struct trainer *t, int64_t version, double denominator, struct step_result *result, struct err *err);
/* Digest -> durable; then the version is ours.  After RC_OK the job has ended (a replayed step) or is the
 * publisher's. */
enum rc trainer_job_step(struct trainer *t, struct job *job, struct err *err);

/* --- engine/memory.c --- */
/* What is planned for at the largest chunk, and made for a run's. */
struct learner_options trainer_learner_options(const struct trainer_options *o, int chunk_tokens);
/* At start, on all ranks: logs the plan, and refuses it with RC_NO_MEMORY when it does not fit, on a device beside what
 * the other ranks plan there. */
enum rc trainer_check_memory(struct trainer *t, struct err *err);
/* The same for the frozen reference of a run with a KL term, which start does not plan for. */
enum rc trainer_check_reference(const struct trainer *t, struct err *err);
/* As far as it can be told beforehand, from any thread: what a device has left is the engine's to ask.  held: a reference is
 * there now, and will have made room. */
enum rc trainer_foresee_reference(const struct trainer *t, bool held, struct err *err);

/* --- ranks/devices.c: all ranks together, at start; with one rank, or on CPUs, nothing --- */
/* Bytes of the host's memory between devices that are not joined. */
size_t devices_bounce_bytes(const struct trainer_options *options, const struct ops *ops);
/* Chooses what carries the table's arrays, the same on all ranks: once every rank has its table. */
enum rc devices_join(struct trainer *t, struct err *err);
/* Of room->device, which this rank has found: the least that any rank on the same device found, and what the others there
 * plan to take. */
enum rc devices_share_room(struct trainer *t, size_t planned, struct memory_room *room, struct err *err);
/* Gives back what carried the arrays, while the ranks' own comm is there still. */
void devices_part(struct trainer *t);

/* --- ranks/ranks.c: with one rank none of it does anything, nor costs anything --- */
/* What rank 0 tells the others: what all of them do next, together.  Sent as it lies in memory. */
enum order {
  ORDER_MEET,    /* nothing: who is asked to stop? */
  ORDER_OPEN,    /* payload: struct open_run */
  ORDER_RESUME,  /* payload: the run as it was opened; steps */
  ORDER_WEIGHTS, /* which: rank 0's current weights, or its frozen reference, to all */
  ORDER_SPREAD,  /* which: the optimizer's array from rank 0's gradient memory into the shards */
  ORDER_COLLECT, /* which: the shards of the optimizer's array into everybody's gradient memory */
  ORDER_BATCH,   /* payload: adds[groups], then struct submit_batch; first */
  ORDER_STEP,    /* denominator, version */
  ORDER_CHECK,   /* everybody's digest of the weights must be rank 0's */
  ORDER_END
};
enum { WEIGHTS_CURRENT, WEIGHTS_REFERENCE };
struct command {
  enum order order;
  int which;
  int64_t version, steps;
  double denominator;
  uint64_t groups, first, payload_bytes;
};

enum rc ranks_make(struct trainer *t, struct err *err);
void ranks_free(struct trainer *t);
static inline bool ranks_alone(const struct trainer *t) { return t->ranks.comm->size == 1; }
struct shard ranks_shard(const struct trainer_options *options, size_t elements);
/* All ranks, at start: do they hold one model, under the same options? */
enum rc ranks_compare(struct trainer *t, struct err *err);
/* A rank is lost, or this one cannot go on: the engine ends, and so do the other ranks.  Returns why->rc. */
enum rc ranks_lose(struct trainer *t, const struct err *why);
/* After a failure of one of several ranks, rc: where its device has failed that rank is lost, and with it the job, which is
 * then nobody's to answer.  Returns rc, or the device's. */
enum rc ranks_look_at_device(struct trainer *t, enum rc rc, struct err *err);
/* Rank 0 tells; payload may be NULL.  What follows is the order's: each is carried out by all, rank 0 included. */
enum rc ranks_tell(struct trainer *t, const struct command *c, const struct buf *payload, struct err *err);
/* The others are told; payload is overwritten. */
enum rc ranks_hear(struct trainer *t, struct command *c, struct buf *payload, struct err *err);
/* Rank 0, between jobs: now and then an ORDER_MEET, which also finds the lost. */
enum rc ranks_tick(struct trainer *t, struct err *err);

/* What the orders have in common on all ranks: */
enum rc ranks_meet(struct trainer *t, struct err *err); /* sets stopping where a rank is asked to stop */
enum rc ranks_share_weights(struct trainer *t, struct weights *w, struct err *err);
enum rc ranks_spread(struct trainer *t, int which, struct err *err);
enum rc ranks_collect(struct trainer *t, int which, struct err *err);
enum rc ranks_step(struct trainer *t, double denominator, struct step_result *result, struct err *err);
/* RC_CORRUPT, and the comm is lost, when a rank's weights are not rank 0's. */
enum rc ranks_check_digest(struct trainer *t, const struct digest *mine, struct err *err);
/* The host's memory: see struct comm.  What fails has lost the comm, and ends the engine. */
enum rc ranks_all_gather(struct trainer *t, void *bytes, const size_t *begin, struct err *err);
/* The first failure of all ranks' rc, on every rank. */
enum rc ranks_agree(struct trainer *t, enum rc rc, struct err *err);
/* Every rank's bytes to all, rank after rank: begin[size + 1] says where each one's are in *all. */
enum rc ranks_exchange(struct trainer *t, const struct buf *mine, struct buf *all, size_t *begin, struct err *err);
/* Orders that rank 0 gives and takes part in at once. */
enum rc ranks_tell_weights(struct trainer *t, struct weights *w, int which, struct err *err);
/* The current weights to all ranks, which must then hold those of this digest. */
enum rc ranks_begin(struct trainer *t, const struct digest *digest, struct err *err);
struct checkpoint_arrays ranks_arrays(struct trainer *t);

/* --- ranks/follow.c --- */
/* The engine's thread of every rank but 0. */
void *follow_main(void *trainer);

/* --- engine/restore.c --- */
/* The newest checkpoint, or the model folder. */
enum rc trainer_restore(struct trainer *t, struct err *err);
/* The weights that a run starts from, here and not yet on other ranks.  Whoever fails then or later goes back to those of
 * the version that handlers see. */
enum rc trainer_start_weights(struct trainer *t, const struct run_start *start, struct err *err);
void trainer_weights_back(struct trainer *t);

#endif
