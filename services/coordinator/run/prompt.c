/* Builds prompts out of texts and messages: templates, system messages, parts, and the assistant's last word. */
#include "services/coordinator/run/prompt.h"

#include <string.h>

enum rc content_text(const struct json *content, struct buf *out, struct err *err) {
  size_t len;
  if (content && json_type_of(content) == JSON_STRING) {
    const char *text = json_string(content, &len);
    buf_append(out, text, len);
    return RC_OK;
  }
  if (!content || json_type_of(content) != JSON_ARRAY)
    return err_set(err, RC_INVALID, NULL, "expected `content` to be a string or parts, got %s",
                   content ? json_type_name(json_type_of(content)) : "nothing");
  for (size_t i = 0; i < json_length(content); i++) {
    const struct json *part = json_at(content, i), *text = json_get(part, "text");
    const char *type = json_word(json_get(part, "type"));
    if (!type || strcmp(type, "text") != 0 || !text || json_type_of(text) != JSON_STRING)
      return err_set(err, RC_INVALID, NULL,
                     "part %zu of `content`: expected {\"type\":\"text\",\"text\":...}, got type '%.40s'", i,
                     type ? type : "");
    const char *bytes = json_string(text, &len);
    buf_append(out, bytes, len);
  }
  return RC_OK;
}

static const char *role_of(const struct json *message) { return json_word(json_get(message, "role")); }

static bool has_role(const struct json *message, const char *role) { return strcmp(role_of(message), role) == 0; }

static enum rc messages_check(const struct json *messages, const char *name, struct err *err) {
  const size_t n = json_length(messages);
  struct buf text = BUF_INIT;
  enum rc rc = RC_OK;
  if (n == 0 || n > PROMPT_MESSAGES_MAX)
    return err_set(err, RC_INVALID, name, "expected 1 to %d messages, got %zu", PROMPT_MESSAGES_MAX, n);
  for (size_t i = 0; i < n && rc == RC_OK; i++) {
    struct err inner = {0};
    buf_clear(&text);
    if (!role_of(json_at(messages, i)))
      rc = err_set(err, RC_INVALID, name, "message %zu: expected strings `role` and `content`", i);
    else if ((rc = content_text(json_get(json_at(messages, i), "content"), &text, &inner)) != RC_OK)
      rc = err_set(err, rc, name, "message %zu: %s", i, inner.message);
  }
  buf_free(&text);
  return rc;
}

static void append_around(struct buf *out, const struct reading *r, const char *text, size_t len) {
  const char *hole = r->template[0] ? strstr(r->template, TEMPLATE_PROMPT) : NULL;
  if (hole) buf_append(out, r->template, (size_t)(hole - r->template));
  buf_append(out, text, len);
  if (hole) buf_puts(out, hole + strlen(TEMPLATE_PROMPT));
}

static void write_message(struct json_writer *w, const char *role, const char *content, size_t len) {
  json_object_begin(w);
  json_kv_string(w, "role", role);
  json_key(w, "content");
  json_write_string_len(w, content, len);
  json_object_end(w);
}

/* The message with the template around its content. */
static void write_around(struct json_writer *w, const struct json *message, const struct reading *r) {
  struct buf inner = BUF_INIT, text = BUF_INIT;
  const char *key;
  const struct json *value;
  content_text(json_get(message, "content"), &inner, NULL); /* checked */
  append_around(&text, r, inner.data ? inner.data : "", inner.len);
  json_object_begin(w);
  for (void *cursor = NULL; json_next(message, &cursor, &key, &value);) {
    json_key(w, key);
    if (strcmp(key, "content") == 0)
      json_write_string_len(w, text.data ? text.data : "", text.len);
    else
      json_write_value(w, value);
  }
  json_object_end(w);
  w->out->failed |= inner.failed || text.failed;
  buf_free(&inner);
  buf_free(&text);
}

static enum rc made_of(struct prompt *p, struct buf *written, struct err *err) {
  enum rc rc = buf_check(written, err);
  if (rc == RC_OK) rc = json_parse(&p->made, written->data, written->len, 0, err);
  p->messages = p->made;
  return rc;
}

/* The first `count` messages, with what the reading puts around them. */
static enum rc messages_change(struct prompt *p, const struct json *messages, size_t count, const char *name,
                               const struct reading *r, struct err *err) {
  struct buf written = BUF_INIT;
  struct json_writer w;
  size_t user = count;
  for (size_t i = 0; i < count; i++)
    if (has_role(json_at(messages, i), "user")) user = i;
  if (r->template[0] && user == count)
    return err_set(err, RC_INVALID, name, "expected a message of role user, for the template to be put around");
  json_writer_init(&w, &written);
  json_array_begin(&w);
  if (r->system[0] && !has_role(json_at(messages, 0), "system"))
    write_message(&w, "system", r->system, strlen(r->system));
  for (size_t i = 0; i < count; i++) {
    if (i == user && r->template[0])
      write_around(&w, json_at(messages, i), r);
    else
      json_write_value(&w, json_at(messages, i));
  }
  json_array_end(&w);
  const enum rc rc = made_of(p, &written, err);
  buf_free(&written);
  return rc;
}

static enum rc from_messages(struct prompt *p, const struct json *messages, const char *name, const struct reading *r,
                             bool split, struct err *err) {
  const enum rc rc = messages_check(messages, name, err);
  if (rc != RC_OK) return rc;
  size_t count = json_length(messages);
  split = split && count > 1 && has_role(json_at(messages, count - 1), "assistant");
  if (split) p->completion = json_get(json_at(messages, --count), "content");
  p->messages = messages;
  if (!split && !r->template[0] && (!r->system[0] || has_role(json_at(messages, 0), "system"))) return RC_OK;
  return messages_change(p, messages, count, name, r, err);
}

static enum rc from_text(struct prompt *p, const struct json *value, const struct reading *r, struct arena *arena,
                         struct err *err) {
  size_t len;
  const char *given = json_string(value, &len);
  struct buf text = BUF_INIT, written = BUF_INIT;
  struct json_writer w;
  append_around(&text, r, given, len);
  enum rc rc = buf_check(&text, err);
  if (rc == RC_OK && r->chat) {
    json_writer_init(&w, &written);
    json_array_begin(&w);
    if (r->system[0]) write_message(&w, "system", r->system, strlen(r->system));
    write_message(&w, "user", text.data ? text.data : "", text.len);
    json_array_end(&w);
    rc = made_of(p, &written, err);
  } else if (rc == RC_OK) {
    p->text_len = text.len;
    p->text = arena_strndup(arena, text.data ? text.data : "", text.len);
    if (!p->text) rc = err_set(err, RC_NO_MEMORY, NULL, "a prompt of %zu bytes was refused memory", text.len);
  }
  buf_free(&written);
  buf_free(&text);
  return rc;
}

enum rc prompt_make(struct prompt *out, const struct json *value, const char *name, const struct reading *r, bool split,
                    struct arena *arena, struct err *err) {
  *out = (struct prompt){0};
  if (json_type_of(value) == JSON_STRING) return from_text(out, value, r, arena, err);
  if (json_type_of(value) == JSON_ARRAY) return from_messages(out, value, name, r, split, err);
  return err_set(err, RC_INVALID, name, "expected a string or messages, got %s", json_type_name(json_type_of(value)));
}

void prompt_free(struct prompt *p) {
  json_free(p->made);
  *p = (struct prompt){0};
}
