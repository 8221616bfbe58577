/* The publisher: pushes a durable version to the generation-servers in parallel, by broadcast to those that share the
 * trainer's fabric (pool_fabric.h), and announces it to the coordinator.
 *
 * One thread, one version at a time; every push has the round's stage_timeout_ms, by both ways together.  A server that fails
 * is reported, never waited for: it must pull.
 *
 * The engine calls it.  It ends the step's job (jobs_finish) when the announcement was answered or given up.  Previous hop of
 * a version: engine/step.c.  Next hops: generation-servers stage it, the coordinator makes it current. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_PUBLISHER_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_PUBLISHER_H

#include "common/comm/fabric.h"
#include "services/trainer-server/board/board.h"
#include "services/trainer-server/jobs/jobs.h"

struct publisher;
/* URL, token and fabric are borrowed; coordinator_url "": no announcements; fabric NULL: HTTP alone. */
enum rc publisher_create(struct publisher **out, struct board *board, struct jobs *jobs, const char *coordinator_url,
                         const char *token, struct fabric *fabric, struct err *err);
/* After the engine stopped: running pushes and announcements are cut short. NULL is fine. */
void publisher_destroy(struct publisher *p);
/* Takes over the reference to blob, and the job, which may be ended and dropped before this returns. */
void publisher_submit(struct publisher *p, struct job *step, struct weights_blob *blob);
/* The worker id that announcements carry; set by the heartbeat. */
void publisher_set_worker(struct publisher *p, const char *worker_id);

#endif
