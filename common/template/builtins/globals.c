/* Global functions: Jinja's, and those that transformers adds. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/template/builtins/builtin.h"
#include "common/template/values/print.h"

enum { RANGE_MAX = 100000, DATE_BYTES_MAX = 1024, DATE_FORMAT_MAX = DATE_BYTES_MAX / 4 };

static enum rc range_bounds(struct workspace *w, const struct call_values *all, int64_t *from, int64_t *to,
                            int64_t *step) {
  int64_t given[3] = {0};
  for (size_t i = 0; i < all->count && i < 3; i++)
    if (!value_integer(all->items[i], &given[i]))
      return work_fail(w, RC_INVALID, "expected integers for range, got %s", value_type(all->items[i]));
  if (all->count < 1 || all->count > 3 || all->named_count)
    return work_fail(w, RC_INVALID, "expected one to three integers for range");
  *from = all->count > 1 ? given[0] : 0;
  *to = all->count > 1 ? given[1] : given[0];
  *step = all->count > 2 ? given[2] : 1;
  return *step ? RC_OK : work_fail(w, RC_INVALID, "expected a step of range that is not 0");
}

static enum rc run_range(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)self;
  int64_t from = 0, to = 0, step = 1;
  enum rc rc = range_bounds(w, a->all, &from, &to, &step);
  struct list *list = rc == RC_OK ? list_new(w, FORM_RANGE, 0) : NULL;
  if (!list) return w->rc;
  for (int64_t i = from; rc == RC_OK && (step > 0 ? i < to : i > to);) {
    if (list->count == RANGE_MAX) return work_fail(w, RC_INVALID, "expected a range of at most %d numbers", RANGE_MAX);
    rc = list_append(w, list, value_int(i));
    if (rc == RC_OK) rc = work_charge(w, 0);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  *out = value_list(list);
  return rc;
}

/* dict(pairs or a dict, name=value, ...), also a namespace's attributes. */
static enum rc make_dict(struct workspace *w, const struct call_values *all, struct dict **out) {
  struct dict *dict = *out = dict_new(w, 0);
  enum rc rc = dict ? RC_OK : w->rc;
  if (rc == RC_OK && all->count > 1) return work_fail(w, RC_INVALID, "expected one dict, got %zu values", all->count);
  if (rc == RC_OK && all->count == 1) {
    struct list *pairs = NULL;
    rc = value_check_defined(w, all->items[0]);
    if (rc == RC_OK && all->items[0].kind == VALUE_DICT)
      rc = dict_part(w, all->items[0].dict, DICT_ITEMS, FORM_LIST, &pairs);
    else if (rc == RC_OK)
      rc = value_items(w, all->items[0], &pairs);
    for (size_t i = 0; rc == RC_OK && i < pairs->count; i++) {
      struct list *pair;
      rc = value_items(w, pairs->items[i], &pair);
      if (rc == RC_OK && pair->count != 2) rc = work_fail(w, RC_INVALID, "expected pairs to make a dict of");
      if (rc == RC_OK) rc = dict_set(w, dict, pair->items[0], pair->items[1]);
    }
  }
  for (size_t i = 0; rc == RC_OK && i < all->named_count; i++) {
    struct value key;
    rc = text_of(w, all->named[i].name, &key);
    if (rc == RC_OK) rc = dict_set(w, dict, key, all->named[i].value);
  }
  return rc;
}

static enum rc run_dict(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)self;
  struct dict *dict = NULL;
  const enum rc rc = make_dict(w, a->all, &dict);
  *out = value_dict(dict);
  return rc;
}

static enum rc run_namespace(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)self;
  struct dict *dict = NULL;
  const enum rc rc = make_dict(w, a->all, &dict);
  *out = (struct value){.kind = VALUE_NAMESPACE, .dict = dict};
  return rc;
}

static enum rc run_raise_exception(struct workspace *w, struct value self, const struct arguments *a,
                                   struct value *out) {
  (void)self;
  (void)out;
  const struct text *message;
  const enum rc rc = value_as_text(w, a->values[0], &message);
  if (rc != RC_OK) return rc;
  return work_fail(w, RC_INVALID, "%.*s", message->len > 400 ? 400 : (int)message->len, message->bytes);
}

/* Copies a format for C's strftime, with the microseconds that only Python's has.  out has three bytes for one. */
static void with_microseconds(char *out, const struct text *format, int64_t now_ms) {
  size_t n = 0;
  for (size_t i = 0; i < format->len; i++) {
    out[n++] = format->bytes[i];
    if (format->bytes[i] != '%' || i + 1 == format->len) continue;
    if (format->bytes[++i] == 'f')
      n += (size_t)sprintf(out + n - 1, "%03d000", (int)(now_ms % 1000)) - 1;
    else
      out[n++] = format->bytes[i];
  }
  out[n] = '\0';
}

/* The wall clock in local time, by C's strftime, as Python's.  Python's time has no zone, so %z and %Z are empty. */
static enum rc run_strftime_now(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)self;
  const struct text *format;
  char text[DATE_BYTES_MAX], terminated[DATE_BYTES_MAX];
  const time_t now = (time_t)(w->now_ms / 1000);
  struct tm date;
  const enum rc rc = argument_text(w, a, 0, &format);
  if (rc != RC_OK) return rc;
  if (!format || format->len >= DATE_FORMAT_MAX || !localtime_r(&now, &date))
    return work_fail(w, RC_INVALID, "expected a date's format below %d bytes", DATE_FORMAT_MAX);
  with_microseconds(terminated, format, w->now_ms);
  date.tm_isdst = -1;
  date.tm_zone = NULL;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const size_t len = strftime(text, sizeof text, terminated, &date);
#pragma GCC diagnostic pop
  struct text_builder b = builder_begin(w);
  const enum rc built = builder_bytes(&b, text, len, 0);
  if (built == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return built;
}

static const struct builtin rows[] = {
    {.name = "range", .run = run_range, .takes_all = true},
    {.name = "dict", .run = run_dict, .takes_all = true},
    {.name = "namespace", .run = run_namespace, .takes_all = true},
    {.name = "raise_exception", .run = run_raise_exception, .parameters = {"message"}, .required = 1},
    {.name = "strftime_now", .run = run_strftime_now, .parameters = {"format"}, .required = 1},
    {.name = "cycler"},
    {.name = "joiner"},
    {.name = "lipsum"},
};

const struct builtin_table globals = {rows, sizeof rows / sizeof rows[0]};
