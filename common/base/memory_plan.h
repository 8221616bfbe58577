/* What a service is going to need, part by part, before it takes any of it: computed from the model's sizes and the
 * options by one pure function of each service, logged, shown as metrics, and held against the room there is.
 *
 * Memory is handed out lazily: without this a service that is too large would be killed later, in the middle of
 * something. */
#ifndef LEASEHOLD_BASE_MEMORY_PLAN_H
#define LEASEHOLD_BASE_MEMORY_PLAN_H

#include <stdbool.h>

#include "common/base/memory.h"
#include "common/base/rc.h"

enum { MEMORY_PARTS_MAX = 8 };

struct memory_plan {
  struct {
    const char *name; /* "weights"; a literal */
    size_t bytes;
    bool on_device; /* in the memory of the device that computes */
  } parts[MEMORY_PARTS_MAX];
  int count;
};

void memory_plan_add(struct memory_plan *plan, const char *name, size_t bytes);
/* The same, for memory that is the device's where there is one (on_device). */
void memory_plan_add_where(struct memory_plan *plan, const char *name, size_t bytes, bool on_device);
/* Device included; SIZE_MAX when it is more than that. */
size_t memory_plan_total(const struct memory_plan *plan);
/* On the device alone. */
size_t memory_plan_device(const struct memory_plan *plan);
/* Logs it, and registers leasehold_memory_planned_bytes{part="..."}. */
void memory_plan_show(const struct memory_plan *plan);
/* RC_NO_MEMORY, with every part and all that bounds, when `what` needs more than is left, of the host's memory or of the
 * device's; field "memory-max" when that is what bounds it. */
enum rc memory_plan_check(const struct memory_plan *plan, const struct memory_room *room, const char *what,
                          struct err *err);

#endif
