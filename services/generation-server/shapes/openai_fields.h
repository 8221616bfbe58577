/* The fields that OpenAI's completions and chat completions have in common, beside sampling (sampling_fields.h):
 * length, streams, fields that cannot change the result, and refused ones.
 *
 * Nothing that a client asks for is ignored: the server does what a field asks, or refuses it by its name, unless it
 * cannot change the answer.  On an HTTP thread; memory in the request's arena. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_OPENAI_FIELDS_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_OPENAI_FIELDS_H

#include "services/generation-server/shapes/sampling_fields.h"

enum { OPENAI_CHOICES_MAX = 128 };

/* Shapes the answers, in addition to the call. */
struct openai_details {
  bool logprobs, prompt_logprobs, return_token_ids, include_usage, usage_in_all;
  bool prompts_are_texts;
  bool tokens_as_ids; /* beside log-probabilities tokens are shown as token_id:N */
};

struct openai_fields {
  struct sampling_fields sampling;
  struct openai_details *details;
  const struct json *stream_options, *response_format;
  const char *user;
};

/* tokens_min: of max_tokens, 0 or 1. */
void openai_fields_init(struct openai_fields *f, struct generate_params *p, struct openai_details *details,
                        int tokens_min);
enum rc openai_fields_read(struct openai_fields *f, const struct json *body, struct arena *arena, struct err *err);

/* --- answers --- */

/* The name under which the loaded model answers: the run whose weights were active when the request came. */
const char *openai_model_name(const struct generate_call *call);
/* Tokens of all prompts and choices so far, as member "usage". */
void openai_write_usage(const struct generate_call *call, struct json_writer *w);
/* The same of an event that is not the last, as far as it was asked for: null, or the numbers so far. */
void openai_write_event_usage(const struct generate_call *call, struct json_writer *w);

#endif
