/* Tokens, names and nodes for the parser. */
#include "common/template/syntax/parser.h"

#include <string.h>

struct node *node_new(struct parser *p, enum node_kind kind) {
  struct node *node = work_alloc(p->w, 1, sizeof *node);
  if (!node) return NULL;
  node->kind = kind;
  node->line = p->token->line;
  return node;
}

enum rc node_append(struct parser *p, struct node_list *list, const struct node *node) {
  if (list->count == list->cap) {
    const size_t cap = list->cap ? list->cap * 2 : 4;
    const struct node **items = work_alloc(p->w, cap, sizeof *items);
    if (!items) return p->w->rc;
    if (list->count) memcpy(items, list->items, list->count * sizeof *items);
    list->items = items;
    list->cap = cap;
  }
  list->items[list->count++] = node;
  return RC_OK;
}

enum rc name_of(struct parser *p, const char *bytes, size_t len, int *out) {
  for (int i = 0; i < p->names_count; i++) {
    if (strlen(p->names[i]) != len || memcmp(p->names[i], bytes, len) != 0) continue;
    *out = i;
    return RC_OK;
  }
  if (p->names_count == NAMES_MAX)
    return work_fail(p->w, RC_TOO_LARGE, "expected at most %d different names", NAMES_MAX);
  char *name = work_alloc_bytes(p->w, len + 1);
  if (!name) return p->w->rc;
  memcpy(name, bytes, len);
  name[len] = '\0';
  *out = p->names_count;
  p->names[p->names_count++] = name;
  return RC_OK;
}

bool token_is_name(const struct parser *p, const char *name) {
  return p->token->kind == TOKEN_NAME && p->token->len == strlen(name) &&
         memcmp(p->token->bytes, name, p->token->len) == 0;
}

bool token_is_sign(const struct parser *p, int sign) { return p->token->kind == TOKEN_SIGN && p->token->sign == sign; }

bool take_name(struct parser *p, const char *name) {
  const bool there = token_is_name(p, name);
  p->token += there;
  return there;
}

bool take_sign(struct parser *p, int sign) {
  const bool there = token_is_sign(p, sign);
  p->token += there;
  return there;
}

enum rc parse_fail(struct parser *p, const char *what) {
  p->w->line = p->token->line;
  switch (p->token->kind) {
    case TOKEN_END: return work_fail(p->w, RC_INVALID, "expected %s, got the end of the template", what);
    case TOKEN_TEXT: return work_fail(p->w, RC_INVALID, "expected %s, got text", what);
    case TOKEN_PRINT_BEGIN: return work_fail(p->w, RC_INVALID, "expected %s, got {{", what);
    case TOKEN_PRINT_END: return work_fail(p->w, RC_INVALID, "expected %s, got }}", what);
    case TOKEN_BLOCK_BEGIN: return work_fail(p->w, RC_INVALID, "expected %s, got {%%", what);
    case TOKEN_BLOCK_END: return work_fail(p->w, RC_INVALID, "expected %s, got %%}", what);
    default:
      return work_fail(p->w, RC_INVALID, "expected %s, got %.*s", what, p->token->len > 64 ? 64 : (int)p->token->len,
                       p->token->bytes);
  }
}

enum rc expect_sign(struct parser *p, int sign) {
  const char what[2] = {(char)sign, '\0'};
  return take_sign(p, sign) ? RC_OK : parse_fail(p, what);
}

enum rc expect_kind(struct parser *p, enum token_kind kind) {
  if (p->token->kind != kind)
    return parse_fail(p, kind == TOKEN_BLOCK_END ? "%}" : kind == TOKEN_PRINT_END ? "}}" : "a name");
  p->token++;
  return RC_OK;
}
