/* Versions: the current weights serialized and digested, and written as a checkpoint.  The engine's thread. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_VERSION_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_VERSION_H

#include "services/trainer-server/engine/engine.h"

/* Serializes the current weights; the caller holds the result.  pushed: and what they changed since the version before. */
enum rc version_serialize(struct engine *e, const char *run, int64_t version, bool pushed, struct weights_blob **out,
                          struct err *err);
/* step NULL: version 0. */
enum rc version_checkpoint(struct engine *e, const struct weights_blob *b, const struct job *step, struct err *err);

#endif
