/* The lengths of UTF-8 sequences, for cutting arbitrary bytes between characters: in answers, streams, JSON, errors. */
#ifndef LEASEHOLD_BASE_UTF8_H
#define LEASEHOLD_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* The length of the well-formed sequence (Unicode, table 3-7) at text, of which len > 0 bytes are given; 0: not
 * well-formed, the first byte stands alone; -1: more bytes are needed to tell. */
static inline int utf8_length(const char *text, size_t len) {
  const unsigned char *s = (const unsigned char *)text;
  unsigned char low = 0x80, high = 0xBF; /* of the second byte */
  int n;
  if (s[0] < 0x80) return 1;
  if (s[0] >= 0xC2 && s[0] <= 0xDF)
    n = 2;
  else if (s[0] >= 0xE0 && s[0] <= 0xEF)
    n = 3;
  else if (s[0] >= 0xF0 && s[0] <= 0xF4)
    n = 4;
  else
    return 0;
  if (s[0] == 0xE0) low = 0xA0;
  if (s[0] == 0xED) high = 0x9F;
  if (s[0] == 0xF0) low = 0x90;
  if (s[0] == 0xF4) high = 0x8F;
  for (int i = 1; i < n; i++) {
    if ((size_t)i == len) return -1;
    if (s[i] < low || s[i] > high) return 0;
    low = 0x80;
    high = 0xBF;
  }
  return n;
}

enum { UTF8_BYTES_MAX = 4 };

/* The length of text before a sequence at its end that more bytes may still make whole. */
static inline size_t utf8_whole(const char *text, size_t len) {
  size_t at = len > UTF8_BYTES_MAX - 1 ? len - (UTF8_BYTES_MAX - 1) : 0;
  for (; at < len; at++) /* only a lead byte gives -1, and no sequence before it reaches over it */
    if (utf8_length(text + at, len - at) < 0) return at;
  return len;
}

/* Characters of well-formed text: its bytes but those that continue one. */
static inline size_t utf8_characters(const char *text, size_t len) {
  size_t count = 0;
  for (size_t i = 0; i < len; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
  return count;
}

/* The largest length up to len at which text can be cut between characters; text[len] is read. */
static inline size_t utf8_cut(const char *text, size_t len) {
  while (len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80) len--;
  return len;
}

/* Is all of a NUL-terminated text visible ASCII? A blank is not. */
static inline bool ascii_visible(const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text <= ' ' || (unsigned char)*text > '~') return false;
  return true;
}

#endif
