/* Adds up a service's memory plan, shows it, and refuses it when it needs more than there is.
 *
 * Sums stop at SIZE_MAX instead of wrapping.  Called by main and the engines at start, on one thread. */
#include "common/base/memory_plan.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/base/metrics.h"

void memory_plan_add_where(struct memory_plan *plan, const char *name, size_t bytes, bool on_device) {
  assert(plan->count < MEMORY_PARTS_MAX);
  plan->parts[plan->count].name = name;
  plan->parts[plan->count].bytes = bytes;
  plan->parts[plan->count++].on_device = on_device;
}

void memory_plan_add(struct memory_plan *plan, const char *name, size_t bytes) {
  memory_plan_add_where(plan, name, bytes, false);
}

static size_t total_where(const struct memory_plan *plan, bool on_device) {
  size_t total = 0;
  for (int i = 0; i < plan->count; i++) {
    if (plan->parts[i].on_device != on_device) continue;
    total = total > SIZE_MAX - plan->parts[i].bytes ? SIZE_MAX : total + plan->parts[i].bytes;
  }
  return total;
}

size_t memory_plan_total(const struct memory_plan *plan) {
  const size_t host = total_where(plan, false), device = total_where(plan, true);
  return host > SIZE_MAX - device ? SIZE_MAX : host + device;
}

size_t memory_plan_device(const struct memory_plan *plan) { return total_where(plan, true); }

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

static void put_parts(struct buf *text, const struct memory_plan *plan, bool on_device) {
  const char *comma = "";
  for (int i = 0; i < plan->count; i++) {
    if (plan->parts[i].on_device != on_device) continue;
    buf_printf(text, "%s%s %.1f", comma, plan->parts[i].name, mib(plan->parts[i].bytes));
    comma = ", ";
  }
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

static void show_part(const char *name, size_t bytes) {
  char labels[64];
  snprintf(labels, sizeof labels, "part=\"%s\"", name);
  metric_set(metrics_register(METRIC_GAUGE, "leasehold_memory_planned_bytes", labels,
                              "Memory that this service was sized for at start; request bodies come on top."),
             (double)bytes);
}

void memory_plan_show(const struct memory_plan *plan) {
  for (int where = 0; where < 2; where++) {
    struct buf text = BUF_INIT;
    put_parts(&text, plan, where == 1);
    if (text.data)
      log_info("memory planned%s: %.1f MiB (%s)", where ? " on the device" : "", mib(total_where(plan, where == 1)),
               text.data);
    buf_free(&text);
  }
  for (int i = 0; i < plan->count; i++) show_part(plan->parts[i].name, plan->parts[i].bytes);
}

void memory_plan_over(const struct memory_plan *plan) {
  for (int i = 0; i < plan->count; i++) show_part(plan->parts[i].name, 0);
}

static enum rc check_device(const struct memory_plan *plan, const struct memory_room *room, const char *what,
                            struct err *err) {
  const size_t total = total_where(plan, true);
  if (room->device_others <= room->device && total <= room->device - room->device_others) return RC_OK;
  struct buf text = BUF_INIT, others = BUF_INIT;
  put_parts(&text, plan, true);
  if (room->device_others > 0)
    buf_printf(&others, ", of which other processes plan to take %.1f", mib(room->device_others));
  err_set(err, RC_NO_MEMORY, NULL, "%s needs %.1f MiB on the device (%s), and the device has %.1f MiB free%s", what,
          mib(total), text.data ? text.data : "", mib(room->device), others.data ? others.data : "");
  buf_free(&others);
  buf_free(&text);
  return RC_NO_MEMORY;
}

static void show_where(bool on_device, size_t needed, size_t room) {
  const char *where = on_device ? "where=\"device\"" : "where=\"host\"";
  metric_set(metrics_register(METRIC_GAUGE, "leasehold_memory_needed_bytes", where,
                              "Memory that this service was sized for at start, all parts together."),
             (double)needed);
  metric_set(metrics_register(METRIC_GAUGE, "leasehold_memory_room_bytes", where,
                              "Memory that there was for it at start."),
             (double)room);
}

void memory_plan_show_room(const struct memory_plan *plan, const struct memory_room *room) {
  show_where(false, total_where(plan, false), memory_room_left(room));
  show_where(true, total_where(plan, true), room->device);
}

enum rc memory_plan_check(const struct memory_plan *plan, const struct memory_room *room, const char *what,
                          struct err *err) {
  const size_t total = total_where(plan, false), left = memory_room_left(room);
  if (total <= left) return check_device(plan, room, what, err);
  struct buf text = BUF_INIT;
  buf_printf(&text, "%s needs %.1f MiB (", what, mib(total));
  put_parts(&text, plan, false);
  buf_puts(&text, "), and ");
  put_bounds(&text, room);
  err_set(err, RC_NO_MEMORY, room->bound && left == room->bound ? "memory-max" : NULL, "%s",
          text.data ? text.data : what);
  buf_free(&text);
  return RC_NO_MEMORY;
}

/* --- advice --- */

void memory_advice_add(struct memory_advice *a, const char *flag, const char *price, const struct memory_plan *before,
                       const struct memory_plan *after) {
  const size_t larger = memory_plan_total(before), smaller = memory_plan_total(after);
  a->needed = smaller;
  if (smaller >= larger) return;
  assert(a->count < MEMORY_ADVICE_MAX);
  struct memory_saving *s = &a->savings[a->count++];
  snprintf(s->flag, sizeof s->flag, "%s", flag);
  s->price = price;
  s->saved = larger - smaller;
}

static void put_savings(struct buf *text, const struct memory_advice *a) {
  for (int i = 0; i < a->count; i++)
    buf_printf(text, "%s%s (%.1f MiB less: %s)", i ? ", " : "", a->savings[i].flag, mib(a->savings[i].saved),
               a->savings[i].price);
}

void memory_advice_give(const struct memory_advice *a, struct err *err) {
  struct buf text = BUF_INIT;
  if (!err || a->count == 0) return;
  buf_puts(&text, a->fits ? "; it would fit with " : "; even with ");
  put_savings(&text, a);
  if (a->fits)
    buf_printf(&text, ", %.1f MiB in all: --fit chooses so", mib(a->needed));
  else
    buf_printf(&text, " it needs %.1f MiB", mib(a->needed));
  const size_t said = strlen(err->message);
  if (text.data) snprintf(err->message + said, sizeof err->message - said, "%s", text.data);
  buf_free(&text);
}

void memory_advice_show(const struct memory_advice *a) {
  struct buf text = BUF_INIT;
  put_savings(&text, a);
  if (text.data) log_info("--fit chose %s", text.data);
  buf_free(&text);
}
