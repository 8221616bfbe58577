/* An answer in LaTeX as a tree: numbers, symbols, operations, and the things that answers are made of
 * (tuples, sets, intervals, relations, matrices, texts).
 *
 *   text --math_lexer.c--> tokens --math_parser.c--> this tree --math_exact.c, math_numeric.c--> values --math_compare.c--> equal?
 *
 * Nodes lie in one fixed array and name each other by index, so that a tree is a value without pointers into itself.
 * Numbers, symbols and texts point into the answer's text, which outlives the tree.  Everything is bounded: an answer
 * that needs more is unreadable, as one that makes no sense is.  No memory but the caller's; any thread. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_MATH_TREE_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_MATH_TREE_H

#include <stdbool.h>
#include <stdint.h>

enum { MATH_TEXT_MAX = 2048, MATH_TOKENS_MAX = 640, MATH_NODES_MAX = 768, MATH_DEPTH_MAX = 40, MATH_ITEMS_MAX = 64 };
/* No tree and no text of a text: in place of an index. */
enum { MATH_NONE = -1 };

enum math_op {
  /* leaves */
  MATH_NUMBER,   /* text: digits, perhaps a point, separators of thousands between them */
  MATH_BASED,    /* text: digits; value: the base that was written behind them */
  MATH_SYMBOL,   /* text: its name; child: its subscript, or MATH_NONE */
  MATH_PI,
  MATH_E,
  MATH_I,
  MATH_INFINITY,
  MATH_EMPTY,
  MATH_TEXT,     /* words: compared as such */
  /* operations; children in order */
  MATH_ADD,
  MATH_SUBTRACT,
  MATH_PLUS_MINUS, /* two values; with one child a sign */
  MATH_NEGATE,
  MATH_MULTIPLY,
  MATH_DIVIDE,
  MATH_POWER,
  MATH_ROOT,     /* radicand, index */
  MATH_ABSOLUTE,
  MATH_FLOOR,
  MATH_CEILING,
  MATH_FACTORIAL,
  MATH_BINOMIAL,
  MATH_FUNCTION, /* value: enum math_function */
  MATH_LOGARITHM, /* argument, base */
  MATH_PERCENT,
  MATH_DEGREE,
  /* collections */
  MATH_LIST,     /* several answers without brackets */
  MATH_TUPLE,
  MATH_SET,
  MATH_INTERVAL, /* from, to; value: enum math_closed */
  MATH_UNION,
  MATH_RELATION, /* left, right, and further ones of a chain; value: enum math_relation of the last link */
  MATH_MATRIX,   /* rows, each a MATH_TUPLE */
};

enum math_function {
  MATH_SIN, MATH_COS, MATH_TAN, MATH_COT, MATH_SEC, MATH_CSC, MATH_ARCSIN, MATH_ARCCOS, MATH_ARCTAN,
  MATH_SINH, MATH_COSH, MATH_TANH, MATH_LN, MATH_EXP, MATH_MIN, MATH_MAX, MATH_GCD, MATH_LCM,
};
enum math_closed { MATH_CLOSED_LEFT = 1, MATH_CLOSED_RIGHT = 2 };
enum math_relation { MATH_EQUAL, MATH_LESS, MATH_LESS_EQUAL, MATH_GREATER, MATH_GREATER_EQUAL, MATH_NOT_EQUAL };

struct math_node {
  enum math_op op;
  int value;
  int child, next; /* the first child; the next child of the same parent; MATH_NONE: no such */
  const char *text;
  int len;
};

struct math_tree {
  struct math_node nodes[MATH_NODES_MAX];
  int count, root;
  bool decimal; /* a number with a point is in it: an approximation, perhaps */
  const char *unit; /* what stood behind the answer, as written: "cm"; NULL: nothing */
  int unit_len;
};

static inline const struct math_node *math_child(const struct math_tree *t, const struct math_node *n, int which) {
  int at = n->child;
  while (at != MATH_NONE && which-- > 0) at = t->nodes[at].next;
  return at == MATH_NONE ? 0 : &t->nodes[at];
}
static inline int math_children(const struct math_tree *t, const struct math_node *n) {
  int count = 0;
  for (int at = n->child; at != MATH_NONE; at = t->nodes[at].next) count++;
  return count;
}

#endif
