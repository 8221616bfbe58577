/* Makes text of ids.  Every token's bytes are known since loading (token_bytes.c), so decoding puts them one behind the
 * other; what concerns only the text's beginning (the space before the first word, which encoding has added) is done
 * here.
 *
 * Called by the services for answers and verifiers, for whole texts or token by token; a text that is told in pieces
 * equals the whole.  Bytes of incomplete characters go out as they are. */
#include <string.h>

#include "common/base/limits.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/model/tokenizer/tokenizer_state.h"

/* The first token of a text without the marks of spaces, as Metaspace has it. */
static void put_first(struct buf *out, const struct tokenizer *t, const struct token *token) {
  const struct literal *mark = &t->decoder.mark;
  if (token->bytes_len == 1 && fallback_byte(token->content, token->content_len) == (uint8_t)token->bytes[0]) {
    buf_append(out, token->bytes, 1);
    return;
  }
  for (size_t i = 0; i < token->content_len;) {
    if (literal_starts(token->content + i, token->content_len - i, mark))
      i += mark->len;
    else
      buf_append(out, &token->content[i++], 1);
  }
}

#define SHORT_TEXT_LEN_BIT (8 * SHORT_TEXT_BYTES)
#define SHORT_TEXT_OTHER   ((uint64_t)SHORT_TEXT_NONE << SHORT_TEXT_LEN_BIT)
_Static_assert(sizeof(struct short_text) == sizeof(uint64_t) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "a short text is moved as one number");

/* Room for more bytes, for as many tokens with short ones, and for the write that goes beyond the last; NULL: memory
 * was refused. */
static char *room_for(struct buf *out, size_t bytes, size_t tokens) {
  buf_reserve(out, bytes + tokens * SHORT_TEXT_BYTES + sizeof(struct short_text));
  return out->failed ? NULL : out->data + out->len;
}

/* A token that is not short.  Returns the place behind it, with room for `left` more; NULL: memory was refused. */
static char *put_other(const struct tokenizer *t, int32_t id, bool skip_special, size_t left, struct buf *out,
                       char *to) {
  if (id >= t->count) return to; /* a row that only pads the model's embedding has no text */
  const struct token *token = &t->tokens[id];
  if (skip_special && token->special) return to;
  out->len = (size_t)(to - out->data);
  to = room_for(out, token->bytes_len, left);
  if (!to) return NULL;
  if (token->bytes_len > 0) memcpy(to, token->bytes, token->bytes_len);
  return to + token->bytes_len;
}

/* By a loop that a compiler turns into vectors; a second one says what is wrong. */
static enum rc check_ids(const int32_t *ids, size_t count, struct err *err) {
  enum { AT_ONCE = 32 };
  uint32_t most = 0; /* negative ids are the largest */
  size_t i = 0;
  for (; i + AT_ONCE <= count; i += AT_ONCE)
    for (size_t k = 0; k < AT_ONCE; k++) most = (uint32_t)ids[i + k] > most ? (uint32_t)ids[i + k] : most;
  for (; i < count; i++) most = (uint32_t)ids[i] > most ? (uint32_t)ids[i] : most;
  for (i = 0; most >= LIMIT_VOCABULARY && i < count; i++) {
    if (ids[i] < 0 || ids[i] >= LIMIT_VOCABULARY)
      return err_set(err, RC_INVALID, NULL, "expected token ids from 0 to %d, got %d at place %zu",
                     LIMIT_VOCABULARY - 1, ids[i], i);
  }
  return RC_OK;
}

static enum rc put_tokens(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special, bool first,
                          struct buf *out, struct err *err) {
  const enum rc rc = check_ids(ids, count, err);
  if (rc != RC_OK) return rc;
  size_t i = 0;
  for (; i < count && first && t->decoder.mark.text; i++) {
    if (ids[i] >= t->count || (skip_special && t->tokens[ids[i]].special)) continue;
    put_first(out, t, &t->tokens[ids[i]]);
    first = false;
  }
  if (i == count) return buf_check(out, err);
  char *to = room_for(out, 0, count - i);
  for (; i < count && to; i++) {
    uint64_t text = SHORT_TEXT_OTHER; /* its length lies in the last byte, the highest */
    if (ids[i] < t->count) memcpy(&text, &t->short_texts[ids[i]], sizeof text);
    if (text < SHORT_TEXT_OTHER) {
      memcpy(to, &text, sizeof text); /* what is too much is written over by the next one */
      to += text >> SHORT_TEXT_LEN_BIT;
    } else {
      to = put_other(t, ids[i], skip_special, count - i, out, to);
    }
  }
  if (!to) return buf_check(out, err);
  *to = '\0';
  out->len = (size_t)(to - out->data);
  return RC_OK;
}

enum rc tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                         struct buf *out, struct err *err) {
  const struct literal *l = &t->decoder.strip;
  const size_t before = out->len;
  const enum rc rc = put_tokens(t, ids, count, skip_special, true, out, err);
  if (rc != RC_OK || !l->text || out->len == before) return rc;
  size_t cut = 0;
  for (size_t i = 0; i < t->decoder.strip_max && literal_starts(out->data + before + cut, out->len - before - cut, l);
       i++)
    cut += l->len;
  if (cut == 0) return RC_OK;
  memmove(out->data + before, out->data + before + cut, out->len - before - cut + 1);
  out->len -= cut;
  return RC_OK;
}

enum rc tokenizer_decode_more(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                              struct buf *out, struct err *err) {
  return put_tokens(t, ids, count, skip_special, false, out, err);
}

const char *tokenizer_token_text(const struct tokenizer *t, int32_t id, bool skip_special, size_t *len) {
  const bool has = id >= 0 && id < t->count && !(skip_special && t->tokens[id].special);
  *len = has ? (size_t)t->tokens[id].bytes_len : 0;
  return *len > 0 ? t->tokens[id].bytes : NULL;
}
