/* Names and their values while rendering. */
#include <string.h>

#include "common/template/render.h"

enum { CAP_FIRST = 8, BINDINGS_A_STEP = 8 };

struct scope *scope_new(struct render *r, struct scope *outside) {
  struct scope *scope = work_alloc(r->w, 1, sizeof *scope);
  if (scope) scope->outside = outside;
  return scope;
}

static struct value *bound_in(const struct scope *scope, int name) {
  for (size_t i = scope->count; i-- > 0;)
    if (scope->items[i].name == name) return &scope->items[i].value;
  return NULL;
}

enum rc scope_set(struct render *r, struct scope *scope, int name, struct value v) {
  struct value *there = bound_in(scope, name);
  if (there) {
    *there = v;
    return work_charge(r->w, scope->count / BINDINGS_A_STEP * STEP_BYTES);
  }
  if (scope->count == scope->cap) {
    const size_t cap = scope->cap ? scope->cap * 2 : CAP_FIRST;
    struct binding *items = work_alloc(r->w, cap, sizeof *items);
    if (!items) return r->w->rc;
    if (scope->count) memcpy(items, scope->items, scope->count * sizeof *items);
    scope->items = items;
    scope->cap = cap;
  }
  scope->items[scope->count++] = (struct binding){name, v};
  return RC_OK;
}

enum rc scope_find(struct render *r, int name, struct value *out) {
  size_t searched = 0;
  for (const struct scope *scope = r->scope; scope; scope = scope->outside) {
    const struct value *found = bound_in(scope, name);
    searched += scope->count;
    if (!found) continue;
    *out = *found;
    return RC_OK;
  }
  *out = r->given[name];
  return work_charge(r->w, searched / BINDINGS_A_STEP * STEP_BYTES);
}

static enum rc assign_attribute(struct render *r, const struct node *target, struct value v) {
  struct value object;
  enum rc rc = scope_find(r, target->attribute.object->name, &object);
  if (rc == RC_OK) rc = value_check_defined(r->w, object);
  if (rc != RC_OK) return rc;
  if (object.kind != VALUE_NAMESPACE)
    return work_fail(r->w, RC_INVALID, "expected a namespace to set an attribute of, got a %s", value_type(object));
  return dict_set(r->w, object.dict, value_text(target->attribute.name), v);
}

enum rc assign(struct render *r, const struct node *target, struct value v) {
  struct list *items;
  if (target->kind == NODE_NAME) return scope_set(r, r->scope, target->name, v);
  if (target->kind == NODE_ATTRIBUTE) return assign_attribute(r, target, v);
  enum rc rc = value_check_defined(r->w, v);
  if (rc == RC_OK) rc = value_items(r->w, v, &items);
  if (rc == RC_OK && items->count != target->items.count)
    rc = work_fail(r->w, RC_INVALID, "expected %zu values to assign, got %zu", target->items.count, items->count);
  for (size_t i = 0; rc == RC_OK && i < items->count; i++) rc = assign(r, target->items.items[i], items->items[i]);
  return rc;
}
