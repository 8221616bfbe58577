/* Encodes one word by byte pairs: starts from the tokens of its bytes, or of its characters where the vocabulary is not
 * byte-level, and merges the neighbours of the lowest rank, leftmost first, until no merge applies.
 *
 * A character without a token becomes the tokens of its bytes ("<0xE2>"), where the model falls back to these, or else
 * the unknown token; where there is none, the text is refused (the tokenizers library leaves the character out).
 *
 * The word is a doubly linked list of symbols in an array; a heap of candidates, ordered by rank and then by place,
 * gives the next merge.  A candidate that an earlier merge has changed is recognized when it comes up (its pair no
 * longer makes its id) and dropped.  So a word of n bytes costs n log n; rescanning for the lowest rank would cost n^2,
 * which would be minutes for one long word without a space.  Memory belongs to the call's encoder and is reused from
 * word to word. */
#include <stdlib.h>
#include <string.h>

#include "common/model/tokenizer/tokenizer_state.h"

static size_t pair_hash(int32_t left, int32_t right) {
  uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
  return (size_t)(h ^ h >> 29);
}

enum rc merge_map_make(struct merge_map *map, size_t count, struct err *err) {
  size_t slots = 16;
  while (slots < count * 2) slots *= 2;
  map->slots = malloc(slots * sizeof *map->slots);
  if (!map->slots)
    return err_set(err, RC_NO_MEMORY, NULL, "a map of %zu merges was refused %zu bytes", count,
                   slots * sizeof *map->slots);
  for (size_t i = 0; i < slots; i++) map->slots[i].id = -1;
  map->mask = slots - 1;
  map->count = 0;
  return RC_OK;
}

/* The pair's slot, or the free one where it belongs. */
static struct merge *slot_of(const struct merge_map *map, int32_t left, int32_t right) {
  size_t slot = pair_hash(left, right) & map->mask;
  for (;; slot = (slot + 1) & map->mask) {
    struct merge *m = &map->slots[slot];
    if (m->id < 0 || (m->left == left && m->right == right)) return m;
  }
}

bool merge_map_insert(struct merge_map *map, struct merge m) {
  struct merge *slot = slot_of(map, m.left, m.right);
  if (slot->id >= 0) return false;
  *slot = m;
  map->count++;
  return true;
}

enum rc encoder_push(struct encoder *e, int32_t id, struct err *err) {
  struct token_ids *out = e->out;
  if (id >= e->t->rows)
    return err_set(err, RC_INVALID, NULL,
                   "the text holds \"%.64s\", whose id %d is beyond the model's vocabulary of %d tokens",
                   e->t->tokens[id].content, id, e->t->rows);
  if (out->count - e->count_before >= e->tokens_max)
    return err_set(err, RC_TOO_LARGE, NULL, "expected a text of at most %zu tokens, got more", e->tokens_max);
  if (out->count == out->cap) {
    const size_t cap = out->cap ? out->cap * 2 : 64;
    int32_t *items = realloc(out->items, cap * sizeof *items);
    if (!items)
      return err_set(err, RC_NO_MEMORY, NULL, "%zu token ids were refused %zu bytes", cap, cap * sizeof *items);
    out->items = items;
    out->cap = cap;
  }
  out->items[out->count++] = id;
  return RC_OK;
}

static bool comes_first(const struct bpe_candidate *a, const struct bpe_candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static enum rc heap_push(struct encoder *e, struct bpe_candidate c, struct err *err) {
  if (e->heap_count == e->heap_cap) {
    const size_t cap = e->heap_cap ? e->heap_cap * 2 : 64;
    struct bpe_candidate *heap = realloc(e->heap, cap * sizeof *heap);
    if (!heap)
      return err_set(err, RC_NO_MEMORY, NULL, "%zu merge candidates were refused %zu bytes", cap, cap * sizeof *heap);
    e->heap = heap;
    e->heap_cap = cap;
  }
  size_t i = e->heap_count++;
  for (; i > 0 && comes_first(&c, &e->heap[(i - 1) / 2]); i = (i - 1) / 2) e->heap[i] = e->heap[(i - 1) / 2];
  e->heap[i] = c;
  return RC_OK;
}

static struct bpe_candidate heap_pop(struct encoder *e) {
  const struct bpe_candidate top = e->heap[0], last = e->heap[--e->heap_count];
  size_t i = 0;
  for (;;) {
    size_t child = 2 * i + 1;
    if (child >= e->heap_count) break;
    if (child + 1 < e->heap_count && comes_first(&e->heap[child + 1], &e->heap[child])) child++;
    if (!comes_first(&e->heap[child], &last)) break;
    e->heap[i] = e->heap[child];
    i = child;
  }
  e->heap[i] = last;
  return top;
}

/* Puts the pair that begins at symbol `at` on the heap when it has a merge. */
static enum rc consider(struct encoder *e, int32_t at, struct err *err) {
  if (at < 0 || e->symbols[at].next < 0) return RC_OK;
  const struct merge *m = slot_of(&e->t->merges, e->symbols[at].id, e->symbols[e->symbols[at].next].id);
  if (m->id < 0) return RC_OK;
  if (e->t->merges_special && !e->parse_special && e->t->tokens[m->id].special) return RC_OK;
  return heap_push(e, (struct bpe_candidate){.rank = m->rank, .at = at, .id = m->id}, err);
}

int32_t encoder_find(const struct encoder *e, const char *content, size_t len) {
  const struct tokenizer *t = e->t;
  const int32_t id = token_map_find(&t->map, t->tokens, content, len);
  return id >= 0 && t->tokens[id].in_model && (e->parse_special || !t->tokens[id].special) ? id : -1;
}

/* --- a word's symbols before any merge --- */

static void put_symbol(struct encoder *e, size_t *count, int32_t id) {
  const int32_t at = (int32_t)*count;
  e->symbols[at] = (struct bpe_symbol){.id = id, .prev = at - 1, .next = at + 1};
  (*count)++;
}

/* The token of one character, or of one byte where the vocabulary is byte-level. */
static int32_t unit_token(const struct encoder *e, const char *unit, size_t len) {
  if (len > 1) return encoder_find(e, unit, len);
  const int32_t id = e->t->byte_id[(uint8_t)unit[0]];
  return id >= 0 && (e->parse_special || !e->t->tokens[id].special) ? id : -1;
}

static bool put_fallback(struct encoder *e, size_t *count, const char *unit, size_t len) {
  const int32_t *fallback = e->t->fallback;
  if (!e->t->byte_fallback) return false;
  for (size_t i = 0; i < len; i++)
    if (fallback[(uint8_t)unit[i]] < 0) return false;
  for (size_t i = 0; i < len; i++) put_symbol(e, count, fallback[(uint8_t)unit[i]]);
  return true;
}

/* *waiting: an unknown token is not put down before the next known one, so that its neighbours may join it; the bytes
 * of a fallback do not end the waiting, as in the tokenizers library. */
static enum rc put_unit(struct encoder *e, size_t *count, bool *waiting, const char *unit, size_t len,
                        struct err *err) {
  const struct tokenizer *t = e->t;
  const int32_t id = unit_token(e, unit, len);
  if (id >= 0) {
    if (*waiting) put_symbol(e, count, t->unknown);
    *waiting = false;
    put_symbol(e, count, id);
    return RC_OK;
  }
  if (put_fallback(e, count, unit, len)) return RC_OK;
  if (t->unknown < 0 && len == 1)
    return err_set(err, RC_INVALID, NULL, "expected text that the vocabulary can spell, byte 0x%02x has no token",
                   (uint8_t)unit[0]);
  if (t->unknown < 0)
    return err_set(err, RC_INVALID, NULL, "expected text that the vocabulary can spell, \"%.*s\" has no token",
                   (int)len, unit);
  if (*waiting && !t->fuse_unknown) put_symbol(e, count, t->unknown);
  *waiting = true;
  return RC_OK;
}

/* One symbol for a byte or a character; bytes of characters without a token; at most one a byte. */
static enum rc start_symbols(struct encoder *e, const char *word, size_t len, size_t *count, struct err *err) {
  if (len > e->symbols_cap) {
    struct bpe_symbol *symbols = realloc(e->symbols, len * sizeof *symbols);
    if (!symbols)
      return err_set(err, RC_NO_MEMORY, NULL, "a word of %zu bytes was refused %zu bytes", len, len * sizeof *symbols);
    e->symbols = symbols;
    e->symbols_cap = len;
  }
  *count = 0;
  bool waiting = false;
  enum rc rc = RC_OK;
  for (size_t i = 0, n; i < len && rc == RC_OK; i += n) {
    uint32_t code;
    n = e->t->byte_level || (uint8_t)word[i] < 0x80 ? 1 : text_code(&code, word + i, len - i);
    if (n == 0) return err_set(err, RC_INTERNAL, NULL, "expected a word of UTF-8, byte %zu is none", i);
    rc = put_unit(e, count, &waiting, word + i, n, err);
  }
  if (rc == RC_OK && waiting) put_symbol(e, count, e->t->unknown);
  if (*count > 0) e->symbols[*count - 1].next = -1;
  return rc;
}

static enum rc merge_symbols(struct encoder *e, size_t count, struct err *err) {
  e->heap_count = 0;
  enum rc rc = RC_OK;
  for (size_t i = 0; i + 1 < count && rc == RC_OK; i++) rc = consider(e, (int32_t)i, err);
  while (rc == RC_OK && e->heap_count > 0) {
    const struct bpe_candidate c = heap_pop(e);
    struct bpe_symbol *left = &e->symbols[c.at];
    if (left->id < 0 || left->next < 0) continue; /* merged away, or the last by now */
    struct bpe_symbol *right = &e->symbols[left->next];
    if (slot_of(&e->t->merges, left->id, right->id)->id != c.id) continue; /* another pair by now */
    left->id = c.id;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0) e->symbols[left->next].prev = c.at;
    rc = consider(e, left->prev, err);
    if (rc == RC_OK) rc = consider(e, c.at, err);
  }
  return rc;
}

/* The token that is the whole word, or -1. */
static int32_t whole_word(struct encoder *e, const char *word, size_t len) {
  if (len > e->t->longest) return -1;
  if (!e->t->byte_level) return encoder_find(e, word, len);
  buf_clear(&e->spelled);
  alphabet_spell(&e->spelled, word, len);
  return e->spelled.failed ? -1 : encoder_find(e, e->spelled.data, e->spelled.len);
}

enum rc bpe_encode_word(struct encoder *e, const char *word, size_t len, struct err *err) {
  const struct tokenizer *t = e->t;
  if (t->ignore_merges) {
    const int32_t id = whole_word(e, word, len);
    if (e->spelled.failed) return buf_check(&e->spelled, err);
    if (id >= 0) return encoder_push(e, id, err);
  }
  const bool any_length = t->unknown >= 0 && t->fuse_unknown; /* of the text that one token stands for */
  if (!any_length && len / t->longest > e->tokens_max)        /* no need to try */
    return err_set(err, RC_TOO_LARGE, NULL, "expected a text of at most %zu tokens, got a word of %zu bytes",
                   e->tokens_max, len);
  size_t count = 0;
  enum rc rc = start_symbols(e, word, len, &count, err);
  if (rc == RC_OK) rc = merge_symbols(e, count, err);
  for (int32_t i = 0; rc == RC_OK && count > 0 && i >= 0; i = e->symbols[i].next)
    rc = encoder_push(e, e->symbols[i].id, err);
  return rc;
}
