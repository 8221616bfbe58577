/* One trainer per --state-dir: the checkpoints of two would replace each other, and `latest` would go back.
 *
 * The lock (common/base/file_lock.h) is on the file trainer-lock in the folder.  Of several ranks the first takes it,
 * before anything is read there.  A supervisor may start the successor while the process before still ends, so the lock
 * is waited for a little. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_STATE_LOCK_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_STATE_LOCK_H

#include <stdint.h>

#include "common/base/rc.h"

/* RC_CONFLICT when another trainer has the folder after wait_ms.  Where the file system takes no locks this is
 * logged, and *out is -1 with RC_OK: the trainer goes on without one. */
enum rc state_lock_take(int *out, const char *state_dir, int64_t wait_ms, struct err *err);
void state_lock_release(int fd); /* -1 is fine */

#endif
