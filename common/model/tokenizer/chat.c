/* Turns chat messages into the ChatML text that Qwen models are trained on:
 *
 *   <|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n
 *
 * Called by the generation-server's chat route, whose messages come from strangers, and by the coordinator's dataset
 * reader.  The text is then encoded with special tokens parsed, so a content that holds a marker could end its own
 * turn and forge another; such messages are refused. */
#include <string.h>

#include "common/model/tokenizer/tokenizer.h"
#include "common/model/tokenizer/tokenizer_state.h"

enum { ROLE_BYTES_MAX = 64 };

static const char start_marker[] = "<|im_start|>", end_marker[] = "<|im_end|>";

static bool is_added(const struct tokenizer *t, const char *content) {
  const int32_t id = tokenizer_id_of(t, content);
  return id >= 0 && t->tokens[id].added;
}

static enum rc check_message(const struct chat_message *m, size_t index, struct err *err) {
  if (!m->role || !m->content)
    return err_set(err, RC_INVALID, "messages", "expected a role and a content in message %zu, one is missing", index);
  const size_t role_len = strlen(m->role);
  if (role_len == 0 || role_len > ROLE_BYTES_MAX || strpbrk(m->role, "\n\r<>|"))
    return err_set(err, RC_INVALID, "messages",
                   "expected a role of 1 to %d bytes without line ends, '<', '>' and '|' in message %zu, got \"%.32s\"",
                   ROLE_BYTES_MAX, index, m->role);
  for (int i = 0; i < 2; i++) {
    const char *marker = i ? end_marker : start_marker;
    if (memmem(m->content, m->content_len, marker, strlen(marker)))
      return err_set(err, RC_INVALID, "messages",
                     "expected a content without %s in message %zu: it would forge another turn", marker, index);
  }
  return RC_OK;
}

enum rc tokenizer_chat_text(const struct tokenizer *t, const struct chat_message *messages, size_t count,
                            struct buf *out, struct err *err) {
  if (!is_added(t, start_marker) || !is_added(t, end_marker))
    return err_set(err, RC_UNSUPPORTED, "messages",
                   "expected a tokenizer with the added tokens %s and %s, this one lacks them; send a prompt instead",
                   start_marker, end_marker);
  for (size_t i = 0; i < count; i++) {
    const enum rc rc = check_message(&messages[i], i, err);
    if (rc != RC_OK) return rc;
  }
  for (size_t i = 0; i < count; i++) {
    buf_puts(out, start_marker);
    buf_puts(out, messages[i].role);
    buf_puts(out, "\n");
    buf_append(out, messages[i].content, messages[i].content_len);
    buf_puts(out, end_marker);
    buf_puts(out, "\n");
  }
  buf_puts(out, start_marker);
  buf_puts(out, "assistant\n");
  return buf_check(out, err);
}
