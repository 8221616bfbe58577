/* A token as clients are shown it beside its log-probability.
 *
 * Texts of ids are for people: a token that is no text by itself (part of a character) is shown by its bytes, one
 * without any by its id.  Any thread; the caller's buffers. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_SHOWN_TOKEN_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_SHOWN_TOKEN_H

#include "services/generation-server/requests/generate_call.h"

/* Replaces what is in out: the text; bytes:\xNN...; token_id:N. */
void shown_token(const struct generate_call *call, int32_t id, struct buf *out);
/* {"token", "logprob", "bytes"} of the chat API; by_id: always token_id:N, as vLLM's token interface shows it.  The
 * object stays open. */
void shown_token_begin(const struct generate_call *call, int32_t id, float logprob, bool by_id, struct json_writer *w);
/* Tokens [first, first + count) of a sample in the chat API's form: an array with the `top` likeliest beside each, of
 * those that the job has. */
void shown_tokens_write(const struct generate_call *call, const struct sample *s, int32_t first, int32_t count,
                        int32_t top, bool by_id, struct json_writer *w);

#endif
