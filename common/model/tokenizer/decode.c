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

static enum rc put_tokens(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special, bool first,
                          struct buf *out, struct err *err) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= LIMIT_VOCABULARY)
      return err_set(err, RC_INVALID, NULL, "expected token ids from 0 to %d, got %d at place %zu",
                     LIMIT_VOCABULARY - 1, ids[i], i);
    if (ids[i] < t->count) bytes += t->tokens[ids[i]].bytes_len;
  }
  buf_reserve(out, bytes);
  if (bytes == 0 || out->failed) return buf_check(out, err);
  char *to = out->data + out->len;
  for (size_t i = 0; i < count; i++) {
    if (ids[i] >= t->count) continue; /* a row that only pads the model's embedding has no text */
    const struct token *token = &t->tokens[ids[i]];
    if (skip_special && token->special) continue;
    if (first && t->decoder.mark.text) {
      put_first(out, t, token); /* never more than the token's bytes */
      to = out->data + out->len;
    } else {
      for (size_t at = 0; at < (size_t)token->bytes_len; at++) *to++ = token->bytes[at]; /* a few: no call for each */
    }
    first = false;
  }
  *to = '\0';
  out->len = (size_t)(to - out->data);
  return RC_OK;
}

enum rc tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                         struct buf *out, struct err *err) {
  const struct literal *l = &t->decoder.strip;
  const size_t before = out->len;
  const enum rc rc = put_tokens(t, ids, count, skip_special, true, out, err);
  if (rc != RC_OK || !l->text) return rc;
  size_t cut = 0;
  for (size_t i = 0; i < t->decoder.strip_max && literal_starts(out->data + before + cut, out->len - before - cut, l); i++)
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
