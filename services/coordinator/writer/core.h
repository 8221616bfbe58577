/* The coordinator's one writer: a thread that owns the state and the database connection.
 *
 *   handlers, driver --command--> bounded queue --> writer: BEGIN; (SAVEPOINT; execute; RELEASE | ROLLBACK TO)*; COMMIT --> answers, events, a kick for the driver
 *                                                     |  up to 64 commands or 2 ms a transaction, which waits that long for
 *                                                     |  company as long as nobody in it is in a hurry
 *                                                     +-> parked lease polls, expiry of workers and leases by time
 *
 * A command's error rolls back only its own savepoint; nobody is answered before the commit.  When a commit fails,
 * the state in memory is not to be trusted any more: everybody is told 503, core_broken becomes true, and main ends
 * the process; the next start reads what is durable.
 *
 * A command owns its memory (arena) and outlives its HTTP request: a hang-up or deadline takes the request away under
 * `lock`, the command is carried out all the same. */
#ifndef LEASEHOLD_COORDINATOR_WRITER_CORE_H
#define LEASEHOLD_COORDINATOR_WRITER_CORE_H

#include "common/base/clock.h"
#include "common/http/server.h"
#include "services/coordinator/views/events.h"
#include "services/coordinator/store/readers.h"

struct core;
struct command;

struct core_options {
  const char *db_path, *data_dir;
  const char *token; /* for calls to workers; NULL or "": none */
  int64_t lease_ttl_ms, heartbeat_ms, worker_ttl_ms, batch_tokens;
  int64_t workers_max; /* 0: 1024 */
  struct clock clock;  /* that everything here decides by and stores; {0}: the machine's */
};

/* The writer looks at the time at least so often.  When it comes back more than three times as late, it was away and
 * puts deadlines off (expiry_stall): a test moves its clock by steps of this, with core_wake after each. */
enum { CORE_LOOK_MS = 100 };

/* Runs on the writer's thread, inside a savepoint.  Fills cmd->status and cmd->body, or parks, or fails: then what it
 * wrote is undone. */
typedef enum rc (*command_execute)(struct core *c, struct command *cmd, struct err *err);

struct command {
  command_execute execute;
  struct arena arena; /* message and what it points to */
  void *message;
  const char *id; /* the path's {id}, or NULL */

  int status; /* answer: 0 means 200 */
  struct buf body;
  bool patient;        /* nobody stands still until it is answered: see core_await_groups */
  bool refused;        /* answer err, but keep what was written (counters, incidents) */
  int64_t fault_round; /* an accepted result's round, for fault.h */
  bool parked;         /* kept by the writer, answered later */
  int64_t due_ms;      /* a parked command is answered by then (monotonic) */
  enum rc rc;
  struct err err;
  struct command *next;

  struct http_request *request; /* [core->lock] NULL once taken, or never there */
  struct ticket *ticket;        /* [core->lock] */
  bool waited, done;            /* [core->lock] core_call waits for it */
};

enum rc core_create(struct core **out, const struct core_options *options, struct err *err);
enum rc core_start(struct core *c, struct err *err);
/* Carries out what is queued, answers the parked with 503, ends the thread. */
void core_stop(struct core *c);
void core_destroy(struct core *c); /* NULL is fine */
bool core_broken(const struct core *c);

const struct core_options *core_options(const struct core *c);
struct readers *core_readers(struct core *c);
struct hub *core_hub(struct core *c);
uint64_t core_epoch(const struct core *c);
/* Of core's clock, for any thread.  The wall clock never lies behind what is stored. */
int64_t core_monotonic_ms(const struct core *c);
int64_t core_wall_us(const struct core *c);
size_t core_queued(struct core *c);
/* Called after every commit that the driver may care about: with the groups that were sealed in it, or 0 when something
 * else may be due. */
void core_set_kick(struct core *c, void (*kick)(void *context, int sealed), void *context);
/* Whether the trainer stands still until the next group is sealed: then its commit waits for no company. */
void core_await_groups(struct core *c, bool awaited);

/* NULL when memory is refused.  message_bytes of zeroed memory become cmd->message. */
struct command *command_new(command_execute execute, size_t message_bytes);
/* The same, with the path's {id}. */
struct command *command_for(struct http_request *r, command_execute execute, size_t message_bytes);
void command_free(struct command *cmd); /* NULL is fine */

/* Takes over cmd (NULL: answers 503); suspends the request; it is answered after the commit, or with 504 after
 * deadline_ms, or with 429 when the queue is full. */
void core_submit(struct core *c, struct http_request *r, struct command *cmd, int64_t deadline_ms);
/* For the driver: waits for the commit (60 s at most), takes over cmd, returns its outcome. */
enum rc core_call(struct core *c, struct command *cmd, struct err *err);
/* For a test that has moved its clock: the writer looks at what is due, and the driver is kicked.  Returns after the
 * commit. */
enum rc core_wake(struct core *c, struct err *err);

enum { CORE_ANSWER_MS = 30000 };

#endif
