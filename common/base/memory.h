/* How much memory this process may still take: the least of the machine's available memory, the rest that the process's
 * control groups (v2 or v1, its own and those above it) leave, and the operator's bound.
 *
 * File caches that a control group could drop at once do not count as used. */
#ifndef LEASEHOLD_BASE_MEMORY_H
#define LEASEHOLD_BASE_MEMORY_H

#include <stddef.h>

/* In bytes; 0: unknown, or not bounded. */
struct memory_room {
  size_t machine;                 /* MemAvailable */
  size_t group_limit, group_used; /* of the control group that leaves least */
  size_t bound;                   /* --memory-max */
  size_t device;        /* free on the computing device; a plan's parts on the device are compared with this alone, */
  size_t device_others; /* reduced by the plans of other processes on it */
};

/* root: the folder that holds /proc and /sys, "" except in tests. */
void memory_room_read(struct memory_room *out, const char *root, size_t bound);
/* Of the host's memory; SIZE_MAX when no bound is known. */
size_t memory_room_left(const struct memory_room *room);

#endif
