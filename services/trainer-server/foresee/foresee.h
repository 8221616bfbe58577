/* What a trainer with these options would need, and how fast it would learn: --plan.
 *
 *   request (common/client/foresight.h) --> model --> memory plan --> the run's configuration --> measure.c --> JSON on standard output
 *
 * All by the functions that the trainer starts and works with.  Nothing is served, and no checkpoint is read or
 * written: a run is foreseen as from its beginning.  Of one process; main's thread. */
#ifndef LEASEHOLD_TRAINER_SERVER_FORESEE_FORESEE_H
#define LEASEHOLD_TRAINER_SERVER_FORESEE_FORESEE_H

#include "common/base/program.h"
#include "services/trainer-server/engine/options.h"

/* What stands in the way of the start or of the run is part of the answer.  An error: there is no answer. */
enum rc foresee(const struct trainer_options *options, const struct program *program, const char *request,
                struct err *err);

#endif
