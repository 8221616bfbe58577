/* What the driver's files share: its state, what it saw of the database in this turn, and the parts' entry points.
 *
 *   driver.c        looks, chooses what to do
 *   trouble.c       judges trouble: it is waited out, or the run is paused
 *   start.c         opens a run, or takes it up again
 *   replay.c        brings a trainer that lost rounds back to the recorded version
 *   train.c         selects and submits the batches of a round, as far as it goes; batch_answers.c takes the answers
 *   step.c          steps a round and publishes what came of it
 *
 * All of it belongs to the driver's thread, but `kicked`, `sealed` and `waking` (under `lock`) and `stopping`.  The driver writes nothing
 * itself: every outcome is a command to the writer (core_call). */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_DRIVER_STATE_H
#define LEASEHOLD_COORDINATOR_DRIVER_DRIVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/client/trainer_client.h"
#include "services/coordinator/driver/batch_answers.h"
#include "services/coordinator/driver/driver.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/decide/states.h"

enum { CALL_MS = 10000, OPEN_MS = 120000, POLL_MS = 2000, FILE_MS = 30000, SUBMIT_MS = 120000 };

/* The live trainer that holds the place. */
struct trainer_target {
  bool found;
  int64_t worker;
  char url[LIMIT_URL_MAX];
  uint64_t epoch, fence;
  char name[LIMIT_NAME_MAX];
  bool fastest; /* its kernels are not batch-invariant */
};

/* The run that is to be moved on, and its current round. */
struct active_run {
  bool found;
  int64_t run;
  enum run_state state;
  bool held;                         /* trouble has paused it: nothing is tried until somebody resumes it */
  char waiting_for[ERR_MESSAGE_MAX]; /* as it is shown; "": nothing */
  int64_t rounds;
  char *config;     /* owned by the driver: freed by look_free */
  bool has_version; /* it was opened before */
  int64_t version;
  struct digest digest;
  bool has_round;
  int64_t round, round_version;
  enum round_state round_state;
  int64_t undone;     /* batches of that round that are not done */
  int64_t unfinished; /* the round that is published but whose step's figures are still to come; -1: none */
};

/* What was sent in this life. */
struct stream {
  int64_t run, round, trainer; /* trainer: its incarnation */
  int64_t sent;                /* the highest batch number, or -1 */
};

struct driver {
  struct core *core;
  struct driver_options options;
  struct http_client *http;
  pthread_t thread;
  atomic_bool stopping;
  pthread_mutex_t lock; /* guards kicked, sealed and waking */
  pthread_cond_t wake;
  bool kicked;
  int sealed; /* groups, since it last began to look */
  int waking; /* so many of them wake it when it waits */

  int groups_wanted; /* how many more are worth another pass, as far as the last one could tell; INT_MAX: an answer is */

  struct collector *collector;
  struct stream stream;
  struct run_context *context;        /* of the active run */
  int64_t context_from;               /* the incarnation whose model files it was made of, until that was verified */
  int64_t verified_trainer;           /* the incarnation that was seen to hold the run's version */
  int64_t trouble_since_ms;           /* 0: none */
  int64_t retry_ms;                   /* after this turn; 0: no trouble, or none that waiting ends */
  int64_t shown_ms;                   /* when what the run waits for was last stored */
  int64_t doubted_run, doubted_round; /* where a refusal last led to verifying the trainer anew */
  struct trainer_target trainer;
};

static inline struct trainer_client driver_trainer(const struct driver *d) {
  return (struct trainer_client){.http = d->http, .base_url = d->trainer.url};
}

/* start.c: the files of the trainer's model; the caller frees them. */
enum rc driver_model_files(const struct trainer_client *t, struct model_files *files, struct err *err);
void driver_model_files_free(struct model_files *files);
enum rc driver_open(struct driver *d, const struct active_run *a, struct err *err);
enum rc driver_move_run(struct driver *d, int64_t run, enum run_state to, struct err *err);

/* driver/replay.c: submits the recorded rounds from version `from` on, one after the other, until the trainer holds the
 * recorded current version; every digest on the way must be the recorded one. */
enum rc driver_replay(struct driver *d, const struct active_run *a, int64_t from, struct err *err);

/* driver/train.c: sends what can be sent just now. */
enum rc driver_train(struct driver *d, const struct active_run *a, bool *progress, struct err *err);
bool driver_by_tokens(const struct driver *d); /* how the run's steps are normalized */
/* The message of a stored batch. */
enum rc driver_flight(struct driver *d, int64_t run, int64_t round, int64_t version, int64_t number,
                      struct flight **out, struct err *err);
/* asked_first: it may have been submitted before. */
enum rc driver_submit(struct driver *d, const struct flight *f, bool asked_first, struct err *err);

/* driver/step.c */
/* The message of a round's step; strings live in the arena. */
enum rc driver_step_message(struct driver *d, int64_t run, int64_t round, struct submit_step *m, struct arena *arena,
                            struct err *err);
/* Steps a round, or fetches the figures of a step that is published already; then the next round, or the run's end. */
enum rc driver_step(struct driver *d, const struct active_run *a, int64_t round, struct err *err);

/* driver/trouble.c */
/* What work on the run met with, rc not RC_OK: it is to be tried again after so many ms, or 0: the run is paused, or has
 * stopped. */
int64_t driver_trouble(struct driver *d, const struct active_run *a, enum rc rc, const struct err *err);
void driver_trouble_over(struct driver *d, const struct active_run *a);
/* Of a job that the trainer failed: RC_IO when its disk is to blame, so that the same job is tried again. */
static inline enum rc driver_failure(const struct err *of_job) { return of_job->rc == RC_IO ? RC_IO : RC_CONFLICT; }

/* driver.c */
enum rc driver_read_trainer(struct store *s, struct trainer_target *out, struct err *err);
void driver_forget_run(struct driver *d); /* nothing is in flight, and the trainer is not verified any more */
enum rc driver_trainer_now(struct driver *d, struct trainer_target *out, struct err *err);
/* Has the run left the states in which it is worked on? */
bool driver_run_over(struct driver *d, int64_t run);

#endif
