/* Pushes one version to a set of generation-servers at the same time: one thread a server, by broadcast to those that
 * share the trainer's fabric (pool_fabric.h), by HTTP to the others and to those that the broadcast did not reach.
 *
 * By HTTP a server that holds an earlier version is sent what changed since then, where the board still has that
 * (change_history.h), and the whole version when it refuses it.
 *
 * Every push has the round's stage_timeout_ms, by both ways together.  A server that fails is reported, never waited
 * for: it must pull.  One that fails slowly is not pushed to by HTTP for a while (push_pauses.h).  Called by the
 * publisher's thread and by those of background.c, each with a round of its own; one round at a time uses the fabric,
 * and one that finds it taken goes by HTTP alone.
 *
 * Previous hop of a version: publisher.c.  Next: generation-server/api/route_push_weights.c. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_PUSH_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_PUSH_H

#include "common/base/arena.h"
#include "services/trainer-server/board/change_history.h"
#include "services/trainer-server/board/weights_blob.h"
#include "services/trainer-server/publish/pool_fabric.h"
#include "services/trainer-server/publish/push_pauses.h"
#include "services/trainer-server/publish/server_bases.h"

/* How pushes are made; the publisher's, and constant but for what is atomic. */
struct pusher {
  const struct http_access *access; /* which hosts may be sent weights; borrowed, NULL: any */
  const atomic_bool *stopping; /* true cuts pushes short */
  struct pool_fabric *pool;
  atomic_bool fabric_taken;
  struct change_history *changes; /* the board's */
  struct server_bases bases;
  pthread_mutex_t pauses_lock; /* guards pauses */
  struct push_pauses pauses;
  struct metric *by_fabric, *by_http;
  /* By HTTP: bytes of whole versions, of changes, and of the whole versions that those stood for; changes refused. */
  struct metric *whole_bytes, *change_bytes, *changed_bytes, *changes_refused;
};
/* fabric is borrowed; NULL: HTTP alone. */
enum rc pusher_init(struct pusher *p, const struct http_access *access, const atomic_bool *stopping,
                    struct change_history *changes, struct fabric *fabric, struct err *err);
void pusher_free(struct pusher *p);

struct push_round {
  const struct weights_blob *blob; /* held by the caller until the round has ended */
  const struct push_target *targets;
  size_t count;
  uint64_t epoch;
  bool announced; /* the coordinator has accepted the version: see struct pushed_version */
  int64_t stage_timeout_ms;
  /* Called by the thread of each target's push when that has ended; NULL: nobody asks.  A target whose push could not
   * even begin gets no call. */
  void (*ended)(void *context, size_t target);
  void *context;
};

/* Returns when the last push has ended: (*reports)[count], in the arena.  RC_NO_MEMORY: nothing was pushed. */
enum rc push_to_all(struct pusher *p, const struct push_round *round, struct push_report **reports,
                    struct arena *arena, struct err *err);

#endif
