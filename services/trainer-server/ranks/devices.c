/* The devices that several ranks compute on: who shares one with whom, what carries arrays between them, and whether what
 * they plan fits together.  Chosen once, when the trainer starts, from what all ranks tell: so it is the same on all.
 *
 *   every rank has a device of its own, and every build can join them   NCCL (options.link_devices)
 *   else                                                                comm_staged.c over the ranks' own comm
 *
 * NCCL refuses two ranks on one GPU; and what one rank finds free there the other is about to take.  Called by
 * trainer_create on all ranks, in this order; devices_part by whoever stops the engine. */
#include <string.h>

#include "common/base/log.h"
#include "services/trainer-server/engine/trainer_state.h"

enum { BOUNCE_BYTES = 16 << 20 };

static bool on_devices(const struct trainer *t) { return !ranks_alone(t) && !t->ops->host_memory; }

size_t devices_bounce_bytes(const struct trainer_options *options, const struct ops *ops) {
  return options->comm && options->comm->size > 1 && !ops->host_memory ? BOUNCE_BYTES : 0;
}

static enum rc copy_to_host(void *context, void *host, const void *device, size_t bytes, struct err *err) {
  const struct ops *ops = context;
  ops->download(ops, host, device, bytes);
  return ops->status(ops, err); /* else zeros would be sent */
}

static enum rc copy_to_device(void *context, void *device, const void *host, size_t bytes, struct err *err) {
  const struct ops *ops = context;
  (void)err; /* whoever uses what was copied asks for the status */
  ops->upload(ops, device, host, bytes);
  return RC_OK;
}

static bool same_device(const struct rank_place *a, const struct rank_place *b) {
  return memcmp(a->device, b->device, sizeof a->device) == 0;
}

static int ranks_on_device_of(const struct ranks *r, int rank) {
  int count = 0;
  for (int i = 0; i < r->comm->size; i++) count += same_device(&r->place[i], &r->place[rank]);
  return count;
}

static bool can_be_linked(const struct ranks *r) {
  for (int i = 0; i < r->comm->size; i++)
    if (!r->place[i].links || ranks_on_device_of(r, i) > 1) return false;
  return true;
}

/* RC_UNSUPPORTED, on all ranks, leaves them unlinked. */
static enum rc link_devices(struct trainer *t, struct err *err) {
  struct ranks *r = &t->ranks;
  struct err why = {0};
  enum rc rc = t->options.link_devices(&r->arrays, r->comm, t->options.rank_wait_ms, &why);
  if (rc == RC_UNSUPPORTED) {
    log_warn("the ranks' devices are not joined: %s", why.message);
    return RC_OK;
  }
  return rc == RC_OK ? RC_OK : err_set(err, rc, why.field, "%s", why.message);
}

enum rc devices_join(struct trainer *t, struct err *err) {
  struct ranks *r = &t->ranks;
  if (!on_devices(t)) return RC_OK;
  struct rank_place *mine = &r->place[r->comm->rank];
  mine->links = t->options.link_devices != NULL;
  enum rc rc = device_identity(mine->device, &t->options.device, err);
  if (rc == RC_OK) rc = ranks_all_gather(t, r->place, r->places, err);
  if (rc == RC_OK && can_be_linked(r)) rc = link_devices(t, err);
  if (rc == RC_OK && r->arrays == r->comm) {
    const struct comm_copies copies = {.context = t->ops, .to_host = copy_to_host, .to_device = copy_to_device};
    rc = comm_staged_create(&r->arrays, r->comm, &copies, BOUNCE_BYTES, err);
  }
  if (rc != RC_OK) return rc;
  r->over = r->arrays->name;
  log_info("rank %d of %d computes on %s, as do %d others; arrays go from rank to rank over %s", r->comm->rank,
           r->comm->size, t->ops->device, ranks_on_device_of(r, r->comm->rank) - 1, r->over);
  return RC_OK;
}

enum rc devices_share_room(struct trainer *t, size_t planned, struct memory_room *room, struct err *err) {
  struct ranks *r = &t->ranks;
  if (!on_devices(t)) return RC_OK;
  const int rank = r->comm->rank;
  r->place[rank].planned = planned;
  r->place[rank].room = room->device;
  const enum rc rc = ranks_all_gather(t, r->place, r->places, err);
  for (int i = 0; rc == RC_OK && i < r->comm->size; i++) {
    if (i == rank || !same_device(&r->place[i], &r->place[rank])) continue;
    room->device_others += r->place[i].planned;
    if (r->place[i].room < room->device) room->device = r->place[i].room;
  }
  return rc;
}

void devices_part(struct trainer *t) {
  struct ranks *r = &t->ranks;
  if (r->arrays != r->comm) r->arrays->free(r->arrays);
  r->arrays = r->comm;
}
