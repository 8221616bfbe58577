/* Counts what a template uses, and records its first fault. */
#include "common/template/values/workspace.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum rc work_fail(struct workspace *w, enum rc rc, const char *format, ...) {
  char message[ERR_MESSAGE_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  if (w->rc != RC_OK) return w->rc;
  w->rc = rc;
  return err_set(w->err, rc, NULL, "line %d: %s", w->line, message);
}

enum rc work_charge_bytes(struct workspace *w, size_t bytes) {
  if (bytes > w->bytes_max - w->bytes)
    return work_fail(w, RC_TOO_LARGE, "expected the template to take at most %zu bytes of memory, it needs more",
                     w->bytes_max);
  w->bytes += bytes;
  return RC_OK;
}

enum rc work_charge(struct workspace *w, size_t bytes) {
  w->steps += 1 + (int64_t)(bytes / STEP_BYTES);
  if (w->steps <= w->steps_max) return RC_OK;
  return work_fail(w, RC_TOO_LARGE, "expected the template to take at most %" PRId64 " steps, it needs more",
                   w->steps_max);
}

static void *allocated(struct workspace *w, void *p, size_t bytes) {
  if (!p) work_fail(w, RC_NO_MEMORY, "the template was refused %zu bytes", bytes);
  return p;
}

void *work_alloc(struct workspace *w, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) bytes = SIZE_MAX;
  return work_charge_bytes(w, bytes) == RC_OK ? allocated(w, arena_alloc(&w->arena, count, size), bytes) : NULL;
}

void *work_alloc_bytes(struct workspace *w, size_t bytes) {
  return work_charge_bytes(w, bytes) == RC_OK ? allocated(w, arena_alloc_bytes(&w->arena, bytes), bytes) : NULL;
}

enum rc work_enter(struct workspace *w) {
  if (w->depth == w->depth_max)
    return work_fail(w, RC_TOO_LARGE, "expected at most %d levels of nesting, the template needs more", w->depth_max);
  w->depth++;
  return RC_OK;
}

void work_leave(struct workspace *w) { w->depth--; }
