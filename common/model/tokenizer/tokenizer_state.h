/* The state that the tokenizer's files share.  Loading fills a struct tokenizer once (read_*.c); afterwards it is
 * constant.
 *
 *   text ── added tokens of the raw text ── normalizer ── added tokens of the normalized text ── pre-tokenizer ── words
 *           added_tokens.c                 normalize.c    added_tokens.c                         text.c
 *
 *   word ── model (bpe.c, unigram.c) ── ids ── decoder (decode.c) ── text
 *
 * "Content" is a token as the file spells it.  "Bytes" is what a token decodes to.  In byte-level vocabularies each
 * byte of a token is one character of the byte alphabet (byte 0x20 is "Ġ"), so that tokens of incomplete UTF-8 can be
 * written in JSON; in others a token is its text, with "▁" for a space, and "<0x0A>" is a byte. */
#ifndef LEASEHOLD_MODEL_TOKENIZER_TOKENIZER_STATE_H
#define LEASEHOLD_MODEL_TOKENIZER_TOKENIZER_STATE_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/rc.h"
#include "common/model/tokenizer/added_set.h"
#include "common/model/tokenizer/token_ids.h"

enum {
  TOKENIZER_FILE_BYTES = 128 << 20, /* a tokenizer.json; those of 150,000 tokens take 11 MB */
  TOKENIZER_TEXT_BYTES = 256 << 20, /* a text to encode */
  TOKENIZER_NORMAL_BYTES = 1 << 30, /* the same normalized; places in it are 32-bit */
  TOKENIZER_STEPS_MAX = 16,         /* steps of the normalizer, of the pre-tokenizer, of the decoder */
  TOKENIZER_AFFIX_MAX = 16,         /* tokens that the post-processor adds on one side */
  TOKENIZER_LITERAL_BYTES = 256,    /* a text that a step inserts */
  ALPHABET_CODES = 512              /* code points below this that may stand for a byte */
};

struct token {
  const char *content, *bytes;
  uint32_t content_len, bytes_len;
  bool in_model, added, special;
};

/* The bytes of most tokens, so that a text is put together without a call for each and from few cache lines. */
enum { SHORT_TEXT_BYTES = 7, SHORT_TEXT_NONE = 8 };
struct short_text {
  char bytes[SHORT_TEXT_BYTES];
  uint8_t len; /* SHORT_TEXT_NONE: longer, or a special token, which may be left out */
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

/* A text of a step, in the arena. */
struct literal {
  const char *text;
  size_t len;
};
static inline bool literal_starts(const char *text, size_t len, const struct literal *l) {
  return len >= l->len && memcmp(text, l->text, l->len) == 0;
}

enum normal_kind {
  NORMAL_NFC,
  NORMAL_NFD,
  NORMAL_NFKC,
  NORMAL_NFKD,
  NORMAL_LOWERCASE,
  NORMAL_PREPEND,
  NORMAL_REPLACE,
  NORMAL_STRIP,
  NORMAL_STRIP_ACCENTS,
  NORMAL_NMT
};
struct normal_step {
  enum normal_kind kind;
  pcre2_code *regex;      /* REPLACE */
  struct literal content; /* PREPEND, REPLACE */
  bool left, right;       /* STRIP */
};

/* What becomes of a pattern's matches and of the text between them: pieces of their own, dropped, joined with their
 * like, or joined with a neighbour. */
enum split_behavior {
  SPLIT_ISOLATED,
  SPLIT_REMOVED,
  SPLIT_CONTIGUOUS,
  SPLIT_MERGED_WITH_PREVIOUS,
  SPLIT_MERGED_WITH_NEXT
};
enum prefix_when { PREFIX_NEVER, PREFIX_FIRST, PREFIX_ALWAYS };

/* One step of the pre-tokenizer: spaces are replaced; a prefix is put in front, when wanted and not there; then the
 * piece is split. */
struct split_step {
  struct literal space; /* text NULL: spaces stay */
  enum prefix_when prefix_when;
  struct literal prefix;
  pcre2_code *regex; /* NULL: the piece stays whole */
  enum split_behavior behavior;
  bool invert; /* matches are what lies between */
};

/* One step of the decoder for each token alone. */
enum decode_kind { DECODE_BYTE_LEVEL, DECODE_REPLACE, DECODE_BYTE_FALLBACK, DECODE_STRIP, DECODE_METASPACE };
struct decode_step {
  enum decode_kind kind;
  pcre2_code *regex;      /* REPLACE */
  struct literal content; /* REPLACE: by what; STRIP: what; METASPACE: the character that stands for a space */
  size_t start, stop;     /* STRIP: so often at most, on each side */
};
struct decoder {
  struct decode_step steps[TOKENIZER_STEPS_MAX];
  int count;
  bool fused;           /* while reading: later steps concern the whole text */
  struct literal strip; /* of the whole text's beginning, ... */
  size_t strip_max;     /* ... so often at most */
  struct literal mark;  /* METASPACE: the first token loses this; text NULL: it does not */
};

/* Unigram's tokens by their bytes.  The children of a node lie side by side, ordered by their byte; node 0 is the
 * root. */
struct trie_node {
  uint32_t child;
  int32_t id; /* -1: no token ends here */
  uint16_t children;
  uint8_t byte;
};
struct trie {
  struct trie_node *nodes;
  size_t count;
  uint32_t root[256]; /* the root's child of a byte, 0: none */
};

enum model_kind { MODEL_BPE, MODEL_UNIGRAM };

struct tokenizer {
  struct arena arena;   /* contents, bytes and literals */
  struct short_text *short_texts; /* [count] */
  struct token *tokens; /* [count], indexed by id */
  int32_t count;
  int32_t rows; /* ids from here on come of no text; count until tokenizer_fit says otherwise */
  struct token_map map;
  struct added_set raw, normalized;

  enum model_kind kind;
  bool byte_level;       /* words are bytes, and the vocabulary is spelled in the byte alphabet */
  size_t longest;        /* bytes of a word that one token of the model stands for, unknown characters aside */
  int32_t byte_id[256];  /* the model's token of a byte (byte-level) or of an ASCII character, -1: there is none */
  int32_t fallback[256]; /* the model's token "<0xAB>" of a byte, -1: there is none */
  bool byte_fallback;    /* characters without a token become their bytes, if all of these have one */
  bool fuse_unknown;     /* neighbouring unknown characters become one token */
  int32_t unknown;       /* -1: text without a token is refused */
  bool merges_special;   /* some merge makes a special token */
  struct merge_map merges;
  bool ignore_merges; /* a word that is a token is that token, whatever the merges */
  struct trie trie;
  double *scores; /* [count], of Unigram */
  double unknown_score;

  struct normal_step normal[TOKENIZER_STEPS_MAX];
  int normal_count;
  struct split_step splits[TOKENIZER_STEPS_MAX];
  int split_count;
  struct decoder decoder;
  int32_t before[TOKENIZER_AFFIX_MAX], after[TOKENIZER_AFFIX_MAX]; /* what the post-processor adds to a text */
  size_t before_count, after_count;
};

/* Match data and its ceilings; one for a call. */
struct matcher {
  pcre2_match_data *data;
  pcre2_match_context *limits;
};

/* The working state of one call of tokenizer_encode. */
struct bpe_symbol {
  int32_t id, prev, next;
}; /* id -1: merged into the one before; next -1: the last */
struct bpe_candidate {
  uint32_t rank;
  int32_t at, id;
};
/* The best way to the end of a token, and from its beginning to the next one's. */
struct unigram_node {
  double score;
  int32_t begin, id; /* begin -1: no way leads here */
};
struct encoder {
  const struct tokenizer *t;
  struct token_ids *out;
  size_t count_before, tokens_max;
  bool parse_special;
  struct matcher matcher;
  struct buf normal[2], changed[TOKENIZER_STEPS_MAX], spelled;
  struct bpe_symbol *symbols;
  size_t symbols_cap;
  struct bpe_candidate *heap;
  size_t heap_count, heap_cap;
  struct unigram_node *nodes;
  size_t nodes_cap;
};
/* A part of the text on its way to the model.  first: the text's first character made its first character. */
struct piece {
  const char *text;
  size_t len;
  bool first;
};

/* --- vocabulary.c --- */
/* The character of a byte (GPT-2's table: printable Latin-1 stands for itself, the rest follow from U+0100). */
uint32_t alphabet_code(uint8_t byte);
/* -1 when the code point stands for no byte. */
int alphabet_byte(uint32_t code);
/* Appends the spelling of bytes in the alphabet. */
void alphabet_spell(struct buf *out, const char *bytes, size_t len);
/* Appends the bytes that content spells; a character outside the alphabet makes the content its own bytes. */
void alphabet_read(struct buf *out, const char *content, size_t len);
enum rc token_map_make(struct token_map *map, size_t count, struct err *err);
void token_map_insert(struct token_map *map, const struct token *tokens, int32_t id);
int32_t token_map_find(const struct token_map *map, const struct token *tokens, const char *content, size_t len);
/* The byte of "<0xAB>", -1 for other contents. */
int fallback_byte(const char *content, size_t len);

/* --- reading the file's sections --- */
struct json;
/* read_model.c: vocabulary, merges, added tokens */
enum rc tokenizer_read_model(struct tokenizer *t, const struct json *root, struct err *err);
/* read_steps.c: normalizer, pre-tokenizer */
enum rc tokenizer_read_steps(struct tokenizer *t, const struct json *root, struct err *err);
/* read_output.c: decoder, post-processor */
enum rc tokenizer_read_output(struct tokenizer *t, const struct json *root, struct err *err);
/* What the three share (read_steps.c): is it absent or null; the "type" of a section's object; a flag with a default;
 * a pattern {"Regex": text} or {"String": text}; a text of 0 to TOKENIZER_LITERAL_BYTES, copied. */
bool section_is_null(const struct json *v);
enum rc section_type(const char **out, const struct json *v, const char *field, struct err *err);
enum rc section_flag(bool *out, const struct json *v, const char *key, bool absent, const char *field,
                     struct err *err);
enum rc section_pattern(pcre2_code **out, const struct json *v, const char *field, struct err *err);
enum rc section_literal(struct literal *out, struct tokenizer *t, const struct json *v, const char *key,
                        const char *field, struct err *err);

/* --- patterns.c --- */
/* Compiles a pattern that was written for Oniguruma; literal: it is a text, not a regex. */
enum rc pattern_compile(pcre2_code **out, const char *pattern, size_t len, bool literal, const char *field,
                        struct err *err);
/* What the library's own steps split by: one number, one punctuation character, one white space; a run of word
 * characters or of others that are not white space. */
enum pattern_name { PATTERN_NUMBER, PATTERN_PUNCTUATION, PATTERN_SPACE, PATTERN_WORDS };
enum rc pattern_of(pcre2_code **out, enum pattern_name name, struct err *err);
/* end also after a failed begin. */
enum rc matcher_begin(struct matcher *m, struct err *err);
void matcher_end(struct matcher *m);
/* The matches of a pattern in turn, as Oniguruma's find_iter gives them: an empty one only where no match ended. */
struct match_walk {
  const pcre2_code *regex;
  const char *text;
  size_t len, from, last;
  bool any;
};
/* found false: there is none any more.  RC_INVALID when matching took too many steps. */
enum rc match_next(struct match_walk *w, struct matcher *m, bool *found, size_t *start, size_t *stop, struct err *err);
/* Appends text with content in place of each match. */
enum rc pattern_replace(struct buf *out, const pcre2_code *regex, const struct literal *content, struct matcher *m,
                        const char *text, size_t len, struct err *err);

/* --- bpe.c --- */
enum rc merge_map_make(struct merge_map *map, size_t count, struct err *err);
/* false when the pair is there already. */
bool merge_map_insert(struct merge_map *map, struct merge m);
/* Appends the ids of one word. */
enum rc bpe_encode_word(struct encoder *e, const char *word, size_t len, struct err *err);
/* RC_TOO_LARGE above the call's tokens_max, RC_INVALID of an id that has no row. */
enum rc encoder_push(struct encoder *e, int32_t id, struct err *err);
/* The model's token with this content that this call may make of plain text, or -1. */
int32_t encoder_find(const struct encoder *e, const char *content, size_t len);

/* --- unigram.c --- */
enum rc trie_make(struct trie *trie, const struct token *tokens, int32_t count, struct err *err);
enum rc unigram_encode_word(struct encoder *e, const char *word, size_t len, struct err *err);

/* --- unicode.c --- */
/* The code point at s and its length in bytes; the length is 0 when s is not UTF-8. */
size_t text_code(uint32_t *code, const char *s, size_t len);
void text_put(struct buf *out, uint32_t code);
/* Unicode's White_Space. */
bool text_is_space(uint32_t code);
/* What \w matches in Rust's regex library. */
bool text_is_word(uint32_t code);
/* Unicode's Mark, as the normalizers know it. */
bool text_is_mark(uint32_t code);
/* Appends the lower case of a code point. */
void text_put_lower(struct buf *out, uint32_t code);
/* RC_INVALID with the place of the first byte that is not UTF-8. */
enum rc text_check(const char *text, size_t len, struct err *err);
/* Appends the normal form of well-formed text, in time proportional to its length. */
struct normal_form {
  bool compose, compatible;
};
enum rc text_normalize(struct buf *out, const char *text, size_t len, struct normal_form form, struct err *err);
/* false when text is certainly in that form. */
bool text_may_change(const char *text, size_t len, struct normal_form form);

/* --- normalize.c --- */
/* Runs the normalizer over a piece, which then lies in the buffers or is as before. */
enum rc normalize_piece(struct piece *p, const struct tokenizer *t, struct buf work[2], struct matcher *m,
                        struct err *err);

/* --- text.c --- */
/* Encodes a whole text, whose bytes are UTF-8. */
enum rc text_encode(struct encoder *e, const char *text, size_t len, struct err *err);

/* --- token_bytes.c --- */
/* Fills in every token's bytes. */
enum rc decoder_fill_bytes(struct tokenizer *t, struct err *err);

/* --- added_tokens.c --- */
struct added_match {
  size_t start, stop; /* the bytes that the token takes, stripped white space included */
  int32_t id;
};
/* The next match at or after *at; *at moves behind the text that was searched.  done: the end of the match before. */
bool added_next(struct added_match *out, const struct added_set *set, const char *text, size_t len, size_t *at,
                size_t done, bool parse_special);

#endif
