/* The tree of a parsed template.  Nodes lie in the template's arena and never change after parsing, so any number of
 * threads may evaluate one tree.  A name is its index in the template's list of names. */
#ifndef LEASEHOLD_TEMPLATE_SYNTAX_TREE_H
#define LEASEHOLD_TEMPLATE_SYNTAX_TREE_H

#include "common/template/values/operators.h"
#include "common/template/values/value.h"

enum node_kind {
  /* expressions */
  NODE_CONSTANT,
  NODE_NAME,
  NODE_LIST,  /* [items] */
  NODE_TUPLE, /* (items); also a target of several names */
  NODE_DICT,  /* items: key, value, key, value */
  NODE_NOT,
  NODE_NEGATE,
  NODE_POSITIVE,
  NODE_BINARY,
  NODE_AND,
  NODE_OR,
  NODE_COMPARE, /* a < b <= c */
  NODE_CONCAT,  /* items joined by ~ */
  NODE_CHOICE,  /* then if test else otherwise */
  NODE_ATTRIBUTE,
  NODE_SUBSCRIPT,
  NODE_SLICE, /* [from:to:step], as a subscript's index */
  NODE_CALL,
  NODE_FILTER,
  NODE_TEST,
  /* statements */
  NODE_TEXT,
  NODE_PRINT,
  NODE_IF,
  NODE_FOR,
  NODE_SET,
  NODE_SET_BLOCK,
  NODE_MACRO,
  NODE_CALL_BLOCK,
  NODE_FILTER_BLOCK,
  NODE_WITH,
  NODE_GENERATION,
  NODE_BREAK,
  NODE_CONTINUE
};

struct node;
struct node_list {
  const struct node **items;
  size_t count, cap;
};

enum argument_kind { ARGUMENT_PLAIN, ARGUMENT_NAMED, ARGUMENT_LIST /* *a */, ARGUMENT_DICT /* **a */ };
struct argument {
  enum argument_kind kind;
  int name; /* ARGUMENT_NAMED */
  const struct node *value;
};
struct argument_list {
  struct argument *items;
  size_t count, cap;
};

struct comparison {
  enum operation operation;
  const struct node *right;
};

/* A macro, or the body of a call block, whose macro is named `caller`. */
struct macro_node {
  int name;
  struct node_list parameters; /* NODE_NAME */
  struct node_list defaults;   /* of the last parameters */
  struct node_list body;
  bool takes_rest, takes_named; /* the body names varargs, kwargs */
};

struct if_branch {
  const struct node *test; /* NULL: else */
  struct node_list body;
};

struct node {
  enum node_kind kind;
  int line;
  union {
    struct value constant; /* NODE_CONSTANT, NODE_TEXT */
    int name;
    struct node_list items;
    const struct node *operand; /* NODE_NOT, NODE_NEGATE, NODE_POSITIVE, NODE_PRINT */
    struct {
      enum operation operation;
      const struct node *left, *right;
    } binary; /* NODE_AND, NODE_OR: without the operation */
    struct {
      const struct node *left;
      struct comparison *items;
      size_t count;
    } compare;
    struct {
      const struct node *test, *then, *otherwise; /* otherwise NULL: undefined */
    } choice;
    struct {
      const struct node *object;
      const struct text *name;
    } attribute;
    struct {
      const struct node *object, *index;
    } subscript;
    struct {
      const struct node *from, *to, *step; /* each may be NULL */
    } slice;
    struct {
      const struct node *function;
      struct argument_list arguments;
    } call;
    struct {
      const struct builtin *builtin; /* NULL: there is none of this name */
      const char *name;
      const struct node *input; /* NULL: the text of the block around */
      struct argument_list arguments;
    } apply; /* NODE_FILTER, NODE_TEST */
    struct {
      struct if_branch *branches;
      size_t count;
    } choose; /* NODE_IF */
    struct {
      const struct node *target, *items, *test; /* test may be NULL */
      struct node_list body, otherwise;
      bool recursive;
    } loop;
    struct {
      const struct node *target;
      const struct node *value; /* of a block: the filters over its text, or NULL */
      struct node_list body;
    } set; /* NODE_SET, NODE_SET_BLOCK; NODE_FILTER_BLOCK: without the target */
    struct macro_node macro;
    struct {
      const struct node *call;
      const struct node *macro; /* NODE_MACRO */
    } call_block;
    struct {
      struct node_list targets, values, body;
    } with;
    struct node_list body; /* NODE_GENERATION */
  };
};

#endif
