/* Finds added tokens ("<|im_end|>") in text: leftmost, then longest, as the tokenizers library finds them.
 *
 * The set is sorted by content.  At a place in the text the range of candidates is narrowed byte by byte with two
 * binary searches; the last candidate that ended is the longest match.  Most places end at the table of first bytes.
 * Called by tokenizer_encode for the raw text and again for the normalized text; the sets are constant.
 *
 * Some tokens take the white space on their left or right with them, or match only where no word touches them.  A
 * token that begins in white space which the one before took still counts, and what follows it is text again; so the
 * library has it. */
#include <stdlib.h>
#include <string.h>

#include "common/model/tokenizer/tokenizer_state.h"

static int compare(const void *a, const void *b) {
  const struct added_token *x = a, *y = b;
  const int order = memcmp(x->content, y->content, x->len < y->len ? x->len : y->len);
  return order ? order : (x->len > y->len) - (x->len < y->len);
}

enum rc added_set_make(struct added_set *set, struct err *err) {
  if (set->count == 0) return RC_OK;
  qsort(set->items, set->count, sizeof *set->items, compare);
  for (size_t i = 0; i < set->count; i++) {
    if (set->items[i].len == 0)
      return err_set(err, RC_INVALID, "added_tokens",
                     "expected added tokens that the normalizer leaves something of, id %d becomes empty",
                     set->items[i].id);
    set->first[(uint8_t)set->items[i].content[0]] = true;
    if (i > 0 && compare(&set->items[i - 1], &set->items[i]) == 0)
      return err_set(err, RC_INVALID, "added_tokens",
                     "expected each added token once, ids %d and %d are both \"%.64s\"", set->items[i - 1].id,
                     set->items[i].id, set->items[i].content);
  }
  return RC_OK;
}

/* The first token in [low, high) whose byte `depth` is at least `byte`.  All of them have more than depth bytes. */
static size_t lower_bound(const struct added_set *set, size_t low, size_t high, size_t depth, unsigned byte) {
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if ((uint8_t)set->items[middle].content[depth] < byte)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The longest token that text begins with, or NULL. */
static const struct added_token *longest(const struct added_set *set, const char *text, size_t len) {
  const struct added_token *found = NULL;
  size_t low = 0, high = set->count;
  for (size_t depth = 0; depth < len && low < high; depth++) {
    const unsigned byte = (uint8_t)text[depth];
    low = lower_bound(set, low, high, depth, byte);
    high = lower_bound(set, low, high, depth, byte + 1);
    if (low < high && set->items[low].len == depth + 1) found = &set->items[low++]; /* the shorter one comes first */
  }
  return found;
}

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
    const struct added_token *token = set->first[(uint8_t)text[*at]] ? longest(set, text + *at, len - *at) : NULL;
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
    *out = (struct added_match){.start = start, .stop = stop, .id = token->id};
    return true;
  }
  return false;
}
