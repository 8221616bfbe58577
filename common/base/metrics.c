/* Keeps the metrics of the process in a fixed table and renders them.
 *
 * Only registration writes the table, under a mutex.  Values are doubles in 64-bit atomics, so that updating never
 * locks; a histogram's value is its sum, and the counts of its buckets lie beside.  Samples of one name form a family,
 * chained in order of registration; a family's HELP and TYPE are rendered once, as Prometheus' text format 0.0.4
 * demands. */
#include "common/base/metrics.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { METRICS_MAX = 512 };

static const char *const TYPE_NAMES[] = {
    [METRIC_COUNTER] = "counter", [METRIC_GAUGE] = "gauge", [METRIC_HISTOGRAM] = "histogram"};

struct histogram {
  int count;
  double bounds[METRIC_BOUNDS_MAX];
  _Atomic uint64_t buckets[METRIC_BOUNDS_MAX + 1]; /* not cumulative; the last one is of values beyond all bounds */
};

struct metric {
  enum metric_type type;
  char *name, *labels, *help;
  bool first;          /* of its family */
  struct metric *next; /* in its family */
  _Atomic uint64_t bits;
  struct histogram *histogram; /* of METRIC_HISTOGRAM; else NULL */
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
  assert(name_is_valid(name) && type != METRIC_HISTOGRAM);
  pthread_mutex_lock(&registry_mutex);
  struct metric *m = register_locked(type, name, labels ? labels : "", help ? help : "");
  pthread_mutex_unlock(&registry_mutex);
  return m;
}

struct metric *metrics_register_histogram(const char *name, const char *labels, const char *help, const double *bounds,
                                          int count) {
  assert(name_is_valid(name) && count > 0 && count <= METRIC_BOUNDS_MAX);
  for (int i = 1; i < count; i++) assert(bounds[i - 1] < bounds[i]);
  struct histogram *h = calloc(1, sizeof *h);
  if (!h) return NULL;
  h->count = count;
  memcpy(h->bounds, bounds, (size_t)count * sizeof *bounds);
  pthread_mutex_lock(&registry_mutex);
  struct metric *m = register_locked(METRIC_HISTOGRAM, name, labels ? labels : "", help ? help : "");
  const bool made = m && !m->histogram;
  if (made) m->histogram = h;
  pthread_mutex_unlock(&registry_mutex);
  if (!made) free(h);
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

static void add(struct metric *m, double delta) {
  uint64_t seen = atomic_load_explicit(&m->bits, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&m->bits, &seen, to_bits(from_bits(seen) + delta), memory_order_relaxed,
                                                memory_order_relaxed)) {}
}

/* A counter only grows: a negative or NaN delta is ignored. */
void metric_add(struct metric *m, double delta) {
  if (!m || m->type == METRIC_HISTOGRAM || (m->type == METRIC_COUNTER && !(delta >= 0))) return;
  add(m, delta);
}

void gauge_set(const char *name, const char *help, double value) {
  metric_set(metrics_register(METRIC_GAUGE, name, "", help), value);
}

void metric_observe(struct metric *m, double value) {
  if (!m || m->type != METRIC_HISTOGRAM || isnan(value)) return;
  int bucket = 0;
  while (bucket < m->histogram->count && value > m->histogram->bounds[bucket]) bucket++;
  atomic_fetch_add_explicit(&m->histogram->buckets[bucket], 1, memory_order_relaxed);
  add(m, value);
}

void metric_set(struct metric *m, double value) {
  if (m && m->type != METRIC_HISTOGRAM) atomic_store_explicit(&m->bits, to_bits(value), memory_order_relaxed);
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

static void render_value(struct buf *out, double value) {
  if (isnan(value))
    buf_puts(out, " NaN\n");
  else if (isinf(value))
    buf_puts(out, value > 0 ? " +Inf\n" : " -Inf\n");
  else if (value == floor(value) && fabs(value) < 0x1p53)
    buf_printf(out, " %.0f\n", value);
  else
    buf_printf(out, " %.17g\n", value);
}

static void render_plain(struct buf *out, const struct metric *m) {
  buf_puts(out, m->name);
  if (m->labels[0]) buf_printf(out, "{%s}", m->labels);
  render_value(out, metric_value(m));
}

/* The counts are read once, so that buckets and count agree. */
static void render_histogram(struct buf *out, const struct metric *m) {
  const struct histogram *h = m->histogram;
  const char *comma = m->labels[0] ? "," : "";
  uint64_t total = 0;
  for (int i = 0; i < h->count; i++) {
    total += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
    buf_printf(out, "%s_bucket{%s%sle=\"%.9g\"} %llu\n", m->name, m->labels, comma, h->bounds[i],
               (unsigned long long)total);
  }
  total += atomic_load_explicit(&h->buckets[h->count], memory_order_relaxed);
  buf_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", m->name, m->labels, comma, (unsigned long long)total);
  for (int is_count = 0; is_count <= 1; is_count++) {
    buf_printf(out, "%s_%s", m->name, is_count ? "count" : "sum");
    if (m->labels[0]) buf_printf(out, "{%s}", m->labels);
    render_value(out, is_count ? (double)total : metric_value(m));
  }
}

void metrics_render(struct buf *out) {
  pthread_mutex_lock(&registry_mutex);
  for (int i = 0; i < registry_count; i++) {
    const struct metric *family = &registry[i];
    if (!family->first) continue;
    buf_printf(out, "# HELP %s ", family->name);
    render_help(out, family->help);
    buf_printf(out, "\n# TYPE %s %s\n", family->name, TYPE_NAMES[family->type]);
    for (const struct metric *m = family; m; m = m->next) {
      if (m->type == METRIC_HISTOGRAM)
        render_histogram(out, m);
      else
        render_plain(out, m);
    }
  }
  pthread_mutex_unlock(&registry_mutex);
}
