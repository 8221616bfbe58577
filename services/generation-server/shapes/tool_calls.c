/* Finds tool calls in a model's text. */
#include "services/generation-server/shapes/tool_calls.h"

#include <string.h>

#include "common/json/json.h"

static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>", python_tag[] = "<|python_tag|>";
_Static_assert(sizeof open_tag - 1 == TOOL_TAG_BYTES && sizeof python_tag - 1 == PYTHON_TAG_BYTES, "of the tags");

enum { CALLS_MAX = 128, CALL_BYTES_MAX = 1 << 20 };

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static size_t skip_space(const char *text, size_t len, size_t at) {
  while (at < len && is_space(text[at])) at++;
  return at;
}

/* Bytes of the JSON object at the beginning of text; 0: there is none, or it does not end. */
static size_t object_length(const char *text, size_t len) {
  size_t depth = 0;
  bool quoted = false;
  if (len == 0 || text[0] != '{') return 0;
  for (size_t i = 0; i < len; i++) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') i++;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '{' || c == '[') depth++;
    if ((c == '}' || c == ']') && --depth == 0) return i + 1;
  }
  return 0;
}

static bool is_named(const struct tool_names *names, const char *name) {
  for (size_t i = 0; i < names->count; i++)
    if (strcmp(names->items[i], name) == 0) return true;
  return false;
}

/* One call from the bytes of its object; false when they are none. */
static bool read_call(struct tool_call *out, const char *text, size_t len, const struct tool_names *names,
                      struct arena *arena) {
  struct json *root = NULL;
  struct buf arguments = BUF_INIT;
  struct json_writer w;
  if (len > CALL_BYTES_MAX || json_parse(&root, text, len, CALL_BYTES_MAX, NULL) != RC_OK) return false;
  const char *name = json_type_of(root) == JSON_OBJECT ? json_word(json_get(root, "name")) : NULL;
  const struct json *value = name ? json_get(root, "arguments") : NULL;
  if (name && !value) value = json_get(root, "parameters");
  bool good = name && *name && value && json_type_of(value) == JSON_OBJECT && (!names || is_named(names, name));
  if (good) {
    json_writer_init(&w, &arguments);
    json_write_value(&w, value);
    out->name = arena_strdup(arena, name);
    out->arguments = arena_strndup(arena, arguments.data ? arguments.data : "", arguments.len);
    good = out->name && out->arguments && !arguments.failed;
  }
  buf_free(&arguments);
  json_free(root);
  return good;
}

/* --- the two forms --- */

/* Calls in tags; what stands around them is content, spaces between them apart.  False: one cannot be read. */
static bool parse_tagged(struct tool_calls *out, const char *text, size_t len, struct buf *content,
                         struct arena *arena) {
  size_t at = 0;
  while (at < len) {
    const char *tag = memmem(text + at, len - at, open_tag, TOOL_TAG_BYTES);
    const size_t until = tag ? (size_t)(tag - text) : len;
    if (out->count == 0 || skip_space(text, until, at) < until) buf_append(content, text + at, until - at);
    if (!tag) return true;
    const size_t begin = skip_space(text, len, until + TOOL_TAG_BYTES),
                 object = object_length(text + begin, len - begin);
    if (object == 0 || out->count == CALLS_MAX ||
        !read_call(&out->items[out->count], text + begin, object, NULL, arena))
      return false;
    out->count++;
    at = skip_space(text, len, begin + object);
    if (at < len && len - at >= sizeof close_tag - 1 && memcmp(text + at, close_tag, sizeof close_tag - 1) == 0)
      at += sizeof close_tag - 1;
    else if (at < len)
      return false;
  }
  return true;
}

/* Objects, with semicolons between them, and nothing else. */
static bool parse_bare(struct tool_calls *out, const char *text, size_t len, const struct tool_names *names,
                       struct arena *arena) {
  size_t at = skip_space(text, len, 0);
  if (len - at >= sizeof python_tag - 1 && memcmp(text + at, python_tag, sizeof python_tag - 1) == 0)
    at = skip_space(text, len, at + sizeof python_tag - 1);
  while (at < len) {
    const size_t object = object_length(text + at, len - at);
    if (object == 0 || out->count == CALLS_MAX || !read_call(&out->items[out->count], text + at, object, names, arena))
      return false;
    out->count++;
    at = skip_space(text, len, at + object);
    if (at == len) return true;
    if (text[at] != ';') return false;
    at = skip_space(text, len, at + 1);
  }
  return out->count > 0;
}

enum rc tool_calls_parse(struct tool_calls *out, const char *text, size_t len, const struct tool_names *names,
                         struct arena *arena, struct err *err) {
  struct buf content = BUF_INIT;
  *out = (struct tool_calls){.items = arena_alloc(arena, CALLS_MAX, sizeof *out->items)};
  if (!out->items) return err_set(err, RC_NO_MEMORY, NULL, "tool calls were refused their memory");
  const bool tagged = len > 0 && memmem(text, len, open_tag, TOOL_TAG_BYTES);
  const bool good = tagged ? parse_tagged(out, text, len, &content, arena) : parse_bare(out, text, len, names, arena);
  if (!good) {
    out->count = 0;
    buf_clear(&content);
    buf_append(&content, text, len);
  }
  out->content_len = content.len;
  out->content = arena_strndup(arena, content.data ? content.data : "", content.len);
  const enum rc rc = out->content ? buf_check(&content, err)
                                  : err_set(err, RC_NO_MEMORY, NULL, "a text of %zu bytes was refused memory", len);
  buf_free(&content);
  return rc;
}

/* --- streams --- */

/* Looks at the beginning of a text: a bare call is held; what may still become its tag is kept, as bytes. */
static size_t look_at_beginning(struct tool_filter *f, const char *text, size_t len) {
  const size_t first = skip_space(text, len, 0), rest = len - first;
  const size_t same = rest < PYTHON_TAG_BYTES ? rest : PYTHON_TAG_BYTES;
  if (rest == 0) return 0;
  const bool tag = memcmp(text + first, python_tag, same) == 0;
  if (tag && rest < PYTHON_TAG_BYTES) return rest;
  f->begun = true;
  f->held = tag || text[first] == '{';
  return 0;
}

/* Bytes at the end of text with which a tag may begin. */
static size_t tag_begun(const char *text, size_t len) {
  for (size_t n = len < TOOL_TAG_BYTES - 1 ? len : TOOL_TAG_BYTES - 1; n > 0; n--)
    if (memcmp(text + len - n, open_tag, n) == 0) return n;
  return 0;
}

void tool_filter_feed(struct tool_filter *f, const char *text, size_t len, struct buf *content) {
  struct buf all = BUF_INIT;
  if (f->held) return;
  buf_append(&all, f->tail, f->tail_len);
  buf_append(&all, text, len);
  if (all.failed) {
    content->failed = true;
    return;
  }
  const size_t undecided = f->begun ? 0 : look_at_beginning(f, all.data ? all.data : "", all.len);
  size_t kept = 0;
  const char *tag = all.len > 0 ? memmem(all.data, all.len, open_tag, TOOL_TAG_BYTES) : NULL;
  if (f->held) {
    kept = all.len;
  } else if (tag) {
    f->held = true;
    kept = all.len - (size_t)(tag - all.data);
  } else if (all.len > 0) {
    kept = undecided > 0 ? undecided : tag_begun(all.data, all.len);
  }
  buf_append(content, all.data ? all.data : "", all.len - kept);
  f->sent += all.len - kept;
  f->tail_len = 0;
  if (!f->held && kept > 0) {
    memcpy(f->tail, all.data + all.len - kept, kept);
    f->tail_len = kept;
  }
  buf_free(&all);
}
