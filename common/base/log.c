/* Writes log lines.
 *
 * Each line is built on the stack and handed to the kernel in one write(2), so that lines of several threads and
 * processes on one pipe do not mix.  A peer's text cannot forge a line or a field: in text control characters are shown
 * as '?'; logfmt and JSON quote it and escape control characters, C1's and Unicode's line separators among them, and
 * write U+FFFD for bytes that are no UTF-8.  A line that would be longer than LOG_LINE_MAX is cut between characters,
 * and ends as it should.  log_init and log_as run before threads start; after them the settings are only read. */
#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/utf8.h"

enum { LOG_LINE_MAX = 4096, LOG_COMPONENT_MAX = 64, LOG_ENDING = 3 /* "}\n */ };

static char log_component[LOG_COMPONENT_MAX] = "leasehold";
static enum log_level log_least = LOG_INFO;
static enum log_format log_form = LOG_AS_TEXT;
static _Thread_local struct log_context log_here;

static const char *const LEVELS[] = {"debug", "info", "warn", "error"};
static const char *const FORMATS[] = {"text", "logfmt", "json"};
static const struct {
  const char *name;
  bool number;
} KEYS[LOG_KEY_COUNT] = {{"run", false},     {"round", true},  {"group", false}, {"lease", false}, {"version", true},
                         {"request", true}, {"request_id", false}, {"trace", false}, {"span", false},
                         {"parent", false}, {NULL, false}};

void log_init(const char *component, enum log_level least) {
  snprintf(log_component, sizeof log_component, "%s", component);
  log_least = least;
  log_form = LOG_AS_TEXT;
}

void log_as(enum log_format format) { log_form = format; }

bool log_wanted(enum log_level level) { return level >= log_least; }
bool log_is_text(void) { return log_form == LOG_AS_TEXT; }

enum rc log_level_parse(enum log_level *out, const char *name, struct err *err) {
  for (int level = LOG_DEBUG; level <= LOG_ERROR; level++) {
    if (strcmp(name, LEVELS[level]) != 0) continue;
    *out = (enum log_level)level;
    return RC_OK;
  }
  return err_set(err, RC_INVALID, "log-level", "expected debug, info, warn or error, got '%.40s'", name);
}

enum rc log_format_parse(enum log_format *out, const char *name, struct err *err) {
  int index = LOG_AS_TEXT;
  const enum rc rc = name_index(&index, name, FORMATS, sizeof FORMATS / sizeof FORMATS[0], "log-format", err);
  *out = (enum log_format)index;
  return rc;
}

/* ---- the context ---- */

void log_context_clear(void) { log_here = (struct log_context){0}; }
void log_context_save(struct log_context *out) { *out = log_here; }
void log_context_restore(const struct log_context *from) { log_here = *from; }
const char *log_context_get(enum log_key key) { return log_here.values[key]; }

const char *log_context_trace_state(void) { return log_here.trace_state; }

void log_context_set(enum log_key key, const char *value) {
  snprintf(log_here.values[key], LOG_VALUE_MAX, "%s", value ? value : "");
}

void log_context_set_trace_state(const char *state) {
  snprintf(log_here.trace_state, LOG_TRACE_STATE_MAX, "%s", state ? state : "");
}

void log_context_number(enum log_key key, int64_t value) {
  snprintf(log_here.values[key], LOG_VALUE_MAX, "%lld", (long long)value);
}

/* The number at *at, and *at behind it; false: there is none. */
static bool number_pass(const char **at) {
  const size_t digits = strspn(*at, "0123456789");
  *at += digits;
  return digits > 0 && digits <= 18;
}

void log_context_id(const char *id) {
  const char *at = id + 1, *run_end, *round_end, *group_end;
  if (id[0] != 'r' || strlen(id) >= LOG_VALUE_MAX || !number_pass(&at)) return;
  run_end = round_end = group_end = at;
  if (*at == '.') {
    at++;
    if (!number_pass(&at)) return;
    round_end = group_end = at;
  }
  if (*at == '.') {
    at++;
    if (*at == 'b' || *at == 's') { /* a batch, an inner step */
      at++;
      if (!number_pass(&at)) return;
    } else {
      if (!number_pass(&at)) return;
      group_end = at;
    }
  }
  const bool leased = group_end > round_end && *at == '.';
  if (leased) { /* its samples, from the first to the last */
    at++;
    if (!number_pass(&at)) return;
    if (*at == '-') {
      at++;
      if (!number_pass(&at)) return;
    }
  }
  if (*at) return;
  snprintf(log_here.values[LOG_RUN], LOG_VALUE_MAX, "%.*s", (int)(run_end - id), id);
  if (round_end > run_end) log_context_number(LOG_ROUND, strtoll(run_end + 1, NULL, 10));
  if (group_end > round_end) snprintf(log_here.values[LOG_GROUP], LOG_VALUE_MAX, "%.*s", (int)(group_end - id), id);
  if (leased) log_context_set(LOG_LEASE, id);
}

/* ---- a line ---- */

struct line {
  char text[LOG_LINE_MAX];
  size_t len;
  bool full; /* something did not fit, so nothing follows it */
};

/* Whole or not at all. */
static void put(struct line *l, const char *bytes, size_t len) {
  if (l->len + len > sizeof l->text - LOG_ENDING) l->full = true;
  if (l->full) return;
  memcpy(l->text + l->len, bytes, len);
  l->len += len;
}

static void put_text(struct line *l, const char *text) { put(l, text, strlen(text)); }

/* A character that would end the line or steer a terminal, or that some reader takes for a line's end: C0, DEL, C1,
 * U+2028 and U+2029. */
static bool is_control(uint32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029; }

static uint32_t decoded(const unsigned char *s, int n) {
  if (n == 2) return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
  if (n == 3) return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
  return s[0]; /* of four bytes none is escaped */
}

/* With JSON's escapes, which readers of logfmt know too. */
static void put_escaped(struct line *l, const char *text) {
  const size_t len = strlen(text);
  char escaped[8];
  for (size_t i = 0; i < len;) {
    const int n = utf8_length(text + i, len - i);
    if (n <= 0) {
      put_text(l, "\xEF\xBF\xBD");
      i++;
      continue;
    }
    const uint32_t c = decoded((const unsigned char *)text + i, n);
    if (c == '"' || c == '\\') {
      put(l, (char[]){'\\', (char)c}, 2);
    } else if (c == '\n' || c == '\t' || c == '\r') {
      put_text(l, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r");
    } else if (n < 4 && is_control(c)) {
      snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)c);
      put_text(l, escaped);
    } else {
      put(l, text + i, (size_t)n);
    }
    i += (size_t)n;
  }
}

static bool is_bare(const char *value) {
  for (const char *c = value; *c; c++)
    if (*c <= ' ' || *c > '~' || *c == '=' || *c == '"' || *c == '\\') return false;
  return *value != 0;
}

static void put_field(struct line *l, const char *name, const char *value, bool number) {
  const bool json = log_form == LOG_AS_JSON, quoted = json ? !number : !is_bare(value);
  if (l->full) return;
  if (l->len > 0) put_text(l, json ? "," : " ");
  if (json) put_text(l, l->len > 0 ? "\"" : "{\"");
  put_text(l, name);
  put_text(l, json ? "\":" : "=");
  if (quoted) put_text(l, "\"");
  put_escaped(l, value);
  if (quoted) l->text[l->len++] = '"'; /* put leaves room for it */
}

/* The context's values fit whatever they hold: a peer may fill four of them, with 63 bytes of up to six characters
 * each. */
static void structured(struct line *l, const char *time, const char *level, const char *message) {
  put_field(l, "time", time, false);
  put_field(l, "level", level, false);
  put_field(l, "service", log_component, false);
  for (int k = 0; k < LOG_KEY_COUNT; k++)
    if (KEYS[k].name && log_here.values[k][0]) put_field(l, KEYS[k].name, log_here.values[k], KEYS[k].number);
  put_field(l, "message", message, false);
  if (log_form == LOG_AS_JSON) l->text[l->len++] = '}';
}

static void as_text(struct line *l, const char *time, const char *level, const char *message) {
  const int len = snprintf(l->text, sizeof l->text, "%s %s %s %s", time, level, log_component, message);
  l->len = len < (int)sizeof l->text - 1 ? (size_t)len : utf8_cut(l->text, sizeof l->text - 2);
  for (size_t i = 0; i < l->len; i++) {
    const unsigned char c = (unsigned char)l->text[i];
    if (c < 0x20 || c == 0x7F) l->text[i] = '?';
  }
}

void log_write(enum log_level level, const char *format, ...) {
  if (level < log_least) return;
  const int saved = errno;
  const int64_t now = clock_real_ms();
  const time_t seconds = (time_t)(now / 1000);
  char when[32], time[40], message[LOG_LINE_MAX];
  struct tm utc;
  struct line line = {.len = 0};
  gmtime_r(&seconds, &utc);
  strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
  snprintf(time, sizeof time, "%s.%03dZ", when, (int)(now % 1000));
  va_list args;
  va_start(args, format);
  if (vsnprintf(message, sizeof message, format, args) < 0) message[0] = 0;
  va_end(args);
  if (log_form == LOG_AS_TEXT)
    as_text(&line, time, LEVELS[level], message);
  else
    structured(&line, time, LEVELS[level], message);
  line.text[line.len++] = '\n';
  /* A failed write cannot be reported anywhere; an interrupted one is tried again. */
  while (write(STDERR_FILENO, line.text, line.len) < 0 && errno == EINTR) {}
  errno = saved;
}
