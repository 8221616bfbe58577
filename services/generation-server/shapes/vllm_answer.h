/* The answers of vLLM's POST /inference/v1/generate: whole, or as events (struct generate_shape). */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_VLLM_ANSWER_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_VLLM_ANSWER_H

#include "services/generation-server/requests/generate_call.h"

extern const struct generate_shape vllm_shape;

#endif
