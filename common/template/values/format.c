/* Python's % on texts: %s %r %d %i %f %e %g %x %o %c %%, with flags, width and precision, by place or by name. */
#include "common/template/values/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/template/values/print.h"

enum { WIDTH_MAX = 1000, DIGITS_MAX = 400 };

struct formatter {
  struct workspace *w;
  struct text_builder b;
  const struct text *format;
  size_t at;
  struct value arguments;
  size_t used; /* of a tuple's items */
};

struct directive {
  bool left, zero, plus, space, other;
  int width, precision; /* precision -1: none */
  struct value value;
};

static enum rc next_argument(struct formatter *f, struct value *out) {
  const struct list *tuple =
      f->arguments.kind == VALUE_LIST && f->arguments.list->form == FORM_TUPLE ? f->arguments.list : NULL;
  if (f->used >= (tuple ? tuple->count : 1))
    return work_fail(f->w, RC_INVALID, "expected an argument for each %% of the text, there are too few");
  *out = tuple ? tuple->items[f->used] : f->arguments;
  f->used++;
  return RC_OK;
}

static enum rc named_argument(struct formatter *f, struct value *out) {
  const struct text close = {.bytes = ")", .len = 1};
  const size_t end = text_find(f->format, &close, f->at);
  if (end == SIZE_MAX || f->arguments.kind != VALUE_DICT)
    return work_fail(f->w, RC_INVALID, "expected %%(name)s with named arguments");
  struct value key, *found;
  enum rc rc = text_share(f->w, f->format->bytes + f->at, end - f->at, 0, &key);
  if (rc == RC_OK) rc = dict_find(f->w, f->arguments.dict, key, &found);
  if (rc == RC_OK && !found) rc = work_fail(f->w, RC_INVALID, "an argument that %% names is missing");
  if (rc == RC_OK) *out = *found;
  f->at = end + 1;
  return rc;
}

static char peek(const struct formatter *f) { return f->at < f->format->len ? f->format->bytes[f->at] : '\0'; }

static int read_count(struct formatter *f) {
  int count = 0;
  while (peek(f) >= '0' && peek(f) <= '9') {
    if (count <= WIDTH_MAX) count = count * 10 + (peek(f) - '0');
    f->at++;
  }
  return count;
}

static enum rc pad_and_put(struct formatter *f, const struct directive *d, const struct text *text) {
  const size_t characters = text_characters(text);
  const size_t fill = (size_t)d->width > characters ? (size_t)d->width - characters : 0;
  enum rc rc = RC_OK;
  for (size_t i = 0; i < fill && !d->left && rc == RC_OK; i++) rc = builder_word(&f->b, " ");
  if (rc == RC_OK) rc = builder_text(&f->b, text);
  for (size_t i = 0; i < fill && d->left && rc == RC_OK; i++) rc = builder_word(&f->b, " ");
  return rc;
}

static enum rc put_text(struct formatter *f, const struct directive *d, bool as_repr) {
  struct value made = d->value;
  const struct text *text;
  enum rc rc = RC_OK;
  if (as_repr) {
    struct text_builder b = builder_begin(f->w);
    rc = print_repr(&b, d->value);
    if (rc == RC_OK)
      rc = builder_finish(&b, &made);
    else
      builder_free(&b);
  }
  if (rc == RC_OK) rc = value_as_text(f->w, made, &text);
  if (rc == RC_OK && d->precision >= 0) {
    rc = text_cut(f->w, text, 0, text_offset(text, (size_t)d->precision), &made);
    text = made.text;
  }
  return rc == RC_OK ? pad_and_put(f, d, text) : rc;
}

static enum rc put_number(struct formatter *f, const struct directive *d, char conversion) {
  char spec[32], digits[DIGITS_MAX + WIDTH_MAX];
  double real;
  int64_t integer;
  if (!value_number(d->value, &real))
    return work_fail(f->w, RC_INVALID, "expected a number for %%%c, got %s", conversion, value_type(d->value));
  const bool whole = strchr("dixXo", conversion) != NULL;
  if (!value_integer(d->value, &integer)) {
    if (whole && (conversion != 'd' && conversion != 'i'))
      return work_fail(f->w, RC_INVALID, "expected an integer for %%%c, got a float", conversion);
    if (whole && !(real > -9.2e18 && real < 9.2e18))
      return work_fail(f->w, RC_INVALID, "expected a number within 64 bits for %%%c", conversion);
    integer = (int64_t)(whole ? real : 0);
  }
  if (integer < 0 && strchr("xXo", conversion))
    return work_fail(f->w, RC_UNSUPPORTED, "%%%c of negative numbers is not supported", conversion);
  snprintf(spec, sizeof spec, "%%%s%s%s%s%s*.*%s%c", d->left ? "-" : "", d->zero ? "0" : "", d->plus ? "+" : "",
           d->space ? " " : "", d->other ? "#" : "", whole ? "l" : "", conversion);
  int n;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  if (whole)
    n = snprintf(digits, sizeof digits, spec, d->width, d->precision, (long)integer);
  else
    n = snprintf(digits, sizeof digits, spec, d->width, d->precision, real);
#pragma GCC diagnostic pop
  if (n < 0 || (size_t)n >= sizeof digits) return work_fail(f->w, RC_TOO_LARGE, "%%%c is too long", conversion);
  return builder_bytes(&f->b, digits, (size_t)n, 0);
}

static enum rc put_directive(struct formatter *f) {
  struct directive d = {.precision = -1};
  bool has_value = false;
  enum rc rc = RC_OK;
  if (peek(f) == '(') {
    f->at++;
    rc = named_argument(f, &d.value);
    has_value = true;
  }
  for (; rc == RC_OK && peek(f) && strchr("-0+ #", peek(f)); f->at++) {
    d.left = d.left || peek(f) == '-';
    d.zero = d.zero || peek(f) == '0';
    d.plus = d.plus || peek(f) == '+';
    d.space = d.space || peek(f) == ' ';
    d.other = d.other || peek(f) == '#';
  }
  d.width = read_count(f);
  if (peek(f) == '.') {
    f->at++;
    d.precision = read_count(f);
  }
  const char conversion = peek(f);
  f->at++;
  if (rc == RC_OK && (d.width > WIDTH_MAX || d.precision > WIDTH_MAX / 4))
    rc = work_fail(f->w, RC_TOO_LARGE, "expected a width of at most %d", WIDTH_MAX / 4);
  if (rc != RC_OK) return rc;
  if (conversion == '%') return builder_word(&f->b, "%");
  if (!conversion || !strchr("srdiufFeEgGxXo", conversion))
    return work_fail(f->w, RC_UNSUPPORTED, "expected one of s r d i f e g x o %% behind a %%, got '%c'",
                     conversion ? conversion : ' ');
  if (!has_value) rc = next_argument(f, &d.value);
  if (rc != RC_OK) return rc;
  if (conversion == 's' || conversion == 'r') return put_text(f, &d, conversion == 'r');
  return put_number(f, &d, conversion == 'u' ? 'd' : conversion);
}

enum rc format_text(struct workspace *w, const struct text *format, struct value arguments, struct value *out) {
  struct formatter f = {.w = w, .b = builder_begin(w), .format = format, .arguments = arguments};
  const struct text percent = {.bytes = "%", .len = 1};
  enum rc rc = RC_OK;
  while (rc == RC_OK) {
    const size_t found = text_find(format, &percent, f.at), end = found == SIZE_MAX ? format->len : found;
    struct value before;
    rc = text_cut(w, format, f.at, end, &before);
    if (rc == RC_OK) rc = builder_text(&f.b, before.text);
    if (found == SIZE_MAX) break;
    f.at = found + 1;
    if (rc == RC_OK) rc = put_directive(&f);
  }
  if (rc == RC_OK && arguments.kind == VALUE_LIST && arguments.list->form == FORM_TUPLE &&
      f.used < arguments.list->count)
    rc = work_fail(w, RC_INVALID, "expected %zu arguments of the text, got %zu", f.used, arguments.list->count);
  if (rc == RC_OK) return builder_finish(&f.b, out);
  builder_free(&f.b);
  return rc;
}
