/* POST /v1/chat/completions: messages in, the assistant's turn out, in the OpenAI shape; whole or streamed.
 *
 * Previous hop of a plain request: the HTTP layer.  Next: requests.c. */
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/api/server_state.h"
#include "services/generation-server/shapes/chat_answer.h"
#include "services/generation-server/shapes/chat_request.h"

void handle_chat(struct http_request *r, void *context) {
  struct server *s = context;
  struct generate_params p;
  struct generate_prompt prompt = {0};
  struct chat_prompt chat;
  struct err err;
  generate_params_defaults(&p, &chat_shape);
  p.prompts = &prompt;
  p.prompt_count = 1;
  enum rc rc = chat_request_read(&p, &chat, r, &err);
  struct loaded_model *loaded = rc == RC_OK ? admission_model(&s->admission, true, &err) : NULL;
  if (rc == RC_OK) rc = loaded ? admission_check_name(&s->admission, loaded, p.model, &err) : err.rc;
  if (rc == RC_OK) rc = chat_prompt_encode(&prompt.ids, &chat, loaded, http_arena(r), &err);
  if (rc == RC_OK) rc = requests_submit(s->requests, r, &p, &err);
  if (rc == RC_OK) return;
  chat_request_name_field(&p, &err);
  http_fail(r, &err);
}
