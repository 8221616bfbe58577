/* Parses and renders: the public functions. */
#include "common/template/template.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/utf8.h"
#include "common/template/builtins/names.h"
#include "common/template/render.h"
#include "common/template/syntax/parser.h"

struct workspace template_workspace(struct err *err) {
  return (struct workspace){.bytes_max = TEMPLATE_MEMORY_BYTES,
                            .text_max = TEMPLATE_TEXT_BYTES,
                            .steps_max = TEMPLATE_STEPS,
                            .depth_max = TEMPLATE_DEPTH,
                            .line = 1,
                            .now_ms = clock_real_ms(),
                            .builtins = &builtin_names,
                            .err = err};
}

void template_workspace_free(struct workspace *w) { arena_free(&w->arena); }

static enum rc check_utf8(struct workspace *w, const char *source, size_t len) {
  for (size_t at = 0; at < len;) {
    const int n = utf8_length(source + at, len - at);
    if (n <= 0) return work_fail(w, RC_INVALID, "expected UTF-8, got the byte 0x%02X", (unsigned char)source[at]);
    w->line += source[at] == '\n';
    at += (size_t)n;
  }
  w->line = 1;
  return RC_OK;
}

/* A copy whose lines end in \n, without the last line end. */
static char *normalized(struct workspace *w, const char *source, size_t len, size_t *out_len) {
  char *copy = work_alloc_bytes(w, len + 1);
  size_t n = 0;
  if (!copy) return NULL;
  for (size_t i = 0; i < len; i++) {
    if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n') continue;
    copy[n++] = source[i];
    if (source[i] == '\r') copy[n - 1] = '\n';
  }
  if (n > 0 && copy[n - 1] == '\n') n--;
  copy[n] = '\0';
  *out_len = n;
  return copy;
}

static int index_of(const struct template *t, const char *name) {
  for (int i = 0; i < t->names_count; i++)
    if (strcmp(t->names[i], name) == 0) return i;
  return -1;
}

static enum rc parse(struct template *t, struct workspace *w, const char *source, size_t len) {
  struct token_list tokens = {0};
  if (len > TEMPLATE_SOURCE_BYTES)
    return work_fail(w, RC_TOO_LARGE, "expected a template of at most %d bytes, got %zu", TEMPLATE_SOURCE_BYTES, len);
  enum rc rc = check_utf8(w, source, len);
  char *copy = rc == RC_OK ? normalized(w, source, len, &len) : NULL;
  const char **names = copy ? work_alloc(w, NAMES_MAX, sizeof *names) : NULL;
  if (!names) return w->rc;
  rc = lex(w, copy, len, &tokens);
  if (rc == RC_OK) {
    struct parser p = {.w = w, .token = tokens.items, .names = names};
    rc = parse_template(&p, &t->body);
    t->names = names;
    t->names_count = p.names_count;
  }
  free(tokens.items);
  t->loop_name = index_of(t, "loop");
  t->rest_name = index_of(t, "varargs");
  t->named_name = index_of(t, "kwargs");
  return rc;
}

enum rc template_parse(struct template **out, const char *source, size_t len, struct err *err) {
  *out = NULL;
  struct template *t = calloc(1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "a template was refused %zu bytes", sizeof *t);
  struct workspace w = template_workspace(err);
  const enum rc rc = parse(t, &w, source, len);
  t->arena = w.arena;
  if (rc != RC_OK)
    template_free(t);
  else
    *out = t;
  return rc;
}

void template_free(struct template *t) {
  if (!t) return;
  arena_free(&t->arena);
  free(t);
}

/* The value of each name that the template does not set itself. */
static struct value *given_values(const struct template *t, struct workspace *w, const struct dict *variables) {
  struct value *given = work_alloc(w, (size_t)t->names_count + 1, sizeof *given);
  for (int i = 0; given && i < t->names_count; i++) {
    const struct value *variable = dict_find_name(variables, t->names[i]);
    const struct builtin *global = variable ? NULL : global_find(t->names[i]);
    given[i] = variable ? *variable
               : global ? (struct value){.kind = VALUE_BUILTIN, .builtin = global}
                        : value_missing(t->names[i]);
  }
  return given;
}

enum rc template_render(const struct template *t, struct workspace *w, const struct dict *variables,
                        const struct text **out) {
  struct render r = {.evaluate = evaluate,
                     .body_as_text = run_body_as_text,
                     .loop_again = run_loop_again,
                     .w = w,
                     .template = t,
                     .given = given_values(t, w, variables),
                     .block = value_none()};
  struct value text;
  struct scope *scope = r.given ? scope_new(&r, NULL) : NULL;
  const enum rc rc = scope ? run_body_as_text(&r, scope, &t->body, &text) : w->rc;
  if (rc == RC_OK) *out = text.text;
  return rc;
}
