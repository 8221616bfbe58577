/* Finds out how much memory and how many cores of the machine this process may take, as far as its control groups (v2
 * or v1, its own and those above it) leave them.
 *
 * Memory is the least of the machine's available memory, the rest that the control groups leave, and the operator's
 * bound; file caches that a control group could drop at once do not count as used.  Cores are those of the affinity
 * mask, and no more than the CPU time that the control groups grant, rounded up.  Disks are asked what is free. */
#ifndef LEASEHOLD_BASE_MACHINE_H
#define LEASEHOLD_BASE_MACHINE_H

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
/* How much of the host's memory is left; SIZE_MAX when no bound is known. */
size_t memory_room_left(const struct memory_room *room);

/* Bytes that this process may still write where the file or folder lies; NaN: unknown. */
double machine_disk_free(const char *path);

/* How many threads are worth having: at least 1, at most LIMIT_THREADS. */
int cores_usable(void);
/* What the control groups grant, in whole cores; 0: no bound.  root as above. */
int cores_granted(const char *root);

#endif
