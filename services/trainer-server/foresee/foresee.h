/* Answers --plan: what a trainer with these options would need, and how fast it would learn.
 *
 *   request (common/client/foresight.h) --> model --> memory plan --> the run's configuration --> measure.c --> JSON on standard output
 *
 * It calls the functions with which the trainer starts and works.  Nothing is served, and no checkpoint is read or
 * written: a run is foreseen from its beginning.  For one process only; main's thread. */
#ifndef LEASEHOLD_TRAINER_SERVER_FORESEE_FORESEE_H
#define LEASEHOLD_TRAINER_SERVER_FORESEE_FORESEE_H

#include "common/base/program.h"
#include "services/trainer-server/engine/options.h"

/* Obstacles to the start or to the run are part of the answer.  An error means that there is no answer. */
enum rc foresee(const struct trainer_options *options, const struct program *program, const char *request,
                struct err *err);

#endif
