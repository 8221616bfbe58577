/* The entries that are written about a run: the figures of a round's training and those of an evaluation.
 *
 *   round r is done      --> its training, at step r + 1: the version that it made
 *   it was evaluated     --> that evaluation, at step r: the version that was evaluated (in flight: or an older one)
 *
 * Both kinds come in the order of their rounds, each with a cursor of its own, because an evaluation of a run in flight
 * may end after later rounds.  What a cursor has passed never changes: rounds that are done stay done.
 *
 * Any thread; takes a reader for one snapshot and gives it back before it returns.  Memory: the entries' arena. */
#ifndef LEASEHOLD_COORDINATOR_TRACKERS_TRACK_ENTRIES_H
#define LEASEHOLD_COORDINATOR_TRACKERS_TRACK_ENTRIES_H

#include "common/base/arena.h"
#include "services/coordinator/store/readers.h"
#include "services/coordinator/trackers/track_names.h"

/* Rounds whose training, and whose evaluation, is not written yet; all before them is. */
struct track_cursor {
  int64_t training, evaluation;
};

struct track_figure {
  const char *name;
  double value; /* finite */
};
struct track_entry {
  bool evaluation;
  int64_t round, step, at_ms;
  struct track_figure *figures;
  int count;
};
enum { TRACK_ENTRIES_MAX = 32 };
struct track_entries {
  struct arena arena;
  struct track_entry items[TRACK_ENTRIES_MAX];
  int count;
};

/* The next entries from the cursor on; fewer than there are when there are many. *out must be freed, after a failure
 * too. */
enum rc track_entries_read(struct readers *readers, int64_t run, const struct track_cursor *from,
                           enum track_naming naming, struct track_entries *out, struct err *err);
void track_entries_free(struct track_entries *e);
/* Is the entry still to be written, and the cursor behind it. */
bool track_cursor_wants(const struct track_cursor *c, const struct track_entry *e);
void track_cursor_pass(struct track_cursor *c, bool evaluation, int64_t round);

#endif
