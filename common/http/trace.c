/* Reads, begins and writes trace contexts, and keeps them in the thread's log context. */
#include "common/http/trace.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/digest.h"
#include "common/base/log.h"

enum { TRACE_AT = 3, SPAN_AT = 36, FLAGS_AT = 53, TRACE_BYTES = 16, SPAN_BYTES = 8 };

/* Lower case only, as the standard wants it. */
static bool is_hex(const char *text, size_t len) { return strspn(text, "0123456789abcdef") >= len; }
static bool is_zero(const char *text, size_t len) { return strspn(text, "0") >= len; }

bool trace_parse(struct trace *out, const char *header) {
  const size_t len = header ? strlen(header) : 0;
  if (len < TRACEPARENT_CHARS || header[2] != '-' || header[SPAN_AT - 1] != '-' || header[FLAGS_AT - 1] != '-')
    return false;
  const char *trace = header + TRACE_AT, *span = header + SPAN_AT, *flags = header + FLAGS_AT;
  if (!is_hex(header, 2) || !is_hex(trace, TRACE_ID_CHARS) || !is_hex(span, SPAN_ID_CHARS) || !is_hex(flags, 2))
    return false;
  if (strncmp(header, "ff", 2) == 0 || is_zero(trace, TRACE_ID_CHARS) || is_zero(span, SPAN_ID_CHARS)) return false;
  if (len > TRACEPARENT_CHARS && (strncmp(header, "00", 2) == 0 || header[TRACEPARENT_CHARS] != '-')) return false;
  *out = (struct trace){.sampled = (flags[1] >= 'a' ? flags[1] - 'a' + 10 : flags[1] - '0') & 1};
  memcpy(out->id, trace, TRACE_ID_CHARS);
  memcpy(out->span, span, SPAN_ID_CHARS);
  return true;
}

/* Zeros alone would name nothing. */
static void id_write(char *out, const uint8_t *bytes, size_t count) {
  hex_write(out, bytes, count);
  if (is_zero(out, 2 * count)) out[2 * count - 1] = '1';
}

/* A span that nobody can tell from another is no reason to fail a request. */
static void draw(uint8_t *bytes, size_t count) {
  if (getrandom(bytes, count, 0) != (ssize_t)count) memset(bytes, 0, count);
}

void trace_begin(struct trace *out) {
  uint8_t bytes[TRACE_BYTES + SPAN_BYTES];
  draw(bytes, sizeof bytes);
  trace_of_bytes(out, bytes);
}

void trace_below(struct trace *out, const struct trace *above) {
  uint8_t bytes[SPAN_BYTES];
  const struct trace parent = *above;
  *out = parent;
  memcpy(out->parent, parent.span, sizeof out->parent);
  draw(bytes, sizeof bytes);
  id_write(out->span, bytes, sizeof bytes);
}

void trace_of_bytes(struct trace *out, const uint8_t *bytes) {
  *out = (struct trace){.sampled = true};
  id_write(out->id, bytes, TRACE_BYTES);
  id_write(out->span, bytes + TRACE_BYTES, SPAN_BYTES);
}

void traceparent_write(char out[TRACEPARENT_CHARS + 1], const struct trace *t) {
  snprintf(out, TRACEPARENT_CHARS + 1, "00-%s-%s-%s", t->id, t->span, t->sampled ? "01" : "00");
}

/* ---- the thread's ---- */

void trace_set(const struct trace *t) {
  log_context_set(LOG_TRACE, t ? t->id : NULL);
  log_context_set(LOG_SPAN, t ? t->span : NULL);
  log_context_set(LOG_PARENT, t ? t->parent : NULL);
  log_context_set(LOG_TRACE_FLAGS, t && t->sampled ? "01" : NULL);
  log_context_set_trace_state(t ? t->state : NULL);
}

bool trace_get(struct trace *out) {
  if (!log_context_get(LOG_TRACE)[0]) return false;
  *out = (struct trace){.sampled = log_context_get(LOG_TRACE_FLAGS)[0] != 0};
  memcpy(out->id, log_context_get(LOG_TRACE), sizeof out->id);
  memcpy(out->span, log_context_get(LOG_SPAN), sizeof out->span);
  memcpy(out->parent, log_context_get(LOG_PARENT), sizeof out->parent);
  memcpy(out->state, log_context_trace_state(), sizeof out->state);
  return true;
}
