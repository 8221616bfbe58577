/* Computes SHA-256 digests, reads and writes hexadecimal.
 *
 * libcrypto's plain SHA256_* functions are used although OpenSSL 3 prefers EVP: they keep their state in the caller's
 * memory and cannot fail, whereas EVP allocates.  Both reach the same SHA-NI code. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "common/base/digest.h"

#include <openssl/crypto.h>
#include <string.h>

void digest_begin(struct digest_state *s) { SHA256_Init(&s->sha); }

void digest_update(struct digest_state *s, const void *bytes, size_t len) {
  if (len) SHA256_Update(&s->sha, bytes, len);
}

void digest_update_u32(struct digest_state *s, uint32_t value) {
  uint8_t le[4];
  for (int i = 0; i < 4; i++) le[i] = (uint8_t)(value >> 8 * i);
  digest_update(s, le, sizeof le);
}

void digest_update_u64(struct digest_state *s, uint64_t value) {
  uint8_t le[8];
  for (int i = 0; i < 8; i++) le[i] = (uint8_t)(value >> 8 * i);
  digest_update(s, le, sizeof le);
}

/* The prefix is the length in bytes as u64. */
void digest_update_text(struct digest_state *s, const char *text) {
  const size_t len = strlen(text);
  digest_update_u64(s, len);
  digest_update(s, text, len);
}

void digest_end(struct digest *out, struct digest_state *s) { SHA256_Final(out->bytes, &s->sha); }

void digest_of(struct digest *out, const void *bytes, size_t len) {
  struct digest_state s;
  digest_begin(&s);
  digest_update(&s, bytes, len);
  digest_end(out, &s);
}

void hex_write(char *out, const void *bytes, size_t count) {
  static const char digits[] = "0123456789abcdef";
  const unsigned char *from = bytes;
  for (size_t i = 0; i < count; i++) {
    out[2 * i] = digits[from[i] >> 4];
    out[2 * i + 1] = digits[from[i] & 15];
  }
  out[2 * count] = '\0';
}

static int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool hex_read(void *bytes, size_t count, const char *text) {
  unsigned char *to = bytes;
  for (size_t i = 0; i < count; i++) {
    const int high = hex_value(text[2 * i]);
    if (high < 0) return false; /* also at the NUL, before the next byte is read */
    const int low = hex_value(text[2 * i + 1]);
    if (low < 0) return false;
    to[i] = (unsigned char)(high << 4 | low);
  }
  return text[2 * count] == '\0';
}

void digest_hex(char out[DIGEST_HEX_MAX], const struct digest *d) { hex_write(out, d->bytes, DIGEST_BYTES); }

bool digest_from_hex(struct digest *out, const char *text) {
  struct digest d;
  if (!hex_read(d.bytes, DIGEST_BYTES, text)) return false;
  *out = d;
  return true;
}

bool digest_equal(const struct digest *a, const struct digest *b) {
  return memcmp(a->bytes, b->bytes, DIGEST_BYTES) == 0;
}

bool digest_same_secret(const struct digest *a, const struct digest *b) {
  return CRYPTO_memcmp(a->bytes, b->bytes, DIGEST_BYTES) == 0;
}
