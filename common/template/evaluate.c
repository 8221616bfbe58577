/* Evaluates expressions. */
#include "common/template/builtins/access.h"
#include "common/template/render.h"
#include "common/template/values/print.h"
#include "common/template/values/slice.h"

static enum rc evaluate_items(struct render *r, const struct node *node, enum list_form form, struct value *out) {
  struct list *list = list_new(r->w, form, node->items.count);
  enum rc rc = list ? RC_OK : r->w->rc;
  for (size_t i = 0; i < node->items.count && rc == RC_OK; i++) {
    struct value item;
    rc = evaluate(r, node->items.items[i], &item);
    if (rc == RC_OK) rc = list_append(r->w, list, item);
  }
  *out = value_list(list);
  return rc;
}

static enum rc evaluate_dict(struct render *r, const struct node *node, struct value *out) {
  struct dict *dict = dict_new(r->w, node->items.count / 2);
  enum rc rc = dict ? RC_OK : r->w->rc;
  for (size_t i = 0; i + 1 < node->items.count && rc == RC_OK; i += 2) {
    struct value key, v;
    rc = evaluate(r, node->items.items[i], &key);
    if (rc == RC_OK) rc = evaluate(r, node->items.items[i + 1], &v);
    if (rc == RC_OK) rc = dict_set(r->w, dict, key, v);
  }
  *out = value_dict(dict);
  return rc;
}

static enum rc evaluate_binary(struct render *r, const struct node *node, struct value *out) {
  struct value left, right;
  enum rc rc = evaluate(r, node->binary.left, &left);
  if (rc == RC_OK) rc = evaluate(r, node->binary.right, &right);
  r->w->line = node->line;
  return rc == RC_OK ? operate(r->w, node->binary.operation, left, right, out) : rc;
}

static enum rc evaluate_and_or(struct render *r, const struct node *node, struct value *out) {
  const enum rc rc = evaluate(r, node->binary.left, out);
  if (rc != RC_OK || value_true(*out) == (node->kind == NODE_OR)) return rc;
  return evaluate(r, node->binary.right, out);
}

/* a < b < c: each is evaluated once, and what follows a false comparison not at all. */
static enum rc evaluate_compare(struct render *r, const struct node *node, struct value *out) {
  struct value left, right;
  enum rc rc = evaluate(r, node->compare.left, &left);
  *out = value_bool(true);
  for (size_t i = 0; rc == RC_OK && out->truth && i < node->compare.count; i++) {
    rc = evaluate(r, node->compare.items[i].right, &right);
    r->w->line = node->line;
    if (rc == RC_OK) rc = operate(r->w, node->compare.items[i].operation, left, right, out);
    left = right;
  }
  return rc;
}

static enum rc evaluate_concat(struct render *r, const struct node *node, struct value *out) {
  struct text_builder b = builder_begin(r->w);
  enum rc rc = RC_OK;
  for (size_t i = 0; i < node->items.count && rc == RC_OK; i++) {
    struct value part;
    rc = evaluate(r, node->items.items[i], &part);
    if (rc == RC_OK) rc = print_value(&b, part);
  }
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

static enum rc evaluate_choice(struct render *r, const struct node *node, struct value *out) {
  struct value test;
  const enum rc rc = evaluate(r, node->choice.test, &test);
  if (rc != RC_OK) return rc;
  if (value_true(test)) return evaluate(r, node->choice.then, out);
  if (node->choice.otherwise) return evaluate(r, node->choice.otherwise, out);
  *out = value_missing("an if without else");
  return RC_OK;
}

static enum rc evaluate_or_none(struct render *r, const struct node *node, struct value *out) {
  *out = value_none();
  return node ? evaluate(r, node, out) : RC_OK;
}

static enum rc evaluate_slice(struct render *r, struct value object, const struct node *slice, struct value *out) {
  struct value from, to, step;
  enum rc rc = evaluate_or_none(r, slice->slice.from, &from);
  if (rc == RC_OK) rc = evaluate_or_none(r, slice->slice.to, &to);
  if (rc == RC_OK) rc = evaluate_or_none(r, slice->slice.step, &step);
  return rc == RC_OK ? get_slice(r->w, object, from, to, step, out) : rc;
}

static enum rc evaluate_subscript(struct render *r, const struct node *node, struct value *out) {
  struct value object, index;
  enum rc rc = evaluate(r, node->subscript.object, &object);
  if (rc != RC_OK) return rc;
  if (node->subscript.index->kind == NODE_SLICE) return evaluate_slice(r, object, node->subscript.index, out);
  rc = evaluate(r, node->subscript.index, &index);
  r->w->line = node->line;
  return rc == RC_OK ? get_item(r->w, object, index, out) : rc;
}

static enum rc evaluate_attribute(struct render *r, const struct node *node, struct value *out) {
  struct value object;
  const enum rc rc = evaluate(r, node->attribute.object, &object);
  r->w->line = node->line;
  return rc == RC_OK ? get_attribute(r->w, object, node->attribute.name, out) : rc;
}

enum rc evaluate_call(struct render *r, const struct node *node, const struct macro *caller, struct value *out) {
  struct value function;
  struct call_values values;
  enum rc rc = evaluate(r, node->call.function, &function);
  if (rc == RC_OK) rc = call_arguments(r, &node->call.arguments, &values);
  r->w->line = node->line;
  return rc == RC_OK ? call_value(r, function, &values, caller, out) : rc;
}

static enum rc evaluate_apply(struct render *r, const struct node *node, struct value *out) {
  struct value input = r->block;
  struct call_values values;
  enum rc rc = RC_OK;
  if (!node->apply.builtin)
    return work_fail(r->w, RC_INVALID, "there is no %s %.64s", node->kind == NODE_FILTER ? "filter" : "test",
                     node->apply.name);
  if (node->apply.input) rc = evaluate(r, node->apply.input, &input);
  if (rc == RC_OK) rc = call_arguments(r, &node->apply.arguments, &values);
  r->w->line = node->line;
  return rc == RC_OK ? builtin_call(r->w, node->apply.builtin, input, &values, out) : rc;
}

static enum rc evaluate_operand(struct render *r, const struct node *node, struct value *out) {
  struct value operand;
  const enum rc rc = evaluate(r, node->operand, &operand);
  if (rc != RC_OK) return rc;
  if (node->kind == NODE_NEGATE) return negate(r->w, operand, out);
  if (node->kind == NODE_POSITIVE) return operate(r->w, OPERATION_ADD, operand, value_int(0), out);
  *out = value_bool(!value_true(operand));
  return RC_OK;
}

static enum rc evaluate_node(struct render *r, const struct node *node, struct value *out) {
  switch (node->kind) {
    case NODE_CONSTANT: *out = node->constant; return RC_OK;
    case NODE_NAME: return scope_find(r, node->name, out);
    case NODE_LIST: return evaluate_items(r, node, FORM_LIST, out);
    case NODE_TUPLE: return evaluate_items(r, node, FORM_TUPLE, out);
    case NODE_DICT: return evaluate_dict(r, node, out);
    case NODE_NOT:
    case NODE_NEGATE:
    case NODE_POSITIVE: return evaluate_operand(r, node, out);
    case NODE_BINARY: return evaluate_binary(r, node, out);
    case NODE_AND:
    case NODE_OR: return evaluate_and_or(r, node, out);
    case NODE_COMPARE: return evaluate_compare(r, node, out);
    case NODE_CONCAT: return evaluate_concat(r, node, out);
    case NODE_CHOICE: return evaluate_choice(r, node, out);
    case NODE_ATTRIBUTE: return evaluate_attribute(r, node, out);
    case NODE_SUBSCRIPT: return evaluate_subscript(r, node, out);
    case NODE_CALL: return evaluate_call(r, node, NULL, out);
    case NODE_FILTER:
    case NODE_TEST: return evaluate_apply(r, node, out);
    default: return work_fail(r->w, RC_INTERNAL, "a statement stands where an expression was expected");
  }
}

enum rc evaluate(struct render *r, const struct node *node, struct value *out) {
  enum rc rc = work_enter(r->w);
  if (rc != RC_OK) return rc;
  r->w->line = node->line;
  rc = work_charge(r->w, 0);
  if (rc == RC_OK) rc = evaluate_node(r, node, out);
  work_leave(r->w);
  return rc;
}
