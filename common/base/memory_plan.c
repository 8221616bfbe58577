/* See memory_plan.h. */
#include "common/base/memory_plan.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/base/metrics.h"

void memory_plan_add(struct memory_plan *plan, const char *name, size_t bytes) {
  assert(plan->count < MEMORY_PARTS_MAX);
  plan->parts[plan->count].name = name;
  plan->parts[plan->count++].bytes = bytes;
}

size_t memory_plan_total(const struct memory_plan *plan) {
  size_t total = 0;
  for (int i = 0; i < plan->count; i++)
    total = total > SIZE_MAX - plan->parts[i].bytes ? SIZE_MAX : total + plan->parts[i].bytes;
  return total;
}

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

static void put_parts(struct buf *text, const struct memory_plan *plan) {
  for (int i = 0; i < plan->count; i++)
    buf_printf(text, "%s%s %.1f", i ? ", " : "", plan->parts[i].name, mib(plan->parts[i].bytes));
}

static void put_bounds(struct buf *text, const struct memory_room *room) {
  const char *comma = "";
  if (room->machine) {
    buf_printf(text, "the machine has %.1f MiB available", mib(room->machine));
    comma = ", ";
  }
  if (room->group_limit) {
    buf_printf(text, "%sthe control group's limit is %.1f MiB with %.1f in use", comma, mib(room->group_limit),
               mib(room->group_used));
    comma = ", ";
  }
  if (room->bound) buf_printf(text, "%s--memory-max is %.1f MiB", comma, mib(room->bound));
}

void memory_plan_show(const struct memory_plan *plan) {
  struct buf text = BUF_INIT;
  char labels[64];
  put_parts(&text, plan);
  log_info("memory planned: %.1f MiB (%s)", mib(memory_plan_total(plan)), text.data ? text.data : "");
  buf_free(&text);
  for (int i = 0; i < plan->count; i++) {
    snprintf(labels, sizeof labels, "part=\"%s\"", plan->parts[i].name);
    metric_set(metrics_register(METRIC_GAUGE, "leasehold_memory_planned_bytes", labels,
                                "Memory that this service was sized for at start; request bodies come on top."),
               (double)plan->parts[i].bytes);
  }
}

enum rc memory_plan_check(const struct memory_plan *plan, const struct memory_room *room, const char *what,
                          struct err *err) {
  const size_t total = memory_plan_total(plan), left = memory_room_left(room);
  if (total <= left) return RC_OK;
  struct buf text = BUF_INIT;
  buf_printf(&text, "%s needs %.1f MiB (", what, mib(total));
  put_parts(&text, plan);
  buf_puts(&text, "), and ");
  put_bounds(&text, room);
  err_set(err, RC_NO_MEMORY, room->bound && left == room->bound ? "memory-max" : NULL, "%s",
          text.data ? text.data : what);
  buf_free(&text);
  return RC_NO_MEMORY;
}
