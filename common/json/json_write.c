/* Writes JSON as a stream: values go straight into the buffer; the only state is whether a comma is due.
 *
 * Numbers do not depend on the locale.  A float32 is written with up to 9 significant digits by integer and extended
 * precision arithmetic of our own, about ten times as fast as printf: most bytes of a result are log-probabilities. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/json/json_jansson.h"

enum { NUMBER_MAX = 40 };

void json_writer_init(struct json_writer *w, struct buf *out) {
  w->out = out;
  w->comma = false;
}

/* Puts the due comma; afterwards one is due again. */
static void before_value(struct json_writer *w) {
  if (w->comma) buf_append(w->out, ",", 1);
  w->comma = true;
}

static void open_with(struct json_writer *w, const char *bracket) {
  before_value(w);
  buf_append(w->out, bracket, 1);
  w->comma = false;
}

static void close_with(struct json_writer *w, const char *bracket) {
  buf_append(w->out, bracket, 1);
  w->comma = true;
}

void json_object_begin(struct json_writer *w) { open_with(w, "{"); }
void json_object_end(struct json_writer *w) { close_with(w, "}"); }
void json_array_begin(struct json_writer *w) { open_with(w, "["); }
void json_array_end(struct json_writer *w) { close_with(w, "]"); }

static void append_escape(struct buf *out, unsigned char c) {
  switch (c) {
    case '"': buf_append(out, "\\\"", 2); return;
    case '\\': buf_append(out, "\\\\", 2); return;
    case '\n': buf_append(out, "\\n", 2); return;
    case '\r': buf_append(out, "\\r", 2); return;
    case '\t': buf_append(out, "\\t", 2); return;
    default: buf_printf(out, "\\u%04x", c); return;
  }
}

static void append_string(struct buf *out, const char *text, size_t len) {
  const unsigned char *s = (const unsigned char *)text;
  buf_append(out, "\"", 1);
  size_t run = 0; /* start of the bytes that can be copied as they are */
  for (size_t i = 0; i < len;) {
    if (s[i] >= 0x20 && s[i] != '"' && s[i] != '\\') {
      const int n = utf8_length(text + i, len - i);
      if (n > 0) {
        i += (size_t)n;
        continue;
      }
    }
    buf_append(out, text + run, i - run);
    if (s[i] >= 0x80)
      buf_append(out, "\xEF\xBF\xBD", 3);
    else
      append_escape(out, s[i]);
    run = ++i;
  }
  buf_append(out, text + run, len - run);
  buf_append(out, "\"", 1);
}

void json_key(struct json_writer *w, const char *key) {
  before_value(w);
  append_string(w->out, key, strlen(key));
  buf_append(w->out, ":", 1);
  w->comma = false;
}

void json_write_string_len(struct json_writer *w, const char *text, size_t len) {
  before_value(w);
  append_string(w->out, text, len);
}

void json_write_string(struct json_writer *w, const char *text) {
  if (text)
    json_write_string_len(w, text, strlen(text));
  else
    json_write_null(w);
}

void json_write_null(struct json_writer *w) {
  before_value(w);
  buf_append(w->out, "null", 4);
}

void json_write_bool(struct json_writer *w, bool value) {
  before_value(w);
  buf_puts(w->out, value ? "true" : "false");
}

/* Digits of value, ending before `end`; gives the first. */
static char *digits_before(char *end, uint64_t value) {
  do {
    *--end = (char)('0' + value % 10);
    value /= 10;
  } while (value);
  return end;
}

void json_write_u64(struct json_writer *w, uint64_t value) {
  char text[NUMBER_MAX], *end = text + sizeof text - 1, *first = digits_before(end, value);
  if (value > JSON_EXACT_MAX) { /* a string: every reader keeps its digits */
    *--first = '"';
    *end++ = '"';
  }
  before_value(w);
  buf_append(w->out, first, (size_t)(end - first));
}

void json_write_int(struct json_writer *w, int64_t value) {
  char text[NUMBER_MAX], *end = text + sizeof text;
  char *first = digits_before(end, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
  if (value < 0) *--first = '-';
  before_value(w);
  buf_append(w->out, first, (size_t)(end - first));
}

/* Replaces the locale's decimal point, whatever its bytes, by '.'; gives the new length. */
static size_t normalize_point(char *text) {
  size_t kept = 0;
  bool in_point = false;
  for (const char *c = text; *c; c++) {
    const bool plain = (*c >= '0' && *c <= '9') || *c == '-' || *c == '+' || *c == 'e';
    if (plain)
      text[kept++] = *c;
    else if (!in_point)
      text[kept++] = '.';
    in_point = !plain;
  }
  text[kept] = '\0';
  return kept;
}

/* -0 must not come out as "-0", which readers take for the integer 0. */
static size_t format_f64(char text[NUMBER_MAX], double value) {
  if (value == 0) return (size_t)snprintf(text, NUMBER_MAX, "%s", signbit(value) ? "-0.0" : "0");
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, NUMBER_MAX, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  return normalize_point(text);
}

void json_write_f64(struct json_writer *w, double value) {
  if (!isfinite(value)) {
    json_write_null(w);
    return;
  }
  char text[NUMBER_MAX];
  const size_t len = format_f64(text, value);
  before_value(w);
  buf_append(w->out, text, len);
}

/* 10^e for 0 <= e <= 54; exact up to 10^27, correctly rounded products above. */
static long double power_of_ten(int e) {
  static const long double table[28] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                        1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L,
                                        1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};
  return e <= 27 ? table[e] : table[27] * table[e - 27];
}

/* |value| = digits * 10^(exponent-8) with 10^8 <= digits < 10^9, rounded to nearest even.  Integer and x87 arithmetic
 * only: a float is taken apart by its bits, because threads of the engine flush denormals. */
static uint32_t nine_digits(int *exponent, uint32_t bits) {
  const uint32_t fraction = bits & 0x7FFFFF;
  const int biased = (int)(bits >> 23 & 0xFF);
  const long double mantissa = (long double)(biased ? fraction | 0x800000 : fraction);
  const int two = (biased ? biased : 1) - 150;
  const long double magnitude = ldexpl(mantissa, two); /* exact */
  /* floor(log10) to within one from the binary exponent: 1233/4096 ~ log10(2) */
  const int top_bit = two + 31 - __builtin_clz(biased ? fraction | 0x800000 : fraction);
  int ten = (int)((top_bit * 1233) >> 12);
  for (;;) {
    const int shift = 8 - ten;
    const long double scaled = shift >= 0 ? magnitude * power_of_ten(shift) : magnitude / power_of_ten(-shift);
    const long long digits = llrintl(scaled);
    if (digits >= 1000000000)
      ten++;
    else if (digits < 100000000)
      ten--;
    else
      return *exponent = ten, (uint32_t)digits;
  }
}

/* The form of printf's %.9g. */
static size_t format_f32(char text[NUMBER_MAX], float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  char *at = text;
  if (bits >> 31) *at++ = '-';
  if ((bits & 0x7FFFFFFF) == 0) { /* "-0" would be read as the integer 0 */
    memcpy(at, "0.0", 3);
    at += at == text ? 1 : 3;
    return (size_t)(at - text);
  }
  int exponent;
  uint32_t value9 = nine_digits(&exponent, bits & 0x7FFFFFFF);
  char digits[9];
  for (int i = 8; i >= 0; i--, value9 /= 10) digits[i] = (char)('0' + value9 % 10);
  int count = 9;
  while (count > 1 && digits[count - 1] == '0') count--;
  if (exponent < -4 || exponent >= 9) {
    *at++ = digits[0];
    if (count > 1) *at++ = '.';
    for (int i = 1; i < count; i++) *at++ = digits[i];
    *at++ = 'e';
    *at++ = exponent < 0 ? '-' : '+';
    const int e = abs(exponent); /* at most 45 */
    *at++ = (char)('0' + e / 10);
    *at++ = (char)('0' + e % 10);
  } else if (exponent < 0) {
    *at++ = '0';
    *at++ = '.';
    for (int i = -1; i > exponent; i--) *at++ = '0';
    for (int i = 0; i < count; i++) *at++ = digits[i];
  } else {
    for (int i = 0; i < count || i <= exponent; i++) {
      if (i == exponent + 1) *at++ = '.';
      *at++ = i < count ? digits[i] : '0';
    }
  }
  return (size_t)(at - text);
}

void json_write_f32(struct json_writer *w, float value) {
  if (!isfinite(value)) {
    json_write_null(w);
    return;
  }
  char text[NUMBER_MAX];
  const size_t len = format_f32(text, value);
  before_value(w);
  buf_append(w->out, text, len);
}

/* A parsed real stays one: an integral value keeps its ".0". */
static void copy_real(struct json_writer *w, double value) {
  const size_t begin = w->out->len;
  json_write_f64(w, value);
  if (!w->out->failed && !memchr(w->out->data + begin, '.', w->out->len - begin) &&
      !memchr(w->out->data + begin, 'e', w->out->len - begin))
    buf_append(w->out, ".0", 2);
}

void json_write_value(struct json_writer *w, const struct json *value) {
  switch (json_type_of(value)) {
    case JSON_NULL: json_write_null(w); return;
    case JSON_BOOL: json_write_bool(w, json_bool(value)); return;
    case JSON_INT: json_write_int(w, json_int(value)); return;
    case JSON_REAL: copy_real(w, json_number(value)); return;
    case JSON_STRING: {
      size_t len;
      const char *text = json_string(value, &len);
      json_write_string_len(w, text, len);
      return;
    }
    case JSON_ARRAY:
      json_array_begin(w);
      for (size_t i = 0, n = json_length(value); i < n; i++) json_write_value(w, json_at(value, i));
      json_array_end(w);
      return;
    case JSON_OBJECT: {
      void *cursor = NULL;
      const char *key;
      const struct json *member;
      json_object_begin(w);
      while (json_next(value, &cursor, &key, &member)) {
        json_key(w, key);
        json_write_value(w, member);
      }
      json_object_end(w);
      return;
    }
  }
}

enum rc json_write_parsed(struct json_writer *w, const char *text, size_t len, size_t bytes_max, struct err *err) {
  struct json *value = NULL;
  const enum rc rc = json_parse(&value, text, len, bytes_max, err);
  if (value)
    json_write_value(w, value);
  else
    json_write_null(w);
  json_free(value);
  return rc;
}

void json_kv_string(struct json_writer *w, const char *key, const char *text) {
  json_key(w, key);
  json_write_string(w, text);
}

void json_kv_int(struct json_writer *w, const char *key, int64_t value) {
  json_key(w, key);
  json_write_int(w, value);
}

void json_kv_u64(struct json_writer *w, const char *key, uint64_t value) {
  json_key(w, key);
  json_write_u64(w, value);
}

void json_kv_f64(struct json_writer *w, const char *key, double value) {
  json_key(w, key);
  json_write_f64(w, value);
}

void json_kv_f32(struct json_writer *w, const char *key, float value) {
  json_key(w, key);
  json_write_f32(w, value);
}

void json_kv_bool(struct json_writer *w, const char *key, bool value) {
  json_key(w, key);
  json_write_bool(w, value);
}

void json_kv_i32s(struct json_writer *w, const char *key, const int32_t *items, size_t count) {
  json_key(w, key);
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) json_write_int(w, items[i]);
  json_array_end(w);
}

void json_kv_f32s(struct json_writer *w, const char *key, const float *items, size_t count) {
  json_key(w, key);
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) json_write_f32(w, items[i]);
  json_array_end(w);
}
