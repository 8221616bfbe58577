/* The answers of SGLang's POST /generate: whole, or as the chunks of a stream (struct generate_shape). */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_SGLANG_ANSWER_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_SGLANG_ANSWER_H

#include "services/generation-server/requests/generate_call.h"

extern const struct generate_shape sglang_shape;

#endif
