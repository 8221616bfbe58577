/* The optimizer's arrays as a checkpoint wants them, whole: of one rank its own, of several their shards put together.
 * Rank 0's engine. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_OPTIMIZER_ARRAYS_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_OPTIMIZER_ARRAYS_H

#include "services/trainer-server/engine/engine.h"

struct checkpoint_arrays optimizer_arrays(struct engine *e);
/* The parts that every rank takes in it: ORDER_SPREAD and ORDER_COLLECT. */
enum rc optimizer_array_spread(struct engine *e, int which, struct err *err);
enum rc optimizer_array_collect(struct engine *e, int which, struct err *err);

#endif
