/* Methods of texts, dicts, lists and loops.  Those that change their object are refused, as in transformers'
 * sandbox. */
#include <string.h>

#include <utf8proc.h>

#include "common/template/builtins/builtin.h"
#include "common/template/values/letter_case.h"
#include "common/template/values/print.h"
#include "common/template/values/slice.h"

#define METHOD(name) \
  static enum rc run_##name(struct workspace *w, struct value self, const struct arguments *a, struct value *out)

/* --- texts --- */

static enum rc strip(struct workspace *w, struct value self, const struct arguments *a, int sides, struct value *out) {
  const struct text *of;
  const enum rc rc = argument_text(w, a, 0, &of);
  return rc == RC_OK ? text_strip(w, self.text, of, sides, out) : rc;
}
METHOD(strip) { return strip(w, self, a, STRIP_BOTH, out); }
METHOD(lstrip) { return strip(w, self, a, STRIP_LEFT, out); }
METHOD(rstrip) { return strip(w, self, a, STRIP_RIGHT, out); }

static enum rc split(struct workspace *w, struct value self, const struct arguments *a, bool from_right,
                     struct value *out) {
  const struct text *sep;
  int64_t most;
  struct list *pieces = NULL;
  enum rc rc = argument_text(w, a, 0, &sep);
  if (rc == RC_OK) rc = argument_int(w, a, 1, -1, &most);
  if (rc == RC_OK) rc = text_split(w, self.text, sep, most, from_right, &pieces);
  *out = value_list(pieces);
  return rc;
}
METHOD(split) { return split(w, self, a, false, out); }
METHOD(rsplit) { return split(w, self, a, true, out); }

METHOD(splitlines) {
  struct list *lines = NULL;
  const enum rc rc = text_lines(w, self.text, argument_true(a, 0, false), &lines);
  *out = value_list(lines);
  return rc;
}

static enum rc needed_text(struct workspace *w, const struct arguments *a, int index, const struct text **out) {
  const enum rc rc = argument_text(w, a, index, out);
  if (rc != RC_OK || *out) return rc;
  return work_fail(w, RC_INVALID, "expected a text as argument %d", index + 1);
}

/* partition: what stands before sep, sep, what stands behind it. */
static enum rc partition(struct workspace *w, struct value self, const struct arguments *a, bool last,
                         struct value *out) {
  const struct text *sep, *text = self.text;
  enum rc rc = needed_text(w, a, 0, &sep);
  if (rc == RC_OK && sep->len == 0) rc = work_fail(w, RC_INVALID, "expected a separator, got an empty text");
  if (rc == RC_OK) rc = work_charge(w, text->len);
  if (rc != RC_OK) return rc;
  const size_t at = last ? text_find_last(text, sep, text->len) : text_find(text, sep, 0);
  const size_t none = last ? 0 : text->len;
  const size_t begin = at == SIZE_MAX ? none : at, end = at == SIZE_MAX ? none : at + sep->len;
  struct list *parts = list_new(w, FORM_TUPLE, 3);
  if (!parts) return w->rc;
  parts->count = 3;
  rc = text_cut(w, text, 0, begin, &parts->items[0]);
  if (rc == RC_OK) rc = text_cut(w, text, begin, end, &parts->items[1]);
  if (rc == RC_OK) rc = text_cut(w, text, end, text->len, &parts->items[2]);
  *out = value_list(parts);
  return rc;
}
METHOD(partition) { return partition(w, self, a, false, out); }
METHOD(rpartition) { return partition(w, self, a, true, out); }

/* The part of self that startswith, find and their like look at: characters [start, end). */
static enum rc part_of(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  const struct value from = a->given[1] ? a->values[1] : value_none(), to = a->given[2] ? a->values[2] : value_none();
  return get_slice(w, self, from, to, value_none(), out);
}

static enum rc has_end(struct workspace *w, struct value self, const struct arguments *a, bool begins,
                       struct value *out) {
  struct value part;
  const struct value tried = a->values[0];
  bool found = false;
  enum rc rc = part_of(w, self, a, &part);
  if (rc != RC_OK) return rc;
  const struct list one = {.items = (struct value[]){tried}, .count = 1};
  const struct list *all = tried.kind == VALUE_LIST && tried.list->form == FORM_TUPLE ? tried.list : &one;
  for (size_t i = 0; i < all->count && !found; i++) {
    if (all->items[i].kind != VALUE_TEXT)
      return work_fail(w, RC_INVALID, "expected a text, or a tuple of texts, got %s", value_type(tried));
    found = begins ? text_begins(part.text, all->items[i].text) : text_ends(part.text, all->items[i].text);
  }
  *out = value_bool(found);
  return RC_OK;
}
METHOD(startswith) { return has_end(w, self, a, true, out); }
METHOD(endswith) { return has_end(w, self, a, false, out); }

static enum rc find(struct workspace *w, struct value self, const struct arguments *a, bool last, bool must,
                    struct value *out) {
  const struct text *what;
  struct value part;
  enum rc rc = needed_text(w, a, 0, &what);
  if (rc == RC_OK) rc = part_of(w, self, a, &part);
  if (rc == RC_OK) rc = work_charge(w, 2 * self.text->len);
  if (rc != RC_OK) return rc;
  const size_t at = last ? text_find_last(part.text, what, part.text->len) : text_find(part.text, what, 0);
  if (at == SIZE_MAX && must) return work_fail(w, RC_INVALID, "expected to find a text that is not there");
  const struct text before = {.bytes = self.text->bytes, .len = (size_t)(part.text->bytes - self.text->bytes) + at};
  *out = value_int(at == SIZE_MAX ? -1 : (int64_t)text_characters(&before));
  return RC_OK;
}
METHOD(find) { return find(w, self, a, false, false, out); }
METHOD(rfind) { return find(w, self, a, true, false, out); }
METHOD(index) { return find(w, self, a, false, true, out); }
METHOD(rindex) { return find(w, self, a, true, true, out); }

METHOD(count) {
  const struct text *what;
  struct value part;
  enum rc rc = needed_text(w, a, 0, &what);
  if (rc == RC_OK) rc = part_of(w, self, a, &part);
  if (rc == RC_OK) rc = work_charge(w, self.text->len);
  if (rc != RC_OK) return rc;
  int64_t count = what->len ? 0 : (int64_t)text_characters(part.text) + 1;
  for (size_t at = 0; what->len && (at = text_find(part.text, what, at)) != SIZE_MAX; at += what->len) count++;
  *out = value_int(count);
  return RC_OK;
}

METHOD(replace) {
  const struct text *old, *with;
  int64_t most;
  enum rc rc = needed_text(w, a, 0, &old);
  if (rc == RC_OK) rc = needed_text(w, a, 1, &with);
  if (rc == RC_OK) rc = argument_int(w, a, 2, -1, &most);
  return rc == RC_OK ? text_replace(w, self.text, old, with, most, out) : rc;
}

METHOD(upper) {
  (void)a;
  return text_case(w, self.text, CASE_UPPER, out);
}
METHOD(lower) {
  (void)a;
  return text_case(w, self.text, CASE_LOWER, out);
}
METHOD(capitalize) {
  (void)a;
  return text_case(w, self.text, CASE_CAPITALIZE, out);
}
METHOD(title) {
  (void)a;
  return text_case(w, self.text, CASE_TITLE, out);
}

METHOD(join) {
  struct list *items;
  enum rc rc = value_items(w, a->values[0], &items);
  if (rc != RC_OK) return rc;
  struct text_builder b = builder_begin(w);
  for (size_t i = 0; i < items->count && rc == RC_OK; i++) {
    if (i) rc = builder_text(&b, self.text);
    if (rc == RC_OK && items->items[i].kind != VALUE_TEXT)
      rc = work_fail(w, RC_INVALID, "expected texts to join, got %s", value_type(items->items[i]));
    if (rc == RC_OK) rc = builder_text(&b, items->items[i].text);
  }
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

static enum rc without(struct workspace *w, struct value self, const struct arguments *a, bool suffix,
                       struct value *out) {
  const struct text *end;
  const enum rc rc = needed_text(w, a, 0, &end);
  if (rc != RC_OK) return rc;
  const bool there = suffix ? text_ends(self.text, end) : text_begins(self.text, end);
  const size_t cut = there ? end->len : 0;
  return text_cut(w, self.text, suffix ? 0 : cut, self.text->len - (suffix ? cut : 0), out);
}
METHOD(removeprefix) { return without(w, self, a, false, out); }
METHOD(removesuffix) { return without(w, self, a, true, out); }

/* ljust, rjust: filled with spaces, or another character, up to a width. */
static enum rc justify(struct workspace *w, struct value self, const struct arguments *a, bool left,
                       struct value *out) {
  static const struct text space = {.bytes = " ", .len = 1};
  const struct text *fill;
  int64_t width;
  enum rc rc = argument_int(w, a, 0, 0, &width);
  if (rc == RC_OK) rc = argument_text(w, a, 1, &fill);
  if (rc != RC_OK) return rc;
  struct text_builder b = builder_begin(w);
  const int64_t missing = width - (int64_t)text_characters(self.text);
  if (left) rc = builder_text(&b, self.text);
  for (int64_t i = 0; i < missing && rc == RC_OK; i++) rc = builder_text(&b, fill ? fill : &space);
  if (!left && rc == RC_OK) rc = builder_text(&b, self.text);
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}
METHOD(ljust) { return justify(w, self, a, true, out); }
METHOD(rjust) { return justify(w, self, a, false, out); }

/* Whether a text has characters, and all of them are of a kind. */
static enum rc all_are(struct value self, bool (*is)(uint32_t code), struct value *out) {
  bool all = self.text->len > 0;
  for (size_t at = 0; all && at < self.text->len; at += text_step(self.text, at)) all = is(text_code_at(self.text, at));
  *out = value_bool(all);
  return RC_OK;
}
static utf8proc_category_t category(uint32_t code) { return utf8proc_category((utf8proc_int32_t)code); }
static bool is_letter(uint32_t code) {
  return category(code) >= UTF8PROC_CATEGORY_LU && category(code) <= UTF8PROC_CATEGORY_LO;
}
static bool is_digit(uint32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
static bool is_numeric(uint32_t code) {
  return category(code) >= UTF8PROC_CATEGORY_ND && category(code) <= UTF8PROC_CATEGORY_NO;
}
static bool is_letter_or_number(uint32_t code) { return is_letter(code) || is_numeric(code); }
#define ALL_ARE(name, is)                              \
  METHOD(name) {                                       \
    (void)a;                                           \
    const enum rc rc = work_charge(w, self.text->len); \
    return rc == RC_OK ? all_are(self, is, out) : rc;  \
  }
ALL_ARE(isalpha, is_letter)
ALL_ARE(isdigit, is_digit)
ALL_ARE(isnumeric, is_numeric)
ALL_ARE(isalnum, is_letter_or_number)
ALL_ARE(isspace, code_is_space)

static enum rc case_is(struct workspace *w, struct value self, enum letter_case to, struct value *out) {
  struct value changed;
  bool cased = false;
  const enum rc rc = text_case(w, self.text, to, &changed);
  for (size_t at = 0; rc == RC_OK && at < self.text->len; at += text_step(self.text, at))
    cased = cased || code_is_cased(text_code_at(self.text, at));
  if (rc == RC_OK) *out = value_bool(cased && text_order(changed.text, self.text) == 0);
  return rc;
}
METHOD(isupper) {
  (void)a;
  return case_is(w, self, CASE_UPPER, out);
}
METHOD(islower) {
  (void)a;
  return case_is(w, self, CASE_LOWER, out);
}

static const struct builtin text_rows[] = {
    {.name = "strip", .run = run_strip, .parameters = {"chars"}},
    {.name = "lstrip", .run = run_lstrip, .parameters = {"chars"}},
    {.name = "rstrip", .run = run_rstrip, .parameters = {"chars"}},
    {.name = "split", .run = run_split, .parameters = {"sep", "maxsplit"}},
    {.name = "rsplit", .run = run_rsplit, .parameters = {"sep", "maxsplit"}},
    {.name = "splitlines", .run = run_splitlines, .parameters = {"keepends"}},
    {.name = "partition", .run = run_partition, .parameters = {"sep"}, .required = 1},
    {.name = "rpartition", .run = run_rpartition, .parameters = {"sep"}, .required = 1},
    {.name = "startswith", .run = run_startswith, .parameters = {"prefix", "start", "end"}, .required = 1},
    {.name = "endswith", .run = run_endswith, .parameters = {"suffix", "start", "end"}, .required = 1},
    {.name = "find", .run = run_find, .parameters = {"sub", "start", "end"}, .required = 1},
    {.name = "rfind", .run = run_rfind, .parameters = {"sub", "start", "end"}, .required = 1},
    {.name = "index", .run = run_index, .parameters = {"sub", "start", "end"}, .required = 1},
    {.name = "rindex", .run = run_rindex, .parameters = {"sub", "start", "end"}, .required = 1},
    {.name = "count", .run = run_count, .parameters = {"sub", "start", "end"}, .required = 1},
    {.name = "replace", .run = run_replace, .parameters = {"old", "new", "count"}, .required = 2},
    {.name = "upper", .run = run_upper},
    {.name = "lower", .run = run_lower},
    {.name = "capitalize", .run = run_capitalize},
    {.name = "title", .run = run_title},
    {.name = "join", .run = run_join, .parameters = {"iterable"}, .required = 1},
    {.name = "removeprefix", .run = run_removeprefix, .parameters = {"prefix"}, .required = 1},
    {.name = "removesuffix", .run = run_removesuffix, .parameters = {"suffix"}, .required = 1},
    {.name = "ljust", .run = run_ljust, .parameters = {"width", "fillchar"}, .required = 1},
    {.name = "rjust", .run = run_rjust, .parameters = {"width", "fillchar"}, .required = 1},
    {.name = "isalpha", .run = run_isalpha},
    {.name = "isdigit", .run = run_isdigit},
    {.name = "isdecimal", .run = run_isdigit},
    {.name = "isnumeric", .run = run_isnumeric},
    {.name = "isalnum", .run = run_isalnum},
    {.name = "isspace", .run = run_isspace},
    {.name = "isupper", .run = run_isupper},
    {.name = "islower", .run = run_islower},
    {.name = "casefold"},
    {.name = "center"},
    {.name = "encode"},
    {.name = "expandtabs"},
    {.name = "format"},
    {.name = "format_map"},
    {.name = "isascii"},
    {.name = "isidentifier"},
    {.name = "isprintable"},
    {.name = "istitle"},
    {.name = "maketrans"},
    {.name = "swapcase"},
    {.name = "translate"},
    {.name = "zfill"},
};
const struct builtin_table text_methods = {text_rows, sizeof text_rows / sizeof text_rows[0]};

/* --- dicts --- */

METHOD(get) {
  struct value *found;
  const enum rc rc = dict_find(w, self.dict, a->values[0], &found);
  if (rc == RC_OK) *out = found ? *found : a->given[1] ? a->values[1] : value_none();
  return rc;
}

static enum rc view(struct workspace *w, struct value self, enum dict_part part, struct value *out) {
  struct list *list = NULL;
  const enum rc rc = dict_part(w, self.dict, part, FORM_VIEW, &list);
  *out = value_list(list);
  return rc;
}
METHOD(items) {
  (void)a;
  return view(w, self, DICT_ITEMS, out);
}
METHOD(keys) {
  (void)a;
  return view(w, self, DICT_KEYS, out);
}
METHOD(values) {
  (void)a;
  return view(w, self, DICT_VALUES, out);
}

/* Nothing changes a dict or a list, so a copy is the thing itself. */
METHOD(copy) {
  (void)w;
  (void)a;
  *out = self;
  return RC_OK;
}

static const struct builtin dict_rows[] = {
    {.name = "get", .run = run_get, .parameters = {"key", "default"}, .required = 1},
    {.name = "items", .run = run_items},
    {.name = "keys", .run = run_keys},
    {.name = "values", .run = run_values},
    {.name = "copy", .run = run_copy},
    {.name = "clear"},
    {.name = "fromkeys"},
    {.name = "pop"},
    {.name = "popitem"},
    {.name = "setdefault"},
    {.name = "update"},
};
const struct builtin_table dict_methods = {dict_rows, sizeof dict_rows / sizeof dict_rows[0]};

/* --- lists and tuples --- */

METHOD(list_count) {
  int64_t count = 0;
  enum rc rc = RC_OK;
  for (size_t i = 0; i < self.list->count && rc == RC_OK; i++) {
    bool equal;
    rc = value_equal(w, self.list->items[i], a->values[0], &equal);
    count += rc == RC_OK && equal;
  }
  *out = value_int(count);
  return rc;
}

METHOD(list_index) {
  enum rc rc = RC_OK;
  for (size_t i = 0; i < self.list->count && rc == RC_OK; i++) {
    bool equal;
    rc = value_equal(w, self.list->items[i], a->values[0], &equal);
    *out = value_int((int64_t)i);
    if (rc == RC_OK && equal) return RC_OK;
  }
  return rc == RC_OK ? work_fail(w, RC_INVALID, "expected to find an item that is not in the list") : rc;
}

static const struct builtin tuple_rows[] = {
    {.name = "count", .run = run_list_count, .parameters = {"value"}, .required = 1},
    {.name = "index", .run = run_list_index, .parameters = {"value"}, .required = 1},
};
const struct builtin_table tuple_methods = {tuple_rows, sizeof tuple_rows / sizeof tuple_rows[0]};

static const struct builtin list_rows[] = {
    {.name = "count", .run = run_list_count, .parameters = {"value"}, .required = 1},
    {.name = "index", .run = run_list_index, .parameters = {"value"}, .required = 1},
    {.name = "copy", .run = run_copy},
    {.name = "append"},
    {.name = "clear"},
    {.name = "extend"},
    {.name = "insert"},
    {.name = "pop"},
    {.name = "remove"},
    {.name = "reverse"},
    {.name = "sort"},
};
const struct builtin_table list_methods = {list_rows, sizeof list_rows / sizeof list_rows[0]};

/* --- loops --- */

METHOD(cycle) {
  if (a->all->count == 0) return work_fail(w, RC_INVALID, "expected values for loop.cycle");
  *out = a->all->items[self.loop->at % a->all->count];
  return RC_OK;
}

/* Whether the values differ from those of the last call. */
METHOD(changed) {
  bool equal = false;
  struct list *values = list_new(w, FORM_TUPLE, a->all->count);
  enum rc rc = values ? RC_OK : w->rc;
  for (size_t i = 0; i < a->all->count && rc == RC_OK; i++) rc = list_append(w, values, a->all->items[i]);
  if (rc == RC_OK && self.loop->seen_any) rc = value_equal(w, self.loop->seen, value_list(values), &equal);
  self.loop->seen = value_list(values);
  self.loop->seen_any = true;
  *out = value_bool(!equal);
  return rc;
}

static const struct builtin loop_rows[] = {
    {.name = "cycle", .run = run_cycle, .takes_all = true},
    {.name = "changed", .run = run_changed, .takes_all = true},
};
const struct builtin_table loop_methods = {loop_rows, sizeof loop_rows / sizeof loop_rows[0]};
