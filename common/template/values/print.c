/* Writes values as Python does: str and repr. */
#include "common/template/values/print.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Fewest digits that read back, as d.ddde+XX; *exponent the power of ten of the first. */
static int shortest_digits(char digits[20], int *exponent, double magnitude) {
  char text[REAL_TEXT_MAX];
  int precision = 0;
  do {
    snprintf(text, sizeof text, "%.*e", precision, magnitude);
  } while (strtod(text, NULL) != magnitude && ++precision < 17);
  int count = 0;
  for (const char *c = text; *c && *c != 'e'; c++)
    if (*c >= '0' && *c <= '9') digits[count++] = *c;
  *exponent = atoi(strchr(text, 'e') + 1);
  while (count > 1 && digits[count - 1] == '0') count--;
  return count;
}

void real_text(char out[REAL_TEXT_MAX], double real) {
  char digits[20], *at = out;
  int exponent;
  if (isnan(real) || isinf(real)) {
    snprintf(out, REAL_TEXT_MAX, "%s", isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
    return;
  }
  if (signbit(real)) *at++ = '-';
  if (real == 0) {
    snprintf(at, 8, "0.0");
    return;
  }
  const int count = shortest_digits(digits, &exponent, fabs(real));
  if (exponent < -4 || exponent >= 16) {
    *at++ = digits[0];
    if (count > 1) *at++ = '.';
    for (int i = 1; i < count; i++) *at++ = digits[i];
    snprintf(at, 16, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    return;
  }
  if (exponent < 0) {
    *at++ = '0';
    *at++ = '.';
    for (int i = -1; i > exponent; i--) *at++ = '0';
  }
  for (int i = 0; i < count || i <= exponent; i++) {
    if (exponent >= 0 && i == exponent + 1) *at++ = '.';
    *at++ = i < count ? digits[i] : '0';
  }
  if (exponent >= 0 && count <= exponent + 1) {
    *at++ = '.';
    *at++ = '0';
  }
  *at = '\0';
}

static bool is_printable(uint32_t code) {
  if (code == ' ') return true;
  switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

static enum rc repr_code(struct text_builder *b, uint32_t code, char quote, uint8_t mark) {
  char escape[12];
  if (code == (uint32_t)quote || code == '\\')
    snprintf(escape, sizeof escape, "\\%c", (int)code);
  else if (code == '\n' || code == '\r' || code == '\t')
    snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
  else if (is_printable(code))
    return builder_code(b, code, mark);
  else
    snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
  return builder_bytes(b, escape, strlen(escape), mark);
}

static enum rc repr_text(struct text_builder *b, const struct text *text) {
  const bool single = memchr(text->bytes, '\'', text->len), plain = !memchr(text->bytes, '"', text->len);
  const char quote = single && plain ? '"' : '\'';
  enum rc rc = builder_bytes(b, &quote, 1, 0);
  for (size_t at = 0; at < text->len && rc == RC_OK; at += text_step(text, at))
    rc = repr_code(b, text_code_at(text, at), quote, text->marks ? text->marks[at] : text->mark);
  return rc == RC_OK ? builder_bytes(b, &quote, 1, 0) : rc;
}

static enum rc repr_list(struct text_builder *b, const struct list *list) {
  char range[64];
  switch (list->form) {
    case FORM_RANGE:
      snprintf(range, sizeof range, "range(%" PRId64 ", %" PRId64 ")", list->count ? list->items[0].integer : 0,
               list->count ? list->items[list->count - 1].integer + 1 : 0);
      return builder_word(b, range);
    case FORM_VIEW:
    case FORM_ITERATOR:
      return work_fail(b->w, RC_UNSUPPORTED, "a %s has no text: put `| list` behind it",
                       value_type(value_list((struct list *)list)));
    default: break;
  }
  enum rc rc = builder_word(b, list->form == FORM_TUPLE ? "(" : "[");
  for (size_t i = 0; i < list->count && rc == RC_OK; i++) {
    if (i) rc = builder_word(b, ", ");
    if (rc == RC_OK) rc = print_repr(b, list->items[i]);
  }
  if (rc == RC_OK && list->form == FORM_TUPLE && list->count == 1) rc = builder_word(b, ",");
  return rc == RC_OK ? builder_word(b, list->form == FORM_TUPLE ? ")" : "]") : rc;
}

static enum rc repr_dict(struct text_builder *b, const struct dict *dict) {
  enum rc rc = builder_word(b, "{");
  for (size_t i = 0; i < dict->count && rc == RC_OK; i++) {
    if (i) rc = builder_word(b, ", ");
    if (rc == RC_OK) rc = print_repr(b, dict->entries[i].key);
    if (rc == RC_OK) rc = builder_word(b, ": ");
    if (rc == RC_OK) rc = print_repr(b, dict->entries[i].value);
  }
  return rc == RC_OK ? builder_word(b, "}") : rc;
}

static enum rc repr_nested(struct text_builder *b, struct value v) {
  char number[REAL_TEXT_MAX];
  switch (v.kind) {
    case VALUE_UNDEFINED: return builder_word(b, "Undefined");
    case VALUE_NONE: return builder_word(b, "None");
    case VALUE_BOOL: return builder_word(b, v.truth ? "True" : "False");
    case VALUE_INT: snprintf(number, sizeof number, "%" PRId64, v.integer); return builder_word(b, number);
    case VALUE_REAL: real_text(number, v.real); return builder_word(b, number);
    case VALUE_TEXT: return repr_text(b, v.text);
    case VALUE_LIST: return repr_list(b, v.list);
    case VALUE_DICT: return repr_dict(b, v.dict);
    default: return work_fail(b->w, RC_UNSUPPORTED, "a %s has no text", value_type(v));
  }
}

enum rc print_repr(struct text_builder *b, struct value v) {
  enum rc rc = work_enter(b->w);
  if (rc != RC_OK) return rc;
  rc = repr_nested(b, v);
  work_leave(b->w);
  return rc;
}

enum rc print_value(struct text_builder *b, struct value v) {
  if (v.kind == VALUE_TEXT) return builder_text(b, v.text);
  return v.kind == VALUE_UNDEFINED ? RC_OK : print_repr(b, v);
}

enum rc value_as_text(struct workspace *w, struct value v, const struct text **out) {
  struct value made = v;
  if (v.kind != VALUE_TEXT) {
    struct text_builder b = builder_begin(w);
    enum rc rc = print_value(&b, v);
    if (rc == RC_OK)
      rc = builder_finish(&b, &made);
    else
      builder_free(&b);
    if (rc != RC_OK) return rc;
  }
  *out = made.text;
  return RC_OK;
}
