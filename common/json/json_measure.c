/* Measures a document before anything is allocated for it: one pass over its bytes that knows strings and escapes.
 *
 * A small hostile document may have a large tree: three bytes of "[]," become 120 bytes and a place in a table.  So the
 * pass counts the bytes that jansson will allocate for each kind of value; the sum bounds the parser's memory from
 * above:
 *
 *   any value         64   a node of 24 bytes in a cell of json_tree.c, which has 8 more, and 32 for its place in an
 *                          array's tables, each twice the one before
 *   a string         +26   a node of 32, and its text in a cell, whose room jansson takes for both quotes and a NUL too;
 *                          the text itself comes on top, byte by byte
 *   an array         +88   a node of 40, and the table of 8 that even an empty one has
 *   an object       +184   a node of 72, and its 8 hash buckets
 *   a member        +104   a pair that holds the key once more, and 64 for its place in buckets that double
 *   longest token    x 4   the lexer's buffers, each twice the one before
 *
 * The figures are those of jansson 2.14; nothing is freed within a parse, because json_tree.c frees nothing.  Jansson
 * reports malformed text: up to the fault both read it alike. */
#include <string.h>

#include "common/base/limits.h"
#include "common/json/json.h"

enum {
  COST_VALUE = 64,
  COST_STRING = 26,
  COST_ARRAY = 88,
  COST_OBJECT = 184,
  COST_MEMBER = 104,
  COST_LONGEST = 4,
  COST_DOCUMENT = 1 << 10 /* the lexer's first buffers; tables above a million places take 8 bytes more than said */
};

struct counts {
  size_t values, members, strings, arrays, objects;
  size_t text;    /* bytes of strings, those of keys twice */
  size_t longest; /* token */
};

static bool is_blank(const char *bytes, size_t len) {
  for (size_t i = 0; i < len; i++)
    if (bytes[i] != ' ' && bytes[i] != '\t' && bytes[i] != '\n' && bytes[i] != '\r') return false;
  return true;
}

/* The index of the closing quote of the string whose text begins at i, or len. */
static size_t string_end(const char *bytes, size_t i, size_t len) {
  while (i < len && bytes[i] != '"') i += bytes[i] == '\\' ? 2 : 1;
  return i < len ? i : len;
}

static enum rc too_deep(const char *bytes, size_t at, struct err *err) {
  size_t line = 1, column = 1;
  for (size_t i = 0; i < at; i++) {
    column = bytes[i] == '\n' ? 1 : column + 1;
    line += bytes[i] == '\n';
  }
  return err_set(err, RC_INVALID, NULL, "expected JSON nested at most %d levels, got deeper at line %zu column %zu",
                 LIMIT_JSON_DEPTH, line, column);
}

static void keep_longest(struct counts *c, size_t len) {
  if (len > c->longest) c->longest = len;
}

/* In a container that is not empty there is one value more than commas. */
static enum rc count(struct counts *c, const char *bytes, size_t len, struct err *err) {
  static const bool telling[256] = {
      ['"'] = true, ['['] = true, [']'] = true, ['{'] = true, ['}'] = true, [','] = true, [':'] = true};
  size_t next = 0;   /* behind the last structural byte: between two of them lie a number, a literal or blanks */
  size_t string = 0; /* length of the string that ended there */
  int depth = 0;
  bool opened = false, quoted = false; /* that byte opened a container, closed a string */
  *c = (struct counts){.values = 1};
  for (size_t i = 0; i < len; i++) {
    if (!telling[(unsigned char)bytes[i]]) continue;
    const char byte = bytes[i];
    const bool was_opened = opened, was_quoted = quoted;
    keep_longest(c, i - next);
    opened = byte == '[' || byte == '{';
    quoted = byte == '"';
    if (quoted) {
      const size_t end = string_end(bytes, i + 1, len);
      string = end - i - 1;
      keep_longest(c, string);
      c->strings++;
      c->text += string;
      i = end;
    } else if (opened) {
      if (++depth > LIMIT_JSON_DEPTH) return too_deep(bytes, i, err);
      c->values++;
      c->arrays += byte == '[';
      c->objects += byte == '{';
    } else if (byte == ',') {
      c->values++;
    } else if (byte == ':') {
      if (was_quoted) {
        c->members++;
        c->text += string;
      }
    } else {
      depth--;
      if (was_opened && is_blank(bytes + next, i - next)) c->values--;
    }
    next = i + 1;
  }
  keep_longest(c, next < len ? len - next : 0);
  return RC_OK;
}

enum rc json_measure(struct json_size *out, const char *bytes, size_t len, size_t bytes_max, size_t nodes_max,
                     struct err *err) {
  struct counts c;
  *out = (struct json_size){0};
  if (len > bytes_max)
    return err_set(err, RC_TOO_LARGE, NULL, "expected at most %zu bytes of JSON, got %zu", bytes_max, len);
  if (len == 0) return err_set(err, RC_INVALID, NULL, "expected a JSON value, got nothing (0 bytes)");
  const enum rc rc = count(&c, bytes, len, err);
  if (rc != RC_OK) return rc;
  *out = (struct json_size){.nodes = c.values + c.members,
                            .memory = COST_VALUE * c.values + COST_MEMBER * c.members + COST_STRING * c.strings +
                                      COST_ARRAY * c.arrays + COST_OBJECT * c.objects + COST_LONGEST * c.longest +
                                      c.text + COST_DOCUMENT};
  if (out->nodes > nodes_max)
    return err_set(err, RC_TOO_LARGE, NULL, "expected JSON of at most %zu values and members, got %zu", nodes_max,
                   out->nodes);
  if (out->memory > LIMIT_JSON_MEMORY)
    return err_set(
        err, RC_TOO_LARGE, NULL,
        "expected JSON that takes at most %u bytes of memory, got %zu values and members that take up to %zu",
        LIMIT_JSON_MEMORY, out->nodes, out->memory);
  return RC_OK;
}
