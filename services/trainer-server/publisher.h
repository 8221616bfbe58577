/* The publisher: pushes a durable version to the generation-servers in parallel, then announces it to the coordinator.
 * One thread, one version at a time; every push has the round's stage_timeout_ms.  A server that fails is reported, never waited for: it must pull.
 * Owns: the queue of durable steps.  Called by the engine; ends the step's job (jobs_finish) when the announcement was answered or given up. */
#ifndef LEASEHOLD_TRAINER_PUBLISHER_H
#define LEASEHOLD_TRAINER_PUBLISHER_H

#include "services/trainer-server/trainer.h"

struct publisher;
enum rc publisher_create(struct publisher **out, struct trainer *t, const char *coordinator_url, const char *token, struct err *err);
void publisher_destroy(struct publisher *p); /* NULL is fine */
/* Takes over the reference to blob. */
void publisher_submit(struct publisher *p, struct job *step, struct weights_blob *blob);
/* The worker id that announcements carry; set by registration. */
void publisher_set_worker(struct publisher *p, const char *worker_id);

#endif
