/* Reads what OpenAI's two APIs have in common, and writes what their answers have. */
#include "services/generation-server/shapes/openai_fields.h"

#include <string.h>

#include "services/generation-server/requests/model_names.h"

/* They cannot change what is sampled: names, books that others keep, hints about speed. */
static const char *const without_effect[] = {"metadata", "store", "service_tier", "safety_identifier",
                                             "prompt_cache_key", "prompt_cache_retention", "priority", "prediction",
                                             "cache_salt"};

static const struct {
  const char *name, *why, *nothing;
} not_offered[] = {
    {"guided_json", "expected none: answers are not bound to a grammar", NULL},
    {"guided_regex", "expected none: answers are not bound to a grammar", NULL},
    {"guided_choice", "expected none: answers are not bound to a grammar", NULL},
    {"guided_grammar", "expected none: answers are not bound to a grammar", NULL},
    {"structured_outputs", "expected none: answers are not bound to a grammar", NULL},
    {"truncate_prompt_tokens", "expected none: prompts are taken whole or refused", NULL},
    {"use_beam_search", "expected none: answers are sampled", "false"},
    {"length_penalty", "expected none: it belongs to beam search, and answers are sampled", "1"},
    {"allowed_token_ids", "expected none: bias the other tokens instead", NULL},
    {"bad_words", "expected none: bias their tokens instead", "[]"},
    {"logits_processors", "expected none: no code of a client's is run", "[]"},
};

void openai_fields_init(struct openai_fields *f, struct generate_params *p, struct openai_details *details,
                        int tokens_min) {
  *f = (struct openai_fields){.details = details};
  p->drops_end = true;
  p->puts_off_stops = true;
  p->cuts_to_room = true;
  sampling_fields_init(&f->sampling, p, OPENAI_CHOICES_MAX);
  const struct json_field fields[] = {
      {.name = "model", .kind = FIELD_STRING, .target = &p->model},
      {.name = "user", .kind = FIELD_STRING, .target = &f->user},
      {.name = "request_id", .kind = FIELD_STRING, .target = &p->id},
      {.name = "max_tokens",
       .kind = FIELD_I32,
       .target = &p->max_new_tokens,
       .min = tokens_min,
       .max = LIMIT_NEW_TOKENS},
      {.name = "min_tokens", .kind = FIELD_I32, .target = &p->min_new_tokens, .min = 0, .max = LIMIT_NEW_TOKENS},
      {.name = "include_stop_str_in_output", .kind = FIELD_BOOL, .target = &p->keeps_stop},
      {.name = "stream", .kind = FIELD_BOOL, .target = &p->stream},
      {.name = "stream_options", .kind = FIELD_VALUE, .target = &f->stream_options},
      {.name = "response_format", .kind = FIELD_VALUE, .target = &f->response_format},
      {.name = "return_token_ids", .kind = FIELD_BOOL, .target = &details->return_token_ids},
      {.name = "return_tokens_as_token_ids", .kind = FIELD_BOOL, .target = &details->tokens_as_ids},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) sampling_fields_add(&f->sampling, fields[i]);
  for (size_t i = 0; i < sizeof without_effect / sizeof without_effect[0]; i++)
    sampling_fields_ignore(&f->sampling, without_effect[i]);
  for (size_t i = 0; i < sizeof not_offered / sizeof not_offered[0]; i++)
    sampling_fields_refuse(&f->sampling, not_offered[i].name, not_offered[i].nothing, not_offered[i].why);
}

static enum rc read_stream_options(struct openai_fields *f, struct arena *arena, struct err *err) {
  bool obfuscated;
  if (!f->stream_options) return RC_OK;
  if (!f->sampling.params->stream)
    return err_set(err, RC_INVALID, "stream_options", "expected none without stream: true");
  const struct json_field fields[] = {
      {.name = "include_usage", .kind = FIELD_BOOL, .target = &f->details->include_usage},
      {.name = "continuous_usage_stats", .kind = FIELD_BOOL, .target = &f->details->usage_in_all},
      {.name = "include_obfuscation", .kind = FIELD_BOOL, .target = &obfuscated}, /* padding of events */
  };
  const enum rc rc =
      json_fields(f->stream_options, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, arena, err);
  if (rc != RC_OK) err_in_field(err, "stream_options");
  return rc;
}

static enum rc read_response_format(const struct json *v, struct err *err) {
  if (!v) return RC_OK;
  const char *type = json_type_of(v) == JSON_OBJECT ? json_word(json_get(v, "type")) : NULL;
  if (!type)
    return err_set(err, RC_INVALID, "response_format", "expected an object with a type, got %s",
                   json_type_name(json_type_of(v)));
  if (strcmp(type, "text") == 0) return RC_OK;
  return err_set(err, RC_UNSUPPORTED, "response_format",
                 "expected type text, got \"%.40s\": answers are not bound to a grammar", type);
}

enum rc openai_fields_read(struct openai_fields *f, const struct json *body, struct arena *arena, struct err *err) {
  enum rc rc = sampling_fields_read(&f->sampling, body, arena, err);
  if (rc == RC_OK) rc = client_id_check(f->sampling.params->id, "request_id", err);
  if (rc == RC_OK) rc = read_stream_options(f, arena, err);
  if (rc == RC_OK) rc = read_response_format(f->response_format, err);
  return rc;
}

const char *openai_model_name(const struct generate_call *call) { return model_name_of_run(call->run); }

void openai_write_usage(const struct generate_call *call, struct json_writer *w) {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  for (int i = 0; i < call->job_count; i++) prompt_tokens += call->jobs[i]->prompt_count;
  for (int i = 0; i < call->choice_count; i++) completion_tokens += call->choices[i].scanned;
  json_key(w, "usage");
  json_object_begin(w);
  json_kv_int(w, "prompt_tokens", prompt_tokens);
  json_kv_int(w, "completion_tokens", completion_tokens);
  json_kv_int(w, "total_tokens", prompt_tokens + completion_tokens);
  json_object_end(w);
}

void openai_write_event_usage(const struct generate_call *call, struct json_writer *w) {
  const struct openai_details *d = call->details;
  if (!d->include_usage) return;
  if (d->usage_in_all) {
    openai_write_usage(call, w);
  } else {
    json_key(w, "usage");
    json_write_null(w);
  }
}
