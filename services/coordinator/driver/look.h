/* What the driver reads of the database before it chooses what to do: the trainer that holds the place, the run that is to
 * be moved on and that run's newest round.
 *
 * Called by the driver's thread at the beginning of every turn, by its steps when they must know whether something has
 * changed meanwhile, and by run_check.c on an HTTP worker's thread.  Everything is read on a connection for readers;
 * nothing is written and nothing is kept: what was read is as old as its snapshot.  The caller owns what it is given. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_LOOK_H
#define LEASEHOLD_COORDINATOR_DRIVER_LOOK_H

#include "common/base/limits.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/store/readers.h"

/* The live trainer that holds the place. */
struct trainer_target {
  bool found;
  int64_t worker; /* its incarnation */
  char url[LIMIT_URL_MAX];
  uint64_t epoch, fence;
  char name[LIMIT_NAME_MAX];
  bool fastest; /* its kernels are not batch-invariant */
};

/* The run that is to be moved on, and its newest round. */
struct active_run {
  bool found;
  int64_t run;
  enum run_state state;
  bool held;                         /* trouble has paused it: nothing is tried until somebody resumes it */
  char waiting_for[ERR_MESSAGE_MAX]; /* as it is shown; "": nothing */
  int64_t rounds;
  char *config;     /* owned: look_free */
  bool has_version; /* it was opened before */
  int64_t version;  /* the current one */
  struct digest digest;
  bool has_round;
  int64_t round, round_version;
  enum round_state round_state;
  int64_t undone;     /* batches of that round that are not done */
  int64_t unfinished; /* the round that is published but whose step's figures are still to come; -1: none */
};

/* The trainer, and the run that was begun or else the oldest queued one, in one snapshot. */
enum rc look_read(struct readers *readers, struct trainer_target *trainer, struct active_run *run, struct err *err);
void look_free(struct active_run *run);

/* The same trainer, on the caller's connection or on one of its own. */
enum rc look_trainer(struct store *s, struct trainer_target *out, struct err *err);
enum rc look_trainer_now(struct readers *readers, struct trainer_target *out, struct err *err);
/* Has the run left the states in which it is worked on?  False when that cannot be read just now. */
bool look_run_over(struct readers *readers, int64_t run);
/* The digest that is recorded for a version of a run; RC_NOT_FOUND. */
enum rc look_digest(struct readers *readers, int64_t run, int64_t version, struct digest *out, struct err *err);

#endif
