/* Parses expressions, by Jinja's grammar.  From loose to tight:
 *
 *   choice (a if b else c), or, and, not, comparison, + -, ~, * / // %, **, sign, then attributes, subscripts and
 *   calls, then filters and tests.
 *
 * Left-associative chains are built by loops; only real nesting recurses, and is bounded. */
#include <string.h>

#include "common/template/syntax/parser.h"
#include "common/template/values/value.h"

static enum rc parse_unary(struct parser *p, bool filters, const struct node **out);
static enum rc parse_or(struct parser *p, const struct node **out);

static enum rc append_argument(struct parser *p, struct argument_list *list, struct argument argument) {
  if (list->count == list->cap) {
    const size_t cap = list->cap ? list->cap * 2 : 4;
    struct argument *items = work_alloc(p->w, cap, sizeof *items);
    if (!items) return p->w->rc;
    if (list->count) memcpy(items, list->items, list->count * sizeof *items);
    list->items = items;
    list->cap = cap;
  }
  list->items[list->count++] = argument;
  return RC_OK;
}

static enum rc parse_argument(struct parser *p, struct argument *argument, enum argument_kind before) {
  enum rc rc = RC_OK;
  if (take_sign(p, '*')) {
    argument->kind = ARGUMENT_LIST;
  } else if (take_sign(p, SIGN_OF('*', '*'))) {
    argument->kind = ARGUMENT_DICT;
  } else if (p->token->kind == TOKEN_NAME && p->token[1].kind == TOKEN_SIGN && p->token[1].sign == '=') {
    argument->kind = ARGUMENT_NAMED;
    rc = name_of(p, p->token->bytes, p->token->len, &argument->name);
    p->token += 2;
  }
  if (argument->kind < before || (argument->kind == before && before >= ARGUMENT_LIST))
    return parse_fail(p, "plain arguments before named ones, then one *list and one **dict");
  return rc == RC_OK ? parse_expression(p, &argument->value) : rc;
}

/* (a, b=c, *d, **e) */
static enum rc parse_arguments(struct parser *p, struct argument_list *out) {
  enum argument_kind before = ARGUMENT_PLAIN;
  enum rc rc = expect_sign(p, '(');
  while (rc == RC_OK && !token_is_sign(p, ')')) {
    if (out->count) {
      rc = expect_sign(p, ',');
      if (rc != RC_OK || token_is_sign(p, ')')) break;
    }
    struct argument argument = {.kind = ARGUMENT_PLAIN};
    rc = parse_argument(p, &argument, before);
    before = argument.kind;
    if (rc == RC_OK) rc = append_argument(p, out, argument);
  }
  return rc == RC_OK ? expect_sign(p, ')') : rc;
}

static enum rc constant(struct parser *p, struct value v, const struct node **out) {
  struct node *node = node_new(p, NODE_CONSTANT);
  if (!node) return p->w->rc;
  node->constant = v;
  *out = node;
  return RC_OK;
}

static enum rc parse_name(struct parser *p, const struct node **out) {
  static const struct {
    const char *name;
    enum value_kind kind;
    bool truth;
  } words[] = {{"true", VALUE_BOOL, true},   {"True", VALUE_BOOL, true},  {"false", VALUE_BOOL, false},
               {"False", VALUE_BOOL, false}, {"none", VALUE_NONE, false}, {"None", VALUE_NONE, false}};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (!token_is_name(p, words[i].name)) continue;
    const enum rc rc = constant(p, words[i].kind == VALUE_NONE ? value_none() : value_bool(words[i].truth), out);
    p->token++;
    return rc;
  }
  struct node *node = node_new(p, NODE_NAME);
  if (!node) return p->w->rc;
  if (p->macro && token_is_name(p, "varargs")) p->macro->takes_rest = true;
  if (p->macro && token_is_name(p, "kwargs")) p->macro->takes_named = true;
  *out = node;
  const enum rc rc = name_of(p, p->token->bytes, p->token->len, &node->name);
  p->token++;
  return rc;
}

/* A number, or texts that stand side by side. */
static enum rc parse_constant(struct parser *p, const struct node **out) {
  enum rc rc = constant(p, p->token->value, out);
  bool text = p->token++->value.kind == VALUE_TEXT;
  while (rc == RC_OK && text && p->token->kind == TOKEN_CONSTANT && p->token->value.kind == VALUE_TEXT) {
    struct value both;
    rc = operate(p->w, OPERATION_ADD, (*out)->constant, p->token->value, &both);
    if (rc == RC_OK) rc = constant(p, both, out);
    p->token++;
  }
  return rc;
}

static enum rc parse_list(struct parser *p, const struct node **out) {
  struct node *node = node_new(p, NODE_LIST);
  enum rc rc = node ? expect_sign(p, '[') : p->w->rc;
  while (rc == RC_OK && !token_is_sign(p, ']')) {
    const struct node *item;
    if (node->items.count) {
      rc = expect_sign(p, ',');
      if (rc != RC_OK || token_is_sign(p, ']')) break;
    }
    rc = parse_expression(p, &item);
    if (rc == RC_OK) rc = node_append(p, &node->items, item);
  }
  *out = node;
  return rc == RC_OK ? expect_sign(p, ']') : rc;
}

static enum rc parse_dict(struct parser *p, const struct node **out) {
  struct node *node = node_new(p, NODE_DICT);
  enum rc rc = node ? expect_sign(p, '{') : p->w->rc;
  while (rc == RC_OK && !token_is_sign(p, '}')) {
    const struct node *part;
    if (node->items.count) {
      rc = expect_sign(p, ',');
      if (rc != RC_OK || token_is_sign(p, '}')) break;
    }
    rc = parse_expression(p, &part);
    if (rc == RC_OK) rc = node_append(p, &node->items, part);
    if (rc == RC_OK) rc = expect_sign(p, ':');
    if (rc == RC_OK) rc = parse_expression(p, &part);
    if (rc == RC_OK) rc = node_append(p, &node->items, part);
  }
  *out = node;
  return rc == RC_OK ? expect_sign(p, '}') : rc;
}

static bool ends_tuple(const struct parser *p) {
  return p->token->kind == TOKEN_PRINT_END || p->token->kind == TOKEN_BLOCK_END || token_is_sign(p, ')');
}

/* empty: () is a tuple, too. */
static enum rc parse_items(struct parser *p, bool choices, bool empty, const struct node **out) {
  struct node *tuple = node_new(p, NODE_TUPLE);
  enum rc rc = tuple ? RC_OK : p->w->rc;
  bool comma = false;
  while (rc == RC_OK && !ends_tuple(p)) {
    const struct node *item;
    rc = choices ? parse_expression(p, &item) : parse_or(p, &item);
    if (rc == RC_OK) rc = node_append(p, &tuple->items, item);
    if (rc != RC_OK || !take_sign(p, ',')) break;
    comma = true;
  }
  if (rc == RC_OK && tuple->items.count == 0 && !empty) return parse_fail(p, "an expression");
  if (rc == RC_OK) *out = comma || tuple->items.count == 0 ? tuple : tuple->items.items[0];
  return rc;
}

enum rc parse_tuple(struct parser *p, bool choices, const struct node **out) {
  return parse_items(p, choices, false, out);
}

static enum rc parse_primary(struct parser *p, const struct node **out) {
  if (p->token->kind == TOKEN_NAME) return parse_name(p, out);
  if (p->token->kind == TOKEN_CONSTANT) return parse_constant(p, out);
  if (token_is_sign(p, '[')) return parse_list(p, out);
  if (token_is_sign(p, '{')) return parse_dict(p, out);
  if (!take_sign(p, '(')) return parse_fail(p, "an expression");
  const enum rc rc = parse_items(p, true, true, out);
  return rc == RC_OK ? expect_sign(p, ')') : rc;
}

/* One index, or from:to:step. */
static enum rc parse_index(struct parser *p, const struct node **out) {
  struct node *slice = node_new(p, NODE_SLICE);
  enum rc rc = slice ? RC_OK : p->w->rc;
  if (rc == RC_OK && !token_is_sign(p, ':')) rc = parse_expression(p, &slice->slice.from);
  if (rc != RC_OK) return rc;
  *out = slice->slice.from;
  if (!take_sign(p, ':')) return RC_OK;
  if (!token_is_sign(p, ':') && !token_is_sign(p, ']')) rc = parse_expression(p, &slice->slice.to);
  if (rc == RC_OK && take_sign(p, ':') && !token_is_sign(p, ']')) rc = parse_expression(p, &slice->slice.step);
  *out = slice;
  return rc;
}

static enum rc parse_attribute(struct parser *p, const struct node *object, const struct node **out) {
  struct node *node = node_new(p, NODE_ATTRIBUTE);
  if (!node) return p->w->rc;
  *out = node;
  if (p->token->kind == TOKEN_NAME) {
    struct value name;
    const enum rc rc = text_share(p->w, p->token->bytes, p->token->len, 0, &name);
    if (rc != RC_OK) return rc;
    node->attribute.object = object;
    node->attribute.name = name.text;
    p->token++;
    return RC_OK;
  }
  if (p->token->kind != TOKEN_CONSTANT || p->token->value.kind != VALUE_INT)
    return parse_fail(p, "a name or a number behind the dot");
  node->kind = NODE_SUBSCRIPT;
  node->subscript.object = object;
  const enum rc rc = constant(p, p->token->value, &node->subscript.index);
  p->token++;
  return rc;
}

static enum rc parse_call(struct parser *p, const struct node *function, const struct node **out) {
  struct node *node = node_new(p, NODE_CALL);
  if (!node) return p->w->rc;
  node->call.function = function;
  *out = node;
  return parse_arguments(p, &node->call.arguments);
}

static enum rc parse_postfix(struct parser *p, const struct node **out) {
  enum rc rc = RC_OK;
  while (rc == RC_OK) {
    if (take_sign(p, '.')) {
      rc = parse_attribute(p, *out, out);
    } else if (token_is_sign(p, '[')) {
      struct node *node = node_new(p, NODE_SUBSCRIPT);
      if (!node) return p->w->rc;
      p->token++;
      node->subscript.object = *out;
      *out = node;
      rc = parse_index(p, &node->subscript.index);
      if (rc == RC_OK) rc = expect_sign(p, ']');
    } else if (token_is_sign(p, '(')) {
      rc = parse_call(p, *out, out);
    } else {
      break;
    }
  }
  return rc;
}

/* A filter's or test's name, with dots. */
static enum rc parse_builtin_name(struct parser *p, const char **out) {
  int name;
  if (p->token->kind != TOKEN_NAME) return parse_fail(p, "a name");
  const char *begin = p->token->bytes;
  while (p->token[1].kind == TOKEN_SIGN && p->token[1].sign == '.' && p->token[2].kind == TOKEN_NAME) p->token += 2;
  const enum rc rc = name_of(p, begin, (size_t)(p->token->bytes + p->token->len - begin), &name);
  p->token++;
  if (rc == RC_OK) *out = p->names[name];
  return rc;
}

enum rc parse_filters(struct parser *p, const struct node *input, bool leading, const struct node **out) {
  enum rc rc = RC_OK;
  *out = input;
  while (rc == RC_OK && (leading || take_sign(p, '|'))) {
    struct node *node = node_new(p, NODE_FILTER);
    leading = false;
    rc = node ? parse_builtin_name(p, &node->apply.name) : p->w->rc;
    if (rc != RC_OK) return rc;
    node->apply.input = *out;
    node->apply.builtin = p->w->builtins->filter(node->apply.name);
    *out = node;
    if (token_is_sign(p, '(')) rc = parse_arguments(p, &node->apply.arguments);
  }
  return rc;
}

static bool begins_test_argument(const struct parser *p) {
  if (p->token->kind == TOKEN_NAME)
    return !token_is_name(p, "else") && !token_is_name(p, "or") && !token_is_name(p, "and");
  return p->token->kind == TOKEN_CONSTANT || token_is_sign(p, '(') || token_is_sign(p, '[') || token_is_sign(p, '{');
}

/* is name, is not name, is name argument, is name(arguments) */
static enum rc parse_test(struct parser *p, const struct node **out) {
  struct node *test = node_new(p, NODE_TEST), *inverse = node_new(p, NODE_NOT);
  if (!test || !inverse) return p->w->rc;
  const bool negated = take_name(p, "not");
  enum rc rc = parse_builtin_name(p, &test->apply.name);
  if (rc != RC_OK) return rc;
  test->apply.builtin = p->w->builtins->test(test->apply.name);
  test->apply.input = *out;
  if (token_is_sign(p, '(')) {
    rc = parse_arguments(p, &test->apply.arguments);
  } else if (begins_test_argument(p)) {
    struct argument argument = {.kind = ARGUMENT_PLAIN};
    if (token_is_name(p, "is")) return parse_fail(p, "one test, tests cannot be chained");
    rc = parse_primary(p, &argument.value);
    if (rc == RC_OK) rc = parse_postfix(p, &argument.value);
    if (rc == RC_OK) rc = append_argument(p, &test->apply.arguments, argument);
  }
  inverse->operand = test;
  *out = negated ? inverse : test;
  return rc;
}

static enum rc parse_filters_and_tests(struct parser *p, const struct node **out) {
  enum rc rc = RC_OK;
  while (rc == RC_OK) {
    if (token_is_sign(p, '|'))
      rc = parse_filters(p, *out, false, out);
    else if (take_name(p, "is"))
      rc = parse_test(p, out);
    else if (token_is_sign(p, '('))
      rc = parse_call(p, *out, out);
    else
      break;
  }
  return rc;
}

static enum rc parse_signed(struct parser *p, bool filters, const struct node **out) {
  enum rc rc;
  if (token_is_sign(p, '-') || token_is_sign(p, '+')) {
    struct node *node = node_new(p, token_is_sign(p, '-') ? NODE_NEGATE : NODE_POSITIVE);
    if (!node) return p->w->rc;
    p->token++;
    *out = node;
    rc = parse_unary(p, false, &node->operand);
  } else {
    rc = parse_primary(p, out);
  }
  if (rc == RC_OK) rc = parse_postfix(p, out);
  return rc == RC_OK && filters ? parse_filters_and_tests(p, out) : rc;
}

static enum rc parse_unary(struct parser *p, bool filters, const struct node **out) {
  enum rc rc = work_enter(p->w);
  if (rc != RC_OK) return rc;
  rc = parse_signed(p, filters, out);
  work_leave(p->w);
  return rc;
}

struct level {
  const struct level *tighter; /* NULL: parse_unary */
  struct {
    int sign;
    enum operation operation;
  } signs[4];
};
static const struct level power_level = {NULL, {{SIGN_OF('*', '*'), OPERATION_POWER}}};
static const struct level product_level = {&power_level,
                                           {{'*', OPERATION_MULTIPLY},
                                            {'/', OPERATION_DIVIDE},
                                            {SIGN_OF('/', '/'), OPERATION_FLOOR_DIVIDE},
                                            {'%', OPERATION_MODULO}}};

static enum rc parse_level(struct parser *p, const struct level *level, const struct node **out) {
  enum rc rc = level->tighter ? parse_level(p, level->tighter, out) : parse_unary(p, true, out);
  while (rc == RC_OK) {
    size_t found = 0;
    while (found < 4 && (!level->signs[found].sign || !token_is_sign(p, level->signs[found].sign))) found++;
    if (found == 4) break;
    struct node *node = node_new(p, NODE_BINARY);
    if (!node) return p->w->rc;
    p->token++;
    node->binary.operation = level->signs[found].operation;
    node->binary.left = *out;
    rc = level->tighter ? parse_level(p, level->tighter, &node->binary.right)
                        : parse_unary(p, true, &node->binary.right);
    *out = node;
  }
  return rc;
}

/* a ~ b ~ c */
static enum rc parse_concat(struct parser *p, const struct node **out) {
  enum rc rc = parse_level(p, &product_level, out);
  if (rc != RC_OK || !token_is_sign(p, '~')) return rc;
  struct node *node = node_new(p, NODE_CONCAT);
  rc = node ? node_append(p, &node->items, *out) : p->w->rc;
  while (rc == RC_OK && take_sign(p, '~')) {
    rc = parse_level(p, &product_level, out);
    if (rc == RC_OK) rc = node_append(p, &node->items, *out);
  }
  *out = node;
  return rc;
}

static enum rc parse_sum(struct parser *p, const struct node **out) {
  enum rc rc = parse_concat(p, out);
  while (rc == RC_OK && (token_is_sign(p, '+') || token_is_sign(p, '-'))) {
    struct node *node = node_new(p, NODE_BINARY);
    if (!node) return p->w->rc;
    node->binary.operation = token_is_sign(p, '+') ? OPERATION_ADD : OPERATION_SUBTRACT;
    p->token++;
    node->binary.left = *out;
    rc = parse_concat(p, &node->binary.right);
    *out = node;
  }
  return rc;
}

static bool take_comparison(struct parser *p, enum operation *out) {
  static const struct {
    int sign;
    enum operation operation;
  } signs[] = {{SIGN_OF('=', '='), OPERATION_EQUAL},
               {SIGN_OF('!', '='), OPERATION_NOT_EQUAL},
               {SIGN_OF('<', '='), OPERATION_LESS_EQUAL},
               {SIGN_OF('>', '='), OPERATION_GREATER_EQUAL},
               {'<', OPERATION_LESS},
               {'>', OPERATION_GREATER}};
  for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
    if (!take_sign(p, signs[i].sign)) continue;
    *out = signs[i].operation;
    return true;
  }
  *out = OPERATION_IN;
  if (take_name(p, "in")) return true;
  *out = OPERATION_NOT_IN;
  const struct token *next = p->token + 1;
  if (!token_is_name(p, "not") || next->kind != TOKEN_NAME || next->len != 2 || memcmp(next->bytes, "in", 2) != 0)
    return false;
  p->token += 2;
  return true;
}

static enum rc parse_compare(struct parser *p, const struct node **out) {
  struct node *node = NULL;
  size_t cap = 0;
  struct comparison comparison;
  enum rc rc = parse_sum(p, out);
  while (rc == RC_OK && take_comparison(p, &comparison.operation)) {
    if (!node) {
      if (!(node = node_new(p, NODE_COMPARE))) return p->w->rc;
      node->compare.left = *out;
      *out = node;
    }
    if (node->compare.count == cap) {
      cap = cap ? cap * 2 : 1;
      struct comparison *items = work_alloc(p->w, cap, sizeof *items);
      if (!items) return p->w->rc;
      if (node->compare.count) memcpy(items, node->compare.items, node->compare.count * sizeof *items);
      node->compare.items = items;
    }
    rc = parse_sum(p, &comparison.right);
    node->compare.items[node->compare.count++] = comparison;
  }
  return rc;
}

static enum rc parse_not(struct parser *p, const struct node **out) {
  if (!token_is_name(p, "not")) return parse_compare(p, out);
  struct node *node = node_new(p, NODE_NOT);
  enum rc rc = node ? work_enter(p->w) : p->w->rc;
  if (rc != RC_OK) return rc;
  p->token++;
  *out = node;
  rc = parse_not(p, &node->operand);
  work_leave(p->w);
  return rc;
}

static enum rc parse_and(struct parser *p, const struct node **out) {
  enum rc rc = parse_not(p, out);
  while (rc == RC_OK && token_is_name(p, "and")) {
    struct node *node = node_new(p, NODE_AND);
    if (!node) return p->w->rc;
    p->token++;
    node->binary.left = *out;
    rc = parse_not(p, &node->binary.right);
    *out = node;
  }
  return rc;
}

static enum rc parse_or(struct parser *p, const struct node **out) {
  enum rc rc = parse_and(p, out);
  while (rc == RC_OK && token_is_name(p, "or")) {
    struct node *node = node_new(p, NODE_OR);
    if (!node) return p->w->rc;
    p->token++;
    node->binary.left = *out;
    rc = parse_and(p, &node->binary.right);
    *out = node;
  }
  return rc;
}

static enum rc parse_choice(struct parser *p, const struct node **out) {
  enum rc rc = parse_or(p, out);
  while (rc == RC_OK && token_is_name(p, "if")) {
    struct node *node = node_new(p, NODE_CHOICE);
    if (!node) return p->w->rc;
    p->token++;
    node->choice.then = *out;
    rc = parse_or(p, &node->choice.test);
    if (rc == RC_OK && take_name(p, "else")) rc = parse_expression(p, &node->choice.otherwise);
    *out = node;
  }
  return rc;
}

enum rc parse_expression(struct parser *p, const struct node **out) {
  enum rc rc = work_enter(p->w);
  if (rc != RC_OK) return rc;
  rc = parse_choice(p, out);
  work_leave(p->w);
  return rc;
}

static enum rc parse_one_target(struct parser *p, bool attributes, const struct node **out) {
  if (token_is_sign(p, '(')) {
    p->token++;
    const enum rc rc = parse_target(p, false, out);
    return rc == RC_OK ? expect_sign(p, ')') : rc;
  }
  if (p->token->kind != TOKEN_NAME) return parse_fail(p, "a name to assign to");
  enum rc rc = parse_name(p, out);
  if (rc == RC_OK && (*out)->kind != NODE_NAME) {
    p->token--;
    return parse_fail(p, "a name to assign to");
  }
  if (rc == RC_OK && attributes && take_sign(p, '.')) {
    if (p->token->kind != TOKEN_NAME) return parse_fail(p, "an attribute's name");
    rc = parse_attribute(p, *out, out);
  }
  return rc;
}

enum rc parse_target(struct parser *p, bool attributes, const struct node **out) {
  enum rc rc = work_enter(p->w);
  if (rc != RC_OK) return rc;
  struct node *tuple = NULL;
  rc = parse_one_target(p, attributes, out);
  while (rc == RC_OK && take_sign(p, ',')) {
    if (!tuple) {
      tuple = node_new(p, NODE_TUPLE);
      rc = tuple ? node_append(p, &tuple->items, *out) : p->w->rc;
    }
    if (p->token->kind != TOKEN_NAME || token_is_name(p, "in")) break;
    if (rc == RC_OK) rc = parse_one_target(p, attributes, out);
    if (rc == RC_OK) rc = node_append(p, &tuple->items, *out);
  }
  if (tuple) *out = tuple;
  work_leave(p->w);
  return rc;
}
