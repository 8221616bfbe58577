/* Sets of texts that are tokens by themselves ("<|im_end|>"), found in a text: leftmost, then longest.
 *
 * Used by the tokenizer for its added tokens, and by the chat for the special ones that it finds in conversations.
 * Constant once made; any thread.  The texts and the items are the caller's. */
#ifndef LEASEHOLD_MODEL_TOKENIZER_ADDED_SET_H
#define LEASEHOLD_MODEL_TOKENIZER_ADDED_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/rc.h"

struct added_token {
  const char *content; /* for the normalized set: normalized */
  size_t len;
  int32_t id;
  bool special, single_word, lstrip, rstrip;
};
/* Sorted by content, so that the longest match at a place is found by narrowing a range byte by byte. */
struct added_set {
  struct added_token *items;
  size_t count;
  bool first[256]; /* a token begins with this byte */
};

enum rc added_set_make(struct added_set *set, struct err *err); /* sorts; RC_INVALID when two contents are equal */
/* The same of contents that are not empty, some of which may be equal: of those one stays. */
void added_set_sort(struct added_set *set);
/* The longest token that text begins with, or NULL. */
const struct added_token *added_longest(const struct added_set *set, const char *text, size_t len);

#endif
