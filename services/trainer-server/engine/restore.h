/* Restores the state from which the trainer goes on when it starts: the newest whole checkpoint, or the model's folder.
 * Rank 0, before the engine's thread runs; the other ranks are told. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_RESTORE_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_RESTORE_H

#include "services/trainer-server/engine/engine.h"

enum rc restore_state(struct engine *e, struct err *err);

#endif
