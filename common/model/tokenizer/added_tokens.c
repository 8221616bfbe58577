/* Finds added tokens ("<|im_end|>") in text: leftmost, then longest, as the tokenizers library finds them.
 *
 * added_set.c finds the longest at a place.  Called by tokenizer_encode for the raw text and again for the normalized
 * text; the sets are constant.
 *
 * Some tokens take the white space on their left or right with them, or match only where no word touches them.  A
 * token that begins in white space which the one before took still counts, and what follows it is text again, unless it
 * takes white space on its left and nothing is left of it; so the library has it. */
#include "common/model/tokenizer/tokenizer_state.h"

/* The length of the code point that ends before text[end]; end > 0. */
static size_t code_before(uint32_t *code, const char *text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && ((uint8_t)text[start] & 0xC0) == 0x80) start--;
  return text_code(code, text + start, end - start);
}

static bool stands_alone(const char *text, size_t len, size_t start, size_t stop) {
  uint32_t code;
  if (start > 0 && code_before(&code, text, start) && text_is_word(code)) return false;
  return stop == len || !text_code(&code, text + stop, len - stop) || !text_is_word(code);
}

bool added_next(struct added_match *out, const struct added_set *set, const char *text, size_t len, size_t *at,
                size_t done, bool parse_special) {
  while (*at < len) {
    const struct added_token *token = added_longest(set, text + *at, len - *at);
    if (!token) {
      (*at)++;
      continue;
    }
    size_t start = *at, stop = start + token->len, n;
    uint32_t code;
    *at = stop;
    if ((token->special && !parse_special) || (token->single_word && !stands_alone(text, len, start, stop))) continue;
    if (token->lstrip)
      while (start > done && (n = code_before(&code, text, start)) && text_is_space(code)) start -= n;
    if (token->rstrip)
      while (stop < len && (n = text_code(&code, text + stop, len - stop)) && text_is_space(code)) stop += n;
    if (token->lstrip && stop <= done) continue;
    *out = (struct added_match){.start = start, .stop = stop, .id = token->id};
    return true;
  }
  return false;
}
