/* Computes how much of one sample the context and the KV pool hold, and refuses a prompt that leaves no room.
 *
 * The refusal begins as OpenAI's and vLLM's does and says that the prompt is too long, because agents and their
 * libraries look for these words before they shorten a conversation.  It is RC_TOO_LARGE with a field, which no other
 * refusal of a prompt is.  Any thread. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_ROOM_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_ROOM_H

#include "services/generation-server/engine/loaded_model.h"

/* Positions, prompt and new tokens together. */
int64_t room_of(const struct loaded_model *loaded);
/* why: a clause, as "it has 900 tokens". */
enum rc room_refuse(const struct loaded_model *loaded, const char *field, const char *why, struct err *err);

#endif
