/* A growing list of token ids, to which encoding appends. */
#ifndef LEASEHOLD_MODEL_TOKENIZER_TOKEN_IDS_H
#define LEASEHOLD_MODEL_TOKENIZER_TOKEN_IDS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct token_ids {
  int32_t *items;
  size_t count, cap;
};

/* Leaves an empty list. */
static inline void token_ids_free(struct token_ids *ids) {
  free(ids->items);
  *ids = (struct token_ids){0};
}

#endif
