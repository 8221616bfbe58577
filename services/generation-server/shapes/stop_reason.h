/* Tells vLLM's and SGLang's clients what ended a choice.  On the replier's or the streamer's thread. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_STOP_REASON_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_STOP_REASON_H

#include "services/generation-server/requests/generate_call.h"

/* The stop text that has come: of several that end at one byte the longest. */
void stop_text_write(const struct choice *c, struct json_writer *w);
/* Member "stop_reason" as vLLM has it: the stop text, or the id of the stop token; null where the model's own end ended
 * the choice, where nothing stopped it, and in a piece that is not the last. */
void stop_reason_write(const struct generate_call *call, const struct choice *c, bool last, struct json_writer *w);

#endif
