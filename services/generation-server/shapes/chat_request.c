/* Reads the body of POST /v1/chat/completions into the parameters that all shapes share.
 *
 * tool_choice "required" and a named function would need a grammar, so they are refused; "none" leaves the tools in the
 * prompt and the text as it is. */
#include "services/generation-server/shapes/chat_request.h"

#include <stdio.h>
#include <string.h>

enum { MODALITIES_MAX = 8 };

static const struct {
  const char *name, *why;
} not_offered[] = {
    {"audio", "expected none: this model writes text"},
    {"web_search_options", "expected none: nothing is searched here"},
    {"reasoning_effort", "expected none: a template's own variables go into chat_template_kwargs"},
    {"verbosity", "expected none: a template's own variables go into chat_template_kwargs"},
    {"functions", "expected tools in their place"},
    {"function_call", "expected tool_choice in its place"},
    {"chat_template", "expected none: the model's own is used"},
    {"documents", "expected none: put them into a message"},
    {"mm_processor_kwargs", "expected none: this model reads text"},
    {"prompt_logprobs", "expected none: ask /v1/completions for them"},
    {"thinking_token_budget", "expected none: bound all tokens by max_tokens"},
};

struct fields {
  const struct json *messages, *tools, *variables, *tool_choice, *modalities;
  bool logprobs, echo, parallel, generation_prompt, continue_final, include_reasoning, add_special;
  int32_t max_completion_tokens;
};

static void list_fields(struct openai_fields *o, struct fields *f, struct generate_params *p) {
  const struct json_field fields[] = {
      {.name = "messages", .kind = FIELD_VALUE, .target = &f->messages, .required = true},
      {.name = "tools", .kind = FIELD_VALUE, .target = &f->tools},
      {.name = "tool_choice", .kind = FIELD_VALUE, .target = &f->tool_choice},
      {.name = "parallel_tool_calls", .kind = FIELD_BOOL, .target = &f->parallel},
      {.name = "modalities", .kind = FIELD_VALUE, .target = &f->modalities},
      {.name = "max_completion_tokens",
       .kind = FIELD_I32,
       .target = &f->max_completion_tokens,
       .min = 1,
       .max = LIMIT_NEW_TOKENS},
      {.name = "logprobs", .kind = FIELD_BOOL, .target = &f->logprobs},
      {.name = "top_logprobs", .kind = FIELD_I32, .target = &p->top_logprobs, .min = 0, .max = LIMIT_TOP_LOGPROBS},
      {.name = "chat_template_kwargs", .kind = FIELD_VALUE, .target = &f->variables},
      {.name = "add_generation_prompt", .kind = FIELD_BOOL, .target = &f->generation_prompt},
      {.name = "continue_final_message", .kind = FIELD_BOOL, .target = &f->continue_final},
      {.name = "include_reasoning", .kind = FIELD_BOOL, .target = &f->include_reasoning},
      {.name = "add_special_tokens", .kind = FIELD_BOOL, .target = &f->add_special},
      {.name = "echo", .kind = FIELD_BOOL, .target = &f->echo},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) sampling_fields_add(&o->sampling, fields[i]);
  for (size_t i = 0; i < sizeof not_offered / sizeof not_offered[0]; i++)
    sampling_fields_refuse(&o->sampling, not_offered[i].name, NULL, not_offered[i].why);
}

/* --- messages and tools --- */

static enum rc check_messages(const struct json *messages, struct err *err) {
  const size_t count = json_length(messages);
  if (json_type_of(messages) != JSON_ARRAY || count < 1 || count > LIMIT_CHAT_MESSAGES)
    return err_set(err, RC_INVALID, "messages", "expected an array of 1 to %d messages, got %s of %zu",
                   LIMIT_CHAT_MESSAGES, json_type_name(json_type_of(messages)), count);
  for (size_t i = 0; i < count; i++) {
    const struct json *message = json_at(messages, i);
    const char *role = json_type_of(message) == JSON_OBJECT ? json_word(json_get(message, "role")) : NULL;
    if (role && *role) continue;
    return err_set(err, RC_INVALID, "messages", "expected an object with a role as message %zu", i);
  }
  return RC_OK;
}

/* The names outlive the body. */
static enum rc read_tools(struct chat_details *d, const struct json *tools, struct arena *arena, struct err *err) {
  if (!tools) return RC_OK;
  const size_t count = json_length(tools);
  if (json_type_of(tools) != JSON_ARRAY || count > LIMIT_CHAT_TOOLS)
    return err_set(err, RC_INVALID, "tools", "expected an array of up to %d tools, got %s of %zu", LIMIT_CHAT_TOOLS,
                   json_type_name(json_type_of(tools)), count);
  const char **names = arena_alloc(arena, count + 1, sizeof *names);
  if (!names) return err_set(err, RC_NO_MEMORY, "tools", "%zu tools were refused their memory", count);
  for (size_t i = 0; i < count; i++) {
    const struct json *tool = json_at(tools, i), *function = NULL;
    const char *type = json_type_of(tool) == JSON_OBJECT ? json_word(json_get(tool, "type")) : NULL;
    if (type && strcmp(type, "function") == 0) function = json_get(tool, "function");
    const char *name = function && json_type_of(function) == JSON_OBJECT ? json_word(json_get(function, "name")) : NULL;
    if (!name || !*name)
      return err_set(err, type && strcmp(type, "function") != 0 ? RC_UNSUPPORTED : RC_INVALID, "tools",
                     "expected type function and a function with a name as tool %zu", i);
    names[i] = arena_strdup(arena, name);
    if (!names[i]) return err_set(err, RC_NO_MEMORY, "tools", "the name of tool %zu was refused its memory", i);
  }
  d->names = (struct tool_names){.items = names, .count = count};
  return RC_OK;
}

static enum rc read_tool_choice(struct chat_details *d, const struct json *choice, struct err *err) {
  d->tools = d->names.count > 0;
  if (!choice) return RC_OK;
  const char *word = json_word(choice);
  if (word && strcmp(word, "auto") == 0) return RC_OK;
  if (word && strcmp(word, "none") == 0) {
    d->tools = false;
    return RC_OK;
  }
  if ((word && strcmp(word, "required") == 0) || json_type_of(choice) == JSON_OBJECT)
    return err_set(err, RC_UNSUPPORTED, "tool_choice", "expected auto or none: a call cannot be enforced");
  return err_set(err, RC_INVALID, "tool_choice", "expected auto or none, got %.40s",
                 word ? word : json_type_name(json_type_of(choice)));
}

static enum rc check_modalities(const struct json *v, struct err *err) {
  if (!v) return RC_OK;
  if (json_type_of(v) != JSON_ARRAY || json_length(v) > MODALITIES_MAX)
    return err_set(err, RC_INVALID, "modalities", "expected an array of up to %d, got %s of %zu", MODALITIES_MAX,
                   json_type_name(json_type_of(v)), json_length(v));
  for (size_t i = 0; i < json_length(v); i++) {
    const char *word = json_word(json_at(v, i));
    if (!word || strcmp(word, "text") != 0)
      return err_set(err, word ? RC_UNSUPPORTED : RC_INVALID, "modalities", "expected text alone");
  }
  return RC_OK;
}

/* --- all --- */

static enum rc check_fields(const struct fields *f, struct generate_params *p, struct err *err) {
  if (f->echo) return err_set(err, RC_UNSUPPORTED, "echo", "expected none: ask /v1/completions for it");
  if (f->add_special)
    return err_set(err, RC_UNSUPPORTED, "add_special_tokens", "expected none: the template has the special tokens");
  if (p->top_logprobs > 0 && !f->logprobs)
    return err_set(err, RC_INVALID, "top_logprobs", "expected none without logprobs: true");
  if (f->continue_final && f->generation_prompt)
    return err_set(err, RC_INVALID, "continue_final_message", "expected add_generation_prompt: false beside it");
  if (f->variables && json_type_of(f->variables) != JSON_OBJECT)
    return err_set(err, RC_INVALID, "chat_template_kwargs", "expected an object, got %s",
                   json_type_name(json_type_of(f->variables)));
  if (f->max_completion_tokens > 0) p->max_new_tokens = f->max_completion_tokens; /* the newer name wins */
  return RC_OK;
}

enum rc chat_request_read(struct generate_params *p, struct chat_prompt *prompt, struct http_request *r,
                          struct err *err) {
  const struct json *body;
  struct openai_fields o;
  struct fields f = {.parallel = true, .generation_prompt = true, .include_reasoning = true};
  struct arena *arena = http_arena(r);
  struct chat_details *d = arena_alloc(arena, 1, sizeof *d);
  if (!d) return err_set(err, RC_NO_MEMORY, NULL, "the request was refused its memory");
  p->max_new_tokens = 0; /* as many as there is room for */
  p->details = d;
  openai_fields_init(&o, p, &d->openai, 1);
  list_fields(&o, &f, p);
  enum rc rc = http_body_json_fitted(r, &body, err);
  if (rc == RC_OK) rc = openai_fields_read(&o, body, arena, err);
  if (rc == RC_OK) rc = check_messages(f.messages, err);
  if (rc == RC_OK) rc = read_tools(d, f.tools, arena, err);
  if (rc == RC_OK) rc = read_tool_choice(d, f.tool_choice, err);
  if (rc == RC_OK) rc = check_modalities(f.modalities, err);
  if (rc == RC_OK) rc = check_fields(&f, p, err);
  if (rc != RC_OK) return rc;
  d->told = arena_alloc(arena, (size_t)p->n, sizeof *d->told);
  if (!d->told) return err_set(err, RC_NO_MEMORY, NULL, "the request was refused its memory");
  d->one_call = !f.parallel;
  d->by_completion_tokens = f.max_completion_tokens > 0;
  d->openai.logprobs = f.logprobs;
  p->raw_logprobs = f.logprobs;
  p->tells_tokens = f.logprobs || d->openai.return_token_ids;
  *prompt = (struct chat_prompt){.messages = f.messages,
                                 .tools = f.tools,
                                 .variables = f.variables,
                                 .generation_prompt = f.generation_prompt,
                                 .continue_final = f.continue_final};
  return RC_OK;
}

void chat_request_name_field(const struct generate_params *p, struct err *err) {
  const struct chat_details *d = p->details;
  const char *name = NULL;
  if (strcmp(err->field, "max_new_tokens") == 0)
    name = d && d->by_completion_tokens ? "max_completion_tokens" : "max_tokens";
  if (strcmp(err->field, "input_ids") == 0 || strcmp(err->field, "text") == 0) name = "messages";
  if (name) snprintf(err->field, sizeof err->field, "%s", name);
}
