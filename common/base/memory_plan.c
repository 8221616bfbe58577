/* See memory_plan.h. */
#include "common/base/memory_plan.h"

#include <assert.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/log.h"
#include "common/base/metrics.h"

enum { TEXT_MAX = 320 };

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

__attribute__((format(printf, 2, 3))) static void put(char text[TEXT_MAX], const char *format, ...) {
  size_t len = 0;
  while (text[len]) len++;
  va_list args;
  va_start(args, format);
  vsnprintf(text + len, TEXT_MAX - len, format, args);
  va_end(args);
}

static void put_parts(char text[TEXT_MAX], const struct memory_plan *plan) {
  for (int i = 0; i < plan->count; i++)
    put(text, "%s%s %.1f", i ? ", " : "", plan->parts[i].name, mib(plan->parts[i].bytes));
}

void memory_plan_show(const struct memory_plan *plan) {
  char text[TEXT_MAX] = "", labels[64];
  put_parts(text, plan);
  log_info("memory planned: %.1f MiB (%s)", mib(memory_plan_total(plan)), text);
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
  char parts[TEXT_MAX] = "", bounds[TEXT_MAX] = "";
  put_parts(parts, plan);
  if (room->machine) put(bounds, "the machine has %.1f MiB available", mib(room->machine));
  if (room->group_limit)
    put(bounds, "%sthe control group's limit is %.1f MiB with %.1f in use", bounds[0] ? ", " : "",
        mib(room->group_limit), mib(room->group_used));
  if (room->bound) put(bounds, "%s--memory-max is %.1f MiB", bounds[0] ? ", " : "", mib(room->bound));
  return err_set(err, RC_NO_MEMORY, room->bound && left == room->bound ? "memory-max" : NULL,
                 "%s needs %.1f MiB (%s), and %s", what, mib(total), parts, bounds);
}
