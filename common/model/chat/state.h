/* The state of a loaded chat, shared by its files: load.c loads, messages.c makes a template's variables,
 * encode.c renders and encodes. */
#ifndef LEASEHOLD_MODEL_CHAT_STATE_H
#define LEASEHOLD_MODEL_CHAT_STATE_H

#include "common/base/arena.h"
#include "common/model/tokenizer/added_set.h"
#include "common/template/template.h"

struct chat_request; /* chat.h */
struct tokenizer;
struct json;

/* What continue_final puts behind the last message, and looks for in the rendered text: transformers' word. */
#define CHAT_CONTINUE_TAG "CONTINUE_FINAL_MESSAGE_TAG "

struct chat_word {
  const char *name, *bytes; /* name: of a variable ("bos_token") */
  size_t len;
};
struct chat_words {
  struct chat_word *items;
  size_t count, cap;
};

struct chat {
  const struct tokenizer *tokenizer;
  struct template *template, *tool_use;   /* tool_use NULL: the same serves requests with tools */
  bool takes_parts, tool_use_takes_parts; /* the template reads a content's parts; else it wants one text */
  bool has_template, has_markers;
  struct arena arena;
  struct chat_words variables; /* bos_token, ... */
  struct added_set specials;   /* the contents of special tokens; in the arena */
};

/* How a conversation is handed to the template: templates differ in what they can read. */
struct chat_form {
  bool flat_content;     /* a content of text parts becomes one text */
  bool texts_only;       /* ... and one with other parts is refused */
  bool wire;             /* messages as OpenAI's clients send them: tool calls may be none, arguments are texts */
  bool parsed_arguments; /* ... which become objects */
};
/* Documents parsed from arguments, which the values borrow from; chat_documents_free after rendering. */
struct chat_documents {
  struct json **items;
  size_t count, cap;
};
/* The template's variables. */
enum rc chat_variables(struct workspace *w, const struct chat *c, const struct chat_request *r,
                       const struct chat_form *form, struct chat_documents *documents, struct dict **out);
void chat_documents_free(struct chat_documents *documents);

#endif
