/* Says how far a long read has come. */
#include "common/safetensors/progress.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"

static double gib(size_t bytes) { return (double)bytes / (1 << 30); }

void progress_begin(struct progress *p, const char *what, size_t bytes) {
  const int64_t now_ms = clock_monotonic_ms();
  *p = (struct progress){.what = what, .all = bytes, .begun_ms = now_ms, .told_ms = now_ms};
}

bool progress_at(char *out, struct progress *p, size_t bytes, int64_t now_ms) {
  p->done = bytes < p->all - p->done ? p->done + bytes : p->all;
  if (now_ms - p->told_ms < PROGRESS_MS || p->done == 0) return false;
  p->told_ms = now_ms;
  const int64_t took_ms = now_ms - p->begun_ms;
  const double left_ms = (double)took_ms * (double)(p->all - p->done) / (double)p->done;
  snprintf(out, PROGRESS_LINE_MAX, "%.380s: %.1f of %.1f GiB, %.2f GiB/s, %.0f s to go", p->what, gib(p->done),
           gib(p->all), gib(p->done) * 1000 / (double)took_ms, left_ms / 1000);
  return true;
}

void progress_add(struct progress *p, size_t bytes) {
  char line[PROGRESS_LINE_MAX];
  if (p && progress_at(line, p, bytes, clock_monotonic_ms())) log_info("%s", line);
}
