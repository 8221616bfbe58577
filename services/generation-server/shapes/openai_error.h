/* Errors as OpenAI's and vLLM's clients know them: {"error": {"message", "type", "param", "code"}}.
 *
 * By its status those clients tell a request that must change (400) from one that may be sent again (429, 503).  A
 * prompt that the context has no room for is RC_TOO_LARGE with its field, and becomes context_length_exceeded: agents
 * look for that word, or for the beginning of its message, and then shorten their conversation.  Any thread. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_OPENAI_ERROR_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_OPENAI_ERROR_H

#include "common/base/buf.h"
#include "common/base/rc.h"

/* For http_route.write_error, and that of requests whose path no route has. */
void openai_error_write(struct buf *out, int *status, const struct err *err);

#endif
