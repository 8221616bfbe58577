/* The threads that ask reward servers: one that looks for waiting samples, and several that call.
 *
 *   look    every LOOK_MS  the active run's http terms, the parts of groups that wait (reward_ledger.h)  --> jobs
 *   callers a job whose move is due (decide/reward_calls.h)  --> request (reward_message.h) --> command (reward_answers.h)
 *
 * They are not the writer, nor threads that answer requests: a slow server holds up only its own groups.
 * What is kept here may be lost: breakers and attempts begin anew after a restart; what waits, and how long, is in the
 * database.  A process killed between a server's answer and its commit asks again, with the same idempotency key.
 *
 * main.c starts them if --reward-hosts names a host, and stops them before the writer. */
#ifndef LEASEHOLD_COORDINATOR_REWARDS_REWARDS_H
#define LEASEHOLD_COORDINATOR_REWARDS_REWARDS_H

#include "services/coordinator/writer/core.h"

struct rewards;

struct rewards_options {
  const char *hosts; /* --reward-hosts */
  const char *token; /* bearer token that reward servers are shown; NULL or "": none */
  const char *ca_file; /* --reward-ca: CA certificates for https servers; NULL or "": those that the system trusts */
  int threads;         /* calls at once, of all terms */
};

/* *out NULL: no host may be asked, so there is nothing to start. */
enum rc rewards_start(struct rewards **out, struct core *core, const struct rewards_options *options, struct err *err);
/* Ends the calls that run, and the threads.  NULL is fine. */
void rewards_stop(struct rewards *r);

#endif
