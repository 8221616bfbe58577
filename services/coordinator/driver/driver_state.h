/* The state that the driver keeps between its turns, shared by its steps: connections, the run's context, what was sent
 * to the trainer since the start, and since when there has been trouble.
 *
 *   driver.c            the thread: looks (look.c), chooses a step, waits for a kick
 *     trouble.c         judges what a step failed with: it is waited out, or the run is paused
 *       standstill.c    who is missing where nothing fails and nothing goes on
 *     start.c           opens a run, or takes it up again
 *       replay.c        brings a trainer that lost rounds back to the recorded version
 *     late_check.c      a thread of its own: checks posted runs whose datasets are large
 *     record.c          instead of all this, replays a whole recorded run (--replay)
 *     train.c           sends the batches and inner steps of a round, as far as it goes; batch_answers.c takes the answers
 *     step.c            steps a round and publishes what came of it; in flight it only submits, and asks when it is woken
 *       next.c            what is to be done, and which job goes to the trainer
 *       round_jobs.c      the order of these jobs
 *         batch.c, inner_step.c, look.c, model_files.c   what several steps use
 *
 * Each file includes only those below it.  All members belong to the driver's thread, except `kicked`, `sealed` and
 * `waking` (under `lock`) and `stopping`.  The driver writes nothing itself: every outcome is a command to the writer
 * (core_call).  Nothing here must survive: a restart takes it up again from the database. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_DRIVER_STATE_H
#define LEASEHOLD_COORDINATOR_DRIVER_DRIVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/client/trainer_client.h"
#include "services/coordinator/driver/batch_answers.h"
#include "services/coordinator/driver/look.h"
#include "services/coordinator/run/run_context.h"

/* The batches and inner steps of a round that were sent to a trainer in this life. */
struct sent_batches {
  int64_t run; /* 0: none */
  int64_t round, trainer;
  bool first;              /* nothing of the round was sent before, nor before a restart */
  struct round_job newest; /* the last one in the trainer's order */
};

/* A round's own step that was submitted in this life, and is not waited for. */
struct sent_step {
  int64_t run; /* 0: none */
  int64_t round, trainer;
  bool followed; /* by what was planned ahead */
};

struct driver {
  struct core *core;
  struct http_client *http;
  pthread_t thread;
  atomic_bool stopping;
  pthread_mutex_t lock; /* guards kicked, sealed and waking */
  pthread_cond_t wake;
  bool kicked;
  int sealed; /* groups, since it last began to look */
  int waking; /* how many of them wake it when it waits */

  int groups_wanted; /* how many more are worth another pass, as far as the last one could tell; INT_MAX: an answer
                      * is */

  struct late_check *late_check;
  struct batch_answers *answers;
  struct sent_batches sent;
  int64_t newest_round; /* up to it something may have been sent before the run was taken up, or was sent since */
  struct sent_step stepping;
  struct batch *ahead; /* of the round behind the one in step, submitted in this life and awaited once that is open;
                        * NULL: none */
  struct run_context *context;        /* of the active run */
  int64_t context_from;               /* the incarnation whose model files it was made of, until that was verified */
  int64_t verified_trainer;           /* the incarnation that was seen to hold the run's version */
  int64_t trainer_lost_ms;            /* how long a run that is to stop waits for its step's trainer */
  int64_t trouble_since_ms;           /* 0: none */
  int64_t retry_ms;                   /* after this turn; 0: no trouble, or none that waiting ends */
  int64_t shown_ms;                   /* when what the run waits for was last stored */
  int64_t stands_looked_ms, stands_since_ms; /* standstill.h; 0: it does not stand still */
  char stands_for[ERR_MESSAGE_MAX];
  int64_t doubted_run, doubted_round; /* where a refusal last led to verifying the trainer anew */
  struct trainer_target trainer;      /* of this turn's look */

  const char *replay;      /* the run to replay instead of all other work; NULL: none */
  bool replays_record;     /* nothing is written to the runs, whose states do not matter */
  atomic_bool replay_over; /* then replay_rc and replay_err stand */
  enum rc replay_rc;
  struct err replay_err;
};

static inline struct readers *driver_readers(const struct driver *d) { return core_readers(d->core); }
static inline struct trainer_client driver_trainer(const struct driver *d) {
  return (struct trainer_client){.http = d->http, .base_url = d->trainer.url};
}

/* Drops what is pending at the trainer; the database has it as not done. */
void driver_drop_sent(struct driver *d);
/* It is submitted again when its round is open, which makes no second batch. */
void driver_drop_ahead(struct driver *d);
/* Drops that, the context and the verification: the run is opened anew before anything else is done for it. */
void driver_forget_run(struct driver *d);

#endif
