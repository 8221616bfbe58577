/* Maps bytes to the byte alphabet, and a token's content to its id.
 *
 * GPT-2's alphabet gives each byte a printable character: printable ASCII and Latin-1 stand for themselves, the other
 * 68 bytes follow in order from U+0100.  So a token of any bytes is a JSON string.  The map is filled while loading
 * and only read afterwards; its keys are the contents that the token table holds. */
#include <stdlib.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/model/tokenizer/tokenizer_state.h"

enum { MOVED_FIRST = 0x100 };

static bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

/* Bytes below this one that were moved. */
static uint32_t moved_below(uint32_t byte) {
  uint32_t count = 0;
  for (uint32_t b = 0; b < byte; b++) count += !stands_for_itself(b);
  return count;
}

uint32_t alphabet_code(uint8_t byte) { return stands_for_itself(byte) ? byte : MOVED_FIRST + moved_below(byte); }

int alphabet_byte(uint32_t code) {
  if (code < MOVED_FIRST) return stands_for_itself(code) ? (int)code : -1;
  for (uint32_t b = 0, next = MOVED_FIRST; b < 256; b++) {
    if (stands_for_itself(b)) continue;
    if (next++ == code) return (int)b;
  }
  return -1;
}

void alphabet_spell(struct buf *out, const char *bytes, size_t len) {
  for (size_t i = 0; i < len; i++) {
    const uint32_t code = alphabet_code((uint8_t)bytes[i]);
    char utf8[2] = {(char)code};
    if (code >= 0x80) {
      utf8[0] = (char)(0xC0 | code >> 6);
      utf8[1] = (char)(0x80 | (code & 0x3F));
    }
    buf_append(out, utf8, code >= 0x80 ? 2 : 1);
  }
}

void alphabet_read(struct buf *out, const char *content, size_t len) {
  const size_t before = out->len;
  for (size_t i = 0; i < len;) {
    uint32_t code;
    const size_t step = text_code(&code, content + i, len - i);
    const int byte = step ? alphabet_byte(code) : -1;
    if (byte < 0) {
      out->len = before;
      buf_append(out, content, len);
      return;
    }
    buf_append(out, &(char){(char)byte}, 1);
    i += step;
  }
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                : -1;
}

int fallback_byte(const char *content, size_t len) {
  if (len != 6 || memcmp(content, "<0x", 3) != 0 || content[5] != '>') return -1;
  const int high = hex_digit(content[3]), low = hex_digit(content[4]);
  return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* The keys come with the model, not from strangers. */
static size_t hash(const char *content, size_t len) {
  const uint64_t h = fnv1a(FNV1A_BEGIN, content, len);
  return (size_t)(h ^ h >> 32);
}

enum rc token_map_make(struct token_map *map, size_t count, struct err *err) {
  size_t slots = 16;
  while (slots < count * 2) slots *= 2;
  map->slots = malloc(slots * sizeof *map->slots);
  if (!map->slots)
    return err_set(err, RC_NO_MEMORY, NULL, "a map of %zu tokens was refused %zu bytes", count,
                   slots * sizeof *map->slots);
  memset(map->slots, 0xFF, slots * sizeof *map->slots); /* -1: free */
  map->mask = slots - 1;
  return RC_OK;
}

/* The slot of content, or the free one where it belongs. */
static size_t slot_of(const struct token_map *map, const struct token *tokens, const char *content, size_t len) {
  size_t slot = hash(content, len) & map->mask;
  for (;; slot = (slot + 1) & map->mask) {
    const int32_t id = map->slots[slot];
    if (id < 0 || (tokens[id].content_len == len && memcmp(tokens[id].content, content, len) == 0)) return slot;
  }
}

void token_map_insert(struct token_map *map, const struct token *tokens, int32_t id) {
  map->slots[slot_of(map, tokens, tokens[id].content, tokens[id].content_len)] = id;
}

int32_t token_map_find(const struct token_map *map, const struct token *tokens, const char *content, size_t len) {
  return map->slots[slot_of(map, tokens, content, len)];
}
