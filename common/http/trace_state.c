/* Reads, joins and shortens tracestate headers: see trace_state.h. */
#include "common/http/trace_state.h"

#include <string.h>

enum { KEY_CHARS = 256, TENANT_CHARS = 241, SYSTEM_CHARS = 14, VALUE_CHARS = 256, LARGE_CHARS = 128 };

static bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_name(const char *text, size_t len) {
  for (size_t i = 0; i < len; i++)
    if (!is_lower(text[i]) && !is_digit(text[i]) && !strchr("_-*/", text[i])) return false;
  return true;
}

/* A name, or a tenant's at a system: "fw529a3039@dt". */
static bool is_key(const char *text, size_t len) {
  const char *at = memchr(text, '@', len);
  if (len == 0) return false;
  if (!at) return len <= KEY_CHARS && is_lower(text[0]) && is_name(text, len);
  const size_t tenant = (size_t)(at - text), system = len - tenant - 1;
  if (tenant < 1 || tenant > TENANT_CHARS || system < 1 || system > SYSTEM_CHARS) return false;
  return (is_lower(text[0]) || is_digit(text[0])) && is_name(text, tenant) && is_lower(at[1]) &&
         is_name(at + 1, system);
}

static bool is_value(const char *text, size_t len) {
  for (size_t i = 0; i < len; i++)
    if (text[i] < ' ' || text[i] > '~' || text[i] == ',' || text[i] == '=') return false;
  return len >= 1 && len <= VALUE_CHARS;
}

static bool is_there(const struct trace_state *s, const struct trace_member *m) {
  for (int i = 0; i < s->count; i++)
    if (s->members[i].key_len == m->key_len && memcmp(s->members[i].text, m->text, m->key_len) == 0) return true;
  return false;
}

/* A member without the blanks around it.  Empty ones are allowed, and mean nothing. */
static bool member_add(struct trace_state *s, const char *text, size_t len) {
  if (len == 0) return true;
  const char *equals = memchr(text, '=', len);
  if (!equals) return false;
  const struct trace_member m = {.text = text, .len = len, .key_len = (size_t)(equals - text)};
  if (!is_key(text, m.key_len) || !is_value(equals + 1, len - m.key_len - 1)) return false;
  if (s->count == TRACESTATE_MEMBERS || is_there(s, &m)) return false;
  s->members[s->count++] = m;
  return true;
}

void trace_state_add(struct trace_state *s, const char *field) {
  for (const char *at = field, *end; !s->malformed; at = end + 1) {
    at += strspn(at, " \t");
    end = at + strcspn(at, ",");
    size_t len = (size_t)(end - at);
    while (len > 0 && (at[len - 1] == ' ' || at[len - 1] == '\t')) len--;
    s->malformed = !member_add(s, at, len);
    if (!*end) return;
  }
}

/* The last member that is longer than that; *total gets shorter by it and its comma. */
static bool leave_out(const struct trace_state *s, bool *kept, size_t longer_than, size_t *total) {
  for (int i = s->count - 1; i >= 0; i--) {
    if (!kept[i] || s->members[i].len <= longer_than) continue;
    kept[i] = false;
    *total -= s->members[i].len + 1;
    return true;
  }
  return false;
}

void trace_state_write(char out[TRACESTATE_CHARS + 1], const struct trace_state *s) {
  bool kept[TRACESTATE_MEMBERS];
  size_t total = 0, at = 0; /* total: with a comma behind each */
  out[0] = 0;
  if (s->malformed) return;
  for (int i = 0; i < s->count; i++) {
    kept[i] = true;
    total += s->members[i].len + 1;
  }
  while (total > TRACESTATE_CHARS + 1 && leave_out(s, kept, LARGE_CHARS, &total)) continue;
  while (total > TRACESTATE_CHARS + 1 && leave_out(s, kept, 0, &total)) continue;
  for (int i = 0; i < s->count; i++) {
    if (!kept[i]) continue;
    if (at > 0) out[at++] = ',';
    memcpy(out + at, s->members[i].text, s->members[i].len);
    at += s->members[i].len;
  }
  out[at] = 0;
}
