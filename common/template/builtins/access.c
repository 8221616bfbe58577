/* Looks up attributes and items as Jinja's sandbox does. */
#include "common/template/builtins/access.h"

#include <string.h>

#include "common/template/builtins/builtin.h"
#include "common/template/values/value.h"

static enum rc missing(struct workspace *w, const char *name, size_t len, struct value *out) {
  char *copy = work_alloc_bytes(w, len + 1);
  if (!copy) return w->rc;
  memcpy(copy, name, len);
  copy[len] = '\0';
  *out = value_missing(copy);
  return RC_OK;
}

static enum rc bound(struct workspace *w, struct builtin_table table, struct value self, const struct text *name,
                     struct value *out, bool *found) {
  const struct builtin *builtin = builtin_find(table, name->bytes, name->len);
  *found = builtin != NULL;
  if (!builtin) return RC_OK;
  struct method *method = work_alloc(w, 1, sizeof *method);
  if (!method) return w->rc;
  *method = (struct method){self, builtin};
  *out = (struct value){.kind = VALUE_METHOD, .method = method};
  return RC_OK;
}

static bool loop_attribute(const struct loop *loop, const struct text *name, struct value *out) {
  const int64_t at = (int64_t)loop->at, count = (int64_t)loop->items->count;
  const struct {
    const char *name;
    struct value value;
  } attributes[] = {{"index", value_int(at + 1)},
                    {"index0", value_int(at)},
                    {"revindex", value_int(count - at)},
                    {"revindex0", value_int(count - at - 1)},
                    {"first", value_bool(at == 0)},
                    {"last", value_bool(at + 1 == count)},
                    {"length", value_int(count)},
                    {"depth", value_int(loop->depth + 1)},
                    {"depth0", value_int(loop->depth)},
                    {"previtem", at > 0 ? loop->items->items[at - 1] : value_missing("loop.previtem")},
                    {"nextitem", at + 1 < count ? loop->items->items[at + 1] : value_missing("loop.nextitem")}};
  for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
    if (!text_is(name, attributes[i].name)) continue;
    *out = attributes[i].value;
    return true;
  }
  return false;
}

/* Attributes that are not items. */
static enum rc own_attribute(struct workspace *w, struct value object, const struct text *name, struct value *out,
                             bool *found) {
  struct value *entry;
  enum rc rc = RC_OK;
  *found = false;
  switch (object.kind) {
    case VALUE_TEXT: return bound(w, text_methods, object, name, out, found);
    case VALUE_DICT: return bound(w, dict_methods, object, name, out, found);
    case VALUE_LIST:
      if (object.list->form == FORM_LIST) return bound(w, list_methods, object, name, out, found);
      return object.list->form <= FORM_RANGE ? bound(w, tuple_methods, object, name, out, found) : RC_OK;
    case VALUE_NAMESPACE:
      rc = dict_find(w, object.dict, value_text(name), &entry);
      *found = rc == RC_OK && entry;
      if (*found) *out = *entry;
      return rc;
    case VALUE_LOOP:
      *found = loop_attribute(object.loop, name, out);
      return *found ? RC_OK : bound(w, loop_methods, object, name, out, found);
    default: return RC_OK;
  }
}

enum rc get_attribute(struct workspace *w, struct value object, const struct text *name, struct value *out) {
  bool found;
  struct value *entry;
  enum rc rc = value_check_defined(w, object);
  if (rc == RC_OK) rc = work_charge(w, 0);
  if (rc == RC_OK) rc = own_attribute(w, object, name, out, &found);
  if (rc != RC_OK || found) return rc;
  if (object.kind == VALUE_DICT) {
    rc = dict_find(w, object.dict, value_text(name), &entry);
    if (rc != RC_OK) return rc;
    if (entry) {
      *out = *entry;
      return RC_OK;
    }
  }
  return missing(w, name->bytes, name->len, out);
}

static enum rc item_at(struct workspace *w, struct value object, int64_t index, struct value *out, bool *found) {
  const int64_t count = object.kind == VALUE_LIST ? (int64_t)object.list->count : (int64_t)text_characters(object.text);
  if (index < 0) index += count;
  *found = index >= 0 && index < count;
  if (!*found) return RC_OK;
  if (object.kind == VALUE_LIST) {
    *out = object.list->items[index];
    return RC_OK;
  }
  const size_t at = text_offset(object.text, (size_t)index);
  const enum rc rc = work_charge(w, object.text->len);
  return rc == RC_OK ? text_cut(w, object.text, at, at + text_step(object.text, at), out) : rc;
}

static bool is_hashable(struct value v) {
  return v.kind != VALUE_DICT && v.kind != VALUE_NAMESPACE && (v.kind != VALUE_LIST || v.list->form != FORM_LIST);
}

enum rc get_item(struct workspace *w, struct value object, struct value index, struct value *out) {
  bool found = false;
  int64_t place;
  struct value *entry;
  enum rc rc = value_check_defined(w, object);
  if (rc == RC_OK) rc = work_charge(w, 0);
  if (rc == RC_OK && object.kind == VALUE_DICT && is_hashable(index)) {
    rc = dict_find(w, object.dict, index, &entry);
    found = rc == RC_OK && entry;
    if (found) *out = *entry;
  } else if (rc == RC_OK && value_integer(index, &place) &&
             (object.kind == VALUE_TEXT || (object.kind == VALUE_LIST && object.list->form <= FORM_RANGE))) {
    rc = item_at(w, object, place, out, &found);
  }
  if (rc == RC_OK && !found && index.kind == VALUE_TEXT) rc = own_attribute(w, object, index.text, out, &found);
  if (rc != RC_OK || found) return rc;
  if (index.kind == VALUE_TEXT) return missing(w, index.text->bytes, index.text->len, out);
  *out = value_missing("an item");
  return RC_OK;
}

/* A part of digits is an index. */
static enum rc path_part(struct workspace *w, struct value part, struct value *out) {
  int64_t index = 0;
  *out = part;
  if (part.text->len == 0 || part.text->len > 9) return RC_OK;
  for (size_t i = 0; i < part.text->len; i++) {
    if (part.text->bytes[i] < '0' || part.text->bytes[i] > '9') return RC_OK;
    index = index * 10 + (part.text->bytes[i] - '0');
  }
  *out = value_int(index);
  return work_charge(w, 0);
}

enum rc get_path(struct workspace *w, struct value object, struct value path, struct value *out) {
  struct list *parts;
  const struct text dot = {.bytes = ".", .len = 1};
  if (path.kind != VALUE_TEXT) return get_item(w, object, path, out);
  enum rc rc = text_split(w, path.text, &dot, -1, false, &parts);
  *out = object;
  for (size_t i = 0; rc == RC_OK && i < parts->count; i++) {
    struct value part;
    rc = path_part(w, parts->items[i], &part);
    if (rc == RC_OK) rc = get_item(w, *out, part, out);
  }
  return rc;
}
