/* Structured log lines on stderr: `2026-01-01T00:00:00.000Z level component message`.  Thread-safe; one write(2) a
 * line. */
#ifndef LEASEHOLD_BASE_LOG_H
#define LEASEHOLD_BASE_LOG_H

#include "common/base/rc.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* "debug", "info", "warn" or "error". */
enum rc log_level_parse(enum log_level *out, const char *name, struct err *err);
/* Called once by main before threads start.  component names the process ("coordinator"). */
void log_init(const char *component, enum log_level least);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

#endif
