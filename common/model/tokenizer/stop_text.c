/* Matches stop texts byte by byte, each with its own automaton (Knuth, Morris, Pratt). */
#include "common/model/tokenizer/stop_text.h"

_Static_assert(LIMIT_STOP_TEXT_BYTES <= UINT16_MAX, "positions in a stop text fit 16 bits");

enum rc stop_texts_add(struct stop_texts *s, const char *text, size_t len, struct arena *arena, struct err *err) {
  if (s->count == LIMIT_STOP_TEXTS)
    return err_set(err, RC_INVALID, "stop", "expected at most %d stop texts, got one more", LIMIT_STOP_TEXTS);
  if (len < 1 || len > LIMIT_STOP_TEXT_BYTES)
    return err_set(err, RC_INVALID, "stop", "expected stop texts of 1 to %d bytes, got %zu", LIMIT_STOP_TEXT_BYTES,
                   len);
  char *copy = arena_strndup(arena, text, len);
  uint16_t *fallback = arena_alloc(arena, len, sizeof *fallback);
  if (!copy || !fallback) return err_set(err, RC_NO_MEMORY, "stop", "a stop text of %zu bytes was refused memory", len);
  for (size_t i = 1, border = 0; i < len; i++) {
    while (border > 0 && text[i] != text[border]) border = fallback[border - 1];
    if (text[i] == text[border]) border++;
    fallback[i] = (uint16_t)border;
  }
  s->items[s->count].text = copy;
  s->items[s->count].len = len;
  s->items[s->count++].fallback = fallback;
  return RC_OK;
}

/* One byte further; true when the text is complete with it. */
static bool advance(const struct stop_texts *s, int which, struct stop_state *state, char byte) {
  const char *text = s->items[which].text;
  size_t matched = state->matched[which];
  while (matched > 0 && text[matched] != byte) matched = s->items[which].fallback[matched - 1];
  if (text[matched] == byte) matched++;
  state->matched[which] = (uint16_t)matched;
  return matched == s->items[which].len;
}

size_t stop_texts_feed(const struct stop_texts *s, struct stop_state *state, const char *bytes, size_t len,
                       size_t *used) {
  for (size_t i = 0; i < len; i++) {
    size_t longest = 0;
    for (int k = 0; k < s->count; k++)
      if (advance(s, k, state, bytes[i]) && s->items[k].len > longest) longest = s->items[k].len;
    if (longest == 0) continue;
    *used = i + 1;
    return longest;
  }
  *used = len;
  return 0;
}

void stop_texts_pass(const struct stop_texts *s, struct stop_state *state) {
  for (int k = 0; k < s->count; k++)
    if (state->matched[k] == s->items[k].len) state->matched[k] = s->items[k].fallback[s->items[k].len - 1];
}

size_t stop_texts_held(const struct stop_texts *s, const struct stop_state *state) {
  size_t held = 0;
  for (int k = 0; k < s->count; k++)
    if (state->matched[k] > held) held = state->matched[k];
  return held;
}

bool stop_texts_end(const struct stop_texts *s, struct stop_state *state, const struct tokenizer *t, int32_t token) {
  size_t len, used;
  const char *bytes = tokenizer_token_text(t, token, true, &len);
  return stop_texts_feed(s, state, bytes, len, &used) > 0;
}
