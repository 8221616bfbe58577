/* The publisher: pushes a version to the generation-servers (push.h) and announces it to the coordinator, or, with
 * the step's announce_first, announces it and leaves the pushes to the background (background.h).
 *
 * One thread, one version at a time.  A server that fails is reported, never waited for: it must pull.
 *
 * The engine calls it.  It ends the step's job (jobs_finish) when the announcement has been answered or given up.
 * Previous hop of a version: engine/step.c.  Next hops: generation-servers stage it, the coordinator makes it
 * current. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_PUBLISHER_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_PUBLISHER_H

#include "common/comm/fabric.h"
#include "services/trainer-server/board/board.h"
#include "services/trainer-server/jobs/jobs.h"

struct http_access;
struct publisher;
/* URL, access and fabric are borrowed; coordinator_url "": no announcements; fabric NULL: only HTTP. */
enum rc publisher_create(struct publisher **out, struct board *board, struct jobs *jobs, const char *coordinator_url,
                         const struct http_access *access, struct fabric *fabric, struct err *err);
/* After the engine stopped: running pushes and announcements are cut short. NULL is fine. */
void publisher_destroy(struct publisher *p);
/* Takes over the reference to blob, and the job, which may be ended and dropped before this returns. */
void publisher_submit(struct publisher *p, struct job *step, struct weights_blob *blob);
enum { PUBLISHER_INTERVALS = 32 }; /* the most that are added to a step's: by its own push, and by the call below */
/* Adds to an answer the time that this run's pushes in the background have taken since the last call. */
void publisher_take_pushes(struct publisher *p, const char *run, struct step_status *out);
/* The worker id that announcements carry; set by the heartbeat. */
void publisher_set_worker(struct publisher *p, const char *worker_id);

#endif
