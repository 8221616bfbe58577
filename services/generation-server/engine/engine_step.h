/* One step of the engine: admit samples, gather their rows, one forward pass, draw tokens.  On the engine's thread. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_ENGINE_STEP_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_ENGINE_STEP_H

#include <stdbool.h>

struct engine;

/* False when no sample runs.  Marks the engine as failed when its device has failed. */
bool step_run(struct engine *e);

#endif
