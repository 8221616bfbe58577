/* Scans a sample's tokens for stop texts and cuts its text into pieces of whole characters.  Places in the text are
 * counted in bytes from the first byte of the prefix. */
#include "services/generation-server/requests/choice_text.h"

#include <assert.h>

#include "common/base/utf8.h"

void choice_scratch_free(struct choice_scratch *m) {
  buf_free(&m->text);
  buf_free(&m->ends);
  buf_free(&m->offsets);
}

void choice_init(struct choice *c, struct sample *s, int32_t index, const struct tokenizer *tokenizer,
                 const struct stop_texts *stops, const char *prefix, size_t prefix_len) {
  *c = (struct choice){.sample = s,
                       .index = index,
                       .tokenizer = tokenizer,
                       .stops = stops,
                       .prefix = prefix,
                       .prefix_len = prefix_len,
                       .scanned_end = prefix_len,
                       .told_end = prefix_len};
}

/* --- scanning --- */

/* The token at `at` ended the sample, and is no part of the text. */
static bool is_dropped(const struct choice *c, int32_t at) {
  return c->drops_end && sample_stops_at(c->sample->job, c->sample->tokens[at]);
}

int32_t choice_text_tokens(const struct choice *c) {
  return c->scanned > 0 && is_dropped(c, c->scanned - 1) ? c->scanned - 1 : c->scanned;
}

static enum rc decode(const struct choice *c, int32_t at, struct buf *out, struct err *err) {
  if (is_dropped(c, at)) return RC_OK;
  return c->tokenizer ? tokenizer_decode_more(c->tokenizer, &c->sample->tokens[at], 1, !c->shows_special, out, err)
                      : RC_OK;
}

/* Looks for stop texts in the newest token's text: bytes of the one that ends the choice, and of the text up to its end
 * in *used; 0: none does. */
static size_t find_stop(struct choice *c, const struct buf *text, size_t *used) {
  size_t at = 0;
  for (;;) {
    const size_t found = stop_texts_feed(c->stops, &c->matching, text->data + at, text->len - at, used);
    *used = at += *used;
    if (found == 0 || c->scanned >= c->stops_from) return found;
    stop_texts_pass(c->stops, &c->matching);
  }
}

enum rc choice_scan(struct choice *c, struct choice_scratch *m, struct err *err) {
  const bool over = atomic_load_explicit(&c->sample->over, memory_order_acquire); /* before shown: then that is final */
  const int32_t shown = c->only_prompt ? 0 : atomic_load_explicit(&c->sample->shown, memory_order_acquire);
  for (; c->scanned < shown && !c->stopped; c->scanned++) {
    size_t used;
    buf_clear(&m->text);
    const enum rc rc = decode(c, c->scanned, &m->text, err);
    if (rc != RC_OK) return rc;
    const size_t found = m->text.len > 0 ? find_stop(c, &m->text, &used) : 0;
    if (found > 0) {
      c->stopped = true;
      c->cut = c->scanned_end + used - (c->keeps_stop ? 0 : found);
      atomic_store_explicit(&c->sample->text_over, true, memory_order_relaxed);
    }
    c->scanned_end += m->text.len;
  }
  c->ended = c->stopped || over;
  return RC_OK;
}

enum finish_reason choice_finish(const struct choice *c) {
  if (c->only_prompt && c->sample->finish != FINISH_ABORT) return FINISH_LENGTH;
  return c->stopped ? FINISH_STOP : c->sample->finish;
}

/* --- characters --- */

/* Bytes of the character at s; one that is cut off or malformed counts byte by byte, as the JSON writer shows it. */
static size_t char_length(const char *s, size_t len) {
  const int n = utf8_length(s, len);
  return n > 0 ? (size_t)n : 1;
}

bool choice_is_text(const char *bytes, size_t len) {
  for (size_t at = 0; at < len;) {
    const int n = utf8_length(bytes + at, len - at);
    if (n <= 0) return false;
    at += (size_t)n;
  }
  return true;
}

/* --- telling --- */

/* The text that is told next: the rest of the prefix, then tokens from c->told on. */
struct window {
  size_t base;        /* place of its first byte: c->sent, or the beginning of a token that was told in part */
  size_t skip;        /* bytes of it that were sent */
  const size_t *ends; /* [filled] places where its tokens end */
  int32_t filled;
};

/* Fills the window up to the limits, but always with enough for one whole character. */
static enum rc fill_window(struct window *w, const struct choice *c, size_t bytes_max, int32_t tokens_max,
                           struct choice_scratch *m, struct err *err) {
  const size_t prefix_left = c->sent < c->prefix_len ? c->prefix_len - c->sent : 0;
  buf_clear(&m->text);
  buf_clear(&m->ends);
  *w = (struct window){.base = prefix_left > 0 ? c->sent : c->told_end};
  if (w->base < c->sent) w->skip = c->sent - w->base; /* else tokens after the cut have been told */
  const size_t enough_bytes = w->skip + bytes_max;
  if (prefix_left > 0) buf_append(&m->text, c->prefix + c->sent, prefix_left < bytes_max ? prefix_left : bytes_max);
  for (int32_t at = c->told; at < c->scanned && prefix_left <= bytes_max; at++) {
    const bool enough = at - c->told >= tokens_max || m->text.len >= enough_bytes;
    if (enough && m->text.len >= w->skip + UTF8_BYTES_MAX) break;
    const enum rc rc = decode(c, at, &m->text, err);
    if (rc != RC_OK) return rc;
    const size_t end = w->base + m->text.len;
    buf_append(&m->ends, &end, sizeof end);
    w->filled++;
  }
  w->ends = (const size_t *)(void *)m->ends.data; /* malloc'ed, and appended to by whole items */
  const enum rc rc = buf_check(&m->text, err);
  return rc == RC_OK ? buf_check(&m->ends, err) : rc;
}

/* Counts characters that begin before places of a piece, which are asked for in rising order. */
struct walk {
  const char *text;
  size_t len, at;
  int64_t chars;
};

static int64_t walk_to(struct walk *w, size_t place) {
  while (w->at < place && w->at < w->len) {
    w->at += char_length(w->text + w->at, w->len - w->at);
    w->chars++;
  }
  return w->chars;
}

/* Characters before each of the piece's tokens; c's counts go on to the piece's end. */
static enum rc count_offsets(struct choice *c, struct choice_piece *piece, const size_t *ends, struct buf *offsets,
                             struct err *err) {
  struct walk w = {.text = piece->text, .len = piece->len, .chars = c->chars};
  size_t begin = c->told_end;
  int64_t before = c->told_chars;
  buf_clear(offsets);
  for (int32_t i = 0; i <= piece->count; i++) {
    if (begin >= c->sent) before = walk_to(&w, begin - c->sent); /* else it began in an earlier piece */
    if (i == piece->count) break;
    buf_append(offsets, &before, sizeof before);
    begin = ends[i];
  }
  const enum rc rc = buf_check(offsets, err);
  if (rc != RC_OK) return rc;
  piece->offsets = (const int64_t *)(void *)offsets->data;
  c->told_chars = before;
  c->chars = walk_to(&w, piece->len);
  return RC_OK;
}

enum rc choice_take(struct choice_piece *piece, struct choice *c, size_t bytes_max, int32_t tokens_max,
                    struct choice_scratch *m, struct err *err) {
  struct window w;
  *piece = (struct choice_piece){.first = c->told, .begins = c->sent == 0 && c->told == 0};
  if (c->closed || (c->awaits_token && c->scanned == 0 && !c->ended)) return RC_OK;
  if (bytes_max == 0) bytes_max = SIZE_MAX / 2;
  if (bytes_max < UTF8_BYTES_MAX) bytes_max = UTF8_BYTES_MAX;
  enum rc rc = fill_window(&w, c, bytes_max, tokens_max > 0 ? tokens_max : INT32_MAX, m, err);
  if (rc != RC_OK) return rc;
  const size_t unsafe = c->ended ? 0 : stop_texts_held(c->stops, &c->matching);
  const size_t limit = c->stopped ? c->cut : c->scanned_end - unsafe;
  size_t end = w.base + m->text.len < limit ? w.base + m->text.len : limit;
  assert(end >= c->sent); /* held-back bytes never begin before bytes that were safe to send */
  if (end - c->sent > bytes_max) end = c->sent + bytes_max;
  const char *text = m->text.data ? m->text.data + w.skip : "";
  const bool complete = c->ended && end == limit;
  if (!complete) end = c->sent + utf8_whole(text, end - c->sent);
  while (piece->count < w.filled && (complete || w.ends[piece->count] <= end)) piece->count++;
  piece->text = c->tokenizer || c->prefix_len > 0 ? text : NULL;
  piece->len = end - c->sent;
  piece->last = complete && c->told + piece->count == c->scanned;
  piece->any = piece->len > 0 || piece->count > 0 || piece->last;
  if (c->wants_offsets) rc = count_offsets(c, piece, w.ends, &m->offsets, err);
  if (rc != RC_OK) return rc;
  if (piece->count > 0) c->told_end = w.ends[piece->count - 1];
  c->told += piece->count;
  c->sent = end;
  c->closed = piece->last;
  return RC_OK;
}
