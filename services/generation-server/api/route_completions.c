/* POST /v1/completions: the OpenAI shape over the same engine, whole or streamed.  Of vLLM's additions it takes top_k,
 * min_p, min_tokens, repetition_penalty, ignore_eos, stop_token_ids, return_token_ids and others (openai_fields.c);
 * what is not offered is refused by its name.
 *
 * Previous hop of a plain request: the HTTP layer.  Next: requests.c. */
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/api/server_state.h"
#include "services/generation-server/shapes/completion_answer.h"
#include "services/generation-server/shapes/completion_request.h"

void handle_completions(struct http_request *r, void *context) {
  struct generate_params p;
  struct err err;
  generate_params_defaults(&p, &completion_shape);
  enum rc rc = completion_request_read(&p, r, &err);
  if (rc == RC_OK) rc = requests_submit(((struct server *)context)->requests, r, &p, &err);
  if (rc == RC_OK) return;
  completion_request_name_field(&err);
  http_fail(r, &err);
}
