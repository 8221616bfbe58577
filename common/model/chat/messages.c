/* Makes a template's variables of a request, as transformers' apply_chat_template does: members that are null are left
 * out, reasoning is known under all of its names, and a message that is to be continued ends in a tag. */
#include <stdlib.h>
#include <string.h>

#include "common/model/chat/state.h"
#include "common/model/tokenizer/chat.h"
#include "common/template/values/from_json.h"
#include "common/template/values/operators.h"

struct maker {
  struct workspace *w;
  const struct chat_form *form;
  struct chat_documents *documents;
};

static enum rc set(struct workspace *w, struct dict *dict, const char *name, struct value v) {
  struct value key;
  const enum rc rc = text_of(w, name, &key);
  return rc == RC_OK ? dict_set(w, dict, key, v) : rc;
}

static bool is_text(const struct value *v) { return v && v->kind == VALUE_TEXT; }

static enum rc refuse_part(struct workspace *w, const struct value *type) {
  return work_fail(w, RC_INVALID, "expected parts of type text: this model's template takes no others, got \"%.*s\"",
                   type->text->len < 40 ? (int)type->text->len : 40, type->text->bytes);
}

/* The texts of parts, line by line; *flat false: there are others. */
static enum rc flatten(struct maker *m, const struct list *parts, struct value *out, bool *flat) {
  struct workspace *w = m->w;
  struct text_builder b = builder_begin(w);
  enum rc rc = RC_OK;
  *flat = true;
  for (size_t i = 0; i < parts->count && *flat && rc == RC_OK; i++) {
    const struct dict *part = parts->items[i].kind == VALUE_DICT ? parts->items[i].dict : NULL;
    const struct value *type = part ? dict_find_name(part, "type") : NULL,
                       *text = part ? dict_find_name(part, "text") : NULL;
    *flat = is_text(type) && text_is(type->text, "text") && is_text(text);
    if (m->form->texts_only && is_text(type) && !text_is(type->text, "text")) rc = refuse_part(w, type);
    if (*flat && i) rc = builder_word(&b, "\n");
    if (*flat && rc == RC_OK) rc = builder_text(&b, text->text);
  }
  if (rc == RC_OK && *flat) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

static enum rc keep_document(struct maker *m, struct json *document) {
  struct chat_documents *d = m->documents;
  if (d->count == d->cap) {
    const size_t cap = d->cap ? d->cap * 2 : 8;
    struct json **items = realloc(d->items, cap * sizeof(struct json *));
    if (!items) {
      json_free(document);
      return work_fail(m->w, RC_NO_MEMORY, "%zu tool calls were refused memory", cap);
    }
    d->items = items;
    d->cap = cap;
  }
  d->items[d->count++] = document;
  return RC_OK;
}

void chat_documents_free(struct chat_documents *documents) {
  for (size_t i = 0; i < documents->count; i++) json_free(documents->items[i]);
  free(documents->items);
  *documents = (struct chat_documents){0};
}

/* What the template gets of a call without arguments. */
static enum rc no_arguments(struct maker *m, struct value *out) {
  if (!m->form->parsed_arguments) return text_of(m->w, "{}", out);
  *out = value_dict(dict_new(m->w, 0));
  return out->dict ? RC_OK : m->w->rc;
}

/* The object that a text of arguments is; one that is no JSON has none.  JSON of another kind, or too much of it, stays
 * the text that it is. */
static enum rc read_arguments(struct maker *m, const struct text *text, struct value *out) {
  struct json *document;
  enum rc rc = json_parse_lenient(&document, text->bytes, text->len, 0, NULL);
  if (rc == RC_NO_MEMORY) return work_fail(m->w, rc, "the arguments of a tool call were refused their memory");
  if (rc != RC_OK) return rc == RC_INVALID ? no_arguments(m, out) : RC_OK;
  const enum json_type type = json_type_of(document);
  rc = keep_document(m, document);
  if (rc == RC_OK && type == JSON_NULL) return no_arguments(m, out);
  return rc == RC_OK && type == JSON_OBJECT ? value_from_json(m->w, document, MARK_DATA, out) : rc;
}

static enum rc form_arguments(struct maker *m, struct value *call) {
  struct value *function = call->kind == VALUE_DICT ? dict_find_name(call->dict, "function") : NULL;
  if (!function || function->kind != VALUE_DICT) return RC_OK;
  const struct value *given = dict_find_name(function->dict, "arguments");
  struct value formed = given ? *given : value_none();
  enum rc rc = RC_OK;
  if (formed.kind == VALUE_NONE || (is_text(&formed) && formed.text->len == 0))
    rc = no_arguments(m, &formed);
  else if (m->form->parsed_arguments && is_text(&formed))
    rc = read_arguments(m, formed.text, &formed);
  return rc == RC_OK ? set(m->w, function->dict, "arguments", formed) : rc;
}

static enum rc apply_form(struct maker *m, struct dict *message) {
  struct value *content = dict_find_name(message, "content"), *calls = dict_find_name(message, "tool_calls");
  enum rc rc = RC_OK;
  if (m->form->flat_content && content && content->kind == VALUE_LIST) {
    bool flat;
    struct value text;
    rc = flatten(m, content->list, &text, &flat);
    if (rc == RC_OK && flat) *content = text;
  }
  if (m->form->wire && calls && calls->kind == VALUE_LIST)
    for (size_t i = 0; i < calls->list->count && rc == RC_OK; i++) rc = form_arguments(m, &calls->list->items[i]);
  return rc;
}

/* The roles that clients use: templates write "<|" + role + "|>", which is to be a special token.  Whatever else stands
 * for a role is text, as a content is. */
static bool is_known_role(const struct json *role) {
  static const char *const known[] = {"system", "developer", "user",    "assistant",
                                      "tool",   "function",  "ipython", "model"};
  const char *word = json_word(role);
  for (size_t i = 0; word && i < sizeof known / sizeof known[0]; i++)
    if (strcmp(word, known[i]) == 0) return true;
  return false;
}

static enum rc make_message(struct maker *m, const struct json *json, size_t index, struct value *out) {
  static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
  const struct json *reasoning = NULL, *member;
  const char *key;
  struct value v;
  if (json_type_of(json) != JSON_OBJECT || !json_word(json_get(json, "role")))
    return work_fail(m->w, RC_INVALID, "expected an object with a role as message %zu", index);
  for (size_t i = 0; i < 3 && !reasoning; i++) {
    reasoning = json_get(json, names[i]);
    if (reasoning && json_type_of(reasoning) == JSON_NULL) reasoning = NULL;
  }
  struct dict *dict = dict_new(m->w, json_length(json) + 2);
  enum rc rc = dict ? RC_OK : m->w->rc;
  if (rc == RC_OK && reasoning) rc = value_from_json(m->w, reasoning, MARK_DATA, &v);
  if (rc == RC_OK && reasoning) rc = set(m->w, dict, "thinking", v);
  for (void *cursor = NULL; rc == RC_OK && json_next(json, &cursor, &key, &member);) {
    struct value name, inner;
    if (json_type_of(member) == JSON_NULL) continue;
    if (m->form->wire && strcmp(key, "tool_calls") == 0 && json_length(member) == 0) continue; /* as if it had none */
    rc = text_share(m->w, key, strlen(key), MARK_DATA, &name);
    const bool role = strcmp(key, "role") == 0 && is_known_role(member);
    if (rc == RC_OK) rc = value_from_json(m->w, member, role ? 0 : MARK_DATA, &inner);
    if (rc == RC_OK) rc = dict_set(m->w, dict, name, inner);
  }
  if (rc == RC_OK && reasoning) rc = set(m->w, dict, "reasoning_content", v);
  if (rc == RC_OK) rc = apply_form(m, dict);
  *out = value_dict(dict);
  return rc;
}

/* Puts the tag behind the last message's text. */
static enum rc tag_last(struct workspace *w, struct list *messages) {
  struct value *content = dict_find_name(messages->items[messages->count - 1].dict, "content"), tag;
  if (content && content->kind == VALUE_LIST) {
    const struct list *parts = content->list;
    content = NULL;
    for (size_t i = parts->count; i-- > 0 && !content;)
      if (parts->items[i].kind == VALUE_DICT) content = dict_find_name(parts->items[i].dict, "text");
  }
  if (!is_text(content)) return work_fail(w, RC_INVALID, "expected a last message with a text to continue");
  const enum rc rc = text_of(w, CHAT_CONTINUE_TAG, &tag);
  return rc == RC_OK ? operate(w, OPERATION_ADD, *content, tag, content) : rc;
}

static enum rc make_messages(struct maker *m, const struct chat_request *r, struct value *out) {
  const size_t count = r->messages && json_type_of(r->messages) == JSON_ARRAY ? json_length(r->messages) : 0;
  if (count == 0) return work_fail(m->w, RC_INVALID, "expected an array of at least one message");
  struct list *messages = list_new(m->w, FORM_LIST, count);
  enum rc rc = messages ? RC_OK : m->w->rc;
  for (size_t i = 0; i < count && rc == RC_OK; i++)
    rc = make_message(m, json_at(r->messages, i), i, &messages->items[messages->count++]);
  if (rc == RC_OK && r->continue_final) rc = tag_last(m->w, messages);
  *out = value_list(messages);
  return rc;
}

/* The request's own variables; those that the request has elsewhere are refused. */
static enum rc add_given(struct workspace *w, const struct json *given, struct dict *variables) {
  static const char *const taken[] = {"messages", "tools", "add_generation_prompt"};
  const char *key;
  const struct json *member;
  enum rc rc = RC_OK;
  for (void *cursor = NULL; rc == RC_OK && json_next(given, &cursor, &key, &member);) {
    struct value v;
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
      if (strcmp(key, taken[i]) == 0)
        return work_fail(w, RC_INVALID, "expected no `%s` among the template's variables", key);
    rc = value_from_json(w, member, MARK_DATA, &v);
    if (rc == RC_OK) rc = set(w, variables, key, v);
  }
  return rc;
}

enum rc chat_variables(struct workspace *w, const struct chat *c, const struct chat_request *r,
                       const struct chat_form *form, struct chat_documents *documents, struct dict **out) {
  struct maker m = {.w = w, .form = form, .documents = documents};
  struct value messages, tools = value_none();
  struct dict *variables = *out = dict_new(w, 0);
  enum rc rc = variables ? make_messages(&m, r, &messages) : w->rc;
  if (rc == RC_OK && r->tools) rc = value_from_json(w, r->tools, MARK_DATA, &tools);
  if (rc == RC_OK) rc = set(w, variables, "documents", value_none());
  for (size_t i = 0; i < c->variables.count && rc == RC_OK; i++) {
    const struct chat_word *word = &c->variables.items[i];
    struct value v;
    rc = text_share(w, word->bytes, word->len, 0, &v);
    if (rc == RC_OK) rc = set(w, variables, word->name, v);
  }
  if (rc == RC_OK && r->variables) rc = add_given(w, r->variables, variables);
  if (rc == RC_OK) rc = set(w, variables, "messages", messages);
  if (rc == RC_OK) rc = set(w, variables, "tools", tools);
  if (rc == RC_OK) rc = set(w, variables, "add_generation_prompt", value_bool(r->generation_prompt));
  return rc;
}
