/* Decides which servers of the pool get a version by broadcast.  Pure; called by the publisher's thread.
 *
 * The coordinator names the servers that share the trainer's fabric (struct submit_step).  A server that failed by a
 * fault of its own is left out for as long as it is named under that id; when it starts again it has another.  Where a
 * broadcast was lost and no server is known to be at fault, the same members rest for a round, then for two, four, and
 * so on: otherwise a fabric that does not work would cost every round the time that it takes to find out.  (A server
 * that was not reached by HTTP either is not named again before the coordinator has heard of it.) */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_POOL_MEMBERS_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_POOL_MEMBERS_H

#include "common/base/limits.h"
#include "common/comm/fabric.h"
#include "common/wire/training.h"

enum {
  MEMBERS_MAX = FABRIC_GROUP_MAX - 1, /* servers beyond get a version over HTTP */
  MEMBERS_REST_MAX = 64               /* rounds */
};

struct pool_member {
  char worker_id[LIMIT_NAME_MAX];
  int64_t place;
};

struct pool_members {
  struct pool_member members[MEMBERS_MAX]; /* in the order of the coordinator's list; rank = index + 1 */
  size_t count;
  char doubted[MEMBERS_MAX][LIMIT_NAME_MAX];
  size_t doubted_count;
  int rest, resting; /* rounds: of the last rest, and what is left of it */
};

/* A round begins: its members.  False when they are not those of the last round, in this order. */
bool members_choose(struct pool_members *m, const struct push_target *targets, size_t count);
/* Is there a member to broadcast to now?  Asked once a round, after members_choose. */
bool members_ready(struct pool_members *m);
/* The index of a member, or -1. */
int members_index(const struct pool_members *m, const char *worker_id);
/* How the round ended: a member failed by its own fault; or the broadcast was lost although all live and none is known
 * to be at fault; or it reached all members. */
void members_doubt(struct pool_members *m, const char *worker_id);
void members_lost(struct pool_members *m);
void members_reached(struct pool_members *m);

#endif
