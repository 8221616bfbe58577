/* A service's memory plan: how much each part will need, known before any of it is taken.
 *
 * One pure function of each service computes the plan from the model's sizes and the options; it is logged, shown as
 * metrics, and compared with the available room.  The kernel hands memory out lazily, so without a plan a service that
 * is too large would be killed later, in the middle of its work. */
#ifndef LEASEHOLD_BASE_MEMORY_PLAN_H
#define LEASEHOLD_BASE_MEMORY_PLAN_H

#include <stdbool.h>

#include "common/base/machine.h"
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
/* The same, for memory on the computing device if there is one (on_device). */
void memory_plan_add_where(struct memory_plan *plan, const char *name, size_t bytes, bool on_device);
/* Host and device together; SIZE_MAX when the sum is larger than that. */
size_t memory_plan_total(const struct memory_plan *plan);
/* On the device alone. */
size_t memory_plan_device(const struct memory_plan *plan);
/* Logs it, and registers leasehold_memory_planned_bytes{part="..."}. */
void memory_plan_show(const struct memory_plan *plan);
/* Ends a plan that was shown, while the service goes on: sets its parts' metrics to 0. */
void memory_plan_over(const struct memory_plan *plan);
/* For the plan that the service goes by: registers leasehold_memory_needed_bytes and leasehold_memory_room_bytes, each
 * {where="host"} and {where="device"}. */
void memory_plan_show_room(const struct memory_plan *plan, const struct memory_room *room);
/* RC_NO_MEMORY when `what` needs more than is left of the host's memory or of the device's; the message names every
 * part and every bound, and the field is "memory-max" when the operator's bound is the reason. */
enum rc memory_plan_check(const struct memory_plan *plan, const struct memory_room *room, const char *what,
                          struct err *err);

/* Advice where a plan does not fit: which flags would make it fit, what each saves and what it costs.  A service's own
 * file decides (fit.c of the trainer-server and of the generation-server). */
enum { MEMORY_ADVICE_MAX = 5, MEMORY_FLAG_MAX = 48 };

struct memory_advice {
  struct memory_saving {
    char flag[MEMORY_FLAG_MAX]; /* "--push-changes false" */
    const char *price;          /* what it costs, a literal */
    size_t saved;               /* bytes that the plan shrinks by */
  } savings[MEMORY_ADVICE_MAX];
  int count;
  size_t needed; /* bytes with all of them */
  bool fits;     /* and that is little enough; else they are all that there is */
};

/* Adds a saving from `before` to `after`, which is left out when it saves nothing. */
void memory_advice_add(struct memory_advice *a, const char *flag, const char *price, const struct memory_plan *before,
                       const struct memory_plan *after);
/* Puts the advice behind a refusal: "...; it would fit with ...". */
void memory_advice_give(const struct memory_advice *a, struct err *err);
/* Logs what was chosen (--fit). */
void memory_advice_show(const struct memory_advice *a);

#endif
