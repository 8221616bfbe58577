/* Encodes messages by the model's chat template.  A model without one gets the ChatML form (tokenizer_chat_text), in
 * which tools, variables of a template and a last message that goes on have no place, so they are refused. */
#include "services/generation-server/requests/chat_prompt.h"

#include <stdio.h>
#include <string.h>

#include "services/generation-server/requests/room.h"

/* The texts of a content's parts, put together. */
static enum rc join_parts(struct chat_message *out, const struct json *parts, size_t index, struct arena *arena,
                          struct err *err) {
  struct buf text = BUF_INIT;
  enum rc rc = RC_OK;
  for (size_t i = 0; i < json_length(parts) && rc == RC_OK; i++) {
    const struct json *part = json_at(parts, i), *value = json_get(part, "text");
    const char *type = json_word(json_get(part, "type"));
    size_t len;
    if (!type || strcmp(type, "text") != 0 || !value || json_type_of(value) != JSON_STRING) {
      rc = err_set(err, type && strcmp(type, "text") != 0 ? RC_UNSUPPORTED : RC_INVALID, "messages",
                   "expected parts of type text with a text in message %zu, got \"%.40s\"", index, type ? type : "");
      continue;
    }
    const char *bytes = json_string(value, &len);
    buf_append(&text, bytes, len);
  }
  if (rc == RC_OK) rc = buf_check(&text, err);
  if (rc == RC_OK) {
    out->content_len = text.len;
    out->content = arena_strndup(arena, text.data ? text.data : "", text.len);
  }
  buf_free(&text);
  return rc;
}

static enum rc read_message(struct chat_message *out, const struct json *message, size_t index, struct arena *arena,
                            struct err *err) {
  const struct json *content = json_get(message, "content");
  out->role = json_word(json_get(message, "role"));
  if (json_get(message, "tool_calls") && json_length(json_get(message, "tool_calls")) > 0)
    return err_set(err, RC_UNSUPPORTED, "messages", "expected no tool calls in message %zu: this model has no template",
                   index);
  if (content && json_type_of(content) == JSON_STRING) {
    out->content = json_string(content, &out->content_len);
    return RC_OK;
  }
  if (content && json_type_of(content) == JSON_ARRAY) return join_parts(out, content, index, arena, err);
  return err_set(err, RC_INVALID, "messages", "expected a text or parts as the content of message %zu, got %s", index,
                 content ? json_type_name(json_type_of(content)) : "none");
}

static enum rc encode_as_chatml(struct token_ids *out, const struct chat_prompt *prompt, const struct tokenizer *t,
                                struct arena *arena, struct err *err) {
  const size_t count = json_length(prompt->messages);
  struct chat_message *messages = arena_alloc(arena, count + 1, sizeof *messages);
  struct buf text = BUF_INIT;
  if (json_length(prompt->tools) > 0)
    return err_set(err, RC_UNSUPPORTED, "tools", "expected none: this model has no template that renders them");
  if (json_length(prompt->variables) > 0)
    return err_set(err, RC_UNSUPPORTED, "chat_template_kwargs", "expected none: this model has no template");
  if (prompt->continue_final || !prompt->generation_prompt)
    return err_set(err, RC_UNSUPPORTED, prompt->continue_final ? "continue_final_message" : "add_generation_prompt",
                   "expected the assistant's turn to be opened: this model has no template");
  if (!messages) return err_set(err, RC_NO_MEMORY, "messages", "%zu messages were refused their memory", count);
  enum rc rc = RC_OK;
  for (size_t i = 0; i < count && rc == RC_OK; i++)
    rc = read_message(&messages[i], json_at(prompt->messages, i), i, arena, err);
  if (rc == RC_OK) rc = tokenizer_chat_text(t, messages, count, &text, err);
  if (rc == RC_OK) rc = tokenizer_encode(t, text.data, text.len, true, LIMIT_PROMPT_TOKENS, out, err);
  buf_free(&text);
  return rc;
}

static enum rc encode_by_template(struct token_ids *out, const struct chat_prompt *prompt, const struct chat *chat,
                                  struct err *err) {
  const struct chat_request request = {.messages = prompt->messages,
                                       .tools = prompt->tools,
                                       .variables = prompt->variables,
                                       .generation_prompt = prompt->generation_prompt,
                                       .continue_final = prompt->continue_final,
                                       .arguments_are_text = true};
  return chat_encode(chat, &request, LIMIT_PROMPT_TOKENS, out, NULL, NULL, err);
}

enum rc chat_prompt_encode(struct json_i32s *out, const struct chat_prompt *prompt, const struct loaded_model *loaded,
                           struct arena *arena, struct err *err) {
  const struct model_files *files = &loaded->files;
  struct token_ids ids = {0};
  if (!files->tokenizer)
    return err_set(err, RC_UNSUPPORTED, "messages", "this model came without a tokenizer.json: send token ids");
  if (!files->chat)
    return err_set(err, RC_UNSUPPORTED, "messages", "this model's chat template cannot be used: %.800s",
                   files->no_chat.message);
  enum rc rc = chat_has_template(files->chat) ? encode_by_template(&ids, prompt, files->chat, err)
                                              : encode_as_chatml(&ids, prompt, files->tokenizer, arena, err);
  if (rc == RC_OK) {
    out->count = ids.count;
    out->items = arena_alloc(arena, ids.count + 1, sizeof *out->items);
    if (out->items)
      memcpy(out->items, ids.items, ids.count * sizeof *ids.items);
    else
      rc = err_set(err, RC_NO_MEMORY, "messages", "a prompt of %zu ids was refused its memory", ids.count);
  }
  if (rc == RC_TOO_LARGE && err) {
    const struct err of_tokenizer = *err;
    room_refuse(loaded, "messages", of_tokenizer.message, err);
  }
  if (rc != RC_OK && err && (!err->field[0] || strcmp(err->field, "text") == 0))
    snprintf(err->field, sizeof err->field, "messages");
  token_ids_free(&ids);
  return rc;
}
