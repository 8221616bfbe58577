/* Joins the trainer with the servers that share its fabric, and broadcasts a version to them.  Next hop of the bytes:
 * generation-server/weights/broadcast_intake.c. */
#include "services/trainer-server/publish/pool_fabric.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "services/trainer-server/publish/pool_members.h"

struct pool_fabric {
  struct fabric *fabric;
  struct comm *comm; /* NULL: the next round makes one */
  char token[FABRIC_TOKEN_MAX];
  struct pool_members members;
  int64_t until_ms; /* the broadcast's deadline in this round */
  bool carried;     /* this round's was */
  struct metric *metric_made;
  atomic_bool over, carrying, stopped;
};

enum rc pool_fabric_create(struct pool_fabric **out, struct fabric *fabric, struct err *err) {
  struct pool_fabric *p = calloc(1, sizeof *p);
  if (!p) return err_set(err, RC_NO_MEMORY, NULL, "the pool's members were refused %zu bytes", sizeof *p);
  p->fabric = fabric;
  p->metric_made = metrics_register(METRIC_COUNTER, "leasehold_trainer_communicators_total", "",
                                    "Communicators made of this trainer and generation-servers of its fabric.");
  *out = p;
  return RC_OK;
}

static void comm_drop(struct pool_fabric *p) {
  if (p->comm) p->comm->free(p->comm);
  p->comm = NULL;
}

void pool_fabric_destroy(struct pool_fabric *p) {
  if (!p) return;
  comm_drop(p);
  free(p);
}

void pool_fabric_stop(struct pool_fabric *p) {
  atomic_store(&p->stopped, true);
  atomic_store(&p->over, true);
}

const atomic_bool *pool_fabric_over(const struct pool_fabric *p) { return &p->over; }

void pool_fabric_refused(struct pool_fabric *p) {
  if (atomic_load(&p->carrying)) atomic_store(&p->over, true);
}

bool pool_fabric_begin(struct pool_fabric *p, const struct push_target *targets, size_t count, size_t bytes,
                       int64_t stage_timeout_ms, struct push_broadcast *seats) {
  struct err err;
  for (size_t i = 0; i < count; i++) seats[i] = (struct push_broadcast){0};
  if (!p->fabric) return false;
  if (!members_choose(&p->members, targets, count)) comm_drop(p);
  if (!members_ready(&p->members)) return false;
  if (!p->comm && p->fabric->token(p->fabric, p->token, &err) != RC_OK) {
    log_warn("pushing by HTTP alone: %s", err.message);
    return false;
  }
  const int64_t share_ms = stage_timeout_ms / 2;
  for (size_t i = 0; i < count; i++) {
    const int index = members_index(&p->members, targets[i].worker_id);
    if (index < 0) continue;
    seats[i] = (struct push_broadcast){.token = p->token,
                                       .rank = index + 1,
                                       .size = (int)p->members.count + 1,
                                       .bytes = bytes,
                                       .wait_ms = share_ms > 0 ? share_ms : 1};
  }
  p->until_ms = clock_monotonic_ms() + share_ms;
  p->carried = false;
  atomic_store(&p->carrying, true);
  atomic_store(&p->over, false);
  if (atomic_load(&p->stopped)) atomic_store(&p->over, true);
  return true;
}

static int64_t left_ms(const struct pool_fabric *p) {
  const int64_t left = p->until_ms - clock_monotonic_ms();
  return left > 0 ? left : 0;
}

static enum rc join(struct pool_fabric *p, struct err *err) {
  const size_t size = p->members.count + 1;
  int64_t *places = calloc(size, sizeof *places);
  if (!places) return err_set(err, RC_NO_MEMORY, NULL, "the places of %zu members were refused memory", size);
  places[0] = p->fabric->place;
  for (size_t m = 1; m < size; m++) places[m] = p->members.members[m - 1].place;
  const struct fabric_seat seat = {
      .token = p->token, .rank = 0, .size = (int)size, .places = places, .cancel = &p->over};
  const enum rc rc = p->fabric->join(p->fabric, &p->comm, &seat, left_ms(p), err);
  free(places);
  if (rc != RC_OK) return rc;
  metric_add(p->metric_made, 1);
  log_info("a communicator over %s joins this trainer and %zu generation-servers", p->fabric->kind, size - 1);
  return RC_OK;
}

enum rc pool_fabric_carry(struct pool_fabric *p, const void *bytes, size_t len, struct err *err) {
  enum rc rc = p->comm ? RC_OK : join(p, err);
  if (rc == RC_OK) /* the root's bytes are read only */
    rc = p->comm->broadcast(p->comm, (void *)(uintptr_t)bytes, len, 0, left_ms(p), err);
  atomic_store(&p->carrying, false);
  if (rc != RC_OK) atomic_store(&p->over, true);
  p->carried = rc == RC_OK;
  return rc;
}

/* Does the answer to a lost broadcast tell of a fault of the member's own, not of the loss? */
static bool is_own_fault(enum rc rc) {
  return rc != RC_OK && rc != RC_UNAVAILABLE && rc != RC_TIMEOUT && rc != RC_FULL && rc != RC_CONFLICT;
}

void pool_fabric_end(struct pool_fabric *p, const struct pool_outcome *outcomes, size_t count) {
  bool all_reached = p->carried, all_staged = true, doubted = false;
  for (size_t i = 0; i < count; i++) {
    const struct pool_outcome *o = &outcomes[i];
    if (!o->member) continue;
    all_reached = all_reached && o->broadcast == RC_OK;
    all_staged = all_staged && o->staged;
    if (!is_own_fault(o->broadcast)) continue;
    log_warn("generation-server %s is pushed to by HTTP alone until it registers anew", o->worker_id);
    members_doubt(&p->members, o->worker_id);
    doubted = true;
  }
  if (all_reached) {
    members_reached(&p->members);
    return;
  }
  comm_drop(p);
  if (all_staged && !doubted) members_lost(&p->members);
}
