/* A file that only grows, of records that are written whole: what a crash left of a half-written one is cut off when it
 * is opened again, and what a full disk left of one at once.
 *
 * One thread.  Nothing is fsynced: what a power failure takes is written again from the ledger. */
#ifndef LEASEHOLD_COORDINATOR_TRACKERS_TRACK_FILE_H
#define LEASEHOLD_COORDINATOR_TRACKERS_TRACK_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/rc.h"

struct track_file {
  int fd; /* -1: not open */
  int64_t end;
  char path[LIMIT_PATH_MAX];
};
#define TRACK_FILE_NONE \
  { .fd = -1 }

/* Reads what there is: the length of whole records from the beginning on. */
typedef size_t (*track_scan)(void *context, const char *bytes, size_t len);

/* Opens or creates it; `scan` sees what it holds, and what it does not count is cut off. */
enum rc track_file_open(struct track_file *f, const char *path, track_scan scan, void *context, struct err *err);
/* All of it or nothing. */
enum rc track_file_append(struct track_file *f, const char *bytes, size_t len, struct err *err);
void track_file_close(struct track_file *f);

#endif
