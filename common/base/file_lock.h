/* A lock on a file, which one process has at a time: a coordinator its database, a trainer its checkpoints.
 *
 * It covers one byte of the file, so a symbolic link, a hard link, a bind mount into another container or another
 * spelling of the path leads to the same lock, and a network file system that carries locks carries this one.  It
 * belongs to the open file description: it ends with the process, however that ends. */
#ifndef LEASEHOLD_BASE_FILE_LOCK_H
#define LEASEHOLD_BASE_FILE_LOCK_H

#include <stdint.h>

#include "common/base/rc.h"

/* Makes the file when it is missing.  *out is a descriptor, -1 on failure.  RC_CONFLICT, without a sentence, when
 * another process has the lock: *holder is that process, 0 where it has not signed or cannot be seen from here.
 * RC_IO when the file cannot be opened or its file system takes no locks. */
enum rc file_lock_take(int *out, long *holder, const char *path, int64_t at, struct err *err);
/* Tells those that are refused from now on which process has the lock, by a lock of the process's own on the byte
 * behind: it is gone once this process closes another descriptor of the file. */
void file_lock_sign(int fd, int64_t at);
void file_lock_release(int fd); /* -1 is fine */

#endif
