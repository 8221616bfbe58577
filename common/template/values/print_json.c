/* Writes values as Python's json.dumps does. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/template/values/print.h"

struct json_printer {
  struct text_builder *b;
  const struct json_style *style;
  int level;
};

static enum rc put_escaped(struct text_builder *b, uint32_t code, bool ascii, uint8_t mark) {
  char escape[16];
  static const char names[] = "\bb\ff\nn\rr\tt\"\"\\\\";
  const char *named = code && code < 0x80 ? strchr(names, (int)code) : NULL;
  if (named && (named - names) % 2 == 0)
    snprintf(escape, sizeof escape, "\\%c", named[1]);
  else if (named || (code >= 0x20 && (code < 0x7F || !ascii)))
    return builder_code(b, code, mark);
  else if (code < 0x10000)
    snprintf(escape, sizeof escape, "\\u%04x", code);
  else
    snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF));
  return builder_bytes(b, escape, strlen(escape), mark);
}

static enum rc put_string(struct text_builder *b, const struct text *text, bool ascii) {
  enum rc rc = builder_word(b, "\"");
  for (size_t at = 0; at < text->len && rc == RC_OK; at += text_step(text, at))
    rc = put_escaped(b, text_code_at(text, at), ascii, text->marks ? text->marks[at] : text->mark);
  return rc == RC_OK ? builder_word(b, "\"") : rc;
}

/* A new line with this level's indent, where there is one. */
static enum rc put_line(const struct json_printer *p) {
  if (!p->style->indent) return RC_OK;
  enum rc rc = builder_word(p->b, "\n");
  for (int i = 0; i < p->level && rc == RC_OK; i++) rc = builder_text(p->b, p->style->indent);
  return rc;
}

static enum rc put_comma(const struct json_printer *p) {
  const struct json_style *style = p->style;
  const enum rc rc = style->comma ? builder_text(p->b, style->comma) : builder_word(p->b, style->indent ? "," : ", ");
  return rc == RC_OK ? put_line(p) : rc;
}

static enum rc put_scalar(struct text_builder *b, struct value v) {
  char number[REAL_TEXT_MAX];
  switch (v.kind) {
    case VALUE_NONE: return builder_word(b, "null");
    case VALUE_BOOL: return builder_word(b, v.truth ? "true" : "false");
    case VALUE_INT: snprintf(number, sizeof number, "%" PRId64, v.integer); break;
    case VALUE_REAL:
      if (isfinite(v.real))
        real_text(number, v.real);
      else
        snprintf(number, sizeof number, "%s", isnan(v.real) ? "NaN" : v.real > 0 ? "Infinity" : "-Infinity");
      break;
    default: return work_fail(b->w, RC_INVALID, "expected a value that JSON can hold, got %s", value_type(v));
  }
  return builder_word(b, number);
}

static enum rc put_key(const struct json_printer *p, struct value key) {
  if (key.kind == VALUE_TEXT) return put_string(p->b, key.text, p->style->ascii);
  enum rc rc = builder_word(p->b, "\"");
  if (rc == RC_OK) rc = put_scalar(p->b, key);
  return rc == RC_OK ? builder_word(p->b, "\"") : rc;
}

static enum rc put_value(struct json_printer *p, struct value v);

static enum rc put_list(struct json_printer *p, const struct list *list) {
  if (list->count == 0) return builder_word(p->b, "[]");
  enum rc rc = builder_word(p->b, "[");
  p->level++;
  if (rc == RC_OK) rc = put_line(p);
  for (size_t i = 0; i < list->count && rc == RC_OK; i++) {
    if (i) rc = put_comma(p);
    if (rc == RC_OK) rc = put_value(p, list->items[i]);
  }
  p->level--;
  if (rc == RC_OK) rc = put_line(p);
  return rc == RC_OK ? builder_word(p->b, "]") : rc;
}

struct sort_entry {
  struct workspace *w;
  const struct dict_entry *entry;
};

static int by_key(const void *a, const void *b) {
  const struct sort_entry *left = a, *right = b;
  int order = 0;
  (void)value_order(left->w, left->entry->key, right->entry->key, &order); /* a fault stays in the workspace */
  return order;
}

static enum rc sorted(struct workspace *w, const struct dict *dict, struct sort_entry **out) {
  struct sort_entry *entries = *out = work_alloc(w, dict->count, sizeof *entries);
  if (!entries) return w->rc;
  for (size_t i = 0; i < dict->count; i++) entries[i] = (struct sort_entry){w, &dict->entries[i]};
  qsort(entries, dict->count, sizeof *entries, by_key); /* keys are unique: nothing depends on stability */
  return w->rc;
}

static enum rc put_dict(struct json_printer *p, const struct dict *dict) {
  struct sort_entry *in_order = NULL;
  if (dict->count == 0) return builder_word(p->b, "{}");
  enum rc rc = p->style->sort_keys ? sorted(p->b->w, dict, &in_order) : RC_OK;
  if (rc == RC_OK) rc = builder_word(p->b, "{");
  p->level++;
  if (rc == RC_OK) rc = put_line(p);
  for (size_t i = 0; i < dict->count && rc == RC_OK; i++) {
    const struct dict_entry *entry = in_order ? in_order[i].entry : &dict->entries[i];
    if (i) rc = put_comma(p);
    if (rc == RC_OK) rc = put_key(p, entry->key);
    if (rc == RC_OK) rc = p->style->colon ? builder_text(p->b, p->style->colon) : builder_word(p->b, ": ");
    if (rc == RC_OK) rc = put_value(p, entry->value);
  }
  p->level--;
  if (rc == RC_OK) rc = put_line(p);
  return rc == RC_OK ? builder_word(p->b, "}") : rc;
}

static enum rc put_value(struct json_printer *p, struct value v) {
  enum rc rc = work_enter(p->b->w);
  if (rc != RC_OK) return rc;
  if (v.kind == VALUE_TEXT)
    rc = put_string(p->b, v.text, p->style->ascii);
  else if (v.kind == VALUE_DICT)
    rc = put_dict(p, v.dict);
  else if (v.kind == VALUE_LIST && v.list->form <= FORM_TUPLE)
    rc = put_list(p, v.list);
  else
    rc = put_scalar(p->b, v);
  work_leave(p->b->w);
  return rc;
}

enum rc print_json(struct text_builder *b, struct value v, const struct json_style *style) {
  struct json_printer p = {.b = b, .style = style};
  return put_value(&p, v);
}
