/* Shows tokens to people. */
#include "services/generation-server/shapes/shown_token.h"

#include <string.h>

/* All bytes of a token, special or not; empty without a tokenizer. */
static void bytes_of(const struct generate_call *call, int32_t id, struct buf *out) {
  const struct tokenizer *t = call->loaded->files.tokenizer;
  buf_clear(out);
  if (t && tokenizer_decode_more(t, &id, 1, false, out, NULL) != RC_OK) buf_clear(out);
}

void shown_token(const struct generate_call *call, int32_t id, struct buf *out) {
  struct buf bytes = BUF_INIT;
  bytes_of(call, id, &bytes);
  buf_clear(out);
  if (bytes.len == 0) {
    buf_printf(out, "token_id:%d", id);
  } else if (choice_is_text(bytes.data, bytes.len) && !memchr(bytes.data, 0, bytes.len)) { /* it may become a key */
    buf_append(out, bytes.data, bytes.len);
  } else {
    buf_puts(out, "bytes:");
    for (size_t i = 0; i < bytes.len; i++) buf_printf(out, "\\x%02x", (unsigned char)bytes.data[i]);
  }
  buf_free(&bytes);
}

/* The object stays open.  rank 0: it is not known. */
static void begin_token(const struct generate_call *call, int32_t id, float logprob, enum shown_as as, int32_t rank,
                        struct json_writer *w) {
  struct buf shown = BUF_INIT, bytes = BUF_INIT;
  bytes_of(call, id, &bytes);
  if (as != SHOWN_AS_TEXT)
    buf_printf(&shown, "token_id:%d", id);
  else
    shown_token(call, id, &shown);
  json_object_begin(w);
  json_key(w, "token");
  json_write_string_len(w, shown.data ? shown.data : "", shown.len);
  json_kv_f32(w, "logprob", logprob);
  json_key(w, "bytes");
  if (bytes.len == 0) {
    json_write_null(w);
  } else {
    json_array_begin(w);
    for (size_t i = 0; i < bytes.len; i++) json_write_int(w, (unsigned char)bytes.data[i]);
    json_array_end(w);
  }
  if (as == SHOWN_RANKED) {
    json_kv_int(w, "token_id", id);
    json_key(w, "rank");
    if (rank > 0)
      json_write_int(w, rank);
    else
      json_write_null(w);
  }
  buf_free(&shown);
  buf_free(&bytes);
}

void shown_tokens_write(const struct generate_call *call, const struct sample *s, int32_t first, int32_t count,
                        int32_t top, enum shown_as as, struct json_writer *w) {
  const int32_t k = s->job->top_count;
  json_array_begin(w);
  for (int32_t at = first; at < first + count; at++) {
    int32_t rank = 0;
    for (int32_t i = 0; i < top && rank == 0; i++)
      if (s->top_tokens[at * k + i] == s->tokens[at]) rank = i + 1;
    begin_token(call, s->tokens[at], s->logprobs[at], as, rank, w);
    json_key(w, "top_logprobs");
    json_array_begin(w);
    for (int32_t i = 0; i < top; i++) {
      begin_token(call, s->top_tokens[at * k + i], s->top_logprobs[at * k + i], as, i + 1, w);
      json_object_end(w);
    }
    json_array_end(w);
    json_object_end(w);
  }
  json_array_end(w);
}
