/* The sampling parameters that OpenAI's, vLLM's and SGLang's clients all spell alike, and how they are read.
 *
 * A shape makes its field table of these and its own, reads it with json_fields, and then has sampling_fields_take read
 * the values that are more than a number: where to stop, and biases.  Log-probabilities, lengths and answers differ and
 * are the shapes' own.  On an HTTP thread; memory in the request's arena. */
#ifndef LEASEHOLD_GENERATION_SERVER_SHAPES_SAMPLING_FIELDS_H
#define LEASEHOLD_GENERATION_SERVER_SHAPES_SAMPLING_FIELDS_H

#include "services/generation-server/requests/generate_call.h"

enum { SAMPLING_FIELDS_MAX = 96, REFUSED_FIELDS_MAX = 40 };

struct sampling_fields {
  struct json_field items[SAMPLING_FIELDS_MAX];
  size_t count;
  struct generate_params *params;
  const struct json *stop, *logit_bias;
  bool hides_special, spaces, has_seed;
  double frequency, presence, repetition;
  struct {
    const char *name, *why;
    const char *nothing;      /* NULL: only null is */
    const struct json *value; /* NULL: it did not come */
  } refused[REFUSED_FIELDS_MAX];
  size_t refused_count;
  const struct json *ignored;
};

/* choices_max: of n. */
void sampling_fields_init(struct sampling_fields *f, struct generate_params *p, int choices_max);
void sampling_fields_add(struct sampling_fields *f, struct json_field field);
/* A field that is understood and not offered: any value but null is refused, by this sentence.  nothing: the value by
 * which clients that write out their defaults ask for nothing, taken too: false, 0, 1, [] or {}; NULL: none. */
void sampling_fields_refuse(struct sampling_fields *f, const char *name, const char *nothing, const char *why);
/* A field that cannot change the result: any value will do. */
void sampling_fields_ignore(struct sampling_fields *f, const char *name);
/* Reads the object by the table; unknown fields are refused.  RC_INVALID, RC_UNSUPPORTED. */
enum rc sampling_fields_read(struct sampling_fields *f, const struct json *object, struct arena *arena,
                             struct err *err);

/* A request's name of its client's making: up to 127 visible ASCII characters.  NULL is fine. */
enum rc client_id_check(const char *id, const char *field, struct err *err);

#endif
