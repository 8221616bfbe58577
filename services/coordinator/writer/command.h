/* A command: one change of the state, carried out by the writer inside a savepoint, and its answer.
 *
 *   handler, driver: command_new, message filled --core_submit, core_call--> writer: execute --> answered, freed
 *
 * A command owns its memory (arena, bodies) and may outlive the HTTP request that it came from.  Its maker owns
 * it until core takes it; from then on the writer does. */
#ifndef LEASEHOLD_COORDINATOR_WRITER_COMMAND_H
#define LEASEHOLD_COORDINATOR_WRITER_COMMAND_H

#include "common/base/log.h"
#include "common/http/server.h"

struct core;
struct command;

/* Runs on the writer's thread, inside a savepoint.  Fills cmd->status and cmd->body, or parks, or fails: then its
 * writes are undone. */
typedef enum rc (*command_execute)(struct core *c, struct command *cmd, struct err *err);

struct command {
  command_execute execute;
  struct arena arena; /* message and what it points to */
  void *message;
  struct buf taken; /* the request's body, where the message borrows from it */
  const char *id; /* the path's {id}, or NULL */
  struct log_context log; /* its maker's, and the writer's while it is carried out */
  struct token_claim caller; /* core_submit's; roles 0: no token was asked for, or nobody called */

  int status; /* answer: 0 means 200 */
  struct buf body;
  void *prepared;      /* what was computed for it before it was queued, in its arena; NULL: nothing */
  bool urgent;         /* short, and waited for by somebody with idle slots or a deadline: goes before the others */
  bool of_passes;      /* parked, it waits for passes_due; others for samples_due */
  bool patient;        /* its sender does not stand still until the answer: see core_await_groups */
  bool refused;        /* answer err, but keep what was written (counters, incidents) */
  int64_t fault_round; /* an accepted result's round, for fault.h */
  bool parked;         /* kept by the writer, answered later */
  int64_t due_ms;      /* a parked command is answered by then (monotonic) */
  enum rc rc;
  struct err err;
  struct command *next;

  struct http_request *request; /* [the writer's lock] NULL once taken, or never there */
  struct ticket *ticket;        /* [the writer's lock] */
  bool waited, done;            /* [the writer's lock] core_call waits for it */
  void (*answered)(struct command *cmd, void *context); /* [the writer's lock] core_post's; NULL: none, or gone */
  void *answered_context;
};

/* NULL when memory is refused.  message_bytes of zeroed memory become cmd->message. */
struct command *command_new(command_execute execute, size_t message_bytes);
/* The same, with the path's {id}. */
struct command *command_for(struct http_request *r, command_execute execute, size_t message_bytes);
void command_free(struct command *cmd); /* NULL is fine */

#endif
