/* Reads vLLM's requests by token ids, and answers its tokenizing. */
#include "services/generation-server/shapes/vllm_request.h"

#include <stdio.h>
#include <string.h>

enum { VLLM_CHOICES_MAX = 128, VLLM_TEXT_MAX = 4 << 20 };

/* --- generate --- */

/* They cannot change the answer: how it is put together, where it is kept meanwhile.  A stream's pieces are what is
 * new. */
static const char *const without_effect[] = {"detokenize", "output_kind",     "skip_reading_prefix_cache",
                                             "skip_clone", "stream_interval", "output_text_buffer_length"};

static const struct {
  const char *name, *why, *nothing;
} not_offered[] = {
    {"structured_outputs", "expected none: answers are not bound to a grammar", NULL},
    {"guided_decoding", "expected none: answers are not bound to a grammar", NULL},
    {"allowed_token_ids", "expected none: bias the other tokens instead", NULL},
    {"bad_words", "expected none: bias their tokens instead", "[]"},
    {"truncate_prompt_tokens", "expected none: prompts are taken whole or refused", NULL},
    {"logits_processors", "expected none: no code of a client's is run", "[]"},
    {"extra_args", "expected none", "{}"},
    {"logprob_token_ids", "expected none: ask for logprobs", "[]"},
    {"prompt_logprob_token_ids", "expected none: ask for prompt_logprobs", "[]"},
    {"prompt_logprob_start", "expected none: they are told from the first token on", "0"},
    {"flat_logprobs", "expected none: they are told one form only", "false"},
    {"thinking_token_budget", "expected none: bound all tokens by max_tokens", NULL},
    {"repetition_detection", "expected none: answers end at their stops and their length", NULL},
    {"routed_experts_prompt_start", "expected none: experts are not told", "0"},
    {"trace_decode_token_ids", "expected none: tokens are drawn", NULL},
    {"watermarking", "expected none: answers bear no mark", "false"},
};

/* Of the request itself. */
static const struct {
  const char *name, *why;
} not_taken[] = {
    {"features", "expected none: this model reads text"},
    {"content_parts", "expected none: this model reads token ids"},
    {"kv_transfer_params", "expected none: keys and values stay here"},
    {"ec_transfer_params", "expected none: this model reads text"},
    {"stream_options", "expected none: count the ids"},
    {"reasoning_ended", "expected none: answers are not bound to a grammar"},
    {"reasoning_parser_kwargs", "expected none: answers are not bound to a grammar"},
};
enum { NOT_TAKEN = sizeof not_taken / sizeof not_taken[0] };

static enum rc read_sampling(struct generate_params *p, struct vllm_details *d, const struct json *v,
                             struct arena *arena, struct err *err) {
  struct sampling_fields f;
  bool has_top = false, has_prompt = false;
  int32_t prompt_top = 0;
  if (!v) return RC_OK;
  sampling_fields_init(&f, p, VLLM_CHOICES_MAX);
  const struct json_field fields[] = {
      {.name = "max_tokens", .kind = FIELD_I32, .target = &p->max_new_tokens, .min = 1, .max = LIMIT_NEW_TOKENS},
      {.name = "min_tokens", .kind = FIELD_I32, .target = &p->min_new_tokens, .min = 0, .max = LIMIT_NEW_TOKENS},
      {.name = "logprobs",
       .kind = FIELD_I32,
       .target = &p->top_logprobs,
       .min = 0,
       .max = LIMIT_TOP_LOGPROBS,
       .present = &has_top},
      {.name = "prompt_logprobs",
       .kind = FIELD_I32,
       .target = &prompt_top,
       .min = 0,
       .max = LIMIT_TOP_LOGPROBS,
       .present = &has_prompt},
      {.name = "include_stop_str_in_output", .kind = FIELD_BOOL, .target = &p->keeps_stop},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) sampling_fields_add(&f, fields[i]);
  for (size_t i = 0; i < sizeof not_offered / sizeof not_offered[0]; i++)
    sampling_fields_refuse(&f, not_offered[i].name, not_offered[i].nothing, not_offered[i].why);
  for (size_t i = 0; i < sizeof without_effect / sizeof without_effect[0]; i++)
    sampling_fields_ignore(&f, without_effect[i]);
  enum rc rc = sampling_fields_read(&f, v, arena, err);
  if (rc != RC_OK) {
    err_in_field(err, "sampling_params");
    return rc;
  }
  d->logprobs = has_top;
  d->prompt_logprobs = has_prompt;
  d->top = p->top_logprobs;
  d->prompt_top = prompt_top;
  p->raw_logprobs = has_top;
  p->prompt_logprobs = has_prompt;
  if (prompt_top > p->top_logprobs) p->top_logprobs = prompt_top;
  p->raw_logprobs |= p->top_logprobs > 0;
  return RC_OK;
}

/* What is understood and not done. */
static enum rc refuse_others(const struct json *const values[NOT_TAKEN], const char *output_mode, struct err *err) {
  for (size_t i = 0; i < NOT_TAKEN; i++)
    if (values[i]) return err_set(err, RC_UNSUPPORTED, not_taken[i].name, "%s", not_taken[i].why);
  if (output_mode && strcmp(output_mode, "tokens") != 0)
    return err_set(err, RC_UNSUPPORTED, "output_mode", "expected tokens, got \"%.40s\": /v1/completions answers texts",
                   output_mode);
  return RC_OK;
}

enum rc vllm_request_read(struct generate_params *p, struct generate_prompt *prompt, struct http_request *r,
                          struct err *err) {
  const struct json *body, *sampling = NULL, *ignored, *refused[NOT_TAKEN] = {NULL};
  struct arena *arena = http_arena(r);
  struct vllm_details *d = arena_alloc(arena, 1, sizeof *d);
  const char *output_mode = NULL;
  if (!d) return err_set(err, RC_NO_MEMORY, NULL, "the request was refused its memory");
  p->max_new_tokens = 0; /* as many as there is room for */
  p->cuts_to_room = p->cuts_any = true;
  p->tells_tokens = true;
  p->puts_off_stops = true;
  p->details = d;
  enum rc rc = http_body_json(r, &body, err);
  if (rc != RC_OK) return rc;
  struct json_field fields[10 + NOT_TAKEN] = {
      {.name = "request_id", .kind = FIELD_STRING, .target = &p->id},
      {.name = "token_ids",
       .kind = FIELD_I32_ARRAY,
       .target = &prompt->ids,
       .required = true,
       .min = 0,
       .max = LIMIT_VOCABULARY - 1,
       .count_max = LIMIT_PROMPT_TOKENS},
      {.name = "sampling_params", .kind = FIELD_VALUE, .target = &sampling},
      {.name = "model", .kind = FIELD_STRING, .target = &p->model},
      {.name = "stream", .kind = FIELD_BOOL, .target = &p->stream},
      {.name = "return_token_ids", .kind = FIELD_BOOL, .target = &d->return_token_ids},
      {.name = "output_mode", .kind = FIELD_STRING, .target = &output_mode},
      {.name = "cache_salt", .kind = FIELD_VALUE, .target = &ignored},    /* nothing is shared between requests */
      {.name = "priority", .kind = FIELD_VALUE, .target = &ignored},      /* it cannot change the answer */
      {.name = "token_offsets", .kind = FIELD_VALUE, .target = &ignored}, /* of the text that the ids were made of */
  };
  for (size_t i = 0; i < NOT_TAKEN; i++)
    fields[10 + i] = (struct json_field){.name = not_taken[i].name, .kind = FIELD_VALUE, .target = &refused[i]};
  rc = json_fields(body, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = client_id_check(p->id, "request_id", err);
  if (rc == RC_OK && prompt->ids.count == 0)
    rc = err_set(err, RC_INVALID, "token_ids", "expected 1 to %d token ids, got 0", LIMIT_PROMPT_TOKENS);
  if (rc == RC_OK) rc = refuse_others(refused, output_mode, err);
  return rc == RC_OK ? read_sampling(p, d, sampling, arena, err) : rc;
}

void vllm_request_name_field(struct err *err) {
  const char *name = NULL;
  if (strcmp(err->field, "max_new_tokens") == 0) name = "sampling_params.max_tokens";
  if (strcmp(err->field, "stop_token_ids") == 0) name = "sampling_params.stop_token_ids";
  if (strcmp(err->field, "logit_bias") == 0) name = "sampling_params.logit_bias";
  if (strcmp(err->field, "stop") == 0) name = "sampling_params.stop";
  if (strcmp(err->field, "n") == 0) name = "sampling_params.n";
  if (strcmp(err->field, "input_ids") == 0) name = "token_ids";
  if (name) snprintf(err->field, sizeof err->field, "%s", name);
}

/* --- tokenizing --- */

static enum rc need_tokenizer(const struct loaded_model *loaded, const char *field, struct err *err) {
  return loaded->files.tokenizer ? RC_OK
                           : err_set(err, RC_UNSUPPORTED, field, "this model came without a tokenizer.json");
}

static void write_ids(struct buf *out, const struct json_i32s *ids, bool strings, const struct loaded_model *loaded) {
  struct json_writer w;
  struct buf text = BUF_INIT;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_int(&w, "count", (int64_t)ids->count);
  json_kv_int(&w, "max_model_len", loaded->model->context_max);
  json_kv_i32s(&w, "tokens", ids->items, ids->count);
  json_key(&w, "token_strs");
  if (strings) {
    json_array_begin(&w);
    for (size_t i = 0; i < ids->count; i++) {
      buf_clear(&text);
      tokenizer_decode(loaded->files.tokenizer, &ids->items[i], 1, false, &text, NULL);
      json_write_string_len(&w, text.data ? text.data : "", text.len);
    }
    json_array_end(&w);
  } else {
    json_write_null(&w);
  }
  json_object_end(&w);
  buf_free(&text);
}

static enum rc encode_text(struct json_i32s *out, const struct json_text *text, bool special,
                           const struct loaded_model *loaded, struct arena *arena, struct err *err) {
  struct token_ids ids = {0};
  const struct tokenizer *t = loaded->files.tokenizer;
  enum rc rc = special ? tokenizer_encode_prompt(t, text->bytes, text->len, LIMIT_PROMPT_TOKENS, &ids, err)
                       : tokenizer_encode(t, text->bytes, text->len, true, LIMIT_PROMPT_TOKENS, &ids, err);
  out->items = arena_alloc(arena, ids.count + 1, sizeof *out->items);
  out->count = ids.count;
  if (rc == RC_OK && !out->items)
    rc = err_set(err, RC_NO_MEMORY, "prompt", "%zu ids were refused their memory", ids.count);
  if (rc == RC_OK && ids.count > 0) memcpy(out->items, ids.items, ids.count * sizeof *ids.items);
  if (rc != RC_OK && err && !err->field[0]) snprintf(err->field, sizeof err->field, "prompt");
  token_ids_free(&ids);
  return rc;
}

/* What a template is given must be of its kind, and belongs to messages. */
static enum rc check_chat(const struct chat_prompt *chat, struct err *err) {
  const struct json *tools = chat->tools, *variables = chat->variables;
  bool objects = !tools || (json_type_of(tools) == JSON_ARRAY && json_length(tools) <= LIMIT_CHAT_TOOLS);
  for (size_t i = 0; objects && i < json_length(tools); i++) objects = json_type_of(json_at(tools, i)) == JSON_OBJECT;
  if (!objects)
    return err_set(err, RC_INVALID, "tools", "expected an array of up to %d objects", LIMIT_CHAT_TOOLS);
  if (variables && json_type_of(variables) != JSON_OBJECT)
    return err_set(err, RC_INVALID, "chat_template_kwargs", "expected an object, got %s",
                   json_type_name(json_type_of(variables)));
  if (!chat->messages && (tools || variables))
    return err_set(err, RC_UNSUPPORTED, tools ? "tools" : "chat_template_kwargs", "expected none without messages");
  return RC_OK;
}

enum rc vllm_tokenize(struct buf *out, struct http_request *r, const struct admission *a,
                      const struct loaded_model *loaded, struct err *err) {
  const struct json *body, *messages = NULL;
  struct arena *arena = http_arena(r);
  struct json_text text = {NULL, 0};
  struct json_i32s ids = {0};
  struct chat_prompt chat = {.generation_prompt = true};
  bool strings = false, special = true, has_special = false;
  const char *model = NULL;
  enum rc rc = http_body_json_fitted(r, &body, err);
  if (rc != RC_OK) return rc;
  const struct json_field fields[] = {
      {.name = "model", .kind = FIELD_STRING, .target = &model},
      {.name = "prompt", .kind = FIELD_TEXT, .target = &text, .min = 0, .max = VLLM_TEXT_MAX},
      {.name = "messages", .kind = FIELD_VALUE, .target = &messages},
      {.name = "tools", .kind = FIELD_VALUE, .target = &chat.tools},
      {.name = "chat_template_kwargs", .kind = FIELD_VALUE, .target = &chat.variables},
      {.name = "add_generation_prompt", .kind = FIELD_BOOL, .target = &chat.generation_prompt},
      {.name = "continue_final_message", .kind = FIELD_BOOL, .target = &chat.continue_final},
      {.name = "add_special_tokens", .kind = FIELD_BOOL, .target = &special, .present = &has_special},
      {.name = "return_token_strs", .kind = FIELD_BOOL, .target = &strings},
  };
  rc = json_fields(body, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = admission_check_name(a, loaded, model, err);
  if (rc == RC_OK) rc = need_tokenizer(loaded, text.bytes ? "prompt" : "messages", err);
  if (rc == RC_OK && (messages != NULL) == (text.bytes != NULL))
    rc =
        err_set(err, RC_INVALID, "prompt", "expected either prompt or messages, got %s", messages ? "both" : "neither");
  if (rc == RC_OK && messages &&
      (json_type_of(messages) != JSON_ARRAY || json_length(messages) < 1 ||
       json_length(messages) > LIMIT_CHAT_MESSAGES))
    rc = err_set(err, RC_INVALID, "messages", "expected an array of 1 to %d messages", LIMIT_CHAT_MESSAGES);
  if (rc == RC_OK && messages && has_special && special)
    rc = err_set(err, RC_UNSUPPORTED, "add_special_tokens", "expected none: the template has the special tokens");
  chat.messages = messages;
  if (rc == RC_OK) rc = check_chat(&chat, err);
  if (rc == RC_OK && messages)
    rc = chat_prompt_encode(&ids, &chat, loaded, arena, err);
  else if (rc == RC_OK)
    rc = encode_text(&ids, &text, special, loaded, arena, err);
  if (rc == RC_OK) write_ids(out, &ids, strings, loaded);
  return rc;
}

enum rc vllm_detokenize(struct buf *out, struct http_request *r, const struct admission *a,
                        const struct loaded_model *loaded, struct err *err) {
  const struct json *body;
  struct json_i32s ids = {0};
  struct buf text = BUF_INIT;
  const char *model = NULL;
  enum rc rc = http_body_json(r, &body, err);
  if (rc != RC_OK) return rc;
  const struct json_field fields[] = {
      {.name = "model", .kind = FIELD_STRING, .target = &model},
      {.name = "tokens",
       .kind = FIELD_I32_ARRAY,
       .target = &ids,
       .required = true,
       .min = 0,
       .max = LIMIT_VOCABULARY - 1,
       .count_max = LIMIT_PROMPT_TOKENS},
  };
  rc = json_fields(body, fields, 2, UNKNOWN_REFUSED, http_arena(r), err);
  if (rc == RC_OK) rc = admission_check_name(a, loaded, model, err);
  if (rc == RC_OK) rc = need_tokenizer(loaded, "tokens", err);
  if (rc == RC_OK) rc = tokenizer_decode(loaded->files.tokenizer, ids.items, ids.count, false, &text, err);
  if (rc == RC_OK) {
    struct json_writer w;
    json_writer_init(&w, out);
    json_object_begin(&w);
    json_key(&w, "prompt");
    json_write_string_len(&w, text.data ? text.data : "", text.len);
    json_object_end(&w);
  }
  buf_free(&text);
  return rc;
}
