/* The body of POST /v1/completions: its fields, their bounds, and which of OpenAI's are refused.  On an HTTP thread;
 * memory in the request's arena, prompts may lie in its body. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_COMPLETION_REQUEST_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_COMPLETION_REQUEST_H

#include "services/generation-server/shapes/openai_fields.h"

/* Fills p, which has its defaults, the shape among them.  RC_INVALID, RC_UNSUPPORTED. */
enum rc completion_request_read(struct generate_params *p, struct http_request *r, struct err *err);
/* Errors found later carry the field names of decode jobs: replaces them by this API's names. */
void completion_request_name_field(struct err *err);

#endif
