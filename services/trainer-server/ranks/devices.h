/* The devices that several ranks compute on: which ranks share one, what carries arrays between them, and whether what
 * they plan fits together.  Chosen once, when the trainer starts, from what all ranks report, and so the same on all.
 *
 *   every rank has a device of its own, and every build can join them   NCCL (options.link_devices)
 *   else                                                                comm_staged.c over the ranks' own comm
 *
 * NCCL refuses two ranks on one GPU; and memory that one rank finds free there may be what the other is about to take.
 * trainer_create calls these on all ranks, in this order; trainer_stop calls devices_part.  With one rank, or on CPUs,
 * nothing happens. */
#ifndef LEASEHOLD_TRAINER_SERVER_RANKS_DEVICES_H
#define LEASEHOLD_TRAINER_SERVER_RANKS_DEVICES_H

#include "common/base/machine.h"
#include "services/trainer-server/ranks/ranks.h"

/* Bytes of the host's memory between devices that are not joined; comm NULL: there is one rank. */
size_t devices_bounce_bytes(const struct comm *comm, const struct ops *ops);
/* Chooses what carries the table's arrays, the same on all ranks: once every rank has its table. */
enum rc devices_join(struct ranks *r, const struct device *device, struct err *err);
/* Replaces room->device, which this rank has found, by the least that any rank on the same device found, and adds what
 * the others there plan to take. */
enum rc devices_share_room(struct ranks *r, size_t planned, struct memory_room *room, struct err *err);
/* Gives back what carried the arrays, while the ranks' own comm is there still. */
void devices_part(struct ranks *r);

#endif
