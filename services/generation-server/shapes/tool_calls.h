/* Tool calls in a model's text, in the two forms that open models are trained on.
 *
 *   Hermes, Qwen   any text <tool_call>{"name": "f", "arguments": {...}}</tool_call> ...
 *   Llama 3        {"name": "f", "parameters": {...}}; {...}      (the whole text but for spaces before it, perhaps
 *                                                                  behind <|python_tag|>)
 *
 * The first form is known by its tag; the second could be any JSON, so its names must be those of the request's tools.
 * Text whose call cannot be read is content: nothing that the model wrote is lost.
 *
 * In a stream content goes out until a call may begin (tool_filter); from there on the text is kept back until the end.
 * Pure; the caller's memory. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_TOOL_CALLS_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_TOOL_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/arena.h"
#include "common/base/buf.h"

struct tool_names {
  const char *const *items;
  size_t count;
};

struct tool_call {
  const char *name;      /* its first byte begins a C string */
  const char *arguments; /* JSON text of an object */
};

struct tool_calls {
  struct tool_call *items;
  size_t count;       /* 0: the whole text is content */
  const char *content; /* what is no call; NUL-terminated */
  size_t content_len;
};

/* text need not outlive the call.  RC_NO_MEMORY. */
enum rc tool_calls_parse(struct tool_calls *out, const char *text, size_t len, const struct tool_names *names,
                         struct arena *arena, struct err *err);

enum { TOOL_TAG_BYTES = 11, PYTHON_TAG_BYTES = 14 }; /* of <tool_call>, of <|python_tag|> */

struct tool_filter {
  bool begun; /* something has come that is neither a space nor the beginning of <|python_tag|> */
  bool held;  /* a call has begun, or may have: nothing more goes out before the end */
  size_t sent;
  char tail[PYTHON_TAG_BYTES]; /* the end of the text so far that may begin a tag */
  size_t tail_len;
};

/* Appends to `content` as much of the text so far as is content for sure. */
void tool_filter_feed(struct tool_filter *f, const char *text, size_t len, struct buf *content);

#endif
