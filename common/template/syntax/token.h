/* The tokens of a template, and the lexer that makes them. */
#ifndef LEASEHOLD_TEMPLATE_SYNTAX_TOKEN_H
#define LEASEHOLD_TEMPLATE_SYNTAX_TOKEN_H

#include "common/template/values/value.h"

enum token_kind {
  TOKEN_TEXT,        /* what stands between the tags */
  TOKEN_PRINT_BEGIN, /* {{ */
  TOKEN_PRINT_END,
  TOKEN_BLOCK_BEGIN, /* {% */
  TOKEN_BLOCK_END,
  TOKEN_NAME,
  TOKEN_CONSTANT, /* a text or a number */
  TOKEN_SIGN,
  TOKEN_END
};

/* Signs of two characters as one number. */
#define SIGN_OF(first, second) ((first) << 8 | (second))

struct token {
  enum token_kind kind;
  int line;
  int sign;          /* TOKEN_SIGN: '(' ... or SIGN_OF */
  const char *bytes; /* as written, for names and messages */
  size_t len;
  struct value value; /* TOKEN_TEXT, TOKEN_CONSTANT */
};

struct token_list {
  struct token *items; /* ends with TOKEN_END; free(items) */
  size_t count, cap;
};

/* source: UTF-8 whose lines end in \n; it must outlive the tokens, whose values lie in w.  RC_INVALID names the
 * line. */
enum rc lex(struct workspace *w, const char *source, size_t len, struct token_list *out);

#endif
