/* POST /v1/workers, GET /v1/workers, POST /v1/workers/{id}/heartbeat, DELETE /v1/workers/{id}.
 *
 * Decoded and checked on an HTTP thread, carried out by the writer: a new incarnation, a sign of life, leases
 * renewed, slot time accounted (slot_time.h), a leave.  Answers carry the epoch and the current version, so that a
 * worker that was cut off can catch up. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_WORKERS_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_WORKERS_H

#include "services/coordinator/writer/command.h"

/* 404 for a worker that never registered, before its body is read.  For http_route.admit. */
enum rc admit_worker(struct http_request *r, void *context, struct err *err);
void handle_post_worker(struct http_request *r, void *context);
void handle_get_workers(struct http_request *r, void *context);
void handle_heartbeat(struct http_request *r, void *context);
void handle_delete_worker(struct http_request *r, void *context);

/* On the writer's thread; without HTTP for tests and the simulation. */
enum rc register_execute(struct core *c, struct command *cmd,
                         struct err *err); /* cmd->message: struct worker_register */
enum rc heartbeat_execute(struct core *c, struct command *cmd,
                          struct err *err); /* cmd->message: struct worker_heartbeat */
enum rc leave_execute(struct core *c, struct command *cmd, struct err *err);

#endif
