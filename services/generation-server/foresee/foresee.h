/* Answers --plan: what a generation-server with these options would need, and how fast it would sample.
 *
 *   request (common/client/foresight.h) --> memory plan --> the model, loaded --> measure.c --> JSON on standard output
 *
 * It calls the functions with which the server loads and works.  Nothing is served.  Main's thread. */
#ifndef LEASEHOLD_GENERATION_SERVER_FORESEE_FORESEE_H
#define LEASEHOLD_GENERATION_SERVER_FORESEE_FORESEE_H

#include "common/base/program.h"
#include "services/generation-server/engine/model_options.h"

/* Obstacles to the start are part of the answer.  An error means that there is no answer. */
enum rc foresee(const struct loaded_model_options *options, const char *model_dir, const struct program *program,
                const char *request, struct err *err);

#endif
