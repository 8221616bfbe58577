/* Remembers which weights each server said that it holds in its answer to the last push: the next push may send only
 * the changes since those.
 *
 * A server that was started again has another worker id, so nothing is known of it.  What is known may be out of date,
 * since servers also pull versions; they refuse changes of a base that they do not hold.  Any thread. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_SERVER_BASES_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_SERVER_BASES_H

#include <pthread.h>
#include <stdbool.h>

#include "common/base/digest.h"
#include "common/base/limits.h"

struct server_base {
  char worker_id[LIMIT_NAME_MAX];
  struct digest digest;
};

struct server_bases {
  pthread_mutex_t lock;      /* guards all below */
  struct server_base *items; /* [room] */
  size_t count, room, next;  /* next: whose place is taken when there are LIMIT_WORKERS */
};

void server_bases_init(struct server_bases *b);
void server_bases_free(struct server_bases *b);
/* holds NULL: it is not known any more. */
void server_bases_note(struct server_bases *b, const char *worker_id, const struct digest *holds);
bool server_bases_find(struct server_bases *b, const char *worker_id, struct digest *out);

#endif
