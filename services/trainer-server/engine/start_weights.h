/* Fills the weights that a run starts from: the model's folder or random numbers, a checkpoint, or what is held
 * already.  The engine's thread changes weights here and not yet on other ranks; start_weights_ask is any thread's. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_START_WEIGHTS_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_START_WEIGHTS_H

#include "services/trainer-server/engine/engine.h"

/* Is the checkpoint there that a run starts from?  It stays for a while: see checkpoint_ask. */
enum rc start_weights_ask(const struct trainer_options *options, const struct run_start *start, struct err *err);
/* The model's folder, or random numbers from --random-init's seed. */
enum rc start_weights_initial(struct engine *e, struct err *err);
/* The weights that a run starts from.  If this or what follows fails, start_weights_back is due. */
enum rc start_weights_load(struct engine *e, const struct run_start *start, struct err *err);
/* Takes back the weights of the version that the board shows. */
void start_weights_back(struct engine *e);

#endif
