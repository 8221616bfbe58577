/* The coordinator's one writer: a thread that owns the state and the database connection.
 *
 *   handlers, driver --command--> bounded queue --> writer
 *
 *   a transaction:  BEGIN;  what falls due by time (core_options.h);  (SAVEPOINT; execute; RELEASE or ROLLBACK TO) for
 *                   each command;  parked polls that can be answered;  COMMIT
 *   behind it:      answers, events, a kick for the driver
 *
 * A transaction takes up to 256 commands.  It waits for 2 ms for more as long as all of its own are patient, and takes
 * those that are queued for up to 4 ms; for 2 ms when the driver or the trainer stands still until it is committed.
 *
 * A command's error rolls back only its own savepoint; no answer is sent before the commit.  When a commit fails,
 * the state in memory can no longer be trusted: every waiting request gets 503, core_broken becomes true, and main
 * ends the process; the next start reads the durable state.
 *
 * A command outlives its HTTP request: a hang-up or a deadline takes the request away under the writer's lock, but the
 * command is still carried out.
 *
 * A core that was never started has no thread: core_call and core_post then carry out the command at once, on the
 * caller's thread, in the same kind of transaction.  So transitions are tested, and runs simulated, without threads. */
#ifndef LEASEHOLD_COORDINATOR_WRITER_CORE_H
#define LEASEHOLD_COORDINATOR_WRITER_CORE_H

#include "services/coordinator/store/readers.h"
#include "services/coordinator/views/events.h"
#include "services/coordinator/writer/command.h"
#include "services/coordinator/writer/core_options.h"

struct core;

enum { CORE_ANSWER_MS = 30000 };

enum rc core_create(struct core **out, const struct core_options *options, struct err *err);
enum rc core_start(struct core *c, struct err *err);
/* Carries out what is queued, answers the parked with 503, ends the thread. */
void core_stop(struct core *c);
void core_destroy(struct core *c); /* NULL is fine */
bool core_broken(const struct core *c);

const struct core_options *core_options(const struct core *c);
struct readers *core_readers(struct core *c); /* of a database in memory: for the writer's thread, outside of
                                               * commands */
struct hub *core_hub(struct core *c);
uint64_t core_epoch(const struct core *c);
/* The core's clock, for any thread.  The wall clock is never behind the stored times. */
int64_t core_monotonic_ms(const struct core *c);
int64_t core_wall_us(const struct core *c);
size_t core_queued(struct core *c);
/* Called after every commit that the driver may care about: with the groups that were sealed in it, or 0 when something
 * else may be due. */
void core_set_kick(struct core *c, void (*kick)(void *context, int sealed), void *context);
/* Called after every commit behind which more groups wait for a check. */
void core_set_check(struct core *c, void (*check)(void *context), void *context);
/* Says how many more groups, once sealed, are worth a batch; INT_MAX: the trainer has no room for one.  The batch is
 * planned in the transaction that seals the last of them (core_callbacks.sealed).  trainer_idle: it stands still until
 * then; a sealing commits at once instead of waiting to be grouped with other commands. */
void core_await_groups(struct core *c, int groups, bool trainer_idle);
/* Likewise, until the next group waits for a check. */
void core_await_checks(struct core *c, bool awaited);

/* Takes over cmd (NULL: answers 503); suspends the request; it is answered after the commit, or with 504 after
 * deadline_ms, or with 429 when the queue is full. */
void core_submit(struct core *c, struct http_request *r, struct command *cmd, int64_t deadline_ms);
/* Takes over cmd, whose answer nobody waits for; when the queue is full it is dropped. */
void core_tell(struct core *c, struct command *cmd);
/* For the driver: waits for the commit (60 s at most), takes over cmd, returns its outcome. */
enum rc core_call(struct core *c, struct command *cmd, struct err *err);
/* For a core that was never started: carries out a command that may park, and takes it over.  `answered` is called
 * after the commit that answers it, which may be that of a later call, and must not call the core. */
void core_post(struct core *c, struct command *cmd, void (*answered)(struct command *cmd, void *context),
               void *context);
/* The caller of a posted command that was not answered yet has hung up. */
void core_hung_up(struct core *c, struct command *cmd);
/* For a test that has moved its clock: the writer looks at what is due, and the driver is kicked.  Returns after the
 * commit. */
enum rc core_wake(struct core *c, struct err *err);
/* For execute functions: has the caller of a parked command gone? */
bool core_orphaned(struct core *c, struct command *cmd);

#endif
