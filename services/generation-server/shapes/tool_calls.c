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

/* Bytes of the JSON object or array at the beginning of text; 0: it does not end. */
static size_t container_length(const char *text, size_t len) {
  size_t depth = 0;
  bool quoted = false;
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

/* The same of an object; 0 too: there is none. */
static size_t object_length(const char *text, size_t len) {
  return len > 0 && text[0] == '{' ? container_length(text, len) : 0;
}

static bool is_named(const struct tool_names *names, const char *name) {
  for (size_t i = 0; i < names->count; i++)
    if (strcmp(names->items[i], name) == 0) return true;
  return false;
}

/* Bytes of the JSON value at the beginning of text, which is well-formed. */
static size_t value_length(const char *text, size_t len) {
  size_t n = 0;
  if (text[0] == '{' || text[0] == '[') return container_length(text, len);
  if (text[0] == '"')
    for (n = 1; n < len && text[n] != '"'; n++) n += text[n] == '\\';
  else
    while (n + 1 < len && text[n + 1] != ',' && text[n + 1] != '}' && !is_space(text[n + 1])) n++;
  return n + 1;
}

/* The bytes of an object's member, from the object's own, which are well-formed.  False: it comes twice. */
static bool find_member(const char **out, size_t *out_len, const char *text, size_t len, const char *key) {
  const size_t key_len = strlen(key);
  *out = NULL;
  for (size_t at = skip_space(text, len, 1); at < len && text[at] == '"';) {
    const size_t quoted = value_length(text + at, len - at);
    const bool same = quoted == key_len + 2 && memcmp(text + at + 1, key, key_len) == 0;
    at = skip_space(text, len, skip_space(text, len, at + quoted) + 1); /* the colon */
    const size_t value = value_length(text + at, len - at);
    if (same && *out) return false;
    if (same) *out = text + at, *out_len = value;
    at = skip_space(text, len, skip_space(text, len, at + value) + 1); /* a comma, or the end */
  }
  return true;
}

/* The arguments as the model wrote them: what json_parse refuses cannot be written as it was read. */
static char *arguments_as_written(const char *text, size_t len, const char *key, struct arena *arena) {
  const char *name, *value;
  size_t name_len, value_len;
  if (!find_member(&name, &name_len, text, len, "name") || !find_member(&value, &value_len, text, len, key) || !value)
    return NULL;
  return arena_strndup(arena, value, value_len);
}

static char *arguments_written_anew(const struct json *value, struct arena *arena) {
  struct buf out = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &out);
  json_write_value(&w, value);
  char *copy = out.failed ? NULL : arena_strndup(arena, out.data ? out.data : "", out.len);
  buf_free(&out);
  return copy;
}

/* One call from the bytes of its object; false when they are none. */
static bool read_call(struct tool_call *out, const char *text, size_t len, const struct tool_names *names,
                      struct arena *arena) {
  struct json *root = NULL;
  if (len > CALL_BYTES_MAX) return false;
  const bool strict = json_parse(&root, text, len, CALL_BYTES_MAX, NULL) == RC_OK;
  if (!strict && json_parse_lenient(&root, text, len, CALL_BYTES_MAX, NULL) != RC_OK) return false;
  const char *name = json_type_of(root) == JSON_OBJECT ? json_word(json_get(root, "name")) : NULL;
  const char *key = name && json_get(root, "arguments") ? "arguments" : "parameters";
  const struct json *value = name ? json_get(root, key) : NULL;
  bool good = name && *name && value && json_type_of(value) == JSON_OBJECT && (!names || is_named(names, name));
  if (good) {
    out->name = arena_strdup(arena, name);
    out->arguments = strict ? arguments_written_anew(value, arena) : arguments_as_written(text, len, key, arena);
    good = out->name && out->arguments;
  }
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

/* Objects, with semicolons between them, and nothing else.  Spaces before them are content: a stream has let them out
 * before it could know. */
static bool parse_bare(struct tool_calls *out, const char *text, size_t len, const struct tool_names *names,
                       struct buf *content, struct arena *arena) {
  size_t at = skip_space(text, len, 0);
  buf_append(content, text, at);
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
  const bool good =
      tagged ? parse_tagged(out, text, len, &content, arena) : parse_bare(out, text, len, names, &content, arena);
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
