/* Runs statements: output, branches, loops, assignments, macros, generation blocks. */
#include "common/template/render.h"
#include "common/template/values/print.h"

enum rc run_body_as_text(struct render *r, struct scope *scope, const struct node_list *body, struct value *out) {
  struct text_builder b = builder_begin(r->w), *const out_around = r->out;
  struct scope *const scope_around = r->scope;
  r->out = &b;
  r->scope = scope;
  const enum rc rc = run_body(r, body);
  r->out = out_around;
  r->scope = scope_around;
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

static enum rc run_in_scope(struct render *r, struct scope *scope, const struct node_list *body) {
  struct scope *const around = r->scope;
  r->scope = scope;
  const enum rc rc = run_body(r, body);
  r->scope = around;
  return rc;
}

static enum rc run_if(struct render *r, const struct node *node) {
  for (size_t i = 0; i < node->choose.count; i++) {
    const struct if_branch *branch = &node->choose.branches[i];
    struct value test = value_bool(true);
    const enum rc rc = branch->test ? evaluate(r, branch->test, &test) : RC_OK;
    if (rc != RC_OK) return rc;
    if (value_true(test)) return run_body(r, &branch->body);
  }
  return RC_OK;
}

/* The items that a for's `if` keeps. */
static enum rc choose_items(struct render *r, const struct node *node, struct scope *outside, struct list **items) {
  struct list *chosen = list_new(r->w, FORM_LIST, 0);
  struct scope *scope = scope_new(r, outside), *const around = r->scope;
  enum rc rc = chosen && scope ? RC_OK : r->w->rc;
  for (size_t i = 0; rc == RC_OK && i < (*items)->count; i++) {
    struct value test;
    scope->count = 0;
    r->scope = scope;
    rc = assign(r, node->loop.target, (*items)->items[i]);
    if (rc == RC_OK) rc = evaluate(r, node->loop.test, &test);
    r->scope = around;
    if (rc == RC_OK && value_true(test)) rc = list_append(r->w, chosen, (*items)->items[i]);
  }
  *items = chosen;
  return rc;
}

static enum rc run_iteration(struct render *r, struct loop *loop, struct scope *scope) {
  const struct node *node = loop->node;
  scope->count = 0; /* what the last iteration set is gone */
  enum rc rc = work_charge(r->w, 0);
  if (rc == RC_OK && r->template->loop_name >= 0)
    rc = scope_set(r, scope, r->template->loop_name, (struct value){.kind = VALUE_LOOP, .loop = loop});
  struct scope *const around = r->scope;
  r->scope = scope;
  if (rc == RC_OK) rc = assign(r, node->loop.target, loop->items->items[loop->at]);
  if (rc == RC_OK) rc = run_body(r, &node->loop.body);
  r->scope = around;
  return rc;
}

static enum rc run_loop(struct render *r, const struct node *node, struct value over, int64_t depth,
                        struct scope *outside) {
  struct list *items;
  struct loop *loop = work_alloc(r->w, 1, sizeof *loop);
  struct scope *scope = loop ? scope_new(r, outside) : NULL;
  enum rc rc = scope ? value_items(r->w, over, &items) : r->w->rc;
  if (rc == RC_OK && node->loop.test) rc = choose_items(r, node, outside, &items);
  if (rc != RC_OK) return rc;
  *loop = (struct loop){.node = node, .outside = outside, .items = items, .depth = depth};
  bool went_through = false; /* some iteration came to the body's end: as in Jinja, a break is no reason to skip else */
  for (; rc == RC_OK && loop->at < items->count; loop->at++) {
    rc = run_iteration(r, loop, scope);
    const enum flow flow = r->flow;
    r->flow = FLOW_ON;
    went_through |= flow == FLOW_ON;
    if (flow == FLOW_BREAK) break;
  }
  if (rc != RC_OK || went_through || node->loop.otherwise.count == 0) return rc;
  scope->count = 0;
  return run_in_scope(r, scope, &node->loop.otherwise);
}

static enum rc run_for(struct render *r, const struct node *node) {
  struct value over;
  const enum rc rc = evaluate(r, node->loop.items, &over);
  return rc == RC_OK ? run_loop(r, node, over, 0, r->scope) : rc;
}

enum rc run_loop_again(struct render *r, const struct loop *loop, struct value over, struct value *out) {
  if (!loop->node->loop.recursive)
    return work_fail(r->w, RC_INVALID, "expected `for ... recursive`, where loop() is called");
  struct text_builder b = builder_begin(r->w), *const around = r->out;
  r->out = &b;
  const enum rc rc = run_loop(r, loop->node, over, loop->depth + 1, loop->outside);
  r->out = around;
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

static enum rc run_set(struct render *r, const struct node *node) {
  struct value v;
  const enum rc rc = evaluate(r, node->set.value, &v);
  return rc == RC_OK ? assign(r, node->set.target, v) : rc;
}

/* A block's text, through its filters. */
static enum rc block_text(struct render *r, const struct node *node, struct value *out) {
  struct scope *scope = scope_new(r, r->scope);
  enum rc rc = scope ? run_body_as_text(r, scope, &node->set.body, out) : r->w->rc;
  if (rc != RC_OK || !node->set.value) return rc;
  const struct value around = r->block;
  r->block = *out;
  rc = evaluate(r, node->set.value, out);
  r->block = around;
  return rc;
}

static enum rc run_set_block(struct render *r, const struct node *node) {
  struct value v;
  const enum rc rc = block_text(r, node, &v);
  return rc == RC_OK ? assign(r, node->set.target, v) : rc;
}

static enum rc run_filter_block(struct render *r, const struct node *node) {
  struct value v;
  const enum rc rc = block_text(r, node, &v);
  return rc == RC_OK ? print_value(r->out, v) : rc;
}

static enum rc make_macro(struct render *r, const struct node *node, struct macro **out) {
  struct macro *macro = *out = work_alloc(r->w, 1, sizeof *macro);
  if (!macro) return r->w->rc;
  *macro = (struct macro){&node->macro, r->scope};
  return RC_OK;
}

static enum rc run_macro(struct render *r, const struct node *node) {
  struct macro *macro;
  const enum rc rc = make_macro(r, node, &macro);
  if (rc != RC_OK) return rc;
  return scope_set(r, r->scope, node->macro.name, (struct value){.kind = VALUE_MACRO, .macro = macro});
}

static enum rc run_call_block(struct render *r, const struct node *node) {
  struct macro *caller;
  struct value v;
  enum rc rc = make_macro(r, node->call_block.macro, &caller);
  if (rc == RC_OK) rc = evaluate_call(r, node->call_block.call, caller, &v);
  return rc == RC_OK ? print_value(r->out, v) : rc;
}

static enum rc run_with(struct render *r, const struct node *node) {
  struct scope *scope = scope_new(r, r->scope);
  enum rc rc = scope ? RC_OK : r->w->rc;
  for (size_t i = 0; i < node->with.targets.count && rc == RC_OK; i++) {
    struct value v;
    rc = evaluate(r, node->with.values.items[i], &v);
    if (rc == RC_OK) rc = scope_set(r, scope, node->with.targets.items[i]->name, v);
  }
  return rc == RC_OK ? run_in_scope(r, scope, &node->with.body) : rc;
}

/* What an assistant said: its bytes are marked. */
static enum rc run_generation(struct render *r, const struct node *node) {
  struct scope *scope = scope_new(r, r->scope);
  const size_t from = r->out->marks.len;
  const enum rc rc = scope ? run_in_scope(r, scope, &node->body) : r->w->rc;
  for (size_t i = from; rc == RC_OK && i < r->out->marks.len; i++) r->out->marks.data[i] |= MARK_GENERATED;
  return rc;
}

static enum rc run_print(struct render *r, const struct node *node) {
  struct value v;
  const enum rc rc = evaluate(r, node->operand, &v);
  return rc == RC_OK ? print_value(r->out, v) : rc;
}

static enum rc run_statement(struct render *r, const struct node *node) {
  switch (node->kind) {
    case NODE_TEXT: return builder_text(r->out, node->constant.text);
    case NODE_PRINT: return run_print(r, node);
    case NODE_IF: return run_if(r, node);
    case NODE_FOR: return run_for(r, node);
    case NODE_SET: return run_set(r, node);
    case NODE_SET_BLOCK: return run_set_block(r, node);
    case NODE_MACRO: return run_macro(r, node);
    case NODE_CALL_BLOCK: return run_call_block(r, node);
    case NODE_FILTER_BLOCK: return run_filter_block(r, node);
    case NODE_WITH: return run_with(r, node);
    case NODE_GENERATION: return run_generation(r, node);
    case NODE_BREAK: r->flow = FLOW_BREAK; return RC_OK;
    case NODE_CONTINUE: r->flow = FLOW_CONTINUE; return RC_OK;
    default: return work_fail(r->w, RC_INTERNAL, "an expression stands where a statement was expected");
  }
}

enum rc run_body(struct render *r, const struct node_list *body) {
  enum rc rc = work_enter(r->w);
  if (rc != RC_OK) return rc;
  for (size_t i = 0; i < body->count && rc == RC_OK && r->flow == FLOW_ON; i++) {
    r->w->line = body->items[i]->line;
    rc = work_charge(r->w, 0);
    if (rc == RC_OK) rc = run_statement(r, body->items[i]);
  }
  work_leave(r->w);
  return rc;
}
