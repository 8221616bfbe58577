/* Writes log lines.
 *
 * Each line is built on the stack and handed to the kernel in one write(2), so that lines of several threads and
 * processes on one pipe do not mix.  Control characters are shown as '?', so that a peer's text cannot forge a line.
 * log_init runs before threads start; after it the settings are only read. */
#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

enum { LOG_LINE_MAX = 4096, LOG_COMPONENT_MAX = 64 };

static char log_component[LOG_COMPONENT_MAX] = "leasehold";
static enum log_level log_least = LOG_INFO;

void log_init(const char *component, enum log_level least) {
  snprintf(log_component, sizeof log_component, "%s", component);
  log_least = least;
}

static const char *level_name(enum log_level level) {
  switch (level) {
    case LOG_DEBUG: return "debug";
    case LOG_INFO: return "info";
    case LOG_WARN: return "warn";
    case LOG_ERROR: return "error";
  }
  return "error";
}

enum rc log_level_parse(enum log_level *out, const char *name, struct err *err) {
  for (int level = LOG_DEBUG; level <= LOG_ERROR; level++) {
    if (strcmp(name, level_name((enum log_level)level)) != 0) continue;
    *out = (enum log_level)level;
    return RC_OK;
  }
  return err_set(err, RC_INVALID, "log-level", "expected debug, info, warn or error, got '%.40s'", name);
}

void log_write(enum log_level level, const char *format, ...) {
  if (level < log_least) return;
  const int saved = errno;
  char line[LOG_LINE_MAX];
  const int64_t now = clock_real_ms();
  const time_t seconds = (time_t)(now / 1000);
  struct tm utc;
  gmtime_r(&seconds, &utc);
  size_t len = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
  const int head =
      snprintf(line + len, sizeof line - len, ".%03dZ %s %s ", (int)(now % 1000), level_name(level), log_component);
  len += head > 0 ? (size_t)head : 0;
  const size_t text_at = len;
  va_list args;
  va_start(args, format);
  const int text = vsnprintf(line + len, sizeof line - len - 1, format, args);
  va_end(args);
  if (text > 0) len += (size_t)text;
  if (len > sizeof line - 2) len = sizeof line - 2;
  for (size_t i = text_at; i < len; i++) {
    const unsigned char c = (unsigned char)line[i];
    if (c < 0x20 || c == 0x7F) line[i] = '?';
  }
  line[len++] = '\n';
  /* A failed write cannot be reported anywhere; an interrupted one is tried again. */
  while (write(STDERR_FILENO, line, len) < 0 && errno == EINTR) {}
  errno = saved;
}
