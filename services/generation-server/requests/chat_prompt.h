/* Chat messages to a prompt's ids: the one place where the requests of this service meet the chat template.  On an HTTP
 * thread; memory in the request's arena. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_CHAT_PROMPT_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_CHAT_PROMPT_H

#include "common/json/json.h"
#include "services/generation-server/engine/loaded_model.h"

struct chat_prompt {
  const struct json *messages;  /* array of objects with a role and a content: a text, or parts of type text */
  const struct json *tools;     /* array, or NULL */
  const struct json *variables; /* the template's own, or NULL */
  bool generation_prompt;       /* the turn of the assistant is opened */
  bool continue_final;          /* the last message goes on */
};

/* RC_INVALID names the message, RC_UNSUPPORTED what the model's template does not offer. */
enum rc chat_prompt_encode(struct json_i32s *out, const struct chat_prompt *prompt, const struct loaded_model *loaded,
                           struct arena *arena, struct err *err);

#endif
