/* Filters of single values: defaults, numbers, escaping, formatting, JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/template/builtins/access.h"
#include "common/template/builtins/builtin.h"
#include "common/template/values/format.h"
#include "common/template/values/operators.h"
#include "common/template/values/print.h"

enum { JSON_INDENT_MAX = 64, NUMBER_BYTES_MAX = 400 };

static enum rc run_default(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  *out = self;
  if (self.kind != VALUE_UNDEFINED && !(argument_true(a, 1, false) && !value_true(self))) return RC_OK;
  if (!a->given[0]) return text_of(w, "", out);
  *out = a->values[0];
  return RC_OK;
}

/* As Python's float() and int() read a text: white space around, underscores between digits. */
static bool read_number(const struct text *text, double *out) {
  char digits[NUMBER_BYTES_MAX];
  size_t from = space_at_start(text->bytes, text->len), to = text->len - space_before_end(text->bytes, text->len),
         n = 0;
  for (size_t i = from; i < to && n + 1 < sizeof digits; i++) {
    const char c = text->bytes[i];
    if (c == 'x' || c == 'X' || c == 'p' || c == 'P') return false; /* strtod knows hexadecimal floats */
    if (c != '_') digits[n++] = c;
  }
  char *end;
  digits[n] = '\0';
  *out = strtod(digits, &end);
  return n > 0 && end == digits + n;
}

static bool read_integer(const struct text *text, int base, int64_t *out) {
  char digits[NUMBER_BYTES_MAX], *end;
  size_t from = space_at_start(text->bytes, text->len), to = text->len - space_before_end(text->bytes, text->len),
         n = 0;
  for (size_t i = from; i < to && n + 1 < sizeof digits; i++)
    if (text->bytes[i] != '_') digits[n++] = text->bytes[i];
  digits[n] = '\0';
  if (n == 0 || (digits[0] != '-' && digits[0] != '+' && (digits[0] < '0' || digits[0] > 'z'))) return false;
  const long long read = strtoll(digits, &end, base);
  *out = read;
  return end == digits + n && read != INT64_MAX && read != INT64_MIN;
}

/* int(default=0, base=10): "42.23" gives 42. */
static enum rc run_int(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  int64_t whole, base;
  double real;
  enum rc rc = argument_int(w, a, 1, 10, &base);
  if (rc != RC_OK) return rc;
  if (base != 0 && (base < 2 || base > 36)) return work_fail(w, RC_INVALID, "expected a base from 2 to 36");
  *out = a->given[0] ? a->values[0] : value_int(0);
  if (self.kind == VALUE_TEXT ? read_integer(self.text, (int)base, &whole) : value_integer(self, &whole)) {
    *out = value_int(whole);
    return RC_OK;
  }
  const bool number = self.kind == VALUE_TEXT ? read_number(self.text, &real) : value_number(self, &real);
  if (number && real > -9.2e18 && real < 9.2e18) *out = value_int((int64_t)real);
  return RC_OK;
}

static enum rc run_float(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)w;
  double real;
  const bool number = self.kind == VALUE_TEXT ? read_number(self.text, &real) : value_number(self, &real);
  *out = number ? value_real(real) : a->given[0] ? a->values[0] : value_real(0);
  return RC_OK;
}

static enum rc run_abs(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  double real;
  if (!value_number(self, &real))
    return work_fail(w, RC_INVALID, "expected a number for abs, got %s", value_type(self));
  if (real < 0) return negate(w, self, out);
  return operate(w, OPERATION_ADD, self, value_int(0), out);
}

/* round(precision=0, method="common"): always a float, but common of an integer. */
static enum rc run_round(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  double real;
  int64_t precision;
  const struct text *method;
  enum rc rc = argument_int(w, a, 0, 0, &precision);
  if (rc == RC_OK) rc = argument_text(w, a, 1, &method);
  if (rc != RC_OK) return rc;
  if (!value_number(self, &real))
    return work_fail(w, RC_INVALID, "expected a number to round, got %s", value_type(self));
  if (precision < -300 || precision > 300) return work_fail(w, RC_INVALID, "expected a precision within 300 digits");
  const bool common = !method || text_is(method, "common");
  *out = self;
  if (common && self.kind != VALUE_REAL && precision >= 0) return operate(w, OPERATION_ADD, self, value_int(0), out);
  if (common) {
    char digits[NUMBER_BYTES_MAX];
    if (precision < 0) {
      const double unit = pow(10, (double)-precision);
      *out = value_real(nearbyint(real / unit) * unit);
      return RC_OK;
    }
    snprintf(digits, sizeof digits, "%.*f", (int)precision, real); /* exact, halves to even: as Python rounds */
    *out = value_real(strtod(digits, NULL));
    return RC_OK;
  }
  if (!text_is(method, "ceil") && !text_is(method, "floor"))
    return work_fail(w, RC_INVALID, "expected round's method to be common, ceil or floor");
  const double unit = pow(10, (double)precision);
  *out = value_real((text_is(method, "ceil") ? ceil(real * unit) : floor(real * unit)) / unit);
  return RC_OK;
}

static enum rc run_string(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  const struct text *text;
  const enum rc rc = value_as_text(w, self, &text);
  if (rc == RC_OK) *out = value_text(text);
  return rc;
}

static enum rc run_safe(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  enum rc rc = run_string(w, self, a, out);
  if (rc == RC_OK) rc = text_cut(w, out->text, 0, out->text->len, out);
  if (rc == RC_OK) ((struct text *)out->text)->safe = true;
  return rc;
}

static enum rc run_escape(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  return escape_html(w, self, out);
}

static enum rc run_attr(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  if (a->values[0].kind != VALUE_TEXT) return work_fail(w, RC_INVALID, "expected an attribute's name");
  if (self.kind == VALUE_DICT && !builtin_find(dict_methods, a->values[0].text->bytes, a->values[0].text->len)) {
    *out = value_missing("an attribute"); /* keys are no attributes here */
    return RC_OK;
  }
  return get_attribute(w, self, a->values[0].text, out);
}

static enum rc run_format(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  const struct text *text;
  const struct call_values *all = a->all;
  enum rc rc = value_as_text(w, self, &text);
  if (rc != RC_OK) return rc;
  if (all->count && all->named_count)
    return work_fail(w, RC_INVALID, "expected format's arguments by place or by name, got both");
  struct dict *named = dict_new(w, all->named_count);
  struct list *items = list_new(w, FORM_TUPLE, all->count);
  if (!named || !items) return w->rc;
  for (size_t i = 0; i < all->count && rc == RC_OK; i++) rc = list_append(w, items, all->items[i]);
  for (size_t i = 0; i < all->named_count && rc == RC_OK; i++) {
    struct value key;
    rc = text_of(w, all->named[i].name, &key);
    if (rc == RC_OK) rc = dict_set(w, named, key, all->named[i].value);
  }
  return rc == RC_OK ? format_text(w, text, all->named_count ? value_dict(named) : value_list(items), out) : rc;
}

/* The indent of tojson: a text, or a number of spaces. */
static enum rc json_indent(struct workspace *w, struct value given, const struct text **out) {
  static const char spaces[JSON_INDENT_MAX + 1] = "                                                                ";
  int64_t width;
  struct value made;
  *out = NULL;
  if (given.kind == VALUE_NONE) return RC_OK;
  if (given.kind == VALUE_TEXT) {
    *out = given.text;
    return RC_OK;
  }
  if (!value_integer(given, &width) || width > JSON_INDENT_MAX)
    return work_fail(w, RC_INVALID, "expected an indent of at most %d spaces", JSON_INDENT_MAX);
  const enum rc rc = text_share(w, spaces, width > 0 ? (size_t)width : 0, 0, &made);
  if (rc == RC_OK) *out = made.text;
  return rc;
}

/* tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False), as transformers replaces Jinja's. */
static enum rc run_tojson(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  struct json_style style = {.ascii = argument_true(a, 0, false), .sort_keys = argument_true(a, 3, false)};
  enum rc rc = a->given[1] ? json_indent(w, a->values[1], &style.indent) : RC_OK;
  if (rc == RC_OK && a->given[2] && a->values[2].kind != VALUE_NONE) {
    const struct list *pair = a->values[2].kind == VALUE_LIST ? a->values[2].list : NULL;
    if (!pair || pair->count != 2 || pair->items[0].kind != VALUE_TEXT || pair->items[1].kind != VALUE_TEXT)
      return work_fail(w, RC_INVALID, "expected two texts as tojson's separators");
    style.comma = pair->items[0].text;
    style.colon = pair->items[1].text;
  }
  if (rc != RC_OK) return rc;
  struct text_builder b = builder_begin(w);
  rc = print_json(&b, self, &style);
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

static const struct builtin rows[] = {
    {.name = "default", .run = run_default, .parameters = {"default_value", "boolean"}},
    {.name = "d", .run = run_default, .parameters = {"default_value", "boolean"}},
    {.name = "tojson", .run = run_tojson, .parameters = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = "string", .run = run_string},
    {.name = "safe", .run = run_safe},
    {.name = "int", .run = run_int, .parameters = {"default", "base"}},
    {.name = "float", .run = run_float, .parameters = {"default"}},
    {.name = "abs", .run = run_abs},
    {.name = "round", .run = run_round, .parameters = {"precision", "method"}},
    {.name = "escape", .run = run_escape},
    {.name = "e", .run = run_escape},
    {.name = "attr", .run = run_attr, .parameters = {"name"}, .required = 1},
    {.name = "format", .run = run_format, .takes_all = true},
    {.name = "filesizeformat"},
    {.name = "forceescape"},
    {.name = "pprint"},
    {.name = "xmlattr"},
};
const struct builtin_table value_filters = {rows, sizeof rows / sizeof rows[0]};
