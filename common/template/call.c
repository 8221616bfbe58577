/* Calls: arguments, macros, and which kind of function is called. */
#include <string.h>

#include "common/template/render.h"
#include "common/template/values/value.h"

struct named_list {
  struct named_value *items;
  size_t count, cap;
};

static enum rc add_named(struct render *r, struct named_list *list, const char *name, struct value v) {
  for (size_t i = 0; i < list->count; i++)
    if (strcmp(list->items[i].name, name) == 0)
      return work_fail(r->w, RC_INVALID, "expected one argument %.64s, got two", name);
  if (list->count == list->cap) {
    const size_t cap = list->cap ? list->cap * 2 : 4;
    struct named_value *items = work_alloc(r->w, cap, sizeof *items);
    if (!items) return r->w->rc;
    if (list->count) memcpy(items, list->items, list->count * sizeof *items);
    list->items = items;
    list->cap = cap;
  }
  list->items[list->count++] = (struct named_value){name, v};
  return work_charge(r->w, list->count);
}

static enum rc add_dict(struct render *r, struct named_list *list, struct value v) {
  enum rc rc = RC_OK;
  if (v.kind != VALUE_DICT) return work_fail(r->w, RC_INVALID, "expected a dict behind **, got %s", value_type(v));
  for (size_t i = 0; i < v.dict->count && rc == RC_OK; i++) {
    const struct value key = v.dict->entries[i].key;
    if (key.kind != VALUE_TEXT) return work_fail(r->w, RC_INVALID, "expected texts as names behind **");
    char *name = work_alloc(r->w, key.text->len + 1, 1);
    if (!name) return r->w->rc;
    memcpy(name, key.text->bytes, key.text->len);
    rc = add_named(r, list, name, v.dict->entries[i].value);
  }
  return rc;
}

enum rc call_arguments(struct render *r, const struct argument_list *arguments, struct call_values *out) {
  *out = (struct call_values){0};
  if (arguments->count == 0) return RC_OK;
  struct list *items = list_new(r->w, FORM_TUPLE, arguments->count), *more;
  struct named_list named = {0};
  enum rc rc = items ? RC_OK : r->w->rc;
  for (size_t i = 0; i < arguments->count && rc == RC_OK; i++) {
    const struct argument *argument = &arguments->items[i];
    struct value v;
    rc = r->evaluate(r, argument->value, &v);
    if (rc != RC_OK) break;
    switch (argument->kind) {
      case ARGUMENT_PLAIN: rc = list_append(r->w, items, v); break;
      case ARGUMENT_NAMED: rc = add_named(r, &named, r->template->names[argument->name], v); break;
      case ARGUMENT_LIST:
        rc = value_items(r->w, v, &more);
        for (size_t k = 0; rc == RC_OK && k < more->count; k++) rc = list_append(r->w, items, more->items[k]);
        break;
      case ARGUMENT_DICT: rc = add_dict(r, &named, v); break;
    }
  }
  if (rc == RC_OK) *out = (struct call_values){items->items, items->count, named.items, named.count};
  return rc;
}

/* Arguments by place beyond the parameters become varargs, where the macro's body has that name. */
static enum rc bind_rest(struct render *r, const struct macro *macro, struct scope *scope,
                         const struct call_values *values) {
  const size_t parameters = macro->node->parameters.count;
  if (!macro->node->takes_rest) {
    if (values->count <= parameters) return RC_OK;
    return work_fail(r->w, RC_INVALID, "expected at most %zu arguments of the macro %.64s, got %zu", parameters,
                     r->template->names[macro->node->name], values->count);
  }
  struct list *rest = list_new(r->w, FORM_TUPLE, 0);
  enum rc rc = rest ? RC_OK : r->w->rc;
  for (size_t i = parameters; i < values->count && rc == RC_OK; i++) rc = list_append(r->w, rest, values->items[i]);
  return rc == RC_OK ? scope_set(r, scope, r->template->rest_name, value_list(rest)) : rc;
}

static bool is_parameter(const struct render *r, const struct macro_node *node, const char *name) {
  for (size_t i = 0; i < node->parameters.count; i++)
    if (strcmp(r->template->names[node->parameters.items[i]->name], name) == 0) return true;
  return false;
}

/* The same for arguments by name: kwargs. */
static enum rc bind_named(struct render *r, const struct macro *macro, struct scope *scope,
                          const struct call_values *values) {
  struct dict *rest = dict_new(r->w, 0);
  enum rc rc = rest ? RC_OK : r->w->rc;
  for (size_t i = 0; i < values->named_count && rc == RC_OK; i++) {
    struct value key;
    if (is_parameter(r, macro->node, values->named[i].name)) continue;
    if (!macro->node->takes_named)
      return work_fail(r->w, RC_INVALID, "expected no argument %.64s of the macro %.64s", values->named[i].name,
                       r->template->names[macro->node->name]);
    rc = text_of(r->w, values->named[i].name, &key);
    if (rc == RC_OK) rc = dict_set(r->w, rest, key, values->named[i].value);
  }
  return rc == RC_OK && macro->node->takes_named ? scope_set(r, scope, r->template->named_name, value_dict(rest)) : rc;
}

static enum rc bind_parameter(struct render *r, const struct macro_node *node, size_t index, struct scope *scope,
                              const struct call_values *values) {
  const int name = node->parameters.items[index]->name;
  const size_t first_default = node->parameters.count - node->defaults.count;
  struct value v = value_missing(r->template->names[name]);
  bool given = index < values->count;
  if (given) v = values->items[index];
  for (size_t i = 0; i < values->named_count; i++) {
    if (strcmp(r->template->names[name], values->named[i].name) != 0) continue;
    if (given) return work_fail(r->w, RC_INVALID, "expected one argument %.64s, got two", values->named[i].name);
    v = values->named[i].value;
    given = true;
  }
  enum rc rc = RC_OK;
  if (!given && index >= first_default) rc = r->evaluate(r, node->defaults.items[index - first_default], &v);
  return rc == RC_OK ? scope_set(r, scope, name, v) : rc;
}

static enum rc call_macro(struct render *r, const struct macro *macro, const struct call_values *values,
                          const struct macro *caller, struct value *out) {
  struct scope *scope = scope_new(r, macro->scope), *const around = r->scope;
  if (!scope) return r->w->rc;
  r->scope = scope; /* defaults see the parameters before them */
  enum rc rc = RC_OK;
  for (size_t i = 0; i < macro->node->parameters.count && rc == RC_OK; i++)
    rc = bind_parameter(r, macro->node, i, scope, values);
  if (rc == RC_OK) rc = bind_rest(r, macro, scope, values);
  if (rc == RC_OK) rc = bind_named(r, macro, scope, values);
  if (rc == RC_OK && caller)
    rc = scope_set(r, scope, caller->node->name, (struct value){.kind = VALUE_MACRO, .macro = caller});
  r->scope = around;
  return rc == RC_OK ? r->body_as_text(r, scope, &macro->node->body, out) : rc;
}

enum rc call_value(struct render *r, struct value function, const struct call_values *values,
                   const struct macro *caller, struct value *out) {
  switch (function.kind) {
    case VALUE_BUILTIN: return builtin_call(r->w, function.builtin, value_none(), values, out);
    case VALUE_METHOD: return builtin_call(r->w, function.method->builtin, function.method->self, values, out);
    case VALUE_MACRO: return call_macro(r, function.macro, values, caller, out);
    case VALUE_LOOP:
      if (values->count != 1) return work_fail(r->w, RC_INVALID, "expected one argument of loop()");
      return r->loop_again(r, function.loop, values->items[0], out);
    case VALUE_UNDEFINED: return value_check_defined(r->w, function);
    default: return work_fail(r->w, RC_INVALID, "expected a function to call, got a %s", value_type(function));
  }
}
