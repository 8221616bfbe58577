/* The body of POST /v1/chat/completions: its fields, their bounds, and which of OpenAI's are refused.  On an HTTP
 * thread; memory in the request's arena. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_CHAT_REQUEST_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_CHAT_REQUEST_H

#include "services/generation-server/requests/chat_prompt.h"
#include "services/generation-server/shapes/openai_fields.h"
#include "services/generation-server/shapes/tool_calls.h"

/* The state of one choice of a stream. */
struct chat_told {
  struct tool_filter filter;
  bool role; /* was told */
};

/* Shapes the answers, in addition to the call. */
struct chat_details {
  struct openai_details openai; /* the first member: openai_fields.c knows no more */
  bool tools;                   /* calls are looked for */
  bool by_completion_tokens;    /* the length is max_completion_tokens */
  bool one_call;                /* parallel_tool_calls: false */
  struct tool_names names;
  struct chat_told *told; /* [n] */
};

/* Fills p but for its prompt, and what the prompt is made of (which lies in the body).  RC_INVALID, RC_UNSUPPORTED. */
enum rc chat_request_read(struct generate_params *p, struct chat_prompt *prompt, struct http_request *r,
                          struct err *err);
/* Errors found later carry the field names of decode jobs: replaces them by this API's names. */
void chat_request_name_field(const struct generate_params *p, struct err *err);

#endif
