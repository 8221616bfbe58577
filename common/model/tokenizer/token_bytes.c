/* Makes what each token decodes to, once, while loading: the decoder's steps for single tokens are run over its
 * content.
 *
 * Called by tokenizer_parse when the vocabulary and the decoder were read.  The bytes lie in the tokenizer's arena, or
 * are the content itself where no step changes it; decode.c puts them together. */
#include <string.h>

#include "common/model/tokenizer/tokenizer_state.h"

static void strip(const char **text, size_t *len, const struct decode_step *s) {
  for (size_t i = 0; i < s->start && literal_starts(*text, *len, &s->content); i++) {
    *text += s->content.len;
    *len -= s->content.len;
  }
  for (size_t i = 0; i < s->stop && *len >= s->content.len &&
                     memcmp(*text + *len - s->content.len, s->content.text, s->content.len) == 0;
       i++)
    *len -= s->content.len;
}

/* Runs one step over *text; what it makes lies in out.  A step that leaves the text where it is leaves out alone. */
static enum rc run_step(const struct decode_step *s, struct matcher *m, const char **text, size_t *len,
                        struct buf *out, struct err *err) {
  static const struct literal space = {.text = " ", .len = 1};
  const int byte = s->kind == DECODE_BYTE_FALLBACK ? fallback_byte(*text, *len) : -1;
  enum rc rc = RC_OK;
  if (s->kind == DECODE_STRIP) strip(text, len, s);
  if (s->kind == DECODE_STRIP || (s->kind == DECODE_BYTE_FALLBACK && byte < 0)) return RC_OK;
  buf_clear(out);
  switch (s->kind) {
    case DECODE_BYTE_FALLBACK: buf_append(out, &(char){(char)byte}, 1); break;
    case DECODE_BYTE_LEVEL: alphabet_read(out, *text, *len); break;
    case DECODE_REPLACE: rc = pattern_replace(out, s->regex, &s->content, m, *text, *len, err); break;
    default: /* DECODE_METASPACE */
      for (size_t i = 0; i < *len;) {
        const bool mark = literal_starts(*text + i, *len - i, &s->content);
        buf_append(out, mark ? space.text : *text + i, 1);
        i += mark ? s->content.len : 1;
      }
      break;
  }
  if (rc == RC_OK) rc = buf_check(out, err);
  *text = out->data ? out->data : "";
  *len = out->len;
  return rc;
}

static enum rc fill_token(struct tokenizer *t, struct token *token, struct matcher *m, struct buf work[2],
                          struct err *err) {
  const struct decoder *d = &t->decoder;
  const char *text = token->content;
  size_t len = token->content_len;
  struct buf *free_one = &work[0]; /* the text lies in the other one, or is the token's content */
  enum rc rc = RC_OK;
  if (!text) return RC_OK; /* an id without a token */
  for (int i = 0; i < d->count && rc == RC_OK && !(t->byte_level && token->added); i++) {
    rc = run_step(&d->steps[i], m, &text, &len, free_one, err);
    if (text == free_one->data) free_one = free_one == &work[0] ? &work[1] : &work[0];
    if (d->steps[i].kind == DECODE_BYTE_FALLBACK && len == 1 && (uint8_t)text[0] >= 0x80) break; /* no text any more */
  }
  if (rc != RC_OK) return rc;
  token->bytes_len = (uint32_t)len;
  token->bytes = token->content;
  if (len == token->content_len && memcmp(text, token->content, len) == 0) return RC_OK;
  token->bytes = arena_strndup(&t->arena, text, len);
  return token->bytes ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "the bytes of a token were refused memory");
}

static void fill_short_text(struct short_text *out, const struct token *token) {
  *out = (struct short_text){.len = SHORT_TEXT_NONE};
  if (token->special || token->bytes_len > SHORT_TEXT_BYTES) return;
  if (token->bytes_len > 0) memcpy(out->bytes, token->bytes, token->bytes_len);
  out->len = (uint8_t)token->bytes_len;
}

enum rc decoder_fill_bytes(struct tokenizer *t, struct err *err) {
  struct matcher m = {0};
  struct buf work[2] = {BUF_INIT, BUF_INIT};
  enum rc rc = matcher_begin(&m, err);
  for (int32_t id = 0; id < t->count && rc == RC_OK; id++) rc = fill_token(t, &t->tokens[id], &m, work, err);
  matcher_end(&m);
  buf_free(&work[0]);
  buf_free(&work[1]);
  t->short_texts = arena_alloc(&t->arena, (size_t)t->count + 1, sizeof *t->short_texts);
  if (rc == RC_OK && !t->short_texts)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the texts of %d tokens were refused memory", t->count);
  for (int32_t id = 0; id < t->count && rc == RC_OK; id++) fill_short_text(&t->short_texts[id], &t->tokens[id]);
  return rc;
}
