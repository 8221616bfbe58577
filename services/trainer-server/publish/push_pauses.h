/* Which servers are not pushed to for a while, since a push to them took long and failed: one behind a firewall that
 * drops what comes in, say.  It pulls every version by itself and works on, so waiting for it in every round would cost
 * each of them stage_timeout_ms for nothing.
 *
 * A failed push pauses the next for PAUSE_TIMES as long as it took, and for twice that after each one more that fails:
 * one that is refused at once costs nothing and is tried again at once.  Pure: times are passed in (monotonic
 * milliseconds).  A server that was started again has another worker id, so nothing is known of it.  Not for several
 * threads at once: push.c has a lock. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_PUSH_PAUSES_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_PUSH_PAUSES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/limits.h"

enum { PAUSE_TIMES = 4, PAUSE_TIMES_MAX = 256, PAUSES_MAX = 256 };

struct push_pause {
  char worker_id[LIMIT_NAME_MAX];
  int64_t until_ms;
  int times; /* as long as the next failed push takes */
};

struct push_pauses {
  struct push_pause items[PAUSES_MAX]; /* [count]; beyond these the one that ends first gives its place */
  int count;
};

/* How long this server is not pushed to any more; 0: it may be. */
int64_t push_pause_left(const struct push_pauses *p, const char *worker_id, int64_t now_ms);
/* A push to it has ended just now, after took_ms. */
void push_pause_note(struct push_pauses *p, const char *worker_id, bool reached, int64_t took_ms, int64_t now_ms);

#endif
