/* Keeps the metrics of the process in a fixed table and renders them.
 *
 * Only registration writes the table, under a mutex.  Values are doubles in 64-bit atomics, so that updating never
 * locks.  Samples of one name form a family, chained in
 * order of registration; a family's HELP and TYPE are rendered once, as Prometheus' text format 0.0.4 demands. */
#include "common/base/metrics.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { METRICS_MAX = 512 };

struct metric {
  enum metric_type type;
  char *name, *labels, *help;
  bool first;          /* of its family */
  struct metric *next; /* in its family */
  _Atomic uint64_t bits;
};

static pthread_mutex_t registry_mutex =
    PTHREAD_MUTEX_INITIALIZER; /* guards the table's names and links, not the values */
static struct metric registry[METRICS_MAX];
static int registry_count;

static bool name_is_valid(const char *name) {
  if (!*name || (*name >= '0' && *name <= '9')) return false;
  for (const char *c = name; *c; c++) {
    const bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_' || *c == ':';
    if (!letter && !(*c >= '0' && *c <= '9')) return false;
  }
  return true;
}

/* Under the mutex.  NULL when the table is full, memory is refused or the name has another type. */
static struct metric *register_locked(enum metric_type type, const char *name, const char *labels, const char *help) {
  struct metric *last_of_family = NULL;
  for (int i = 0; i < registry_count; i++) {
    struct metric *m = &registry[i];
    if (strcmp(m->name, name) != 0) continue;
    if (m->type != type) return NULL;
    if (strcmp(m->labels, labels) == 0) return m;
    last_of_family = m;
  }
  if (registry_count == METRICS_MAX) return NULL;
  struct metric *m = &registry[registry_count];
  m->name = strdup(name);
  m->labels = strdup(labels);
  m->help = strdup(help);
  if (!m->name || !m->labels || !m->help) {
    free(m->name);
    free(m->labels);
    free(m->help);
    return NULL;
  }
  m->type = type;
  m->first = !last_of_family;
  m->next = NULL;
  if (last_of_family) last_of_family->next = m;
  registry_count++;
  return m;
}

struct metric *metrics_register(enum metric_type type, const char *name, const char *labels, const char *help) {
  assert(name_is_valid(name));
  pthread_mutex_lock(&registry_mutex);
  struct metric *m = register_locked(type, name, labels ? labels : "", help ? help : "");
  pthread_mutex_unlock(&registry_mutex);
  return m;
}

static double from_bits(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint64_t to_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* A counter only grows: a negative or NaN delta is ignored. */
void metric_add(struct metric *m, double delta) {
  if (!m || (m->type == METRIC_COUNTER && !(delta >= 0))) return;
  uint64_t seen = atomic_load_explicit(&m->bits, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&m->bits, &seen, to_bits(from_bits(seen) + delta), memory_order_relaxed,
                                                memory_order_relaxed)) {}
}

void metric_set(struct metric *m, double value) {
  if (m) atomic_store_explicit(&m->bits, to_bits(value), memory_order_relaxed);
}

double metric_value(const struct metric *m) {
  return m ? from_bits(atomic_load_explicit(&m->bits, memory_order_relaxed)) : 0;
}

static void render_help(struct buf *out, const char *help) {
  for (const char *c = help; *c; c++) {
    if (*c == '\\')
      buf_puts(out, "\\\\");
    else if (*c == '\n')
      buf_puts(out, "\\n");
    else
      buf_append(out, c, 1);
  }
}

static void render_sample(struct buf *out, const struct metric *m) {
  const double value = metric_value(m);
  buf_puts(out, m->name);
  if (m->labels[0]) buf_printf(out, "{%s}", m->labels);
  if (isnan(value))
    buf_puts(out, " NaN\n");
  else if (isinf(value))
    buf_puts(out, value > 0 ? " +Inf\n" : " -Inf\n");
  else if (value == floor(value) && fabs(value) < 0x1p53)
    buf_printf(out, " %.0f\n", value);
  else
    buf_printf(out, " %.17g\n", value);
}

void metrics_render(struct buf *out) {
  pthread_mutex_lock(&registry_mutex);
  for (int i = 0; i < registry_count; i++) {
    const struct metric *family = &registry[i];
    if (!family->first) continue;
    buf_printf(out, "# HELP %s ", family->name);
    render_help(out, family->help);
    buf_printf(out, "\n# TYPE %s %s\n", family->name, family->type == METRIC_COUNTER ? "counter" : "gauge");
    for (const struct metric *m = family; m; m = m->next) render_sample(out, m);
  }
  pthread_mutex_unlock(&registry_mutex);
}
