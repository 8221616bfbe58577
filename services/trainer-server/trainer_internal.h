/* What the trainer's files share: the engine's state and the functions that cross files.  Everything but what `lock`
 * guards belongs to the engine's thread once it runs, and to trainer_create before.
 *
 *   trainer.c          start, the engine's loop, what handlers ask       trainer_version.c  versions and checkpoints
 *   trainer_run.c      opening a run: configuration, reference           trainer_batch.c    log-probabilities and gradients
 *   trainer_step.c     the optimizer step                                trainer_restore.c  a checkpoint, or the model folder, at start
 *   accumulated.c      the groups since the last step                    timeline.c         what the engine did, by cause
 *   trainer_memory.c   what all of it needs
 */
#ifndef LEASEHOLD_TRAINER_TRAINER_INTERNAL_H
#define LEASEHOLD_TRAINER_TRAINER_INTERNAL_H

#include "common/base/memory_plan.h"
#include "common/base/metrics.h"
#include "services/trainer-server/accumulated.h"
#include "services/trainer-server/checkpoint.h"
#include "services/trainer-server/timeline.h"
#include "services/trainer-server/trainer.h"
#include "services/trainer-server/unit.h"

enum { CHUNK_TOKENS_MIN = 2 };

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

  /* the engine thread's */
  struct weights *weights, *reference; /* current; frozen for the KL term or NULL */
  struct optimizer *optimizer;
  int learner_chunk; /* tokens per chunk that learner was made for */
  float *grads;      /* one unit; the optimizer's, see optimizer_gradient */
  bool grads_clear;  /* they are all zero, as optimizer_take_unit leaves them */
  struct training_config training;
  struct arena run_arena; /* the strings of training */
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

  pthread_mutex_t lock; /* guards view and blob */
  struct trainer_view view;
  struct weights_blob *blob; /* the current version's bytes */

  struct metric *metric_tokens, *metric_steps, *metric_skipped, *metric_version, *metric_units, *metric_replaying;
};

/* --- trainer_version.c --- */
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

/* --- trainer_run.c --- */
bool trainer_trains(const struct training_config *c);
/* The wire's names and numbers as the model module's configurations; pure. */
enum rc trainer_map_config(const struct training_config *c, struct unit_config *unit, struct optimizer_config *o,
                           struct err *err);
/* Keeps a copy of the training config whose strings outlive the request. */
enum rc trainer_keep_config(struct trainer *t, const struct training_config *c, struct err *err);
enum rc trainer_learner_for(struct trainer *t, int chunk_tokens, struct err *err);
enum rc trainer_job_open_run(struct trainer *t, struct job *job, struct err *err);

/* --- trainer_batch.c --- */
enum rc trainer_job_batch(struct trainer *t, struct job *job, struct err *err);

/* --- trainer_step.c --- */
/* Digest -> durable; then the version is ours.  After RC_OK the job has ended (a replayed step) or is the
 * publisher's. */
enum rc trainer_job_step(struct trainer *t, struct job *job, struct err *err);

/* --- trainer_memory.c --- */
/* What is planned for at the largest chunk, and made for a run's. */
struct learner_options trainer_learner_options(const struct trainer_options *o, int chunk_tokens);
/* At start: logs the plan, and refuses it with RC_NO_MEMORY when it does not fit. */
enum rc trainer_check_memory(const struct trainer *t, struct err *err);
/* The same for the frozen reference of a run with a KL term, which start does not plan for. */
enum rc trainer_check_reference(const struct trainer *t, struct err *err);

/* --- trainer_restore.c --- */
/* The newest checkpoint, or the model folder. */
enum rc trainer_restore(struct trainer *t, struct err *err);

#endif
