/* The passes that a preprocessor holds: what its heartbeats renew, and which of them it has lost.
 *
 *   granted --hold--> held --drop--> gone       lose: the coordinator gave it to another worker, or forgot this one;
 *                       `---lose---> lost --drop--> gone     its result is of no use any more
 *
 * Any thread; the mutex guards everything.  Memory: LIMIT_PASSES_PER_REQUEST places. */
#ifndef LEASEHOLD_TRAINER_SERVER_PREPROCESS_HELD_PASSES_H
#define LEASEHOLD_TRAINER_SERVER_PREPROCESS_HELD_PASSES_H

#include <pthread.h>

#include "common/wire/passes.h"

struct held_passes {
  pthread_mutex_t mutex;
  struct {
    char id[LIMIT_NAME_MAX]; /* "": the place is free */
    uint64_t fence;
    bool lost;
  } items[LIMIT_PASSES_PER_REQUEST];
};

void held_passes_init(struct held_passes *h);
/* All of an answer's, which never are more than there are places: the ones before were dropped. */
void held_passes_hold(struct held_passes *h, const struct pass *passes, size_t count);
void held_passes_drop(struct held_passes *h, const char *id);
bool held_passes_lost(struct held_passes *h, const char *id);
/* Lists the passes that are not lost, in arena memory. */
enum rc held_passes_list(struct held_passes *h, struct lease_ref **out, size_t *count, struct arena *arena,
                         struct err *err);
/* The answer to a heartbeat that named `sent`: one that was granted since, under another fence, is not meant. */
void held_passes_lose(struct held_passes *h, const char *const *ids, size_t count, const struct lease_ref *sent,
                      size_t sent_count);
void held_passes_lose_all(struct held_passes *h);

#endif
