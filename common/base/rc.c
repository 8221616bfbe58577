/* Fills and prefixes error records, and names result codes.
 *
 * Texts are formatted into a local buffer before they are copied, so that a caller may quote the record in its own
 * message (`err_set(err, rc, field, "while reading: %s", err->message)`). */
#include "common/base/rc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"

/* Copies text into out, cutting between UTF-8 characters when it does not fit. */
static void copy_cut(char *out, size_t out_size, const char *text) {
  size_t len = strlen(text);
  if (len >= out_size) len = utf8_cut(text, out_size - 1);
  memmove(out, text, len);
  out[len] = '\0';
}

static void record(struct err *err, enum rc rc, const char *field, const char *message) {
  char field_copy[ERR_FIELD_MAX];
  copy_cut(field_copy, sizeof field_copy, field ? field : "");
  err->rc = rc;
  copy_cut(err->field, sizeof err->field, field_copy);
  copy_cut(err->message, sizeof err->message, message);
}

enum rc err_set(struct err *err, enum rc rc, const char *field, const char *format, ...) {
  if (!err) return rc;
  char text[ERR_MESSAGE_MAX + 8]; /* a little longer, so that copy_cut sees where a character was cut */
  va_list args;
  va_start(args, format);
  if (vsnprintf(text, sizeof text, format, args) < 0) copy_cut(text, sizeof text, format);
  va_end(args);
  record(err, rc, field, text);
  return rc;
}

enum rc err_set_errno(struct err *err, enum rc rc, const char *format, ...) {
  const int saved = errno;
  if (!err) return rc;
  char reason_store[128];
  const char *reason = strerror_r(saved, reason_store, sizeof reason_store);
  const size_t reason_len = strlen(reason);
  char text[ERR_MESSAGE_MAX + 8];
  va_list args;
  va_start(args, format);
  if (vsnprintf(text, sizeof text, format, args) < 0) copy_cut(text, sizeof text, format);
  va_end(args);
  /* The reason must survive, so the text before it is cut. */
  const size_t room = ERR_MESSAGE_MAX - (reason_len < 200 ? reason_len : 200) - 2;
  char message[ERR_MESSAGE_MAX + 8];
  copy_cut(message, room, text);
  const size_t used = strlen(message);
  snprintf(message + used, sizeof message - used, ": %s", reason);
  record(err, rc, "", message);
  errno = saved;
  return rc;
}

void err_in_field(struct err *err, const char *prefix) {
  if (!err) return;
  char joined[2 * ERR_FIELD_MAX];
  /* "tokens" + "[3]" is an element, everything else a member. */
  const char *dot = err->field[0] == '\0' || err->field[0] == '[' ? "" : ".";
  snprintf(joined, sizeof joined, "%.*s%s%s", ERR_FIELD_MAX - 1, prefix, dot, err->field);
  copy_cut(err->field, sizeof err->field, joined);
}

void err_in_file(struct err *err, const char *name) {
  if (!err || strstr(err->message, name)) return;
  const int named = err->field[0] == '\0' || strstr(err->message, err->field);
  char joined[2 * ERR_MESSAGE_MAX + ERR_FIELD_MAX];
  snprintf(joined, sizeof joined, "%.*s: %s%s%s", ERR_MESSAGE_MAX / 2, name, named ? "" : err->field, named ? "" : ": ",
           err->message);
  copy_cut(err->message, sizeof err->message, joined);
}

enum rc name_index(int *out, const char *name, const char *const *names, int count, const char *field,
                   struct err *err) {
  char expected[160] = "";
  for (int i = 0; i < count; i++) {
    if (strcmp(name, names[i]) == 0) {
      *out = i;
      return RC_OK;
    }
    const size_t at = strlen(expected);
    snprintf(expected + at, sizeof expected - at, "%s%s", i ? ", " : "", names[i]);
  }
  return err_set(err, RC_INVALID, field, "expected one of %s, got '%.40s'", expected, name);
}

const char *rc_name(enum rc rc) {
  switch (rc) {
    case RC_OK: return "ok";
    case RC_INVALID: return "invalid";
    case RC_NOT_FOUND: return "not_found";
    case RC_FORBIDDEN: return "forbidden";
    case RC_CONFLICT: return "conflict";
    case RC_GONE: return "gone";
    case RC_TOO_LARGE: return "too_large";
    case RC_FULL: return "full";
    case RC_UNAVAILABLE: return "unavailable";
    case RC_TIMEOUT: return "timeout";
    case RC_UNSUPPORTED: return "unsupported";
    case RC_NO_MEMORY: return "no_memory";
    case RC_IO: return "io";
    case RC_CORRUPT: return "corrupt";
    case RC_INTERNAL: return "internal";
  }
  return "internal";
}
