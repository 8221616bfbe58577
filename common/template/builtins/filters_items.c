/* Filters over what can be iterated over: choosing, ordering, grouping, joining. */
#include <string.h>

#include "common/template/builtins/access.h"
#include "common/template/builtins/builtin.h"
#include "common/template/values/letter_case.h"
#include "common/template/values/operators.h"
#include "common/template/values/print.h"
#include "common/template/values/slice.h"

static enum rc run_length(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  switch (self.kind) {
    case VALUE_UNDEFINED: *out = value_int(0); return RC_OK;
    case VALUE_TEXT: *out = value_int((int64_t)text_characters(self.text)); return work_charge(w, self.text->len);
    case VALUE_DICT: *out = value_int((int64_t)self.dict->count); return RC_OK;
    case VALUE_LIST:
      if (self.list->form != FORM_ITERATOR) {
        *out = value_int((int64_t)self.list->count);
        return RC_OK;
      }
      break;
    case VALUE_LOOP: *out = value_int((int64_t)self.loop->items->count); return RC_OK;
    default: break;
  }
  return work_fail(w, RC_INVALID, "expected something that has a length, got a %s", value_type(self));
}

static enum rc run_first(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  struct list *items;
  const enum rc rc = value_items(w, self, &items);
  if (rc == RC_OK) *out = items->count ? items->items[0] : value_missing("the first item");
  return rc;
}

static enum rc run_last(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  struct list *items;
  if (self.kind == VALUE_LIST && self.list->form == FORM_ITERATOR)
    return work_fail(w, RC_INVALID, "expected something that can be reversed, got a generator");
  const enum rc rc = value_items(w, self, &items);
  if (rc == RC_OK) *out = items->count ? items->items[items->count - 1] : value_missing("the last item");
  return rc;
}

static enum rc copy_items(struct workspace *w, struct value self, enum list_form form, struct list **out) {
  struct list *items;
  enum rc rc = value_items(w, self, &items);
  if (rc != RC_OK) return rc;
  if (!(*out = list_new(w, form, items->count))) return w->rc;
  rc = work_charge(w, items->count * sizeof(struct value));
  if (items->count) memcpy((*out)->items, items->items, items->count * sizeof *items->items);
  (*out)->count = items->count;
  return rc;
}

static enum rc run_list(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  struct list *items = NULL;
  const enum rc rc = copy_items(w, self, FORM_LIST, &items);
  *out = value_list(items);
  return rc;
}

static enum rc run_reverse(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  struct list *items = NULL;
  const struct value minus = value_int(-1);
  if (self.kind == VALUE_TEXT) return get_slice(w, self, value_none(), value_none(), minus, out);
  const enum rc rc = copy_items(w, self, FORM_ITERATOR, &items);
  for (size_t i = 0; rc == RC_OK && i < items->count / 2; i++) {
    const struct value other = items->items[i];
    items->items[i] = items->items[items->count - 1 - i];
    items->items[items->count - 1 - i] = other;
  }
  *out = value_list(items);
  return rc;
}

static enum rc run_items(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  (void)a;
  struct list *items = NULL;
  if (self.kind != VALUE_UNDEFINED && self.kind != VALUE_DICT)
    return work_fail(w, RC_INVALID, "expected a dict to take items from, got a %s", value_type(self));
  const struct dict none = {0};
  const enum rc rc = dict_part(w, self.kind == VALUE_DICT ? self.dict : &none, DICT_ITEMS, FORM_ITERATOR, &items);
  *out = value_list(items);
  return rc;
}

/* join(d="", attribute=None) */
static enum rc run_join(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  const struct text *between = NULL;
  struct list *items;
  enum rc rc = a->given[0] ? value_as_text(w, a->values[0], &between) : RC_OK;
  if (rc == RC_OK) rc = value_items(w, self, &items);
  if (rc != RC_OK) return rc;
  struct text_builder b = builder_begin(w);
  for (size_t i = 0; i < items->count && rc == RC_OK; i++) {
    struct value item = items->items[i];
    if (i && between) rc = builder_text(&b, between);
    if (rc == RC_OK && a->given[1] && a->values[1].kind != VALUE_NONE) rc = get_path(w, item, a->values[1], &item);
    if (rc == RC_OK) rc = print_value(&b, item);
  }
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

/* --- ordering --- */

/* Items with the keys that they are ordered by. */
struct keyed {
  struct value key, item;
};

static enum rc key_of(struct workspace *w, struct value item, struct value path, bool with_case, struct value *out) {
  enum rc rc = RC_OK;
  *out = item;
  if (path.kind != VALUE_NONE) rc = get_path(w, item, path, out);
  return rc == RC_OK && !with_case && out->kind == VALUE_TEXT ? text_case(w, out->text, CASE_LOWER, out) : rc;
}

/* Merges sorted halves; stable. */
static enum rc sort_keyed(struct workspace *w, struct keyed *items, struct keyed *spare, size_t count, bool reverse) {
  if (count < 2) return RC_OK;
  const size_t half = count / 2;
  size_t left = 0, right = half;
  enum rc rc = sort_keyed(w, items, spare, half, reverse);
  if (rc == RC_OK) rc = sort_keyed(w, items + half, spare, count - half, reverse);
  for (size_t to = 0; to < count && rc == RC_OK; to++) {
    int order = left == half ? 1 : -1;
    if (left < half && right < count) {
      rc = value_order(w, items[left].key, items[right].key, &order);
      if (reverse) order = -order;
    }
    spare[to] = order <= 0 ? items[left++] : items[right++];
  }
  if (rc == RC_OK) memcpy(items, spare, count * sizeof *items);
  return rc;
}

/* paths: what to order by, one list of values for each item, or the item itself. */
static enum rc sort_items(struct workspace *w, struct list *items, const struct list *paths, bool with_case,
                          bool reverse) {
  struct keyed *keyed = work_alloc(w, items->count, sizeof *keyed), *spare = work_alloc(w, items->count, sizeof *spare);
  if (!keyed || !spare) return w->rc;
  enum rc rc = RC_OK;
  for (size_t i = 0; i < items->count && rc == RC_OK; i++) {
    struct list *keys = list_new(w, FORM_LIST, paths->count);
    if (!keys) return w->rc;
    for (size_t k = 0; k < paths->count && rc == RC_OK; k++)
      rc = key_of(w, items->items[i], paths->items[k], with_case, &keys->items[keys->count++]);
    keyed[i] = (struct keyed){paths->count == 1 ? keys->items[0] : value_list(keys), items->items[i]};
  }
  if (rc == RC_OK) rc = sort_keyed(w, keyed, spare, items->count, reverse);
  for (size_t i = 0; i < items->count && rc == RC_OK; i++) items->items[i] = keyed[i].item;
  return rc;
}

/* "a,b" as two paths. */
static enum rc paths_of(struct workspace *w, struct value attribute, struct list **out) {
  static const struct text comma = {.bytes = ",", .len = 1};
  if (attribute.kind == VALUE_TEXT) return text_split(w, attribute.text, &comma, -1, false, out);
  *out = list_new(w, FORM_LIST, 1);
  return *out ? list_append(w, *out, attribute) : w->rc;
}

static struct value argument_or_none(const struct arguments *a, int index) {
  return a->given[index] ? a->values[index] : value_none();
}

/* sort(reverse=false, case_sensitive=false, attribute=None) */
static enum rc run_sort(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  struct list *items = NULL, *paths;
  enum rc rc = copy_items(w, self, FORM_LIST, &items);
  if (rc == RC_OK) rc = paths_of(w, argument_or_none(a, 2), &paths);
  if (rc == RC_OK) rc = sort_items(w, items, paths, argument_true(a, 1, false), argument_true(a, 0, false));
  *out = value_list(items);
  return rc;
}

/* dictsort(case_sensitive=false, by="key", reverse=false) */
static enum rc run_dictsort(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  const struct text *by;
  struct list *items = NULL, *paths;
  enum rc rc = value_check_defined(w, self);
  if (rc == RC_OK && self.kind != VALUE_DICT)
    rc = work_fail(w, RC_INVALID, "expected a dict to sort, got a %s", value_type(self));
  if (rc == RC_OK) rc = argument_text(w, a, 1, &by);
  if (rc != RC_OK) return rc;
  if (by && !text_is(by, "key") && !text_is(by, "value"))
    return work_fail(w, RC_INVALID, "expected to sort a dict by \"key\" or \"value\"");
  rc = dict_part(w, self.dict, DICT_ITEMS, FORM_LIST, &items);
  if (rc == RC_OK) rc = paths_of(w, value_int(by && text_is(by, "value")), &paths);
  if (rc == RC_OK) rc = sort_items(w, items, paths, argument_true(a, 0, false), argument_true(a, 2, false));
  *out = value_list(items);
  return rc;
}

/* min and max (case_sensitive=false, attribute=None); sign: 1 for max. */
static enum rc extreme(struct workspace *w, struct value self, const struct arguments *a, int sign, struct value *out) {
  struct list *items;
  struct value best, key;
  enum rc rc = value_items(w, self, &items);
  if (rc == RC_OK) *out = value_missing("the largest or smallest item");
  for (size_t i = 0; rc == RC_OK && i < items->count; i++) {
    int order = sign;
    rc = key_of(w, items->items[i], argument_or_none(a, 1), argument_true(a, 0, false), &key);
    if (rc == RC_OK && i) rc = value_order(w, key, best, &order);
    if (order * sign <= 0) continue;
    best = key;
    *out = items->items[i];
  }
  return rc;
}

static enum rc run_min(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  return extreme(w, self, a, -1, out);
}

static enum rc run_max(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  return extreme(w, self, a, 1, out);
}

/* unique(case_sensitive=false, attribute=None) */
static enum rc run_unique(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  struct list *items, *unique = list_new(w, FORM_ITERATOR, 0);
  struct dict *seen = dict_new(w, 0);
  if (!unique || !seen) return w->rc;
  enum rc rc = value_items(w, self, &items);
  for (size_t i = 0; rc == RC_OK && i < items->count; i++) {
    struct value key, *there;
    rc = key_of(w, items->items[i], argument_or_none(a, 1), argument_true(a, 0, false), &key);
    if (rc == RC_OK) rc = dict_find(w, seen, key, &there);
    if (rc != RC_OK || there) continue;
    rc = dict_set(w, seen, key, value_none());
    if (rc == RC_OK) rc = list_append(w, unique, items->items[i]);
  }
  *out = value_list(unique);
  return rc;
}

/* --- choosing and changing --- */

static const struct value *named(const struct call_values *values, const char *name) {
  for (size_t i = 0; i < values->named_count; i++)
    if (strcmp(values->named[i].name, name) == 0) return &values->named[i].value;
  return NULL;
}

/* The arguments behind the first `skip`. */
static struct call_values behind(const struct call_values *values, size_t skip) {
  struct call_values rest = *values;
  rest.items += skip;
  rest.count -= skip;
  return rest;
}

static enum rc name_text(struct workspace *w, struct value name, char out[64]) {
  if (name.kind != VALUE_TEXT || name.text->len >= 64)
    return work_fail(w, RC_INVALID, "expected the name of a filter or test, got a %s", value_type(name));
  memcpy(out, name.text->bytes, name.text->len);
  out[name.text->len] = '\0';
  return RC_OK;
}

static enum rc map_attribute(struct workspace *w, struct value item, const struct arguments *a, struct value *out) {
  const struct value *otherwise = named(a->all, "default");
  const enum rc rc = get_path(w, item, *named(a->all, "attribute"), out);
  if (rc == RC_OK && otherwise && out->kind == VALUE_UNDEFINED) *out = *otherwise;
  return rc;
}

/* What counts as false has nothing to choose from, whatever else is wrong: none and 0 are no iterables. */
static enum rc choose_nothing(struct workspace *w, struct value *out) {
  struct list *nothing = list_new(w, FORM_ITERATOR, 0);
  *out = value_list(nothing);
  return nothing ? RC_OK : w->rc;
}

/* map(attribute="a.b", default=x) and map("filter", arguments...) */
static enum rc run_map(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  if (!value_true(self)) return choose_nothing(w, out);
  const bool by_attribute = a->all->count == 0 && named(a->all, "attribute");
  const struct builtin *filter = NULL;
  struct call_values rest = {0};
  struct list *items, *mapped = list_new(w, FORM_ITERATOR, 0);
  enum rc rc = mapped ? value_items(w, self, &items) : w->rc;
  if (rc == RC_OK && !by_attribute) {
    char name[64];
    if (a->all->count == 0) return work_fail(w, RC_INVALID, "expected map's filter or attribute");
    rest = behind(a->all, 1);
    rc = name_text(w, a->all->items[0], name);
    if (rc == RC_OK && !(filter = w->builtins->filter(name)))
      rc = work_fail(w, RC_INVALID, "there is no filter %s", name);
  }
  if (rc == RC_OK) rc = work_enter(w);
  if (rc != RC_OK) return rc;
  for (size_t i = 0; rc == RC_OK && i < items->count; i++) {
    struct value item;
    rc = by_attribute ? map_attribute(w, items->items[i], a, &item)
                      : builtin_call(w, filter, items->items[i], &rest, &item);
    if (rc == RC_OK) rc = list_append(w, mapped, item);
  }
  work_leave(w);
  *out = value_list(mapped);
  return rc;
}

/* select, reject, selectattr, rejectattr: (attribute,) test, arguments...; without a test: what is true. */
static enum rc choose(struct workspace *w, struct value self, const struct arguments *a, bool by_attribute, bool keep,
                      struct value *out) {
  if (!value_true(self)) return choose_nothing(w, out);
  const size_t off = by_attribute;
  const struct builtin *test = NULL;
  struct call_values rest = {0};
  struct list *items, *chosen = list_new(w, FORM_ITERATOR, 0);
  enum rc rc = chosen ? value_items(w, self, &items) : w->rc;
  if (rc == RC_OK && a->all->count < off) return work_fail(w, RC_INVALID, "expected an attribute's name");
  if (rc == RC_OK && a->all->count > off) {
    char name[64];
    rest = behind(a->all, off + 1);
    rc = name_text(w, a->all->items[off], name);
    if (rc == RC_OK && !(test = w->builtins->test(name))) rc = work_fail(w, RC_INVALID, "there is no test %s", name);
  }
  for (size_t i = 0; rc == RC_OK && i < items->count; i++) {
    struct value item = items->items[i];
    bool truth;
    if (by_attribute) rc = get_path(w, item, a->all->items[0], &item);
    truth = value_true(item);
    if (rc == RC_OK && test) rc = test_value(w, test, item, &rest, &truth);
    if (rc == RC_OK && truth == keep) rc = list_append(w, chosen, items->items[i]);
  }
  *out = value_list(chosen);
  return rc;
}

static enum rc run_select(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  return choose(w, self, a, false, true, out);
}
static enum rc run_reject(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  return choose(w, self, a, false, false, out);
}
static enum rc run_selectattr(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  return choose(w, self, a, true, true, out);
}
static enum rc run_rejectattr(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  return choose(w, self, a, true, false, out);
}

/* sum(attribute=None, start=0) */
static enum rc run_sum(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  struct list *items;
  enum rc rc = value_items(w, self, &items);
  *out = a->given[1] ? a->values[1] : value_int(0);
  for (size_t i = 0; rc == RC_OK && i < items->count; i++) {
    struct value item = items->items[i];
    if (argument_or_none(a, 0).kind != VALUE_NONE) rc = get_path(w, item, a->values[0], &item);
    if (rc == RC_OK) rc = operate(w, OPERATION_ADD, *out, item, out);
  }
  return rc;
}

/* batch(linecount, fill_with=None): lists of linecount items each. */
static enum rc run_batch(struct workspace *w, struct value self, const struct arguments *a, struct value *out) {
  int64_t most;
  struct list *items, *batches = list_new(w, FORM_ITERATOR, 0), *batch = NULL;
  enum rc rc = batches ? argument_int(w, a, 0, 1, &most) : w->rc;
  if (rc == RC_OK && most < 1) rc = work_fail(w, RC_INVALID, "expected batches of at least one item");
  if (rc == RC_OK) rc = value_items(w, self, &items);
  for (size_t i = 0; rc == RC_OK && i < items->count; i++) {
    if (i % (size_t)most == 0) {
      if (!(batch = list_new(w, FORM_LIST, 0))) return w->rc;
      rc = list_append(w, batches, value_list(batch));
    }
    if (rc == RC_OK) rc = list_append(w, batch, items->items[i]);
  }
  if (rc == RC_OK && batch && argument_or_none(a, 1).kind != VALUE_NONE)
    while (rc == RC_OK && (int64_t)batch->count < most) {
      rc = work_charge(w, 0);
      if (rc == RC_OK) rc = list_append(w, batch, a->values[1]);
    }
  *out = value_list(batches);
  return rc;
}

static const struct builtin rows[] = {
    {.name = "length", .run = run_length},
    {.name = "count", .run = run_length},
    {.name = "first", .run = run_first},
    {.name = "last", .run = run_last},
    {.name = "list", .run = run_list},
    {.name = "items", .run = run_items},
    {.name = "join", .run = run_join, .parameters = {"d", "attribute"}},
    {.name = "map", .run = run_map, .takes_all = true},
    {.name = "select", .run = run_select, .takes_all = true},
    {.name = "reject", .run = run_reject, .takes_all = true},
    {.name = "selectattr", .run = run_selectattr, .takes_all = true},
    {.name = "rejectattr", .run = run_rejectattr, .takes_all = true},
    {.name = "dictsort", .run = run_dictsort, .parameters = {"case_sensitive", "by", "reverse"}},
    {.name = "sort", .run = run_sort, .parameters = {"reverse", "case_sensitive", "attribute"}},
    {.name = "reverse", .run = run_reverse},
    {.name = "unique", .run = run_unique, .parameters = {"case_sensitive", "attribute"}},
    {.name = "min", .run = run_min, .parameters = {"case_sensitive", "attribute"}},
    {.name = "max", .run = run_max, .parameters = {"case_sensitive", "attribute"}},
    {.name = "sum", .run = run_sum, .parameters = {"attribute", "start"}},
    {.name = "batch", .run = run_batch, .parameters = {"linecount", "fill_with"}, .required = 1},
    {.name = "slice"},
    {.name = "groupby"},
    {.name = "random"},
};
const struct builtin_table item_filters = {rows, sizeof rows / sizeof rows[0]};
