/* Parses what stands between {% and %}, and the template as a whole. */
#include <string.h>

#include "common/template/syntax/parser.h"
#include "common/template/values/text.h"

/* The statements up to {% end... %}: one of the names in `ends`, at which the parser stops, behind {%. */
static enum rc parse_body(struct parser *p, const char *const *ends, struct node_list *out);

/* Up to {% end %}, which is taken. */
static enum rc parse_up_to(struct parser *p, const char *end, struct node_list *out) {
  const char *const ends[] = {end, NULL};
  const enum rc rc = parse_body(p, ends, out);
  p->token += rc == RC_OK;
  return rc;
}

/* A body that runs as a function of its own: no break leaves it. */
static enum rc parse_function_body(struct parser *p, struct macro_node *macro, const char *end, struct node_list *out) {
  const int loops = p->loops;
  struct macro_node *const around = p->macro;
  p->loops = 0;
  if (macro) p->macro = macro;
  enum rc rc = expect_kind(p, TOKEN_BLOCK_END);
  if (rc == RC_OK) rc = parse_up_to(p, end, out);
  p->loops = loops;
  p->macro = around;
  return rc;
}

static enum rc parse_if(struct parser *p, struct node *node) {
  static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
  size_t cap = 0;
  bool more = true;
  enum rc rc = RC_OK;
  while (rc == RC_OK && more) {
    struct if_branch branch = {0};
    if (take_name(p, "endif")) break;
    const bool otherwise = take_name(p, "else");
    if (!otherwise) {
      p->token++; /* if or elif */
      rc = parse_tuple(p, false, &branch.test);
    }
    if (rc == RC_OK) rc = expect_kind(p, TOKEN_BLOCK_END);
    if (rc == RC_OK) rc = parse_body(p, otherwise ? last : ends, &branch.body);
    if (rc != RC_OK) break;
    if (node->choose.count == cap) {
      cap = cap ? cap * 2 : 2;
      struct if_branch *branches = work_alloc(p->w, cap, sizeof *branches);
      if (!branches) return p->w->rc;
      if (node->choose.count) memcpy(branches, node->choose.branches, node->choose.count * sizeof *branches);
      node->choose.branches = branches;
    }
    node->choose.branches[node->choose.count++] = branch;
  }
  return rc;
}

static enum rc parse_for(struct parser *p, struct node *node) {
  static const char *const ends[] = {"endfor", "else", NULL};
  p->token++;
  enum rc rc = parse_target(p, false, &node->loop.target);
  if (rc == RC_OK && !take_name(p, "in")) rc = parse_fail(p, "in");
  if (rc == RC_OK) rc = parse_tuple(p, false, &node->loop.items);
  if (rc == RC_OK && take_name(p, "if")) rc = parse_expression(p, &node->loop.test);
  if (rc == RC_OK) node->loop.recursive = take_name(p, "recursive");
  if (rc == RC_OK) rc = expect_kind(p, TOKEN_BLOCK_END);
  p->loops++;
  if (rc == RC_OK) rc = parse_body(p, ends, &node->loop.body);
  p->loops--;
  if (rc != RC_OK || take_name(p, "endfor")) return rc;
  p->token++; /* else */
  rc = expect_kind(p, TOKEN_BLOCK_END);
  return rc == RC_OK ? parse_up_to(p, "endfor", &node->loop.otherwise) : rc;
}

static enum rc parse_set(struct parser *p, struct node *node) {
  p->token++;
  enum rc rc = parse_target(p, true, &node->set.target);
  if (rc != RC_OK) return rc;
  if (take_sign(p, '=')) return parse_tuple(p, true, &node->set.value);
  node->kind = NODE_SET_BLOCK;
  rc = parse_filters(p, NULL, false, &node->set.value);
  if (rc == RC_OK) rc = expect_kind(p, TOKEN_BLOCK_END);
  return rc == RC_OK ? parse_up_to(p, "endset", &node->set.body) : rc;
}

/* (a, b=1) */
static enum rc parse_parameters(struct parser *p, struct macro_node *macro) {
  enum rc rc = expect_sign(p, '(');
  while (rc == RC_OK && !token_is_sign(p, ')')) {
    const struct node *part;
    if (macro->parameters.count && !take_sign(p, ',')) return parse_fail(p, ", or )");
    if (p->token->kind != TOKEN_NAME) return parse_fail(p, "a parameter's name");
    struct node *name = node_new(p, NODE_NAME);
    rc = name ? name_of(p, p->token->bytes, p->token->len, &name->name) : p->w->rc;
    if (rc == RC_OK) rc = node_append(p, &macro->parameters, name);
    p->token++;
    if (rc == RC_OK && take_sign(p, '=')) {
      rc = parse_expression(p, &part);
      if (rc == RC_OK) rc = node_append(p, &macro->defaults, part);
    } else if (rc == RC_OK && macro->defaults.count) {
      return parse_fail(p, "a default for each parameter behind one that has one");
    }
  }
  return rc == RC_OK ? expect_sign(p, ')') : rc;
}

static enum rc parse_macro(struct parser *p, struct node *node) {
  p->token++;
  if (p->token->kind != TOKEN_NAME) return parse_fail(p, "the macro's name");
  enum rc rc = name_of(p, p->token->bytes, p->token->len, &node->macro.name);
  p->token++;
  if (rc == RC_OK) rc = parse_parameters(p, &node->macro);
  return rc == RC_OK ? parse_function_body(p, &node->macro, "endmacro", &node->macro.body) : rc;
}

/* {% call(a, b) macro(...) %} */
static enum rc parse_call_block(struct parser *p, struct node *node) {
  struct node *caller = node_new(p, NODE_MACRO);
  if (!caller) return p->w->rc;
  p->token++;
  node->call_block.macro = caller;
  enum rc rc = name_of(p, "caller", strlen("caller"), &caller->macro.name);
  if (rc == RC_OK && token_is_sign(p, '(')) rc = parse_parameters(p, &caller->macro);
  if (rc == RC_OK) rc = parse_expression(p, &node->call_block.call);
  if (rc == RC_OK && node->call_block.call->kind != NODE_CALL) rc = parse_fail(p, "a call");
  return rc == RC_OK ? parse_function_body(p, &caller->macro, "endcall", &caller->macro.body) : rc;
}

static enum rc parse_filter_block(struct parser *p, struct node *node) {
  p->token++;
  enum rc rc = parse_filters(p, NULL, true, &node->set.value);
  if (rc == RC_OK) rc = expect_kind(p, TOKEN_BLOCK_END);
  return rc == RC_OK ? parse_up_to(p, "endfilter", &node->set.body) : rc;
}

static enum rc parse_with(struct parser *p, struct node *node) {
  enum rc rc = RC_OK;
  p->token++;
  while (rc == RC_OK && p->token->kind != TOKEN_BLOCK_END) {
    const struct node *part;
    if (node->with.targets.count) rc = expect_sign(p, ',');
    if (rc == RC_OK) rc = parse_target(p, false, &part);
    if (rc == RC_OK && part->kind != NODE_NAME) rc = parse_fail(p, "one name before each =");
    if (rc == RC_OK) rc = node_append(p, &node->with.targets, part);
    if (rc == RC_OK) rc = expect_sign(p, '=');
    if (rc == RC_OK) rc = parse_expression(p, &part);
    if (rc == RC_OK) rc = node_append(p, &node->with.values, part);
  }
  if (rc == RC_OK) rc = expect_kind(p, TOKEN_BLOCK_END);
  return rc == RC_OK ? parse_up_to(p, "endwith", &node->with.body) : rc;
}

static enum rc parse_generation(struct parser *p, struct node *node) {
  p->token++;
  return parse_function_body(p, NULL, "endgeneration", &node->body);
}

static enum rc parse_jump(struct parser *p, struct node *node) {
  (void)node;
  if (p->loops == 0) return parse_fail(p, "a loop around break and continue");
  p->token++;
  return RC_OK;
}

static const struct statement {
  const char *name;
  enum node_kind kind;
  enum rc (*parse)(struct parser *p, struct node *node); /* from the name on, up to %} */
} statements[] = {{"if", NODE_IF, parse_if},
                  {"for", NODE_FOR, parse_for},
                  {"set", NODE_SET, parse_set},
                  {"macro", NODE_MACRO, parse_macro},
                  {"generation", NODE_GENERATION, parse_generation},
                  {"break", NODE_BREAK, parse_jump},
                  {"continue", NODE_CONTINUE, parse_jump},
                  {"call", NODE_CALL_BLOCK, parse_call_block},
                  {"filter", NODE_FILTER_BLOCK, parse_filter_block},
                  {"with", NODE_WITH, parse_with}};

static enum rc parse_statement(struct parser *p, const struct node **out) {
  for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
    if (!token_is_name(p, statements[i].name)) continue;
    struct node *node = node_new(p, statements[i].kind);
    enum rc rc = node ? work_enter(p->w) : p->w->rc;
    if (rc != RC_OK) return rc;
    *out = node;
    rc = statements[i].parse(p, node);
    work_leave(p->w);
    return rc == RC_OK ? expect_kind(p, TOKEN_BLOCK_END) : rc;
  }
  return parse_fail(p, "a tag: if, for, set, macro, generation, break, continue, call, filter, with, raw");
}

static enum rc parse_piece(struct parser *p, const struct node **out) {
  if (p->token->kind == TOKEN_TEXT) {
    struct node *node = node_new(p, NODE_TEXT);
    if (!node) return p->w->rc;
    node->constant = p->token->value;
    p->token++;
    *out = node;
    return RC_OK;
  }
  struct node *node = node_new(p, NODE_PRINT); /* TOKEN_PRINT_BEGIN */
  if (!node) return p->w->rc;
  p->token++;
  *out = node;
  const enum rc rc = parse_tuple(p, true, &node->operand);
  return rc == RC_OK ? expect_kind(p, TOKEN_PRINT_END) : rc;
}

static enum rc parse_body(struct parser *p, const char *const *ends, struct node_list *out) {
  enum rc rc = RC_OK;
  while (rc == RC_OK) {
    const struct node *node = NULL;
    if (p->token->kind == TOKEN_END) return ends ? parse_fail(p, ends[0]) : RC_OK;
    if (p->token->kind == TOKEN_BLOCK_BEGIN) {
      p->token++;
      for (size_t i = 0; ends && ends[i]; i++)
        if (token_is_name(p, ends[i])) return RC_OK;
      rc = parse_statement(p, &node);
    } else {
      rc = parse_piece(p, &node);
    }
    if (rc == RC_OK) rc = node_append(p, out, node);
  }
  return rc;
}

enum rc parse_template(struct parser *p, struct node_list *out) { return parse_body(p, NULL, out); }
