/* Log lines on stderr, one an event: as text, `2026-01-01T00:00:00.000Z level component message`, or as logfmt or JSON
 * with keys of their own: time, level, service, what the thread works for, message.  Thread-safe; one write(2) a line.
 *
 * A thread's context names the work that it does.  The code that begins a piece of work for another thread or peer sets
 * it (a request, a driver's turn, a lease), and every line that is logged until it is cleared has it, whatever the line
 * says. A context goes from thread to thread by log_context_save in the one and log_context_restore in the other. */
#ifndef LEASEHOLD_BASE_LOG_H
#define LEASEHOLD_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rc.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_AS_TEXT, LOG_AS_LOGFMT, LOG_AS_JSON };

/* "debug", "info", "warn" or "error"; "text", "logfmt" or "json". */
enum rc log_level_parse(enum log_level *out, const char *name, struct err *err);
enum rc log_format_parse(enum log_format *out, const char *name, struct err *err);
/* Called once by main before threads start.  component names the process ("coordinator").  As text, unless log_as
 * follows. */
void log_init(const char *component, enum log_level least);
void log_as(enum log_format format);
bool log_wanted(enum log_level level);
bool log_is_text(void);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

/* ---- the calling thread's context ---- */

/* Keys "run" ("r7"), "round" (12), "group" ("r7.12.3"), "lease", "version" (a number), "request" (counts this
 * process's), "request_id" (the client's name of it), and of the trace (common/http/trace.h) "trace", "span",
 * "parent". */
enum log_key {
  LOG_RUN,
  LOG_ROUND,
  LOG_GROUP,
  LOG_LEASE,
  LOG_VERSION,
  LOG_REQUEST,
  LOG_REQUEST_ID,
  LOG_TRACE,
  LOG_SPAN,
  LOG_PARENT,
  LOG_TRACE_FLAGS, /* is not shown */
  LOG_KEY_COUNT
};
enum { LOG_VALUE_MAX = 64, LOG_TRACE_STATE_MAX = 513 }; /* a longer value is cut */

struct log_context {
  char values[LOG_KEY_COUNT][LOG_VALUE_MAX]; /* "": not known */
  char trace_state[LOG_TRACE_STATE_MAX];     /* goes along with the trace, and is not shown; "": none */
};

void log_context_clear(void);
void log_context_save(struct log_context *out);
void log_context_restore(const struct log_context *from);
/* NULL or "": not known (any more). */
void log_context_set(enum log_key key, const char *value);
void log_context_number(enum log_key key, int64_t value);
/* An id of the API, and what it stands for: "r7", "r7.12", "r7.12.3", "r7.12.3.0-3"; of a batch or step "r7.12.b0" its
 * run and round.  Another text sets nothing. */
void log_context_id(const char *id);
const char *log_context_get(enum log_key key); /* valid until it is changed */
void log_context_set_trace_state(const char *state); /* NULL or "": none */
const char *log_context_trace_state(void);           /* valid until it is changed */

#endif
