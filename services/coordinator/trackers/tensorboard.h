/* Entries as a TensorBoard event file, one event an entry.
 *
 *   record:  u64 length | u32 m(length) | bytes | u32 m(bytes)      little-endian; m = crc32c turned right by 15, + 0xA282EAD8
 *   event:   1 wall_time: double | 2 step: varint | 3 file_version: "brain.Event:2", the first one only
 *            5 summary { 1 value { 1 tag: string, 2 simple_value: float32 } ... }
 *
 * One thread; a record is written by one call, and the file itself tells how far it has come: an event whose first tag
 * is an evaluation's (track_names.h) is of round `step`, any other of the round before. */
#ifndef LEASEHOLD_COORDINATOR_TRACKERS_TENSORBOARD_H
#define LEASEHOLD_COORDINATOR_TRACKERS_TENSORBOARD_H

#include "services/coordinator/trackers/track_entries.h"
#include "services/coordinator/trackers/track_file.h"

struct tensorboard {
  struct track_file file;
  struct track_cursor cursor;
};
#define TENSORBOARD_NONE \
  { .file = TRACK_FILE_NONE }
/* begun_ms: the wall time of a new file's first event. */
enum rc tensorboard_open(struct tensorboard *t, const char *path, int64_t begun_ms, struct err *err);
enum rc tensorboard_append(struct tensorboard *t, const struct track_entry *e, struct err *err);

#endif
