/* Shared by the two halves of the parser: the place in the tokens, names, and making nodes. */
#ifndef LEASEHOLD_TEMPLATE_SYNTAX_PARSER_H
#define LEASEHOLD_TEMPLATE_SYNTAX_PARSER_H

#include "common/template/syntax/token.h"
#include "common/template/syntax/tree.h"

enum { NAMES_MAX = 4096 };

struct parser {
  struct workspace *w;
  const struct token *token; /* the next one */
  const char **names;        /* [NAMES_MAX] of the arena */
  int names_count;
  int loops;                /* around, within this macro */
  struct macro_node *macro; /* around; NULL: none */
};

/* --- parse_expression.c --- */
enum rc parse_expression(struct parser *p, const struct node **out);
/* Expressions with commas become a tuple.  choices: `a if b else c` may stand there. */
enum rc parse_tuple(struct parser *p, bool choices, const struct node **out);
/* A name, or several; attributes: also namespace.attribute. */
enum rc parse_target(struct parser *p, bool attributes, const struct node **out);
/* | filter | filter ..., over input; NULL: over the text of the block around.  leading: the first has no |. */
enum rc parse_filters(struct parser *p, const struct node *input, bool leading, const struct node **out);

/* --- parse_statement.c --- */
/* The whole template, up to TOKEN_END. */
enum rc parse_template(struct parser *p, struct node_list *out);

/* --- parser.c --- */
struct node *node_new(struct parser *p, enum node_kind kind); /* at the next token's line; NULL: p->w->rc */
enum rc node_append(struct parser *p, struct node_list *list, const struct node *node);
enum rc name_of(struct parser *p, const char *bytes, size_t len, int *out);
bool token_is_name(const struct parser *p, const char *name);
bool token_is_sign(const struct parser *p, int sign);
bool take_name(struct parser *p, const char *name); /* takes the token when it is that */
bool take_sign(struct parser *p, int sign);
enum rc expect_sign(struct parser *p, int sign);
enum rc expect_kind(struct parser *p, enum token_kind kind);
/* RC_INVALID: `what` was expected, and the next token came. */
enum rc parse_fail(struct parser *p, const char *what);

#endif
