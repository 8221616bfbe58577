/* Finds out which ranks share a device, and chooses what carries arrays between devices. */
#include "services/trainer-server/ranks/devices.h"

#include <string.h>

#include "common/base/log.h"

enum { BOUNCE_BYTES = 16 << 20 };

static bool on_devices(const struct ranks *r) { return !ranks_alone(r) && !r->ops->host_memory; }

size_t devices_bounce_bytes(const struct comm *comm, const struct ops *ops) {
  return comm && comm->size > 1 && !ops->host_memory ? BOUNCE_BYTES : 0;
}

static enum rc copy_to_host(void *context, void *host, const void *device, size_t bytes, struct err *err) {
  const struct ops *ops = context;
  ops->download(ops, host, device, bytes);
  return ops->status(ops, err); /* else zeros would be sent */
}

static enum rc copy_to_device(void *context, void *device, const void *host, size_t bytes, struct err *err) {
  const struct ops *ops = context;
  (void)err; /* the next user of the copied array asks for the status */
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
static enum rc link_devices(struct ranks *r, struct err *err) {
  struct err why = {0};
  enum rc rc = r->options.link_devices(&r->arrays, r->comm, r->options.wait_ms, &why);
  if (rc == RC_UNSUPPORTED) {
    log_warn("the ranks' devices are not joined: %s", why.message);
    return RC_OK;
  }
  return rc == RC_OK ? RC_OK : err_set(err, rc, why.field, "%s", why.message);
}

enum rc devices_join(struct ranks *r, const struct device *device, struct err *err) {
  if (!on_devices(r)) return RC_OK;
  struct rank_place *mine = &r->place[r->comm->rank];
  mine->links = r->options.link_devices != NULL;
  enum rc rc = device_identity(mine->device, device, err);
  if (rc == RC_OK) rc = ranks_all_gather(r, r->place, r->places, err);
  if (rc == RC_OK && can_be_linked(r)) rc = link_devices(r, err);
  if (rc == RC_OK && r->arrays == r->comm) {
    const struct comm_copies copies = {.context = r->ops, .to_host = copy_to_host, .to_device = copy_to_device};
    rc = comm_staged_create(&r->arrays, r->comm, &copies, BOUNCE_BYTES, err);
  }
  if (rc != RC_OK) return rc;
  r->over = r->arrays->name;
  log_info("rank %d of %d computes on %s, as do %d others; arrays go from rank to rank over %s", r->comm->rank,
           r->comm->size, r->ops->device, ranks_on_device_of(r, r->comm->rank) - 1, r->over);
  return RC_OK;
}

enum rc devices_share_room(struct ranks *r, size_t planned, struct memory_room *room, struct err *err) {
  if (!on_devices(r)) return RC_OK;
  const int rank = r->comm->rank;
  r->place[rank].planned = planned;
  r->place[rank].room = room->device;
  const enum rc rc = ranks_all_gather(r, r->place, r->places, err);
  for (int i = 0; rc == RC_OK && i < r->comm->size; i++) {
    if (i == rank || !same_device(&r->place[i], &r->place[rank])) continue;
    room->device_others += r->place[i].planned;
    if (r->place[i].room < room->device) room->device = r->place[i].room;
  }
  return rc;
}

void devices_part(struct ranks *r) {
  if (r->arrays != r->comm) r->arrays->free(r->arrays);
  r->arrays = r->comm;
}
