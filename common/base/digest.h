/* SHA-256 through OpenSSL's libcrypto, a hash for tables, and hexadecimal.
 *
 * Called from every thread, also from the token loop, so nothing here allocates or fails. */
#ifndef LEASEHOLD_BASE_DIGEST_H
#define LEASEHOLD_BASE_DIGEST_H

#include <openssl/sha.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DIGEST_BYTES = 32, DIGEST_HEX_MAX = 65 };

struct digest {
  uint8_t bytes[DIGEST_BYTES];
};

/* A digest in progress, on the caller's stack; its content is digest.c's alone. */
struct digest_state {
  SHA256_CTX sha;
};

/* Nothing is allocated, so a digest cannot fail and needs no cleaning up. */
void digest_begin(struct digest_state *s);
void digest_update(struct digest_state *s, const void *bytes, size_t len);
/* Little-endian integers and length-prefixed text, for canonical byte strings. */
void digest_update_u32(struct digest_state *s, uint32_t value);
void digest_update_u64(struct digest_state *s, uint64_t value);
void digest_update_text(struct digest_state *s, const char *text);
/* The state must be begun again before it is used again. */
void digest_end(struct digest *out, struct digest_state *s);
void digest_of(struct digest *out, const void *bytes, size_t len);

/* Writes 2 * count lower-case hexadecimal digits and NUL.  Reads them back: false unless text is exactly that many
 * digits, of either case. */
void hex_write(char *out, const void *bytes, size_t count);
bool hex_read(void *bytes, size_t count, const char *text);

/* 64 lower-case hexadecimal digits and NUL. */
void digest_hex(char out[DIGEST_HEX_MAX], const struct digest *d);
/* false unless text is exactly 64 hexadecimal digits. */
bool digest_from_hex(struct digest *out, const char *text);
bool digest_equal(const struct digest *a, const struct digest *b);
/* The same in a time that does not depend on what they are: for digests of secrets. */
bool digest_same_secret(const struct digest *a, const struct digest *b);

/* FNV-1a in 64 bits: for tables and votes, where nobody gains by two texts of one hash.  Goes on from `hash`, at first
 * FNV1A_BEGIN. */
#define FNV1A_BEGIN 0xCBF29CE484222325u
static inline uint64_t fnv1a(uint64_t hash, const void *bytes, size_t len) {
  const uint8_t *b = bytes;
  for (size_t i = 0; i < len; i++) hash = (hash ^ b[i]) * 0x100000001B3u;
  return hash;
}

#endif
