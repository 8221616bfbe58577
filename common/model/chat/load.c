/* Loads chat templates with what they need of a model's files; a model without one gets ChatML:
 *
 *   <|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n
 *
 * Called by a service while it loads a model. */
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/model/chat/state.h"
#include "common/model/tokenizer/chat.h"

enum { CONFIG_BYTES_MAX = 64 << 20 };

static const char chatml[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static enum rc add_variable(struct chat *c, const char *name, const char *bytes, size_t len, struct err *err) {
  struct chat_words *words = &c->variables;
  if (words->count == words->cap) {
    const size_t cap = words->cap ? words->cap * 2 : 16;
    struct chat_word *items = realloc(words->items, cap * sizeof *items);
    if (!items) return err_set(err, RC_NO_MEMORY, NULL, "%zu special tokens were refused memory", cap);
    words->items = items;
    words->cap = cap;
  }
  char *copy = arena_strndup(&c->arena, bytes, len);
  if (!copy) return err_set(err, RC_NO_MEMORY, NULL, "a special token was refused %zu bytes", len);
  words->items[words->count++] = (struct chat_word){name, copy, len};
  return RC_OK;
}

static enum rc read_specials(struct chat *c, struct err *err) {
  const int32_t vocabulary = tokenizer_vocabulary(c->tokenizer);
  struct buf content = BUF_INIT;
  size_t count = 0;
  enum rc rc = RC_OK;
  for (int32_t id = 0; id < vocabulary; id++) count += tokenizer_is_special(c->tokenizer, id);
  c->specials.items = arena_alloc(&c->arena, count + 1, sizeof *c->specials.items);
  if (!c->specials.items) return err_set(err, RC_NO_MEMORY, NULL, "%zu special tokens were refused memory", count);
  for (int32_t id = 0; id < vocabulary && rc == RC_OK; id++) {
    if (!tokenizer_is_special(c->tokenizer, id)) continue;
    buf_clear(&content);
    rc = tokenizer_decode(c->tokenizer, &id, 1, false, &content, err);
    if (rc != RC_OK || content.len == 0) continue;
    struct added_token *special = &c->specials.items[c->specials.count++];
    *special = (struct added_token){.content = arena_strndup(&c->arena, content.data, content.len), .len = content.len};
    if (!special->content)
      rc = err_set(err, RC_NO_MEMORY, NULL, "a special token was refused %zu bytes", content.len);
  }
  buf_free(&content);
  if (rc == RC_OK) added_set_sort(&c->specials);
  return rc;
}

/* bos_token and its like: a text, or an object with a content; NULL where it is neither. */
static const char *special_named(const struct json *config, const char *name, size_t *len) {
  const struct json *v = json_get(config, name);
  if (v && json_type_of(v) == JSON_OBJECT) v = json_get(v, "content");
  return v && json_type_of(v) == JSON_STRING ? json_string(v, len) : NULL;
}

static enum rc read_variables(struct chat *c, const struct json *config, struct err *err) {
  static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"};
  enum rc rc = RC_OK;
  for (size_t i = 0; i < sizeof names / sizeof names[0] && rc == RC_OK; i++) {
    size_t len;
    const char *bytes = special_named(config, names[i], &len);
    if (bytes) rc = add_variable(c, names[i], bytes, len, err);
  }
  return rc;
}

/* transformers writes int(1e30) for a model_max_length that it does not know; no number is read here. */
static enum rc parse_tokenizer_config(struct json **out, const struct buf *file, struct err *err) {
  const enum rc rc = json_parse_lenient(out, file->data, file->len, CONFIG_BYTES_MAX, err);
  if (rc != RC_OK) err_in_file(err, "tokenizer_config.json");
  return rc;
}

int32_t chat_eos_id(const struct buf *tokenizer_config, const struct tokenizer *t) {
  struct json *config = NULL;
  size_t len;
  if (tokenizer_config->len == 0 || parse_tokenizer_config(&config, tokenizer_config, NULL) != RC_OK) return -1;
  const char *bytes = special_named(config, "eos_token", &len);
  const int32_t id = bytes && strlen(bytes) == len ? tokenizer_id_of(t, bytes) : -1;
  json_free(config);
  return id;
}

static enum rc parse_source(struct template **out, const char *bytes, size_t len, const char *file, struct err *err) {
  const enum rc rc = template_parse(out, bytes, len, err);
  if (rc != RC_OK) err_in_file(err, file);
  return rc;
}

static enum rc parse_text(struct template **out, const struct json *text, struct err *err) {
  size_t len;
  if (!text || json_type_of(text) != JSON_STRING)
    return err_set(err, RC_INVALID, "chat_template",
                   "tokenizer_config.json: expected a text, or a list of templates, each with a name and a template");
  const char *bytes = json_string(text, &len);
  return parse_source(out, bytes, len, "tokenizer_config.json: chat_template", err);
}

/* tokenizer_config.json's chat_template: a text, or a list of named ones of which "default" and "tool_use" serve. */
static enum rc parse_configured(struct chat *c, const struct json *configured, struct err *err) {
  enum rc rc = RC_OK;
  if (!configured || json_type_of(configured) == JSON_NULL) return RC_OK;
  if (json_type_of(configured) != JSON_ARRAY) return parse_text(&c->template, configured, err);
  for (size_t i = 0; i < json_length(configured) && rc == RC_OK; i++) {
    const struct json *item = json_at(configured, i);
    const char *name = json_word(json_get(item, "name"));
    struct template **to = !name                           ? NULL
                           : strcmp(name, "default") == 0  ? &c->template
                           : strcmp(name, "tool_use") == 0 ? &c->tool_use
                                                           : NULL;
    if (to && !*to) rc = parse_text(to, json_get(item, "template"), err);
  }
  if (rc == RC_OK && !c->template)
    rc = err_set(err, RC_INVALID, "chat_template",
                 "tokenizer_config.json: expected a template named \"default\" in the list");
  return rc;
}

static enum rc parse_files(struct chat *c, const struct chat_files *files, struct err *err) {
  struct json *config = NULL;
  enum rc rc = RC_OK;
  if (files->tokenizer_config.len) rc = parse_tokenizer_config(&config, &files->tokenizer_config, err);
  if (rc == RC_OK) rc = read_variables(c, config, err);
  if (rc == RC_OK && files->jinja.len) {
    rc = parse_source(&c->template, files->jinja.data, files->jinja.len, "chat_template.jinja", err);
    if (rc == RC_OK && files->tool_use.len)
      rc = parse_source(&c->tool_use, files->tool_use.data, files->tool_use.len, "tool_use.jinja", err);
  } else if (rc == RC_OK) {
    rc = parse_configured(c, json_get(config, "chat_template"), err);
  }
  json_free(config);
  c->has_template = c->template != NULL;
  if (rc == RC_OK && !c->template) rc = template_parse(&c->template, chatml, sizeof chatml - 1, err);
  if (rc == RC_OK) rc = template_reads_parts(c->template, "content", &c->takes_parts, err);
  if (rc == RC_OK && c->tool_use) rc = template_reads_parts(c->tool_use, "content", &c->tool_use_takes_parts, err);
  return rc;
}

enum rc chat_parse(struct chat **out, const struct chat_files *files, const struct tokenizer *t, struct err *err) {
  *out = NULL;
  struct chat *c = calloc(1, sizeof *c);
  if (!c) return err_set(err, RC_NO_MEMORY, NULL, "a chat was refused %zu bytes", sizeof *c);
  c->tokenizer = t;
  c->has_markers = tokenizer_id_of(t, "<|im_start|>") >= 0 && tokenizer_id_of(t, "<|im_end|>") >= 0;
  enum rc rc = read_specials(c, err);
  if (rc == RC_OK) rc = parse_files(c, files, err);
  if (rc != RC_OK)
    chat_free(c);
  else
    *out = c;
  return rc;
}

static enum rc read_optional(struct buf *out, const char *dir, const char *name, struct err *err) {
  char path[LIMIT_PATH_MAX];
  enum rc rc = path_format(path, err, "%s/%s", dir, name);
  if (rc == RC_OK && file_exists(path)) rc = file_read(out, path, CONFIG_BYTES_MAX, err);
  return rc;
}

enum rc chat_files_read(struct chat_files *out, const char *dir, struct err *err) {
  *out = (struct chat_files){0};
  enum rc rc = read_optional(&out->jinja, dir, "chat_template.jinja", err);
  if (rc == RC_OK) rc = read_optional(&out->tool_use, dir, "additional_chat_templates/tool_use.jinja", err);
  if (rc == RC_OK && out->tool_use.len == 0)
    rc = read_optional(&out->tool_use, dir, "chat_templates/tool_use.jinja", err);
  if (rc == RC_OK) rc = read_optional(&out->tokenizer_config, dir, "tokenizer_config.json", err);
  return rc;
}

void chat_files_free(struct chat_files *files) {
  buf_free(&files->jinja);
  buf_free(&files->tool_use);
  buf_free(&files->tokenizer_config);
}

void chat_free(struct chat *c) {
  if (!c) return;
  template_free(c->template);
  template_free(c->tool_use);
  free(c->variables.items);
  arena_free(&c->arena);
  free(c);
}

bool chat_has_template(const struct chat *c) { return c->has_template; }
