/* The bodies of vLLM's POST /inference/v1/generate, /tokenize and /detokenize.  On an HTTP thread; memory in the
 * request's arena. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_VLLM_REQUEST_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_VLLM_REQUEST_H

#include "services/generation-server/requests/chat_prompt.h"
#include "services/generation-server/shapes/sampling_fields.h"

/* Shapes the answers, in addition to the call. */
struct vllm_details {
  bool logprobs, prompt_logprobs, return_token_ids;
  int32_t top, prompt_top; /* likeliest tokens shown beside each; the jobs have the more of them for both */
};

/* RC_INVALID, RC_UNSUPPORTED. */
enum rc vllm_request_read(struct generate_params *p, struct generate_prompt *prompt, struct http_request *r,
                          struct err *err);
/* Errors found later carry the field names of decode jobs: replaces them by this API's names. */
void vllm_request_name_field(struct err *err);

/* The whole answers. */
enum rc vllm_tokenize(struct buf *out, struct http_request *r, const struct admission *a,
                      const struct loaded_model *loaded, struct err *err);
enum rc vllm_detokenize(struct buf *out, struct http_request *r, const struct admission *a,
                        const struct loaded_model *loaded, struct err *err);

#endif
