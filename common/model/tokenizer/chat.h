/* Chat messages to token ids, by the model's own chat template.
 *
 * chat_files_read reads what lies with a model, its template among it: chat_template.jinja (and
 * additional_chat_templates/NAME.jinja, formerly chat_templates/NAME.jinja), else tokenizer_config.json's
 * chat_template, a string or a list of named ones; the template named "tool_use" serves requests with tools.  A folder
 * without a template gets ChatML.  common/template renders it.
 *
 * Every byte of the rendered text knows whether the template wrote it or the conversation: a special token's text in a
 * message is encoded as text, so no message can end its turn and forge another one.  Special tokens that the template
 * writes become their ids, also those that it makes of a role.  No first token is added: a template writes its
 * bos_token itself.
 *
 * A loaded chat is constant, so any thread may use it; a call's memory is the call's, and bounded.
 * The coordinator encodes its datasets with it, the generation-server the messages of its clients. */
#ifndef LEASEHOLD_MODEL_TOKENIZER_CHAT_H
#define LEASEHOLD_MODEL_TOKENIZER_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/rc.h"
#include "common/json/json.h"
#include "common/model/tokenizer/token_ids.h"
#include "common/model/tokenizer/tokenizer.h"

struct chat;

/* The bytes of a model's files; each may be empty. */
struct chat_files {
  struct buf jinja;            /* chat_template.jinja */
  struct buf tool_use;         /* additional_chat_templates/tool_use.jinja */
  struct buf tokenizer_config; /* tokenizer_config.json */
};
/* Reads the chat files of a folder. */
enum rc chat_files_read(struct chat_files *out, const char *dir, struct err *err);
void chat_files_free(struct chat_files *files);
/* t must outlive the chat.  RC_INVALID names the file and the template's line. */
enum rc chat_parse(struct chat **out, const struct chat_files *files, const struct tokenizer *t, struct err *err);
/* The id of tokenizer_config.json's eos_token, at which engines end a sample whatever the model's configuration lists;
 * -1 where the file names none, or one that the model has no row for. */
int32_t chat_eos_id(const struct buf *tokenizer_config, const struct tokenizer *t);
void chat_free(struct chat *c);
/* false: the folder has none, and messages become ChatML. */
bool chat_has_template(const struct chat *c);

struct chat_request {
  const struct json *messages;  /* array of objects; content: a string, or parts [{"type":"text","text":...}] */
  const struct json *tools;     /* array or NULL: `tools: []` renders differently from no tools */
  const struct json *variables; /* object (chat_template_kwargs: enable_thinking, ...) or NULL */
  bool generation_prompt;       /* the text ends where the assistant's answer begins */
  bool continue_final;          /* the text ends within the last message, which is to be continued */
  bool arguments_are_text;      /* tool calls' arguments come as JSON in a string (OpenAI's wire): templates that want
                                   an object get one, an empty one of none or of what is no JSON; an empty list of
                                   calls is none */
};

/* Appends ids.  text (may be NULL) gets what was rendered; assistant (may be NULL) gets one byte per id: 1 for tokens
 * of {% generation %} blocks, else 0.  On failure all three are as before.  RC_INVALID names the message or the
 * template's line; RC_TOO_LARGE: more than tokens_max ids, or a text or a rendering beyond its bounds;
 * RC_UNSUPPORTED: no template, and a vocabulary without ChatML's markers. */
enum rc chat_encode(const struct chat *c, const struct chat_request *r, size_t tokens_max, struct token_ids *out,
                    struct buf *text, struct buf *assistant, struct err *err);

#endif
