/* Opening a run: the weights that it starts from, its configuration, version 0.  The engine's thread.  Previous hop:
 * api/route_open_run.c. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_OPEN_RUN_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_OPEN_RUN_H

#include "services/trainer-server/engine/engine.h"

enum rc open_run_job(struct engine *e, struct job *job, struct err *err);

#endif
