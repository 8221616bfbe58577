/* Log-probabilities of a prompt's tokens in vLLM's form, which its two ways of generating share: for each token
 * {id: {"logprob", "rank", "decoded_token"}}, the token itself first and then the likeliest at its place; null for the
 * first, which has none.  Any thread. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_PROMPT_LOGPROBS_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_PROMPT_LOGPROBS_H

#include "services/generation-server/requests/generate_call.h"

/* Writes those of a job that was asked for them, as an array. top: how many of the likeliest that the job has. */
void prompt_logprobs_write(const struct generate_call *call, const struct decode_job *job, int32_t top,
                           struct json_writer *w);

#endif
