/* Filters from text to text.  Their input becomes text first, as Python's str makes it. */
#include <string.h>

#include "common/template/builtins/builtin.h"
#include "common/template/values/letter_case.h"
#include "common/template/values/operators.h"
#include "common/template/values/print.h"

static enum rc change_case(struct workspace *w, struct value self, enum letter_case to, struct value *out) {
  const struct text *text;
  const enum rc rc = value_as_text(w, self, &text);
  return rc == RC_OK ? text_case(w, text, to, out) : rc;
}

static enum rc run_upper(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  return change_case(w, self, CASE_UPPER, out);
}

static enum rc run_lower(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  return change_case(w, self, CASE_LOWER, out);
}

static enum rc run_capitalize(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  return change_case(w, self, CASE_CAPITALIZE, out);
}

static bool begins_word(uint32_t before) {
  return code_is_space(before) || (before < 0x80 && strchr("-({[<", (int)before));
}

/* Words begin behind white space and any of - ( { [ <. */
static enum rc run_title(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  const struct text *text;
  struct text_builder b = builder_begin(w);
  uint32_t before = ' ';
  enum rc rc = value_as_text(w, self, &text);
  for (size_t at = 0, n; rc == RC_OK && at < text->len; at += n) {
    struct value one;
    n = text_step(text, at);
    rc = text_cut(w, text, at, at + n, &one);
    if (rc == RC_OK) rc = text_case(w, one.text, begins_word(before) ? CASE_UPPER : CASE_LOWER, &one);
    if (rc == RC_OK) rc = builder_text(&b, one.text);
    before = text_code_at(text, at);
  }
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

static enum rc run_trim(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  const struct text *text, *of;
  enum rc rc = value_as_text(w, self, &text);
  if (rc == RC_OK) rc = argument_text(w, a, 0, &of);
  return rc == RC_OK ? text_strip(w, text, of, STRIP_BOTH, out) : rc;
}

static enum rc run_replace(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  const struct text *text, *old, *with;
  int64_t most;
  enum rc rc = value_as_text(w, self, &text);
  if (rc == RC_OK) rc = value_as_text(w, a->values[0], &old);
  if (rc == RC_OK) rc = value_as_text(w, a->values[1], &with);
  if (rc == RC_OK) rc = argument_int(w, a, 2, -1, &most);
  return rc == RC_OK ? text_replace(w, text, old, with, most, out) : rc;
}

static enum rc run_center(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  const struct text *text;
  int64_t width;
  enum rc rc = value_as_text(w, self, &text);
  if (rc == RC_OK) rc = argument_int(w, a, 0, 80, &width);
  if (rc != RC_OK) return rc;
  struct text_builder b = builder_begin(w);
  const int64_t fill = width - (int64_t)text_characters(text), left = fill > 0 ? fill / 2 + (fill & width & 1) : 0;
  for (int64_t i = 0; i < left && rc == RC_OK; i++) rc = builder_word(&b, " ");
  if (rc == RC_OK) rc = builder_text(&b, text);
  for (int64_t i = left; i < fill && rc == RC_OK; i++) rc = builder_word(&b, " ");
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

static enum rc put_indent(struct text_builder *b, const struct text *word, int64_t width) {
  enum rc rc = word ? builder_text(b, word) : RC_OK;
  for (int64_t i = 0; !word && i < width && rc == RC_OK; i++) rc = builder_word(b, " ");
  return rc;
}

/* indent(width=4, first=false, blank=false): width may be the text to indent by. */
static enum rc run_indent(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  const bool by_word = a->given[0] && a->values[0].kind == VALUE_TEXT;
  const struct text *word = by_word ? a->values[0].text : NULL;
  const bool first = argument_true(a, 1, false), blank = argument_true(a, 2, false);
  int64_t width = 0;
  struct list *lines;
  struct value ended;
  enum rc rc = by_word ? RC_OK : argument_int(w, a, 0, 4, &width);
  if (rc == RC_OK) rc = text_of(w, "\n", &ended);
  if (rc == RC_OK) rc = operate(w, OPERATION_ADD, self, ended, &ended);
  if (rc == RC_OK) rc = text_lines(w, ended.text, false, &lines);
  if (rc != RC_OK) return rc;
  struct text_builder b = builder_begin(w);
  for (size_t i = 0; i < lines->count && rc == RC_OK; i++) {
    if (i) rc = builder_word(&b, "\n");
    const bool indented = i == 0 ? first : blank || lines->items[i].text->len;
    if (rc == RC_OK && indented) rc = put_indent(&b, word, width);
    if (rc == RC_OK) rc = builder_text(&b, lines->items[i].text);
  }
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

/* truncate(length=255, killwords=false, end="...", leeway=5) */
static enum rc run_truncate(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  static const struct text dots = {.bytes = "...", .len = 3}, space = {.bytes = " ", .len = 1};
  const struct text *text, *end;
  int64_t length, leeway;
  enum rc rc = value_as_text(w, self, &text);
  if (rc == RC_OK) rc = argument_int(w, a, 0, 255, &length);
  if (rc == RC_OK) rc = argument_text(w, a, 2, &end);
  if (rc == RC_OK) rc = argument_int(w, a, 3, 5, &leeway);
  if (rc != RC_OK) return rc;
  if (!end) end = &dots;
  const int64_t tail = (int64_t)text_characters(end);
  if (length < tail || leeway < 0)
    return work_fail(w, RC_INVALID, "expected a length of at least %lld for truncate", (long long)tail);
  *out = value_text(text);
  if ((int64_t)text_characters(text) - leeway <= length) return RC_OK;
  rc = text_cut(w, text, 0, text_offset(text, (size_t)(length - tail)), out);
  if (rc == RC_OK && !argument_true(a, 1, false)) {
    const size_t gap = text_find_last(out->text, &space, out->text->len);
    if (gap != SIZE_MAX) rc = text_cut(w, out->text, 0, gap, out);
  }
  return rc == RC_OK ? operate(w, OPERATION_ADD, *out, value_text(end), out) : rc;
}

static const struct builtin rows[] = {
    {.name = "upper", .run = run_upper},
    {.name = "lower", .run = run_lower},
    {.name = "capitalize", .run = run_capitalize},
    {.name = "title", .run = run_title},
    {.name = "trim", .run = run_trim, .parameters = {"chars"}},
    {.name = "replace", .run = run_replace, .parameters = {"old", "new", "count"}, .required = 2},
    {.name = "center", .run = run_center, .parameters = {"width"}},
    {.name = "indent", .run = run_indent, .parameters = {"width", "first", "blank"}},
    {.name = "truncate", .run = run_truncate, .parameters = {"length", "killwords", "end", "leeway"}},
    {.name = "striptags"},
    {.name = "urlencode"},
    {.name = "urlize"},
    {.name = "wordcount"},
    {.name = "wordwrap"},
};
const struct builtin_table text_filters = {rows, sizeof rows / sizeof rows[0]};
