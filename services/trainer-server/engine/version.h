/* Versions: the current weights serialized and digested, and written as a checkpoint.  The engine's thread.
 *
 * A checkpoint is written at once, or owed, and then written by a thread of its own while the engine computes the next
 * step's gradients: these move neither masters nor moments.
 *
 *   version_checkpoint          serialized -> durable
 *   version_checkpoint_owe      serialized -> owed          then it may be published: the older checkpoint and the
 *   version_checkpoint_begin    owed -> being written       coordinator's record of the rounds since lead to it
 *   version_checkpoint_settle   owed or being written -> durable, or it fails and stays owed
 *
 * One is owed at most.  It is settled before masters, moments, the history or the run's configuration change. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_VERSION_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_VERSION_H

#include "services/trainer-server/engine/engine.h"

/* Serializes the current weights; the caller holds the result.  pushed: and what they changed since the version
 * before. */
enum rc version_serialize(struct engine *e, const char *run, int64_t version, bool pushed, struct weights_blob **out,
                          struct err *err);
/* step NULL: version 0. */
enum rc version_checkpoint(struct engine *e, const struct weights_blob *b, const struct job *step, struct err *err);

/* Can its checkpoint be owed?  Where several ranks' shards are collected for it, or a device has the arrays, only the
 * engine's thread can write it. */
bool version_may_owe(const struct engine *e);
/* The version's checkpoint is owed; the caller's hold of the blob stays the caller's. */
void version_checkpoint_owe(struct engine *e, struct weights_blob *b, const struct job *step);
void version_checkpoint_begin(struct engine *e);
/* Waits for what is being written.  What is owed after that is written here and now: it failed, or had no thread.
 * RC_OK: nothing is owed any more. */
enum rc version_checkpoint_settle(struct engine *e, struct err *err);
/* The same without a second try, with a warning instead of an error: another run begins, or the trainer ends. */
void version_checkpoint_end(struct engine *e);

#endif
