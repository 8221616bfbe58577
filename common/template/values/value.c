/* Compares values as Python does: 1 == 1.0 == true, texts by code points, lists item by item, dicts without order.
 *
 * A dict keeps the order of insertion and is searched from its first entry: those of conversations are small, and long
 * searches are counted as work. */
#include "common/template/values/value.h"

#include <string.h>

enum { CAP_FIRST = 8, ENTRIES_A_STEP = 8 };

const char *value_type(struct value v) {
  switch (v.kind) {
    case VALUE_UNDEFINED: return "Undefined";
    case VALUE_NONE: return "NoneType";
    case VALUE_BOOL: return "bool";
    case VALUE_INT: return "int";
    case VALUE_REAL: return "float";
    case VALUE_TEXT: return "str";
    case VALUE_LIST:
      switch (v.list->form) {
        case FORM_LIST: return "list";
        case FORM_TUPLE: return "tuple";
        case FORM_RANGE: return "range";
        case FORM_VIEW: return "dict view";
        case FORM_ITERATOR: return "generator";
      }
      return "list";
    case VALUE_DICT: return "dict";
    case VALUE_NAMESPACE: return "namespace";
    case VALUE_BUILTIN: return "function";
    case VALUE_METHOD: return "method";
    case VALUE_MACRO: return "macro";
    case VALUE_LOOP: return "loop";
  }
  return "value";
}

bool value_true(struct value v) {
  switch (v.kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOL: return v.truth;
    case VALUE_INT: return v.integer != 0;
    case VALUE_REAL: return v.real != 0; /* NaN is true */
    case VALUE_TEXT: return v.text->len > 0;
    case VALUE_LIST: return v.list->form == FORM_ITERATOR || v.list->count > 0;
    case VALUE_DICT: return v.dict->count > 0;
    default: return true;
  }
}

bool value_integer(struct value v, int64_t *out) {
  if (v.kind == VALUE_BOOL)
    *out = v.truth;
  else if (v.kind == VALUE_INT)
    *out = v.integer;
  else
    return false;
  return true;
}

bool value_number(struct value v, double *out) {
  int64_t integer;
  if (v.kind == VALUE_REAL)
    *out = v.real;
  else if (value_integer(v, &integer))
    *out = (double)integer;
  else
    return false;
  return true;
}

enum rc value_check_defined(struct workspace *w, struct value v) {
  if (v.kind != VALUE_UNDEFINED) return RC_OK;
  return work_fail(w, RC_INVALID, "'%.128s' is undefined", v.missing);
}

static enum rc lists_equal(struct workspace *w, const struct list *a, const struct list *b, bool *out) {
  *out = a == b;
  if (a == b || a->form == FORM_ITERATOR || a->form != b->form || a->count != b->count) return RC_OK;
  *out = true;
  for (size_t i = 0; i < a->count && *out; i++) {
    const enum rc rc = value_equal(w, a->items[i], b->items[i], out);
    if (rc != RC_OK) return rc;
  }
  return RC_OK;
}

static enum rc dicts_equal(struct workspace *w, const struct dict *a, const struct dict *b, bool *out) {
  *out = a->count == b->count;
  for (size_t i = 0; i < a->count && *out; i++) {
    struct value *other;
    enum rc rc = dict_find(w, b, a->entries[i].key, &other);
    *out = rc == RC_OK && other;
    if (*out) rc = value_equal(w, a->entries[i].value, *other, out);
    if (rc != RC_OK) return rc;
  }
  return RC_OK;
}

static enum rc same_kind_equal(struct workspace *w, struct value a, struct value b, bool *out) {
  switch (a.kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: *out = true; return RC_OK;
    case VALUE_TEXT:
      *out = a.text->len == b.text->len && memcmp(a.text->bytes, b.text->bytes, a.text->len) == 0;
      return work_charge(w, *out ? a.text->len : 0);
    case VALUE_LIST: return lists_equal(w, a.list, b.list, out);
    case VALUE_DICT: return dicts_equal(w, a.dict, b.dict, out);
    default: *out = a.dict == b.dict; return RC_OK; /* the same object */
  }
}

enum rc value_equal(struct workspace *w, struct value a, struct value b, bool *out) {
  int64_t left, right;
  double left_real, right_real;
  enum rc rc = work_enter(w);
  if (rc != RC_OK) return rc;
  rc = work_charge(w, 0);
  if (value_integer(a, &left) && value_integer(b, &right))
    *out = left == right;
  else if (value_number(a, &left_real) && value_number(b, &right_real))
    *out = left_real == right_real;
  else if (a.kind != b.kind)
    *out = false;
  else if (rc == RC_OK)
    rc = same_kind_equal(w, a, b, out);
  work_leave(w);
  return rc;
}

static enum rc lists_order(struct workspace *w, const struct list *a, const struct list *b, int *out) {
  for (size_t i = 0; i < a->count && i < b->count; i++) {
    bool equal;
    enum rc rc = value_equal(w, a->items[i], b->items[i], &equal);
    if (rc == RC_OK && !equal) return value_order(w, a->items[i], b->items[i], out);
    if (rc != RC_OK) return rc;
  }
  *out = (a->count > b->count) - (a->count < b->count);
  return RC_OK;
}

enum rc value_order(struct workspace *w, struct value a, struct value b, int *out) {
  int64_t left, right;
  double left_real, right_real;
  *out = 0;
  enum rc rc = value_check_defined(w, a);
  if (rc == RC_OK) rc = value_check_defined(w, b);
  if (rc == RC_OK) rc = work_charge(w, 0);
  if (rc == RC_OK) rc = work_enter(w);
  if (rc != RC_OK) return rc;
  if (value_integer(a, &left) && value_integer(b, &right)) {
    *out = (left > right) - (left < right);
  } else if (value_number(a, &left_real) && value_number(b, &right_real)) {
    *out = (left_real > right_real) - (left_real < right_real);
  } else if (a.kind == VALUE_TEXT && b.kind == VALUE_TEXT) {
    *out = text_order(a.text, b.text);
    rc = work_charge(w, a.text->len < b.text->len ? a.text->len : b.text->len);
  } else if (a.kind == VALUE_LIST && b.kind == VALUE_LIST && a.list->form == b.list->form &&
             a.list->form <= FORM_TUPLE) {
    rc = lists_order(w, a.list, b.list, out);
  } else {
    rc = work_fail(w, RC_INVALID, "expected values that have an order, got %s and %s", value_type(a), value_type(b));
  }
  work_leave(w);
  return rc;
}

/* --- dicts and iterating --- */

struct dict *dict_new(struct workspace *w, size_t cap) {
  struct dict *dict = work_alloc(w, 1, sizeof *dict);
  if (!dict) return NULL;
  dict->cap = cap;
  if (cap && !(dict->entries = work_alloc(w, cap, sizeof *dict->entries))) return NULL;
  return dict;
}

enum rc dict_find(struct workspace *w, const struct dict *dict, struct value key, struct value **out) {
  *out = NULL;
  enum rc rc = RC_OK;
  if (key.kind == VALUE_DICT || key.kind == VALUE_NAMESPACE || (key.kind == VALUE_LIST && key.list->form == FORM_LIST))
    return work_fail(w, RC_INVALID, "expected a key that can be hashed, got a %s", value_type(key));
  for (size_t i = 0; i < dict->count && rc == RC_OK && !*out; i++) {
    struct dict_entry *entry = &dict->entries[i];
    bool equal = false;
    if (key.kind == VALUE_TEXT && entry->key.kind == VALUE_TEXT) {
      equal =
          entry->key.text->len == key.text->len && memcmp(entry->key.text->bytes, key.text->bytes, key.text->len) == 0;
      if (i % ENTRIES_A_STEP == 0) rc = work_charge(w, 0);
    } else {
      rc = value_equal(w, entry->key, key, &equal);
    }
    if (equal) *out = &entry->value;
  }
  return rc;
}

struct value *dict_find_name(const struct dict *dict, const char *name) {
  for (size_t i = 0; i < dict->count; i++) {
    const struct value key = dict->entries[i].key;
    if (key.kind == VALUE_TEXT && text_is(key.text, name)) return &dict->entries[i].value;
  }
  return NULL;
}

enum rc dict_set(struct workspace *w, struct dict *dict, struct value key, struct value v) {
  struct value *there;
  const enum rc rc = dict_find(w, dict, key, &there);
  if (rc != RC_OK) return rc;
  if (there) {
    *there = v;
    return RC_OK;
  }
  if (dict->count == dict->cap) {
    const size_t cap = dict->cap ? dict->cap * 2 : CAP_FIRST;
    struct dict_entry *entries = work_alloc(w, cap, sizeof *entries);
    if (!entries) return w->rc;
    if (dict->count) memcpy(entries, dict->entries, dict->count * sizeof *entries);
    dict->entries = entries;
    dict->cap = cap;
  }
  dict->entries[dict->count++] = (struct dict_entry){key, v};
  return RC_OK;
}

enum rc dict_part(struct workspace *w, const struct dict *dict, enum dict_part part, enum list_form form,
                  struct list **out) {
  struct list *list = *out = list_new(w, form, dict->count);
  enum rc rc = list ? work_charge(w, dict->count * STEP_BYTES) : w->rc;
  for (size_t i = 0; i < dict->count && rc == RC_OK; i++) {
    const struct dict_entry *entry = &dict->entries[i];
    if (part != DICT_ITEMS) {
      rc = list_append(w, list, part == DICT_KEYS ? entry->key : entry->value);
      continue;
    }
    struct list *pair = list_new(w, FORM_TUPLE, 2);
    if (!pair) return w->rc;
    pair->items[0] = entry->key;
    pair->items[1] = entry->value;
    pair->count = 2;
    rc = list_append(w, list, value_list(pair));
  }
  return rc;
}

static enum rc characters(struct workspace *w, const struct text *text, struct list **out) {
  struct list *list = *out = list_new(w, FORM_LIST, 0);
  enum rc rc = list ? RC_OK : w->rc;
  for (size_t at = 0, n; at < text->len && rc == RC_OK; at += n) {
    struct value character;
    n = text_step(text, at);
    rc = text_cut(w, text, at, at + n, &character);
    if (rc == RC_OK) rc = list_append(w, list, character);
  }
  return rc;
}

enum rc value_items(struct workspace *w, struct value v, struct list **out) {
  switch (v.kind) {
    case VALUE_UNDEFINED: *out = list_new(w, FORM_LIST, 0); return *out ? RC_OK : w->rc;
    case VALUE_TEXT: return characters(w, v.text, out);
    case VALUE_DICT: return dict_part(w, v.dict, DICT_KEYS, FORM_LIST, out);
    case VALUE_LIST:
      *out = v.list;
      if (v.list->form != FORM_ITERATOR) return RC_OK;
      if (!(*out = list_new(w, FORM_LIST, 0))) return w->rc;
      (*out)->items = v.list->items;
      (*out)->count = v.list->count;
      v.list->count = 0; /* read once */
      return RC_OK;
    default: return work_fail(w, RC_INVALID, "expected something to iterate over, got a %s", value_type(v));
  }
}
