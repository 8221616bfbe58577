/* Makes lists and appends to them. */
#include "common/template/values/list.h"

#include <string.h>

enum { CAP_FIRST = 8 };

struct list *list_new(struct workspace *w, enum list_form form, size_t cap) {
  struct list *list = work_alloc(w, 1, sizeof *list);
  if (!list) return NULL;
  *list = (struct list){.form = form, .cap = cap};
  if (cap && !(list->items = work_alloc(w, cap, sizeof *list->items))) return NULL;
  return list;
}

enum rc list_append(struct workspace *w, struct list *list, struct value v) {
  if (list->count == list->cap) {
    const size_t cap = list->cap ? list->cap * 2 : CAP_FIRST;
    struct value *items = work_alloc(w, cap, sizeof *items);
    if (!items) return w->rc;
    if (list->count) memcpy(items, list->items, list->count * sizeof *items);
    list->items = items;
    list->cap = cap;
  }
  list->items[list->count++] = v;
  return RC_OK;
}
