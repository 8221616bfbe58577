/* Entries as a fragment in Trackio's inbox: <folder>/inbox/leasehold-<run>/00000004.jsonl, which its dashboard takes in
 * and deletes.
 *
 * One thread.  A fragment is put in place whole.  Every entry has an id that is the same however often it is written,
 * and Trackio takes each id in once: a fragment that is written again after a crash doubles nothing. */
#ifndef LEASEHOLD_COORDINATOR_TRACKERS_TRACKIO_H
#define LEASEHOLD_COORDINATOR_TRACKERS_TRACKIO_H

#include "services/coordinator/trackers/track_entries.h"

struct trackio_run {
  const char *id, *name; /* "r1"; free text, may be "" */
  const char *config;    /* JSON */
  int64_t created_ms;    /* tells runs of one id in several databases apart */
};
/* The entries that the cursor wants, if any. */
enum rc trackio_write(const char *folder, const struct trackio_run *run, const struct track_entries *entries,
                      const struct track_cursor *cursor, struct err *err);

#endif
