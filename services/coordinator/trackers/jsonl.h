/* Entries as lines of JSON: {"round":3,"step":4,"run":"r1","time":1700000000.25,"reward":0.5,...}, for pandas and jq.
 *
 * One thread; a line is written by one call, and the file itself tells how far it has come. */
#ifndef LEASEHOLD_COORDINATOR_TRACKERS_JSONL_H
#define LEASEHOLD_COORDINATOR_TRACKERS_JSONL_H

#include "services/coordinator/trackers/track_entries.h"
#include "services/coordinator/trackers/track_file.h"

struct jsonl {
  struct track_file file;
  struct track_cursor cursor;
};
#define JSONL_NONE \
  { .file = TRACK_FILE_NONE }
enum rc jsonl_open(struct jsonl *j, const char *path, struct err *err);
enum rc jsonl_append(struct jsonl *j, const char *run_id, const struct track_entry *e, struct err *err);

#endif
