/* Makes values of a parsed document, which keeps the texts. */
#include "common/template/values/from_json.h"

#include <string.h>

#include "common/template/values/value.h"

static enum rc make_list(struct workspace *w, const struct json *json, uint8_t mark, struct value *out) {
  struct list *list = list_new(w, FORM_LIST, json_length(json));
  if (!list) return w->rc;
  enum rc rc = RC_OK;
  for (size_t i = 0, n = json_length(json); i < n && rc == RC_OK; i++)
    rc = value_from_json(w, json_at(json, i), mark, &list->items[list->count++]);
  *out = value_list(list);
  return rc;
}

static enum rc make_dict(struct workspace *w, const struct json *json, uint8_t mark, struct value *out) {
  struct dict *dict = dict_new(w, json_length(json));
  if (!dict) return w->rc;
  enum rc rc = RC_OK;
  const char *key;
  const struct json *member;
  for (void *cursor = NULL; rc == RC_OK && json_next(json, &cursor, &key, &member);) {
    struct dict_entry *entry = &dict->entries[dict->count++]; /* keys are unique: the parser refuses doubles */
    rc = text_share(w, key, strlen(key), mark, &entry->key);
    if (rc == RC_OK) rc = value_from_json(w, member, mark, &entry->value);
  }
  *out = value_dict(dict);
  return rc;
}

enum rc value_from_json(struct workspace *w, const struct json *json, uint8_t mark, struct value *out) {
  size_t len;
  const char *bytes;
  switch (json_type_of(json)) {
    case JSON_NULL: *out = value_none(); return RC_OK;
    case JSON_BOOL: *out = value_bool(json_bool(json)); return RC_OK;
    case JSON_INT: *out = value_int(json_int(json)); return RC_OK;
    case JSON_REAL: *out = value_real(json_number(json)); return RC_OK;
    case JSON_STRING: bytes = json_string(json, &len); return text_share(w, bytes, len, mark, out);
    case JSON_ARRAY: return make_list(w, json, mark, out);
    case JSON_OBJECT: return make_dict(w, json, mark, out);
  }
  return work_fail(w, RC_INTERNAL, "unknown kind of JSON");
}
