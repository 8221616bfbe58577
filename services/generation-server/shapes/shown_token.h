/* A token as clients are shown it beside its log-probability.
 *
 * Texts of ids are for people: a token that is no text by itself (part of a character) is shown by its bytes, one
 * without any by its id.  Any thread; the caller's buffers. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_SHOWN_TOKEN_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_SHOWN_TOKEN_H

#include "services/generation-server/requests/generate_call.h"

/* Replaces what is in out: the text; bytes:\xNN...; token_id:N. */
void shown_token(const struct generate_call *call, int32_t id, struct buf *out);
/* SHOWN_BY_ID: always token_id:N.  SHOWN_RANKED: that, and "token_id" and "rank" beside, as vLLM's token interface has
 * them: the place among all tokens, from 1 on; null beyond those that are shown. */
enum shown_as { SHOWN_AS_TEXT, SHOWN_BY_ID, SHOWN_RANKED };
/* Tokens [first, first + count) of a sample in the chat API's form: an array of {"token", "logprob", "bytes"}, with the
 * `top` likeliest beside each, of those that the job has. */
void shown_tokens_write(const struct generate_call *call, const struct sample *s, int32_t first, int32_t count,
                        int32_t top, enum shown_as as, struct json_writer *w);

#endif
