/* The state that the tokenizer's files share.  Loading fills a struct tokenizer once (read_model.c, read_steps.c);
 * afterwards it is constant.
 *
 *   text ── added tokens of the raw text ── NFC ── added tokens of the normalized text ── splits ── words ── merges ── ids
 *           added_tokens.c   unicode.c   added_tokens.c     text.c    bpe.c
 *
 * "Content" is a token as the file spells it.  In vocabulary tokens each byte is one character of the byte alphabet
 * (byte 0x20 is "Ġ"), so that tokens of incomplete UTF-8 can be written in JSON.  "Bytes" is what a token decodes
 * to. */
#ifndef LEASEHOLD_MODEL_TOKENIZER_TOKENIZER_STATE_H
#define LEASEHOLD_MODEL_TOKENIZER_TOKENIZER_STATE_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/rc.h"
#include "common/model/tokenizer/token_ids.h"

enum {
  TOKENIZER_FILE_BYTES = 128 << 20, /* a tokenizer.json; those of 150,000 tokens take 11 MB */
  TOKENIZER_TEXT_BYTES = 256 << 20, /* a text to encode */
  TOKENIZER_SPLITS_MAX = 16,        /* steps of the pre-tokenizer */
  ALPHABET_CODES = 512              /* code points below this that may stand for a byte */
};

struct token {
  const char *content, *bytes;
  uint32_t content_len, bytes_len;
  bool added, special;
};

/* Content to id: open addressing, -1 is free. */
struct token_map {
  int32_t *slots;
  size_t mask;
};

/* Pair of ids to the rank and the result of their merge: open addressing, id -1 is free. */
struct merge {
  int32_t left, right, id;
  uint32_t rank;
};
struct merge_map {
  struct merge *slots;
  size_t mask, count;
};

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

/* One step of the pre-tokenizer: a space in front, when wanted and not there; then pieces are the regex's matches and
 * what lies between. */
struct split_step {
  pcre2_code *regex; /* NULL: the piece stays whole */
  bool prefix_space;
};

struct tokenizer {
  struct arena arena;   /* contents and bytes */
  struct token *tokens; /* [count], indexed by id */
  int32_t count;
  size_t bytes_longest; /* of a token */
  struct token_map map;
  struct merge_map merges;
  int32_t byte_id[256]; /* the token of a single byte, -1 when there is none */
  bool ignore_merges;   /* a word that is a token is that token, whatever the merges */
  bool nfc;
  struct added_set raw, normalized;
  struct split_step splits[TOKENIZER_SPLITS_MAX];
  int split_count;
};

/* The working state of one call of tokenizer_encode. */
struct bpe_symbol {
  int32_t id, prev, next;
}; /* id -1: merged into the one before; next -1: the last */
struct bpe_candidate {
  uint32_t rank;
  int32_t at, id;
};
struct encoder {
  const struct tokenizer *t;
  struct token_ids *out;
  size_t count_before, tokens_max;
  bool parse_special;
  pcre2_match_data *match;
  pcre2_match_context *limits;
  struct buf normal, prefixed, spelled;
  struct bpe_symbol *symbols;
  size_t symbols_cap;
  struct bpe_candidate *heap;
  size_t heap_count, heap_cap;
};

/* --- vocabulary.c --- */
/* The character of a byte (GPT-2's table: printable Latin-1 stands for itself, the rest follow from U+0100). */
uint32_t alphabet_code(uint8_t byte);
/* -1 when the code point stands for no byte. */
int alphabet_byte(uint32_t code);
/* Appends the spelling of bytes in the alphabet. */
void alphabet_spell(struct buf *out, const char *bytes, size_t len);
enum rc token_map_make(struct token_map *map, size_t count, struct err *err);
void token_map_insert(struct token_map *map, const struct token *tokens, int32_t id);
int32_t token_map_find(const struct token_map *map, const struct token *tokens, const char *content, size_t len);
/* Fills in bytes for a vocabulary token's content; a character outside the alphabet makes the content its own bytes. */
enum rc token_fill_bytes(struct token *token, struct arena *arena, struct err *err);

/* --- reading the file's sections --- */
struct json;
/* read_model.c: vocabulary, merges, added tokens */
enum rc tokenizer_read_model(struct tokenizer *t, const struct json *root, struct err *err);
/* read_steps.c: normalizer, pre-tokenizer, decoder */
enum rc tokenizer_read_steps(struct tokenizer *t, const struct json *root, struct err *err);

/* --- bpe.c --- */
enum rc merge_map_make(struct merge_map *map, size_t count, struct err *err);
/* false when the pair is there already. */
bool merge_map_insert(struct merge_map *map, struct merge m);
/* Appends the ids of one word. */
enum rc bpe_encode_word(struct encoder *e, const char *word, size_t len, struct err *err);
/* RC_TOO_LARGE above the call's tokens_max. */
enum rc encoder_push(struct encoder *e, int32_t id, struct err *err);

/* --- unicode.c --- */
/* The code point at s and its length in bytes; the length is 0 when s is not UTF-8. */
size_t text_code(uint32_t *code, const char *s, size_t len);
/* Unicode's White_Space. */
bool text_is_space(uint32_t code);
/* RC_INVALID with the place of the first byte that is not UTF-8. */
enum rc text_check(const char *text, size_t len, struct err *err);
/* false when text is certainly in normal form C. */
bool text_may_change(const char *text, size_t len);
/* Appends the normal form C of well-formed text, in time proportional to its length. */
enum rc text_normalize(struct buf *out, const char *text, size_t len, struct err *err);

/* --- text.c --- */
/* Compiles a pre-tokenizer's pattern; literal: the pattern is a text, not a regex. */
enum rc text_compile(pcre2_code **out, const char *pattern, bool literal, struct err *err);
/* Match data and its ceilings, for one call; end also after a failed begin. */
enum rc text_match_begin(struct encoder *e, struct err *err);
void text_match_end(struct encoder *e);
/* Encodes a whole text, whose bytes are UTF-8. */
enum rc text_encode(struct encoder *e, const char *text, size_t len, struct err *err);

/* --- added_tokens.c --- */
struct added_match {
  size_t start, stop; /* the bytes that the token takes, stripped white space included */
  int32_t id;
};
enum rc added_set_make(struct added_set *set, struct err *err); /* sorts; RC_INVALID when two contents are equal */
/* The next match at or after *at; *at moves behind the text that was searched.  done: the end of earlier matches. */
bool added_next(struct added_match *out, const struct added_set *set, const char *text, size_t len, size_t *at,
                size_t done, bool parse_special);

#endif
