/* Reads from the database what the driver needs to choose its next work: the trainer that holds the place, the run to
 * work on and that run's newest round.
 *
 * Called by the driver's thread at the beginning of every turn, and by its steps when they must know whether something
 * has changed meanwhile.  Everything is read on a connection for readers; nothing is written or kept, so a result is as
 * old as its snapshot.  The caller owns what it is given. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_LOOK_H
#define LEASEHOLD_COORDINATOR_DRIVER_LOOK_H

#include "common/base/limits.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/store/readers.h"
#include "services/coordinator/trainer/trainer_target.h"

/* The run to work on, and its newest round. */
struct active_run {
  bool found;
  int64_t run;
  enum run_state state;
  bool held;                         /* trouble has paused it: nothing is tried until somebody resumes it */
  char waiting_for[ERR_MESSAGE_MAX]; /* as it is shown; "": nothing */
  int64_t rounds, created_ms;
  char *config;     /* owned: look_free */
  bool has_version; /* it was opened before */
  int64_t version;  /* the current one */
  struct digest digest;
  bool has_round;
  int64_t round, round_version;
  enum round_state round_state;
  int64_t undone;     /* batches and inner steps of that round that are not done */
  int64_t unfinished; /* the round that is published but whose step's times are still to come; -1: none */
};

/* The trainer, and the run that was begun or else the oldest queued one, in one snapshot. */
enum rc look_read(struct readers *readers, struct trainer_target *trainer, struct active_run *run, struct err *err);
void look_free(struct active_run *run);

/* Has the run left the states in which it is worked on?  False when that cannot be read just now. */
bool look_run_over(struct readers *readers, int64_t run);
/* The digest that is recorded for a version of a run; RC_NOT_FOUND. */
enum rc look_digest(struct readers *readers, int64_t run, int64_t version, struct digest *out, struct err *err);

#endif
