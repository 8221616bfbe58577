/* The commands that bring rewards into the ledger: what a server answered, what it did not answer in time, and what
 * state it is in.
 *
 *   answer   rows: their values; with a group's last one it is sealed (rounds/group_seal.h), all in one transaction
 *   loss     by the term's on_deadline: the run is paused; or the rows are worth 0; or the group fails
 *   clock    the run's clock of deadlines goes on
 *   note     the server's state and counts, for people
 *
 * An answer that comes twice, or after its sample was given up or drawn again, changes nothing.
 *
 * Executed by the writer.  Previous hop: rewards.c.  Next: group_seal.c, or run_life.c. */
#ifndef LEASEHOLD_COORDINATOR_REWARDS_REWARD_ANSWERS_H
#define LEASEHOLD_COORDINATOR_REWARDS_REWARD_ANSWERS_H

#include "common/base/digest.h"
#include "services/coordinator/decide/reward_calls.h"
#include "services/coordinator/writer/command.h"

struct reward_value {
  int32_t sample;
  struct digest digest; /* of the sample that the value is of */
  double value;
};

/* About one part of a group and one term.  In the command's arena. */
struct reward_message {
  int64_t run, round, group;
  int32_t term, count;
  struct reward_value *values; /* [count]; of a loss their values do not matter */
  const char *why;             /* of a loss: the last fault */
};
enum rc reward_answer_execute(struct core *c, struct command *cmd, struct err *err);
enum rc reward_loss_execute(struct core *c, struct command *cmd, struct err *err);

/* The time for which servers were waited for, since it was last told. */
struct reward_clock {
  int64_t run, passed_ms;
};
enum rc reward_clock_execute(struct core *c, struct command *cmd, struct err *err);

struct reward_note {
  int64_t run;
  int32_t term;
  const char *url, *last_error; /* last_error NULL: it answers */
  enum breaker_state state;
  int64_t requests, failures; /* since the last note */
};
enum rc reward_note_execute(struct core *c, struct command *cmd, struct err *err);

#endif
