/* Pushes versions while the engine goes on: those that were announced first.
 *
 *                                  +--> round 1: a version, to the servers that are free --+
 *   publisher --> the newest version                                                       +--> figures --> engine
 *                                  +--> round 2: the same or a newer version               +
 *
 * Two rounds of pushes at a time.  A round takes the newest version, for the servers that it has not begun to go to and
 * that are in no other round; a newer version takes the place of one that waits, so a server that is slow skips
 * versions, and one that hangs until its stage_timeout_ms delays no other.  Two that hang at different times delay the
 * others until the first of them is given up.
 *
 * Memory: each round and the newest version hold bytes, so beside the current version, which is the newest one, at most
 * two older ones are kept by pushes (BACKGROUND_ROUNDS; engine/memory.h plans for them).  Nobody waits for them: a
 * version's bytes are its own and never written again.
 *
 * Any thread may call these; the rounds have a thread each. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_BACKGROUND_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_BACKGROUND_H

#include "services/trainer-server/publish/push.h"

enum { BACKGROUND_ROUNDS = 2, BACKGROUND_FIGURES = 16 };

struct background;
enum rc background_create(struct background **out, struct pusher *pusher, struct err *err);
/* The pusher's `stopping` is true, so that running rounds end soon. NULL is fine. */
void background_destroy(struct background *b);

/* Takes over the caller's hold of the blob; copies what it needs of the step.  accepted: the coordinator has accepted
 * the version. */
void background_push(struct background *b, const struct submit_step *step, bool accepted, struct weights_blob *blob);

/* What rounds of this run took since the last call: their sum, and the newest intervals of them, by the monotonic
 * clock. */
struct background_figures {
  int64_t push_us;
  size_t count;
  struct interval items[BACKGROUND_FIGURES];
};
void background_take(struct background *b, const char *run, struct background_figures *out);

#endif
