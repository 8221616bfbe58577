/* Encodes one word by a Unigram model: of all ways to cut it into tokens, the one with the highest sum of scores.
 *
 *   nodes[end] = the best way that ends at byte `end`: its score, where its last token begins, that token
 *
 * Viterbi from left to right, as the tokenizers library computes it: sums in double, tokens by rising length, and the
 * way found first wins a tie.  A character that is no token costs the lowest score minus 10.  Neighbouring unknown
 * characters become one token, or their bytes where the model has tokens for these.
 *
 * Tokens that begin at a place are found in a trie, so a text of n bytes costs n times the longest token.  Called by
 * text.c for each word; memory belongs to the call's encoder. */
#include <stdlib.h>
#include <string.h>

#include "common/model/tokenizer/tokenizer_state.h"

/* --- trie --- */

struct sorted {
  const struct token *token;
  int32_t id;
};

static int compare(const void *a, const void *b) {
  const struct token *x = ((const struct sorted *)a)->token, *y = ((const struct sorted *)b)->token;
  const uint32_t shorter = x->content_len < y->content_len ? x->content_len : y->content_len;
  const int order = memcmp(x->content, y->content, shorter);
  return order ? order : (x->content_len > y->content_len) - (x->content_len < y->content_len);
}

/* Tokens [low, high) begin with a node's `depth` bytes. */
struct span {
  uint32_t low, high, depth;
};

static enum rc grow(struct trie *trie, struct span **spans, size_t *cap, struct err *err) {
  if (trie->count < *cap) return RC_OK;
  const size_t more = *cap ? *cap * 2 : 1024;
  struct trie_node *nodes = realloc(trie->nodes, more * sizeof *nodes);
  if (nodes) trie->nodes = nodes;
  struct span *s = realloc(*spans, more * sizeof *s);
  if (s) *spans = s;
  if (!nodes || !s || more > UINT32_MAX)
    return err_set(err, RC_NO_MEMORY, "model.vocab", "a trie of %zu nodes was refused memory", more);
  *cap = more;
  return RC_OK;
}

/* Breadth first: the children of a node come one after another. */
static enum rc fill(struct trie *trie, const struct sorted *sorted, uint32_t count, struct span **spans,
                    struct err *err) {
  size_t cap = 0;
  enum rc rc = grow(trie, spans, &cap, err);
  if (rc != RC_OK) return rc;
  trie->nodes[0] = (struct trie_node){.id = -1};
  (*spans)[0] = (struct span){.high = count};
  trie->count = 1;
  for (size_t at = 0; at < trie->count; at++) {
    struct span s = (*spans)[at];
    if (s.low < s.high && sorted[s.low].token->content_len == s.depth && s.depth > 0)
      trie->nodes[at].id = sorted[s.low++].id;
    trie->nodes[at].child = (uint32_t)trie->count;
    for (uint32_t low = s.low, high; low < s.high; low = high) {
      const uint8_t byte = (uint8_t)sorted[low].token->content[s.depth];
      for (high = low + 1; high < s.high && (uint8_t)sorted[high].token->content[s.depth] == byte; high++) {}
      rc = grow(trie, spans, &cap, err);
      if (rc != RC_OK) return rc;
      trie->nodes[trie->count] = (struct trie_node){.id = -1, .byte = byte};
      (*spans)[trie->count++] = (struct span){.low = low, .high = high, .depth = s.depth + 1};
      trie->nodes[at].children++;
    }
  }
  return RC_OK;
}

enum rc trie_make(struct trie *trie, const struct token *tokens, int32_t count, struct err *err) {
  struct sorted *sorted = malloc((size_t)count * sizeof *sorted);
  struct span *spans = NULL;
  uint32_t n = 0;
  if (!sorted) return err_set(err, RC_NO_MEMORY, "model.vocab", "%d tokens to sort were refused memory", count);
  for (int32_t id = 0; id < count; id++)
    if (tokens[id].in_model) sorted[n++] = (struct sorted){.token = &tokens[id], .id = id};
  qsort(sorted, n, sizeof *sorted, compare);
  const enum rc rc = fill(trie, sorted, n, &spans, err);
  for (uint32_t i = 0; rc == RC_OK && i < trie->nodes[0].children; i++)
    trie->root[trie->nodes[trie->nodes[0].child + i].byte] = trie->nodes[0].child + i;
  free(sorted);
  free(spans);
  return rc;
}

/* The child of a node for a byte, 0 when there is none. */
static uint32_t child_of(const struct trie *trie, uint32_t node, uint8_t byte) {
  if (node == 0) return trie->root[byte];
  uint32_t low = trie->nodes[node].child, high = low + trie->nodes[node].children;
  const uint32_t end = high;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (trie->nodes[middle].byte < byte)
      low = middle + 1;
    else
      high = middle;
  }
  return low < end && trie->nodes[low].byte == byte ? low : 0;
}

/* --- encoding --- */

static void offer(struct unigram_node *target, double score, size_t begin, int32_t id) {
  if (target->begin < 0 || score > target->score)
    *target = (struct unigram_node){.score = score, .begin = (int32_t)begin, .id = id};
}

/* Leads every way to place `at` on by one token. */
static enum rc step(struct encoder *e, const char *word, size_t len, size_t at, size_t char_len, struct err *err) {
  const struct tokenizer *t = e->t;
  const double so_far = e->nodes[at].score;
  bool has_char = false;
  uint32_t node = 0;
  for (size_t end = at; end < len && (node = child_of(&t->trie, node, (uint8_t)word[end])) != 0;) {
    end++;
    const int32_t id = t->trie.nodes[node].id;
    if (id < 0 || (t->tokens[id].special && !e->parse_special)) continue; /* plain text becomes no special token */
    offer(&e->nodes[end], t->scores[id] + so_far, at, id);
    has_char = has_char || end - at == char_len;
  }
  if (has_char) return RC_OK;
  if (t->unknown < 0)
    return err_set(err, RC_INVALID, NULL, "expected text that the vocabulary can spell, \"%.*s\" has no token",
                   (int)char_len, word + at);
  offer(&e->nodes[at + char_len], t->unknown_score + so_far, at, t->unknown);
  return RC_OK;
}

static enum rc push_unknown(struct encoder *e, const char *text, size_t len, struct err *err) {
  const struct tokenizer *t = e->t;
  const int32_t id = encoder_find(e, text, len);
  if (id >= 0) return encoder_push(e, id, err);
  bool all = t->byte_fallback;
  for (size_t i = 0; i < len && all; i++) all = t->fallback[(uint8_t)text[i]] >= 0;
  if (!all) return encoder_push(e, t->unknown, err);
  enum rc rc = RC_OK;
  for (size_t i = 0; i < len && rc == RC_OK; i++) rc = encoder_push(e, t->fallback[(uint8_t)text[i]], err);
  return rc;
}

/* Turns the links from ends to beginnings round, so that they lead from beginnings to ends; then the tokens in
 * order. */
static enum rc push_path(struct encoder *e, const char *word, size_t len, struct err *err) {
  int32_t next = -1; /* where the token that begins at `at` ends */
  for (int32_t at = (int32_t)len; at >= 0;) {
    const int32_t before = at > 0 ? e->nodes[at].begin : -1;
    e->nodes[at].begin = next;
    next = at;
    at = before;
  }
  enum rc rc = RC_OK;
  for (size_t at = 0; at < len && rc == RC_OK;) {
    size_t end = (size_t)e->nodes[at].begin;
    const int32_t id = e->nodes[end].id;
    if (id != e->t->unknown) {
      rc = encoder_push(e, id, err);
    } else {
      while (end < len && e->nodes[e->nodes[end].begin].id == id) end = (size_t)e->nodes[end].begin;
      rc = push_unknown(e, word + at, end - at, err);
    }
    at = end;
  }
  return rc;
}

enum rc unigram_encode_word(struct encoder *e, const char *word, size_t len, struct err *err) {
  if (len + 1 > e->nodes_cap) {
    struct unigram_node *nodes = realloc(e->nodes, (len + 1) * sizeof *nodes);
    if (!nodes)
      return err_set(err, RC_NO_MEMORY, NULL, "a word of %zu bytes was refused %zu bytes", len,
                     (len + 1) * sizeof *nodes);
    e->nodes = nodes;
    e->nodes_cap = len + 1;
  }
  for (size_t i = 0; i <= len; i++) e->nodes[i] = (struct unigram_node){.begin = -1};
  enum rc rc = RC_OK;
  for (size_t at = 0, n; at < len && rc == RC_OK; at += n) {
    uint32_t code;
    n = text_code(&code, word + at, len - at);
    if (n == 0) return err_set(err, RC_INTERNAL, NULL, "expected a word of UTF-8, byte %zu is none", at);
    rc = step(e, word, len, at, n, err);
  }
  return rc == RC_OK ? push_path(e, word, len, err) : rc;
}
