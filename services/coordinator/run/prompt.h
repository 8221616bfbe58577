/* Makes the prompt of a dataset's line: a text, or messages, with the reading's template and system message around
 * them.
 *
 *   "question" --template--> text --chat--> [system, user]
 *   messages   --template around the user's last one, a system message where they have none--> messages
 *
 * Called by dataset_line.c, which encodes the result.  Messages without a change stay the line's own values, members
 * that are not looked at here (name, tool_calls, ...) included.  Content is a string or parts of type text, which are
 * joined where they are changed.  Pure but for memory. */
#ifndef LEASEHOLD_COORDINATOR_RUN_PROMPT_H
#define LEASEHOLD_COORDINATOR_RUN_PROMPT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/json/json.h"
#include "services/coordinator/run/reading.h"

enum { PROMPT_MESSAGES_MAX = 256 };

struct prompt {
  const char *text; /* of the arena; NULL: it is messages */
  size_t text_len;
  const struct json *messages;
  const struct json *completion; /* content of the assistant's last message where that was split off; else NULL */
  struct json *made;             /* owns changed messages; prompt_free */
};

/* value: what the line's path `name` leads to.  split: where the assistant has the last word, it is the completion.
 * RC_INVALID with the field.  prompt_free also after a failure. */
enum rc prompt_make(struct prompt *out, const struct json *value, const char *name, const struct reading *r, bool split,
                    struct arena *arena, struct err *err);
void prompt_free(struct prompt *p);

/* Appends the text of a message's content: a string, or parts.  RC_INVALID for anything else, by name. */
enum rc content_text(const struct json *content, struct buf *out, struct err *err);

#endif
