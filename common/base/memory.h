/* How much memory this process may still take: the least of what the machine has available, what the control groups
 * that it runs in (v2 or v1, its own and those above) leave, and what the operator allows.
 *
 * Files that a control group keeps in its cache and could drop at once do not count as used. */
#ifndef LEASEHOLD_BASE_MEMORY_H
#define LEASEHOLD_BASE_MEMORY_H

#include <stddef.h>

/* In bytes; 0: it cannot be told, or nothing bounds. */
struct memory_room {
  size_t machine;                 /* MemAvailable */
  size_t group_limit, group_used; /* of the control group that leaves least */
  size_t bound;                   /* --memory-max */
  size_t device;        /* free on the device that computes; its parts of a plan are held against this alone, */
  size_t device_others; /* less what other processes plan to take of it */
};

/* root: where /proc and /sys are found, "" but in tests. */
void memory_room_read(struct memory_room *out, const char *root, size_t bound);
/* Of the host's; SIZE_MAX when nothing is known to bound. */
size_t memory_room_left(const struct memory_room *room);

#endif
