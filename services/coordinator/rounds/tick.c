/* The writer's callbacks: makes and frees the rooms' state, begins an epoch, looks at the time, puts deadlines off. */
#include "services/coordinator/rounds/tick.h"

#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/passes.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/pool/trainer_place.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/rounds/group_timeout.h"
#include "services/coordinator/records/retention.h"
#include "services/coordinator/rounds/rounds.h"

enum { RETENTION_MS = 20 }; /* between two pieces of a round that is dropped */

static enum rc create(struct core *c, struct err *err) {
  const enum rc rc = pool_create(c, err);
  return rc == RC_OK ? rounds_create(c, err) : rc;
}

static void destroy(struct core *c) {
  rounds_destroy(c);
  pool_destroy(c);
}

/* Workers that registered before are no longer believed; leased samples wait again. */
static enum rc begin(struct core *c, struct err *err) {
  const enum rc rc = place_begin(c, err); /* while the database still tells who was live */
  return rc == RC_OK ? workers_forget_all(c, err) : rc;
}

static enum rc tick(struct core *c, int64_t *next_ms, struct err *err) {
  bool more = false;
  if (pace_moved(&c->pool->pace, c->now_ms)) c->samples_due = true;
  enum rc rc = workers_expire(c, err);
  if (rc == RC_OK) rc = place_fill(c, err);
  if (rc == RC_OK) rc = leases_expire(c, err);
  if (rc == RC_OK) rc = passes_expire(c, err);
  if (rc == RC_OK) rc = groups_expire(c, err);
  if (rc == RC_OK) rc = retention_drop(c->store, &more, err);
  if (more) *next_ms = c->now_ms + RETENTION_MS;
  return rc;
}

/* While the writer was away nobody could report or renew. */
static enum rc put_off(struct core *c, int64_t ms, struct err *err) {
  workers_put_off(c, ms);
  const enum rc rc = leases_put_off(c, ms, err);
  return rc == RC_OK ? passes_put_off(c, ms, err) : rc;
}

const struct core_callbacks tick_callbacks = {
    .create = create,
    .destroy = destroy,
    .begin = begin,
    .tick = tick,
    .put_off = put_off,
    .sealed = batches_plan_sealed,
};
