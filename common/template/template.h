/* Jinja templates, as far as the chat templates of language models use the language.
 *
 * template_parse makes a tree of a source once; template_render computes it over variables, any number of times and on
 * any number of threads.  Rendering equals jinja2's in the environment that transformers sets up: an immutable sandbox
 * with trim_blocks, lstrip_blocks, loop controls, its tojson, raise_exception, strftime_now and generation blocks.
 * Nothing reaches outside: no files, no includes, no attributes but those of plain values.
 *
 *   source ── syntax/lexer.c ── tokens ── syntax/parse_*.c ── tree ── evaluate.c, statements.c ── text with marks
 *                                                                     values/, builtins/
 *
 * The caller makes a workspace, makes the variables in it (values/from_json.h), renders, reads the text, and ends the
 * workspace.  A rendering is bounded in steps, memory, depth and length.  Previous hop: a conversation's messages;
 * next: the tokenizer (common/model/tokenizer/chat.h). */
#ifndef LEASEHOLD_TEMPLATE_TEMPLATE_H
#define LEASEHOLD_TEMPLATE_TEMPLATE_H

#include "common/template/values/value.h"

enum {
  TEMPLATE_SOURCE_BYTES = 1 << 20,
  TEMPLATE_STEPS = 20 * 1000 * 1000, /* about a second */
  TEMPLATE_MEMORY_BYTES = 192 << 20,
  TEMPLATE_TEXT_BYTES = 32 << 20,
  TEMPLATE_DEPTH = 400
};

struct template;

/* RC_INVALID names the line: "line 7: expected ...". */
enum rc template_parse(struct template **out, const char *source, size_t len, struct err *err);
void template_free(struct template *t);

/* A workspace with the limits above, at the wall clock's time; err gets what goes wrong in it. */
struct workspace template_workspace(struct err *err);
void template_workspace_free(struct workspace *w);
/* variables: by name; they win over the global functions.  *out lies in w. */
enum rc template_render(const struct template *t, struct workspace *w, const struct dict *variables,
                        const struct text **out);
/* Does the template read the parts of a variable's member ("content") - loop over them, say - or take it as a whole?
 * By its source alone: inspect.c.  RC_NO_MEMORY. */
enum rc template_reads_parts(const struct template *t, const char *member, bool *out, struct err *err);

#endif
