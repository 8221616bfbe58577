/* The body of SGLang's POST /generate: one prompt or a batch of them, as texts or as token ids.
 *
 * In a batch sampling_params, rid, return_logprob, logprob_start_len and top_logprobs_num are one value for all prompts
 * or an array with one for each; with an array of sampling_params each prompt is drawn as if it had come alone.  On an
 * HTTP thread; memory in the request's arena, prompts may lie in its body. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_SGLANG_REQUEST_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_SGLANG_REQUEST_H

#include "services/generation-server/shapes/sampling_fields.h"

/* Shapes the answers of one prompt, in addition to the call. */
struct sglang_item {
  const char *id;           /* NULL: the call's */
  bool logprobs;            /* of the tokens that were sampled, and of the prompt's from logprob_start on */
  int32_t logprob_start;    /* -1: none of the prompt's */
  int32_t top_count;        /* likeliest tokens shown beside each */
  bool keeps_stop;          /* the token that ended a sample is part of the text */
  int32_t *told;            /* [n] tokens of each choice when it was last told of, in a stream */
};

struct sglang_details {
  const struct sglang_item *items; /* [prompts] */
  bool batch;                      /* an array came, even if of one */
  bool texts;                      /* of the tokens, beside their log-probabilities */
};

/* Fills p, which has its defaults, the shape among them.  RC_INVALID, RC_UNSUPPORTED. */
enum rc sglang_request_read(struct generate_params *p, struct http_request *r, struct err *err);
/* Errors found later carry the field names of decode jobs: replaces them by this API's names. */
void sglang_request_name_field(struct err *err);

#endif
