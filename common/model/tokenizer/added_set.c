/* Sorts sets of tokens' contents, and finds the longest at a place: the range of candidates is narrowed byte by byte
 * with two binary searches; the last candidate that ended is the longest match.  Most places end at the table of first
 * bytes. */
#include "common/model/tokenizer/added_set.h"

#include <stdlib.h>
#include <string.h>

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

void added_set_sort(struct added_set *set) {
  size_t kept = 0;
  if (set->count > 0) qsort(set->items, set->count, sizeof *set->items, compare);
  for (size_t i = 0; i < set->count; i++) {
    if (kept > 0 && compare(&set->items[kept - 1], &set->items[i]) == 0) continue;
    set->first[(uint8_t)set->items[i].content[0]] = true;
    set->items[kept++] = set->items[i];
  }
  set->count = kept;
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

const struct added_token *added_longest(const struct added_set *set, const char *text, size_t len) {
  const struct added_token *found = NULL;
  size_t low = 0, high = len > 0 && set->first[(uint8_t)text[0]] ? set->count : 0;
  for (size_t depth = 0; depth < len && low < high; depth++) {
    const unsigned byte = (uint8_t)text[depth];
    low = lower_bound(set, low, high, depth, byte);
    high = lower_bound(set, low, high, depth, byte + 1);
    if (low < high && set->items[low].len == depth + 1) found = &set->items[low++]; /* the shorter one comes first */
  }
  return found;
}
